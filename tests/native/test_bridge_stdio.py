"""`sandport bridge -- COMMAND` as a program: what an editor gets from it, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from acp.helpers import text_block
from anyio.streams.buffered import BufferedByteReceiveStream
from fastmcp import FastMCP

from sandport import ToolHost
from sandport.client import acp_client
from sandport_native.process import AgentSpec, open_agent

from .acp_client import StdioChannel
from .conftest import HERE, gone

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

BRIDGE = [str(Path(sys.executable).with_name("sandport")), "bridge"]
AGENT = [sys.executable, str(HERE / "agents" / "mcp_agent.py")]
ECHO = [sys.executable, str(HERE / "agents" / "echo.py")]
HELLO = {"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": {"protocolVersion": 1}}


class Program:
    """A running `sandport bridge`, as a client on its stdio sees it."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._stdin, self._stderr = process.stdin, process.stderr
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def send(self, message: dict[str, Any]) -> None:
        await self._stdin.send(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", 1 << 20))
        return message

    async def request(self, method: str, params: Any = None) -> dict[str, Any]:
        await self.send({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
        return await self.receive()

    async def end(self) -> tuple[int, str]:
        """Its exit status, and all that it wrote to stderr."""
        text = b"".join([data async for data in self._stderr])
        return await self.process.wait(), text.decode()

    async def leave(self) -> tuple[int, str]:
        """Close its stdin and wait for its end."""
        await self._stdin.aclose()
        return await self.end()


@asynccontextmanager
async def bridge(*arguments: str) -> AsyncIterator[Program]:
    with anyio.fail_after(60):
        async with await anyio.open_process([*BRIDGE, *arguments], stderr=subprocess.PIPE) as process:
            try:
                yield Program(process)
            finally:
                if process.returncode is None:
                    process.kill()


async def test_an_editor_uses_an_agent_through_it() -> None:
    """The official ACP SDK as the client, the official MCP SDK in the agent, and tools that the client lends."""
    server: FastMCP = FastMCP("desk")
    server.tool(lambda value: f"the editor heard {value}", name="hear")

    said: list[str] = []

    class Editor:
        async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
            said.append(update.content.text)

    async with ToolHost() as host, open_agent(AgentSpec("bridge", [*BRIDGE, "--", *AGENT])) as process:
        host.mount(server, "desk")
        async with acp_client(StdioChannel(process), Editor(), host) as editor:  # type: ignore[arg-type]
            await editor.initialize()
            assert editor.offers
            session = await editor.new_session("/tmp")
            order = {"do": "call", "server": "desk", "tool": "hear", "arguments": {"value": "hello"}}
            answer = await editor.connection.prompt(
                prompt=[text_block(json.dumps(order))], session_id=session.session_id
            )
            assert answer.stop_reason == "end_turn"
    assert "the editor heard hello" in said[0]


async def test_help_and_wrong_usage() -> None:
    async with bridge("--help") as program:
        text = (await program._lines.receive_exactly(20)).decode()
        assert text == "Usage: sandport brid"
    for wrong in ([], ["--"], ["--nonsense"]):
        async with bridge(*wrong) as program:
            status, errors = await program.end()
            assert status == 2
            assert "Usage" in errors


async def test_options_after_the_command_are_its_own() -> None:
    async with bridge(sys.executable, "--version") as program:
        await program.send(HELLO)
        assert "Usage" not in (await program.end())[1]


@pytest.mark.parametrize("command", ["no-such-program", "/", str(HERE / "conftest.py")])
async def test_a_command_that_cannot_be_started(command: str) -> None:
    async with bridge("--", command) as program:
        status, errors = await program.end()
        assert status == 127
        assert errors.splitlines()[-1].startswith("Error: The agent could not be started:")
        assert command in errors


@pytest.mark.parametrize(("code", "status"), [(0, 1), (3, 3)])
async def test_a_command_that_is_no_agent(code: int, status: int) -> None:
    """It ends at once: the client's request is answered with the reason, and stdout holds nothing else."""
    async with bridge("sh", "-c", f"read -r _; echo usage: something; echo wrong key >&2; exit {code}") as program:
        await program.send(HELLO)
        answer = await program.receive()
        assert answer["id"] == "first"
        assert f"The agent ended (exit status {code})" in answer["error"]["message"]
        assert "never answered `initialize`" in answer["error"]["message"]
        ended, errors = await program.end()
        assert ended == status
        assert "wrong key" in errors
        assert "usage: something" in errors


async def test_an_agent_that_dies_at_work() -> None:
    async with bridge("--", *ECHO) as program:
        assert (await program.request("initialize"))["result"] is not None
        answer = await program.request("exit", {"status": 9, "words": "out of coffee"})
        assert answer["error"]["code"] == -32603
        assert "exit status 9" in answer["error"]["message"]
        assert "out of coffee" in answer["error"]["message"]
        status, errors = await program.end()
        assert status == 9
        assert "out of coffee" in errors


async def test_an_agent_that_a_signal_ends() -> None:
    async with bridge("--", *ECHO) as program:
        await program.request("initialize")
        pid = (await program.request("pid"))["result"]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert (await program.end())[0] == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_ended_by_a_signal_it_leaves_no_process(number: signal.Signals) -> None:
    async with bridge("--", *ECHO) as program:
        await program.request("initialize")
        pid = (await program.request("pid"))["result"]["pid"]
        program.process.send_signal(number)
        assert (await program.end())[0] == 128 + number
        await gone(pid)


async def test_a_client_that_leaves_ends_the_agent() -> None:
    async with bridge("--", *ECHO) as program:
        await program.request("initialize")
        child = (await program.request("stubborn"))["result"]["child"]
        assert (await program.leave())[0] == 0
        await gone(child)


async def test_lines_that_are_no_messages_stay_out() -> None:
    async with bridge("--", *ECHO) as program:
        await program.request("initialize")
        assert (await program.request("noise"))["id"] == "noise"
        assert "a banner that is no message" in (await program.leave())[1]
