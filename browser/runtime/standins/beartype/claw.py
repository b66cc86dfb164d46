"""Stand-in for `beartype.claw`: its import hooks hook nothing."""

from __future__ import annotations

from typing import Any

__all__ = ["beartype_all", "beartype_package", "beartype_packages", "beartype_this_package"]


def _nothing(*_names: Any, **_options: Any) -> None:
    """Accept the arguments of any of the hooks."""


beartype_all = beartype_package = beartype_packages = beartype_this_package = _nothing
