"""Starts an ACP agent and lends it a FastMCP server over the same connection.

python lend.py PROMPT -- COMMAND [ARGUMENT...]
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anyio
from acp.schema import TextContentBlock
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from fastmcp import FastMCP

from sandport import ChannelClosed, ToolHost
from sandport.client import acp_client

MAX_LINE = 64 * 1024 * 1024

mcp = FastMCP("greeter")


@mcp.tool(annotations={"readOnlyHint": True})
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


class ProcessChannel:
    """A process's standard streams as a channel: one message a line."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def send(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(text.encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ChannelClosed("the agent ended") from None

    async def receive(self) -> str:
        try:
            return (await self._lines.receive_until(b"\n", MAX_LINE)).decode()
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
            raise ChannelClosed("the agent ended") from None

    async def aclose(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()


class Printer:
    """What the agent may ask of this program: to show its words. The SDK refuses all else."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        if update.session_update == "agent_message_chunk":
            print(update.content.text, flush=True)

    def on_connect(self, conn: Any) -> None:
        """Nothing to prepare."""


async def main(prompt: str, command: list[str]) -> None:
    process = await anyio.open_process(command, stderr=None, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    host = ToolHost()
    host.mount(mcp, name="greeter")
    async with process, host, acp_client(ProcessChannel(process), Printer(), host) as agent:  # type: ignore[arg-type]
        await agent.initialize()
        session = await agent.new_session("/")
        await agent.connection.prompt(
            session_id=session.session_id, prompt=[TextContentBlock(type="text", text=prompt)]
        )


if __name__ == "__main__":
    split = sys.argv.index("--")
    anyio.run(main, " ".join(sys.argv[1:split]), sys.argv[split + 1 :])
