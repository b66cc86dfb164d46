"""Sync tools without threads.

FastMCP runs sync tools, resources and prompts through `anyio.to_thread`. Where no thread can be started, and wherever a
host wants none, they run inline instead: on the event loop, between two checkpoints.

Invariant: outside a host that asked for it, `anyio.to_thread` is what it was, unless `everywhere` was asked for.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from anyio import lowlevel
from anyio._backends._asyncio import AsyncIOBackend

__all__ = ["INLINE", "install_inline_threads"]

INLINE: Final[ContextVar[bool]] = ContextVar("sandport_inline", default=False)
"""Whether `anyio.to_thread` runs inline in this context."""

_original: Final = AsyncIOBackend.run_sync_in_worker_thread
_everywhere = False


async def _run(
    backend: type[AsyncIOBackend],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    abandon_on_cancel: bool = False,
    limiter: Any = None,
) -> Any:
    if not (_everywhere or INLINE.get()):
        return await _original(func, args, abandon_on_cancel, limiter)
    # A cancelled call must not run its function, and other tasks get their turn as they would beside a thread.
    await lowlevel.checkpoint()
    return contextvars.copy_context().run(func, *args)


def install_inline_threads(*, everywhere: bool = False) -> None:
    """Let `anyio.to_thread` run inline where `INLINE` is set. Idempotent.

    Args:
        everywhere: in every context of this interpreter: where threads do not exist, as under Pyodide.
    """
    global _everywhere
    _everywhere = _everywhere or everywhere
    AsyncIOBackend.run_sync_in_worker_thread = classmethod(_run)  # type: ignore[method-assign, assignment]
