"""The agent's process seen from inside: what a gateway in another process shows only after a long time."""

from __future__ import annotations

import sys

import anyio
import pytest

from sandport_native import process
from sandport_native.process import AgentSpec, AgentStuckError, open_agent

pytestmark = pytest.mark.anyio

KIB = 1024


def spec(code: str) -> AgentSpec:
    return AgentSpec("test", [sys.executable, "-c", code])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "READ_AHEAD", 256 * KIB)
    monkeypatch.setattr(process, "PIPE_BYTES", 64 * KIB)
    monkeypatch.setattr(process, "INPUT_TIMEOUT", 0.5)


@pytest.mark.usefixtures("short")
async def test_an_agent_that_takes_nothing_is_stuck() -> None:
    async with open_agent(spec("import time; time.sleep(60)"), eof_grace=0.1) as agent:
        with anyio.fail_after(10):
            await agent.send("x" * 200 * KIB)  # waits nowhere: below the limit
            with pytest.raises(AgentStuckError, match=r"read nothing for 0\.5 s"):
                await agent.send("x" * 200 * KIB)


@pytest.mark.usefixtures("short")
async def test_a_slow_agent_is_not() -> None:
    """It takes one pipe full at a time, and is given as long as it likes; nothing is sent twice."""
    code = """
import sys, time
size = 0
while data := sys.stdin.buffer.raw.read(65536):
    time.sleep(0.1)
    size += len(data)
    if data.endswith(b"\\n"):
        break
print(size, flush=True)
"""
    async with open_agent(spec(code)) as agent:
        with anyio.fail_after(20):
            await agent.send("x" * 1024 * KIB)
            async for line in agent.receive():
                assert isinstance(line, process.Line)
                assert int(line.data) == 1024 * KIB + 1
                return
    pytest.fail("no answer")


async def test_marks_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's own agents carry its mark at the start of theirs, so that it finds them."""
    monkeypatch.setenv(process.MARK, ".outer")
    async with open_agent(spec(f"import os; print(os.environ[{process.MARK!r}], flush=True)")) as agent:
        async for line in agent.receive():
            assert isinstance(line, process.Line)
            assert line.data.startswith(b".outer.")
            return
    pytest.fail("no answer")
