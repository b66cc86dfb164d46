"""Threads that are none: `anyio.to_thread` runs its function inline.

Invariant: a function given to `anyio.to_thread.run_sync` runs in a copy of the caller's context, after a checkpoint,
and its result or exception (KeyboardInterrupt too) reaches the caller; no thread is started. FastMCP sends every
synchronous tool, resource and prompt that way, and Pyodide cannot start threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from anyio._backends._asyncio import AsyncIOBackend

__all__ = ["install"]


async def _run_inline(
    cls: type[AsyncIOBackend],
    func: Callable[..., Any],
    args: tuple[Any, ...],
    abandon_on_cancel: bool = False,
    limiter: Any = None,
) -> Any:
    await cls.checkpoint()
    # Inline there is nothing to abandon; the limiter counts threads, and bounds a tool's own concurrency too.
    if limiter is None:
        return copy_context().run(func, *args)
    async with limiter:
        return copy_context().run(func, *args)


def install() -> None:
    """Replace anyio's worker threads; idempotent."""
    AsyncIOBackend.run_sync_in_worker_thread = classmethod(_run_inline)  # type: ignore[method-assign, assignment]
