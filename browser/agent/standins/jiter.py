"""Stands in for `jiter`, by pydantic-core, which is built on the same parser: no second native module to load.

`openai` imports it for the streaming helpers that pydantic-ai does not use.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic_core import from_json as _from_json

__all__ = ["from_json"]


def from_json(
    json_data: bytes,
    /,
    *,
    allow_inf_nan: bool = True,
    cache_mode: Literal["all", "keys", "none"] = "all",
    partial_mode: bool | Literal["off", "on", "trailing-strings"] = False,
) -> Any:
    """As `jiter.from_json`."""
    return _from_json(json_data, allow_inf_nan=allow_inf_nan, cache_strings=cache_mode, allow_partial=partial_mode)
