"""Stand-in for beartype: checks nothing.

Invariant: a decorated object is returned as it is. It lies last on sys.path, so a real `beartype` (build --with
beartype) wins. The one user in the bundle is py-key-value, which checks its own calls with it; the real package costs
1.6 MB and ten times the first `tools/list`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar, overload

__all__ = ["BeartypeConf", "BeartypeStrategy", "beartype"]

T = TypeVar("T")


class BeartypeStrategy(Enum):
    """How much would be checked."""

    O0 = 0
    O1 = 1
    Ologn = 2
    On = 3


class BeartypeConf:
    """Accepts any option and keeps it."""

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


@overload
def beartype(obj: T) -> T: ...
@overload
def beartype(*, conf: BeartypeConf) -> Callable[[T], T]: ...
def beartype(obj: Any = None, *, conf: BeartypeConf | None = None) -> Any:
    """Return `obj` as it is, or a decorator that does."""
    if obj is None:
        return lambda decorated: decorated
    return obj
