"""FastMCP without what a sandbox has no use for; a small call takes about a third less time.

Spans: nothing in the sandbox can export them, yet FastMCP makes two a call, with all their attributes. Its own setting
`propagation_only` leaves them out. Look-ups: FastMCP asks a server's providers in a task group, also where there is but
one. In the sandbox all of them answer from memory, so asking one after the other gives the same, without the tasks.

Invariant: what a server answers is the same with and without this; a FastMCP that has not the parts meant here is left
as it is.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Awaitable, Iterable
from inspect import iscoroutine
from typing import Any, Final

__all__ = ["gather", "install", "prepare_environment"]

LOOKUPS: Final = ("fastmcp.server.providers.aggregate", "fastmcp.server.providers.base")
"""Modules that ask several providers for tools, prompts and resources, by a function `gather` of FastMCP's own."""


def prepare_environment() -> None:
    """Settings that FastMCP reads when it is imported."""
    os.environ["FASTMCP_TELEMETRY_MODE"] = "propagation_only"


def install() -> None:
    """Put `gather` in the place of FastMCP's; call it when FastMCP may be imported. Idempotent."""
    for name in LOOKUPS:
        module = importlib.import_module(name)
        if callable(getattr(module, "gather", None)):
            module.gather = gather  # type: ignore[attr-defined]


async def gather(awaitables: Iterable[Awaitable[Any]], *, return_exceptions: bool = False) -> list[Any]:
    """As `fastmcp.utilities.async_utils.gather`, in order: results in order, or the first exception."""
    results: list[Any] = []
    left = iter(awaitables)
    for awaitable in left:
        try:
            results.append(await awaitable)
        except Exception as error:
            if return_exceptions:
                results.append(error)
                continue
            for other in left:
                if iscoroutine(other):
                    other.close()
            raise
    return results
