"""Calls a server that its ACP client lends, through Sandport's agent side and a FastMCP client, in several dialects.

    caller.py SERVER_ID DIALECT...

Reports once, as a notification `test/report`: dialect to what was seen.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import anyio
from fastmcp import Client

from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig, AcpMcpTransport, manager_on_channel
from sandport.errors import ChannelClosed


class Stdio:
    """A channel over this process's standard streams."""

    def __init__(self) -> None:
        self._input = anyio.wrap_file(sys.stdin)

    async def send(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    async def receive(self) -> str:
        line = await self._input.readline()
        if not line:
            raise ChannelClosed("stdin ended")
        return str(line)

    async def aclose(self) -> None:
        pass


async def call(manager: AcpMcpConnectionManager, server_id: str, dialect: str) -> dict[str, Any]:
    progress: list[float] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    config = AcpMCPServerConfig(name="page", acp_id=server_id, dialects=(dialect,))
    async with Client(AcpMcpTransport(manager, config)) as client:
        tools = await client.list_tools()
        greeting = await client.call_tool("greet", {"name": "Ada"})
        counted = await client.call_tool("count", {"to": 3}, progress_handler=on_progress)
        wrong = await client.call_tool("greet", {"name": 5}, raise_on_error=False)
        denied = await client.call_tool("forbidden", {}, raise_on_error=False)
    return {
        "tools": sorted(tool.name for tool in tools),
        "schema": next(tool.inputSchema for tool in tools if tool.name == "greet"),
        "greeting": greeting.content[0].text,
        "counted": counted.structured_content,
        "progress": progress,
        "wrong": wrong.is_error,
        "denied": [denied.is_error, denied.content[0].text],
    }


async def main(server_id: str, *dialects: str) -> None:
    channel = Stdio()
    async with manager_on_channel(channel) as manager:
        report = {dialect: await call(manager, server_id, dialect) for dialect in dialects}
        await channel.send(json.dumps({"jsonrpc": "2.0", "method": "test/report", "params": report}))
        # The thread that reads stdin cannot be cancelled.
        os._exit(0)


try:
    anyio.run(main, *sys.argv[1:])
except BaseException:
    traceback.print_exc()
    os._exit(1)
