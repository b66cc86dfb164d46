"""asyncio's own loop where there is nothing to wait for but time: no sockets, no threads.

Invariant: it is `asyncio.BaseEventLoop` unchanged but for the selector; so a test that runs on it inside Pyodide sees
asyncio's semantics, and can be run to its end without giving way to JavaScript.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Sleeper:
    """A selector without files: it waits."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready, nothing is scheduled, and nothing else can happen")
        if timeout > 0:
            time.sleep(timeout)
        return []


class BlockingLoop(BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Sleeper()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """One thread: nobody to wake."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Inline, as Pyodide's loop does it."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as exc:
            future.set_exception(exc)
        return future


class _Policy(asyncio.events._AbstractEventLoopPolicy):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("there is no current event loop")
        return self._loop

    def set_event_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return BlockingLoop()


@contextmanager
def installed() -> Iterator[None]:
    """Within this, `asyncio.run` and anyio's test runner work; Pyodide's loop is set aside."""
    from pyodide import webloop

    web = asyncio._get_running_loop()
    policy = asyncio.events._get_event_loop_policy()  # type: ignore[attr-defined]
    run = asyncio.run
    asyncio._set_running_loop(None)
    asyncio.events._set_event_loop_policy(_Policy())  # type: ignore[attr-defined]
    asyncio.run = webloop._orig_run
    try:
        yield
    finally:
        asyncio.run = run
        asyncio.events._set_event_loop_policy(policy)  # type: ignore[attr-defined]
        asyncio._set_running_loop(web)
