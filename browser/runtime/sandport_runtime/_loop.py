"""The sandbox's event loop: asyncio's order and rules, in batches, on top of JavaScript's own loop.

Pyodide's WebLoop hands every handle to JavaScript by itself: one callback, one proxy and one task of the JavaScript
loop each, and a FastMCP call takes about twenty handles. This loop keeps its own queue and heap, as
`asyncio.BaseEventLoop` does, and asks JavaScript for one wake-up at a time.

Invariants:

- handles run in the order in which they were made ready, and one that became ready during a round runs in a later
  round, as in `BaseEventLoop._run_once`;
- after `BUDGET` seconds the loop gives JavaScript a turn, so that messages arrive while Python is busy;
- an exception, KeyboardInterrupt or SystemExit that leaves a handle never loses another handle: what is ready stays
  ready, and a wake-up for it is always pending;
- the deadline is armed exactly while a handle runs whose context carries a time limit.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, Final, Protocol

from pyodide.webloop import WebLoop

__all__ = ["BUDGET", "Deadline", "SandboxLoop"]

BUDGET: Final = 0.008
"""Seconds that handles may run before JavaScript gets a turn: half a frame at 60 Hz, and some four hundred handles."""

MAX_TIMEOUT: Final = (2**31 - 1) / 1000
"""Seconds: the longest delay of JavaScript's setTimeout. A longer timer wakes the loop in between, for nothing."""

MIN_CANCELLED: Final = 100
"""Cancelled timers are swept when there are more than these, and half the heap (the numbers of BaseEventLoop)."""


class Deadline(Protocol):
    """What interrupts Python code that does not return to the loop; see `boot.ts`, `Deadline`."""

    def arm(self, seconds: float) -> None:
        """Raise KeyboardInterrupt in the running code when it is still running after `seconds`."""

    def disarm(self) -> None:
        """Forget what `arm` asked for."""


class SandboxLoop(WebLoop):  # type: ignore[misc]
    """An event loop that never blocks and never ends, like WebLoop, with asyncio's scheduling.

    Args:
        schedule: `schedule(callback, ms)` calls back from JavaScript's loop after `ms` milliseconds. The two
            callbacks it gets are bound methods made once, so the caller can hold one proxy for each.
        deadline: what to arm while a handle with a time limit runs; None for no limits.
        time_limit: the context variable that holds a handle's limit in seconds, or None for no limit.
        wrap: makes what `schedule` can call of a bound method, for as long as the loop lives (`create_proxy`).
    """

    def __init__(
        self,
        schedule: Callable[[Callable[[], None], float], object],
        *,
        deadline: Deadline | None = None,
        time_limit: ContextVar[float | None] | None = None,
        wrap: Callable[[Callable[[], None]], Callable[[], None]] = lambda callback: callback,
    ) -> None:
        super().__init__()
        self._schedule = schedule
        self._time_limit = time_limit if deadline is not None else None
        # Taken once: each look at a JavaScript object's method makes a new bound one.
        self._arm = deadline.arm if deadline is not None else _no_arm
        self._disarm = deadline.disarm if deadline is not None else _no_disarm
        self._ready: deque[asyncio.Handle] = deque()
        self._current_handle: asyncio.Handle | None = None
        self._scheduled: list[asyncio.TimerHandle] = []
        self._cancelled_timers = 0
        self._tick_pending = False
        self._wake_at = math.inf
        self._draining = False
        self._on_tick = wrap(self._tick)
        self._on_wake = wrap(self._wake)

    # -- scheduling

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """As `asyncio.loop.call_soon`."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._tick_pending and not self._draining:
            self._tick_pending = True
            self._schedule(self._on_tick, 0)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As `asyncio.loop.call_later`; a delay that is past runs in the next round."""
        if delay is None:
            raise TypeError("delay must not be None")
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As `asyncio.loop.call_at`."""
        if when is None:
            raise TypeError("when cannot be None")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        if not self._draining:
            self._ask_for_wake()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:  # type: ignore[attr-defined]
            self._cancelled_timers += 1

    # -- futures and tasks: asyncio's own, without WebLoop's bookkeeping for a main program that waits

    def create_future(self) -> asyncio.Future[Any]:
        """As `asyncio.loop.create_future`."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> asyncio.Task[Any]:
        """As `asyncio.loop.create_task` (`name`, `context`, `eager_start`)."""
        if self._task_factory is not None:
            return self._task_factory(self, coro, **kwargs)  # type: ignore[no-any-return]
        return asyncio.Task(coro, loop=self, **kwargs)

    # -- running

    def run_after(self, step: Callable[..., object], *args: Any) -> None:
        """Do what JavaScript asks for, then run what it made ready, as `run_ready` does.

        What `step` makes ready runs at once, so JavaScript is not asked for a turn: that would be a message to itself,
        a second of its tasks and a second entry into Python for each text that arrives.
        """
        if self._draining:
            step(*args)
            return
        self._draining = True
        try:
            step(*args)
        finally:
            self._draining = False
            self.run_ready()

    def run_ready(self) -> None:
        """Run what is ready, for at most about `BUDGET` seconds; called by JavaScript, never by a handle.

        Whoever hands something to Python from JavaScript calls this at once, which saves a turn of JavaScript's loop.
        """
        if self._draining:
            return
        self._install_running_loop()
        self._install_asyncgen_hooks()
        end = self.time() + BUDGET
        ready = self._ready
        self._draining = True
        try:
            self._collect_due()
            while ready:
                # A round: what became ready meanwhile waits until timers had their turn.
                for _ in range(len(ready)):
                    handle = ready.popleft()
                    if not handle._cancelled:
                        self._run_handle(handle)
                    del handle
                    if self.time() >= end:
                        return
                self._collect_due()
        finally:
            self._current_handle = None
            self._draining = False
            if ready and not self._tick_pending:
                self._tick_pending = True
                self._schedule(self._on_tick, 0)
            self._ask_for_wake()

    def _run_handle(self, handle: asyncio.Handle) -> None:
        self._current_handle = handle
        limit = None
        if self._time_limit is not None:
            limit = handle._context.get(self._time_limit)  # type: ignore[attr-defined]
        try:
            if limit is None:
                handle._run()
            else:
                if sys.stdout is None or sys.stderr is None:
                    _restore_streams()
                self._arm(limit)
                try:
                    handle._run()
                finally:
                    self._disarm()
        except SystemExit as exc:
            # asyncio would stop the loop and raise from run_forever; here nobody waits there, and the other
            # connections go on. Who awaits the task sees SystemExit all the same.
            if self._system_exit_handler:
                self._system_exit_handler(exc.code)
            else:
                self._report(exc, handle, "SystemExit left a callback; the sandbox goes on")
        except KeyboardInterrupt as exc:
            if self._keyboard_interrupt_handler:
                self._keyboard_interrupt_handler()
            else:
                self._report(exc, handle, "KeyboardInterrupt left a callback; the sandbox goes on")
        finally:
            # An exception's frames lead back here: they must not keep the handle, and with it the task, alive.
            del handle

    def _report(self, exc: BaseException, handle: asyncio.Handle, message: str) -> None:
        self.call_exception_handler({"message": message, "exception": exc, "handle": handle})

    def _collect_due(self) -> None:
        """Move timers that are due to the ready queue, and drop cancelled ones (as `BaseEventLoop._run_once`)."""
        heap = self._scheduled
        if len(heap) > MIN_CANCELLED and self._cancelled_timers * 2 > len(heap):
            live = []
            for timer in heap:
                if timer._cancelled:
                    timer._scheduled = False  # type: ignore[attr-defined]
                else:
                    live.append(timer)
            heapq.heapify(live)
            # In place: a caller further up may hold the list.
            heap[:] = live
            self._cancelled_timers = 0
        while heap and heap[0]._cancelled:
            self._cancelled_timers -= 1
            heapq.heappop(heap)._scheduled = False  # type: ignore[attr-defined]
        if not heap:
            return
        now = self.time()
        while heap and heap[0].when() <= now:
            timer = heapq.heappop(heap)
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer._cancelled:
                self._cancelled_timers -= 1
            else:
                self._ready.append(timer)

    # -- wake-ups

    def _ask_for_wake(self) -> None:
        """See to it that JavaScript calls back when the first timer is due. setTimeout cannot be taken back through
        Pyodide's scheduler, so an earlier request stays; it then finds nothing due."""
        if not self._scheduled:
            return
        when = self._scheduled[0].when()
        if when >= self._wake_at or when == math.inf:
            return
        delay = min(max(when - self.time(), 0.0), MAX_TIMEOUT)
        self._wake_at = when if delay < MAX_TIMEOUT else self.time() + delay
        # Rounded up: JavaScript drops the fraction of a millisecond, and would wake too early.
        self._schedule(self._on_wake, math.ceil(delay * 1000))

    def _wake(self) -> None:
        self._wake_at = math.inf
        self.run_ready()

    def _tick(self) -> None:
        self._tick_pending = False
        self.run_ready()


def _no_arm(seconds: float) -> None:
    """There is no deadline."""


def _no_disarm() -> None:
    """There is no deadline."""


def _restore_streams() -> None:
    """A tool set sys.stdout or sys.stderr to None: that silences the tool that did it, not the next one."""
    if sys.stdout is None:
        sys.stdout = sys.__stdout__
    if sys.stderr is None:
        sys.stderr = sys.__stderr__
