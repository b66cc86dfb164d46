"""agentpool's fork (wolfharness 4.0.0), which has an MCP-over-ACP of its own, driven by prompts. Where it is installed.

It is looked for at `SANDPORT_FORK` (its `wolfharness` script) and in `.venv-fork` beside the project; docs/agentpool.md
says how it gets there. Its model is the demo agent's script. The rules are those of docs/dialects.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from tests.peers.agentpool import (
    calls_a_tool,
    speaks_a_connect_dialect,
    tool_calls_are_shown,
    tool_failure_is_told,
    values_come_unharmed,
)
from tests.peers.channels import ROOT, Exchange, process
from tests.peers.driver import AgentPeer, drive
from tests.peers.suite import Case, Suite, check, same

__all__ = ["suites"]

CONFIG = """\
agents:
  demo:
    type: native
    model: {type: import, model: sandport_native.demo.model.MODEL}
    system_prompt: "You are a test assistant."
storage: {title_generation_model: null}
"""
CASE_LIMIT = 90.0
"""Seconds for a case: its first prompt shakes hands with the server and loads what it needs."""


def _program() -> Path | None:
    named = os.environ.get("SANDPORT_FORK")
    program = Path(named) if named else ROOT / ".venv-fork" / "bin" / "wolfharness"
    return program if named or program.exists() else None


async def every_request_of_the_lane_is_answered_with_an_object(peer: AgentPeer) -> None:
    """It sends MCP notifications as requests and hangs without an answer; ids count from 0."""
    await calls_a_tool(peer)
    asked = {m["id"]: m for m in peer.exchange.messages("<-") if str(m.get("method", "")).startswith("mcp/")}
    answers = {m["id"]: m for m in peer.exchange.messages("->") if "method" not in m}
    methods = {m["params"].get("method") for m in asked.values()}
    check("notifications/initialized" in methods, f"sent as requests: {methods}")
    for request_id, message in asked.items():
        answer = answers[request_id]
        check(isinstance(answer.get("result"), dict) or "data" in answer["error"], f"{message} got {answer}")


async def an_error_ends_the_call(peer: AgentPeer) -> None:
    """It takes an error without `data` for success and hangs; of ours it keeps the message."""
    peer.tools.server.local_provider.remove_tool("count")  # and it is not told
    answer = await peer.say('Call count with {"to": 1}')
    (error,) = [m["error"] for m in peer.exchange.messages("->") if "error" in m and m["error"]["code"] == -32602]
    check("data" in error, f"{error}")
    check("count" in answer, answer)


async def a_question_fails_the_tool_alone(peer: AgentPeer) -> None:
    """It answers what a server asks with `{}`, which is no answer."""
    answer = await peer.say("Call ask with {}")
    check("42" not in answer, answer)
    await calls_a_tool(peer)


async def cancel_stops_the_tool_and_frees_the_line(peer: AgentPeer) -> None:
    """It passes no cancellation on, and calls one after another: what is left open would block the next call."""
    before = peer.tools.stopped
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.say, "Call block with {}")
        await peer.tools.until(running=1)
        await peer.cancel()
        await peer.tools.until(running=0)
    same(peer.tools.stopped, before + 1)
    await peer.say("help")  # the demo's script takes what became of the call for the newest news
    await calls_a_tool(peer)


CASES: list[Case] = [
    every_request_of_the_lane_is_answered_with_an_object,
    an_error_ends_the_call,
    values_come_unharmed,
    speaks_a_connect_dialect,
    tool_failure_is_told,
    tool_calls_are_shown,
    a_question_fails_the_tool_alone,
    cancel_stops_the_tool_and_frees_the_line,
]


@asynccontextmanager
async def _opened(exchange: Exchange) -> AsyncIterator[AgentPeer]:
    program = _program()
    assert program is not None
    with tempfile.TemporaryDirectory() as home:
        config = Path(home) / "agents.yml"
        config.write_text(CONFIG, encoding="utf-8")
        env = {"HOME": home, "LOGFIRE_IGNORE_NO_CONFIG": "1", "PYTHONPATH": f"{ROOT / 'core'}:{ROOT / 'native'}"}
        command = [str(program), "serve-acp", str(config), "--agent", "demo"]
        async with (
            process(command, exchange, env=env) as channel,
            drive(channel, exchange, "connect-acpId", stops_calls=True) as peer,
        ):
            yield peer


def suites() -> list[Suite]:
    """The one suite; none where the fork is not installed."""
    program = _program()
    if program is None:
        return []
    missing = None if program.exists() else f"SANDPORT_FORK: there is no {program}"
    suite = Suite(
        "agentpool fork", "4.0.0", "connect-acpId", "agent, stdio", CASES, _opened, False, missing, CASE_LIMIT
    )
    return [suite]
