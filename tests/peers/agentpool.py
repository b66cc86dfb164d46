"""Stock agentpool with Sandport's add-on, its demo agent told in prompts what to call."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from tests.peers.channels import ROOT, Exchange, process
from tests.peers.driver import AgentPeer, drive
from tests.peers.suite import Case, Suite, check, same

__all__ = ["suites"]

VERSION = "2.9.18"


def _program() -> Path:
    return Path(os.environ.get("SANDPORT_AGENTPOOL") or ROOT / ".venv-agentpool" / "bin" / "sandport")


async def calls_a_tool(peer: AgentPeer) -> None:
    answer = await peer.say('Call add with {"a": 2, "b": 40}')
    check("42" in answer, answer)


async def values_come_unharmed(peer: AgentPeer) -> None:
    answer = await peer.say('Call echo with {"value": "\u00fc \U0001f600 9007199254740993"}')
    check("\u00fc \U0001f600 9007199254740993" in answer, answer)


async def speaks_a_connect_dialect(peer: AgentPeer) -> None:
    answer = await peer.say("Call who with {}")
    check("connect-" in answer, answer)


async def tool_failure_is_told(peer: AgentPeer) -> None:
    answer = await peer.say("Call fail with {}")
    check("the tool failed" in answer, answer)


async def tool_calls_are_shown(peer: AgentPeer) -> None:
    await peer.say('Call add with {"a": 1, "b": 1}')
    states = [update.get("status") for update in peer.updates if "toolCallId" in update]
    check("completed" in states, f"states of the call: {states}")


async def asks_the_person(peer: AgentPeer) -> None:
    """The tool's question becomes a question of the agent's to its client, and the answer comes back."""
    answer = await peer.say("Call ask with {}")
    check("accept" in answer or "decline" in answer, answer)
    check(peer.questions, "the client was not asked")


async def cancel_stops_the_tool(peer: AgentPeer) -> None:
    before = peer.tools.stopped
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.say, "Call block with {}")
        await peer.tools.until(running=1)
        await peer.cancel()
        await peer.tools.until(running=0)
    same(peer.tools.stopped, before + 1)
    check("3" in await peer.say('Call add with {"a": 1, "b": 2}'), "the agent is not well after a cancellation")


CASES: list[Case] = [
    calls_a_tool,
    values_come_unharmed,
    speaks_a_connect_dialect,
    tool_failure_is_told,
    tool_calls_are_shown,
    asks_the_person,
    cancel_stops_the_tool,
]


@asynccontextmanager
async def _opened(exchange: Exchange) -> AsyncIterator[AgentPeer]:
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "LOGFIRE_IGNORE_NO_CONFIG": "1"}
        async with (
            process([str(_program()), "agentpool", "serve-acp", "--demo"], exchange, env=env) as channel,
            drive(channel, exchange, "connect-acpId") as peer,
        ):
            yield peer


def suites() -> list[Suite]:
    """The one suite; it needs the environment of agentpool."""
    program = _program()
    missing = None if program.exists() else f"{program} is missing: ./build.sh peers sets it up"
    return [Suite("agentpool + add-on", VERSION, "connect-acpId", "agent, stdio", CASES, _opened, True, missing)]
