"""How an agentpool starts beside others. The module imports nothing of agentpool at its top."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from sandport_native.agentpool import serve
from sandport_native.agentpool.serve import one_at_a_time

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(1, flush=True)
sys.stdin.read()
"""


async def test_one_waits_for_the_other(tmp_path: Path) -> None:
    order: list[str] = []

    async def second() -> None:
        async with one_at_a_time(tmp_path / "new" / "lock"):
            order.append("second")

    async with anyio.create_task_group() as tasks, one_at_a_time(tmp_path / "new" / "lock"):
        tasks.start_soon(second)
        await anyio.wait_all_tasks_blocked()
        order.append("first")
    assert order == ["first", "second"]


async def test_another_process_is_waited_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    async with await anyio.open_process(command, stderr=None, stdin=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        await holder.stdout.receive()
        monkeypatch.setattr(serve, "LOCK_TIMEOUT", 0.3)
        start = anyio.current_time()
        async with one_at_a_time(lock):
            assert anyio.current_time() - start >= 0.3
        await holder.stdin.aclose()
        monkeypatch.setattr(serve, "LOCK_TIMEOUT", 20)
        async with one_at_a_time(lock):  # it is free as soon as the other has ended
            assert await holder.wait() == 0


async def test_a_place_that_cannot_be_written_does_not_stop_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with one_at_a_time(tmp_path / "file" / "lock"):
        pass
