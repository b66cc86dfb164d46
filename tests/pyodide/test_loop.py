"""`SandboxLoop` against asyncio's own loop: each scenario runs on both, and must leave the same trace.

The JavaScript side is a pump: what the loop schedules is called back from outside, as JavaScript's loop does it.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from blocking_loop import BlockingLoop
from sandport_runtime._loop import BUDGET, SandboxLoop

LIMIT: contextvars.ContextVar[float | None] = contextvars.ContextVar("LIMIT", default=None)


class Pump:
    """JavaScript's loop, as far as the sandbox uses it: callbacks after a delay, in order."""

    def __init__(self) -> None:
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.turns = 0
        self._count = itertools.count()

    def schedule(self, callback: Callable[[], None], ms: float) -> None:
        heapq.heappush(self.queue, (time.monotonic() + ms / 1000, next(self._count), callback))

    def turn(self) -> None:
        when, _, callback = heapq.heappop(self.queue)
        time.sleep(max(0.0, when - time.monotonic()))
        self.turns += 1
        callback()

    def until(self, done: Callable[[], bool], limit: int = 10_000) -> None:
        for _ in range(limit):
            if done():
                return
            assert self.queue, "the loop asked for no wake-up, and is not done"
            self.turn()
        raise AssertionError("it does not end")


class Alarm:
    """A deadline that only remembers."""

    def __init__(self) -> None:
        self.calls: list[float | str] = []

    def arm(self, seconds: float) -> None:
        self.calls.append(seconds)

    def disarm(self) -> None:
        self.calls.append("off")


class Sandbox:
    """A loop with its pump; `run` drives a coroutine to its end."""

    def __init__(self, **options: Any) -> None:
        self.pump = Pump()
        before = asyncio._get_running_loop()
        self.loop = SandboxLoop(self.pump.schedule, **options)
        asyncio._set_running_loop(before)

    def run(self, coro: Coroutine[Any, Any, Any]) -> Any:
        task = self.loop.create_task(coro)
        try:
            self.pump.until(task.done)
        finally:
            asyncio._set_running_loop(None)
        return task.result()


def run_blocking(coro: Coroutine[Any, Any, Any]) -> Any:
    loop = BlockingLoop()
    try:
        return loop.run_until_complete(coro)
    finally:
        loop.close()


def both(scenario: Callable[[list[Any]], Coroutine[Any, Any, None]]) -> list[Any]:
    """Run a scenario on both loops and require the same trace; return it."""
    theirs: list[Any] = []
    ours: list[Any] = []
    run_blocking(scenario(theirs))
    Sandbox().run(scenario(ours))
    assert ours == theirs
    return ours


# -- order ----------------------------------------------------------------------------------------------------


def test_handles_run_in_the_order_they_were_made() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        for n in range(5):
            loop.call_soon(trace.append, n)
        loop.call_soon_threadsafe(trace.append, 5)
        await asyncio.sleep(0)
        trace.append("after")

    assert both(scenario) == [0, 1, 2, 3, 4, 5, "after"]


def test_what_becomes_ready_in_a_round_runs_in_a_later_one() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()

        def first() -> None:
            trace.append("first")
            loop.call_soon(trace.append, "from first")

        loop.call_soon(first)
        loop.call_soon(trace.append, "second")
        await asyncio.sleep(0)
        trace.append("task")
        await asyncio.sleep(0)
        trace.append("task again")

    both(scenario)


def test_tasks_interleave_as_in_asyncio() -> None:
    async def worker(name: str, trace: list[Any]) -> None:
        for n in range(3):
            trace.append((name, n))
            await asyncio.sleep(0)

    async def scenario(trace: list[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(worker(name, trace))

    both(scenario)


def test_timers_run_by_time_then_by_age() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.call_at(now + 0.03, trace.append, "late")
        loop.call_at(now + 0.01, trace.append, "early")
        loop.call_later(0.02, trace.append, "middle")
        loop.call_later(0, trace.append, "now")
        loop.call_later(-1, trace.append, "past")
        await asyncio.sleep(0.05)

    assert set(both(scenario)[:2]) == {"now", "past"}


def test_a_timer_is_not_starved_by_callbacks_that_follow_one_another() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        fired = asyncio.Event()
        rounds = 0

        def again() -> None:
            nonlocal rounds
            rounds += 1
            if not fired.is_set():
                loop.call_soon(again)

        loop.call_soon(again)
        loop.call_later(0.005, fired.set)
        await fired.wait()
        trace.append(rounds > 1)

    both(scenario)


def test_cancelled_handles_and_timers_do_not_run() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(trace.append, "no").cancel()
        timer = loop.call_later(0.005, trace.append, "never")
        timer.cancel()
        trace.append(timer.cancelled())
        await asyncio.sleep(0.01)

    assert both(scenario) == [True]


def test_cancelled_timers_are_swept_and_ask_for_no_wake_up() -> None:
    sandbox = Sandbox()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(500):
            loop.call_later(3600, print).cancel()
        await asyncio.sleep(0.001)

    sandbox.run(scenario())
    assert len(sandbox.loop._scheduled) == 0
    assert len(sandbox.pump.queue) <= 2


# -- errors ---------------------------------------------------------------------------------------------------


def test_an_exception_in_a_callback_goes_to_the_handler_and_harms_nobody() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: trace.append((type(context["exception"]), "handle" in context)))
        loop.call_soon(lambda: 1 / 0)
        loop.call_soon(trace.append, "next")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.set_exception_handler(None)

    assert both(scenario) == [(ZeroDivisionError, True), "next"]


def test_a_handler_that_raises_is_reported_and_harms_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()

        def bad(_: Any, context: dict[str, Any]) -> None:
            raise RuntimeError("the handler itself")

        loop.set_exception_handler(bad)
        loop.call_soon(lambda: 1 / 0)
        loop.call_soon(trace.append, "next")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.set_exception_handler(None)

    assert both(scenario) == ["next"]


def test_a_task_nobody_awaits_reports_its_exception_once() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: trace.append(context["message"]))

        async def fails() -> None:
            raise ValueError

        task = asyncio.create_task(fails())
        await asyncio.sleep(0)
        del task
        await asyncio.sleep(0)
        loop.set_exception_handler(None)

    assert both(scenario) == ["Task exception was never retrieved"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_loses_no_other_handle(kind: type[BaseException]) -> None:
    sandbox = Sandbox()
    seen: list[str] = []
    reports: list[str] = []
    loop = sandbox.loop
    loop.set_exception_handler(lambda _, context: reports.append(type(context["exception"]).__name__))

    def interrupt() -> None:
        seen.append("before")
        raise kind

    async def scenario() -> None:
        loop.call_soon(interrupt)
        loop.call_soon(seen.append, "after")
        loop.call_later(0.001, seen.append, "timer")
        await asyncio.sleep(0.01)

    sandbox.run(scenario())
    assert seen == ["before", "after", "timer"]
    assert reports == [kind.__name__]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_who_awaits_an_interrupted_task_learns_it(kind: type[BaseException]) -> None:
    sandbox = Sandbox()
    sandbox.loop.set_exception_handler(lambda _, context: None)

    async def interrupted() -> None:
        raise kind

    async def scenario() -> str:
        try:
            await asyncio.create_task(interrupted())
        except kind:
            return "learned"
        return "not"

    assert sandbox.run(scenario()) == "learned"


def test_cancellation_and_timeouts_are_those_of_asyncio() -> None:
    async def scenario(trace: list[Any]) -> None:
        async def waits(name: str) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                trace.append(f"{name} cancelled")
                raise

        task = asyncio.create_task(waits("a"))
        await asyncio.sleep(0)
        task.cancel("why")
        try:
            await task
        except asyncio.CancelledError as exc:
            trace.append(exc.args)
        try:
            async with asyncio.timeout(0.005):
                await waits("b")
        except TimeoutError:
            trace.append("timeout")
        shielded = asyncio.create_task(asyncio.sleep(0.001, "kept"))
        outer = asyncio.ensure_future(asyncio.shield(shielded))
        outer.cancel()
        trace.append(await shielded)
        results = await asyncio.gather(asyncio.sleep(0, 1), waits_and_fails(), return_exceptions=True)
        trace.append([type(result).__name__ for result in results])

    async def waits_and_fails() -> None:
        await asyncio.sleep(0)
        raise LookupError

    both(scenario)


def test_context_variables_belong_to_their_task() -> None:
    async def scenario(trace: list[Any]) -> None:
        variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
        loop = asyncio.get_running_loop()

        async def sets(value: int) -> None:
            variable.set(value)
            await asyncio.sleep(0)
            trace.append(variable.get())

        await asyncio.gather(sets(1), sets(2))
        trace.append(variable.get())
        context = contextvars.copy_context()
        context.run(variable.set, 7)
        loop.call_soon(lambda: trace.append(variable.get()), context=context)
        loop.call_later(0, lambda: trace.append(variable.get()), context=context)
        await asyncio.sleep(0.005)

    assert both(scenario) == [1, 2, 0, 7, 7]


def test_async_generators_are_closed_when_they_are_dropped() -> None:
    async def scenario(trace: list[Any]) -> None:
        async def numbers() -> Any:
            try:
                yield 1
                yield 2
            finally:
                trace.append("closed")

        async for _ in numbers():
            break
        for _ in range(3):
            await asyncio.sleep(0)

    assert both(scenario) == ["closed"]


def test_eager_tasks_and_factories() -> None:
    async def scenario(trace: list[Any]) -> None:
        loop = asyncio.get_running_loop()

        async def quick() -> str:
            trace.append("ran")
            return "done"

        task = asyncio.Task(quick(), loop=loop, eager_start=True)
        trace.append(task.done())
        loop.set_task_factory(asyncio.eager_task_factory)
        trace.append(asyncio.create_task(quick()).done())
        loop.set_task_factory(None)

    assert both(scenario) == ["ran", True, "ran", True]


# -- what only the sandbox has --------------------------------------------------------------------------------


def test_javascript_gets_its_turn_while_python_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox()
    clock = itertools.count()
    # A clock by which each look costs a millisecond: so a turn is eight handles or fewer.
    monkeypatch.setattr(sandbox.loop, "time", lambda: next(clock) / 1000)

    async def busy() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    sandbox.run(busy())
    assert sandbox.pump.turns >= 100 / (BUDGET * 1000)
    assert not sandbox.loop._ready


def test_many_handles_cost_one_turn() -> None:
    sandbox = Sandbox()

    async def hops() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    sandbox.run(hops())
    assert sandbox.pump.turns <= 3


def test_the_deadline_is_armed_for_limited_handles_alone() -> None:
    alarm = Alarm()
    sandbox = Sandbox(deadline=alarm, time_limit=LIMIT)

    async def limited() -> None:
        LIMIT.set(2.5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def free() -> None:
        await asyncio.sleep(0)

    sandbox.run(free())
    assert alarm.calls == []
    sandbox.run(limited())
    assert alarm.calls == [2.5, "off", 2.5, "off"]


def test_the_deadline_ends_endless_code_and_the_loop_goes_on() -> None:
    from sandbox_host import arm, disarm

    class Real:
        def arm(self, seconds: float) -> None:
            arm(seconds)

        def disarm(self) -> None:
            disarm()

    sandbox = Sandbox(deadline=Real(), time_limit=LIMIT)

    async def endless() -> str:
        LIMIT.set(0.2)
        await asyncio.sleep(0)
        try:
            while True:
                pass
        except KeyboardInterrupt:
            return "stopped"

    began = time.monotonic()
    assert sandbox.run(endless()) == "stopped"
    assert time.monotonic() - began < 5
    assert sandbox.run(asyncio.sleep(0, "alive")) == "alive"


def test_a_call_from_javascript_runs_what_it_made_ready_at_once() -> None:
    sandbox = Sandbox()
    seen: list[int] = []
    sandbox.loop.call_soon(seen.append, 1)
    sandbox.loop.run_ready()
    asyncio._set_running_loop(None)
    assert seen == [1]


def test_running_within_a_handle_does_nothing() -> None:
    sandbox = Sandbox()
    seen: list[str] = []

    async def nested() -> None:
        sandbox.loop.call_soon(seen.append, "later")
        sandbox.loop.run_ready()
        seen.append("first")
        await asyncio.sleep(0)

    sandbox.run(nested())
    assert seen == ["first", "later"]


def test_a_step_of_javascripts_runs_and_then_what_it_made_ready_without_another_turn() -> None:
    sandbox = Sandbox()
    seen: list[str] = []

    def step(name: str) -> None:
        sandbox.loop.call_soon(seen.append, f"{name} made this")
        sandbox.loop.call_soon(sandbox.loop.call_soon, seen.append, f"{name} made that")
        seen.append(name)

    sandbox.loop.run_after(step, "step")
    asyncio._set_running_loop(None)
    assert seen == ["step", "step made this", "step made that"]
    assert sandbox.pump.queue == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_step_that_raises_loses_no_handle(kind: type[BaseException]) -> None:
    sandbox = Sandbox()
    seen: list[str] = []

    def step() -> None:
        sandbox.loop.call_soon(seen.append, "made before")
        raise kind("step")

    with pytest.raises(kind, match="step"):
        sandbox.loop.run_after(step)
    asyncio._set_running_loop(None)
    assert seen == ["made before"]
    # The loop goes on: what comes is scheduled again.
    sandbox.loop.call_soon(seen.append, "later")
    sandbox.pump.until(lambda: "later" in seen)


def test_a_step_within_a_handle_only_runs() -> None:
    sandbox = Sandbox()
    seen: list[str] = []

    async def nested() -> None:
        sandbox.loop.run_after(sandbox.loop.call_soon, seen.append, "later")
        seen.append("first")
        await asyncio.sleep(0)

    sandbox.run(nested())
    assert seen == ["first", "later"]


def test_a_step_makes_a_waiting_task_and_timers_go_on() -> None:
    sandbox = Sandbox()
    seen: list[str] = []

    async def waits(arrived: asyncio.Event) -> None:
        await arrived.wait()
        seen.append("woken")
        await asyncio.sleep(0.001)
        seen.append("slept")

    arrived = asyncio.Event()
    task = sandbox.loop.create_task(waits(arrived))
    sandbox.loop.run_ready()
    sandbox.loop.run_after(arrived.set)
    assert seen == ["woken"]
    sandbox.pump.until(task.done)
    asyncio._set_running_loop(None)
    assert seen == ["woken", "slept"]
