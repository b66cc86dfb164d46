"""Lends Sandport's host to bench/agents/sdk.mjs in a process below; JSON lines: `{"calls": n}` in, times out.

The ACP client's few messages are written by hand; the lane is a `Port` and a `ToolHost`, as in any program.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import anyio
from tools import mcp

from sandport import ChannelClosed, Port, ToolHost, memory_channel_pair

READ_LIMIT = 64 * 1024 * 1024


class Lines:
    """A channel over a process's stdio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, text: str) -> None:
        self._writer.write(text.encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> str:
        line = await self._reader.readline()
        if not line:
            raise ChannelClosed("the agent ended")
        return line.decode()

    async def aclose(self) -> None:
        self._writer.close()


async def main() -> None:
    script = Path(__file__).with_name("sdk.mjs")
    pipe = asyncio.subprocess.PIPE
    agent = await asyncio.create_subprocess_exec("node", str(script), stdin=pipe, stdout=pipe, limit=READ_LIMIT)
    assert agent.stdin is not None
    assert agent.stdout is not None
    channel = Lines(agent.stdout, agent.stdin)
    port = Port(channel)
    host = ToolHost()
    host.mount(mcp, "bench")
    ours, theirs = memory_channel_pair()
    next_id = 0

    async def ask(method: str, params: dict[str, Any]) -> Any:
        nonlocal next_id
        next_id += 1
        await port.acp.send(json.dumps({"jsonrpc": "2.0", "id": next_id, "method": method, "params": params}))
        while True:
            message = json.loads(await port.acp.receive())
            if message.get("id") == next_id and "method" not in message:
                return message["result"]

    async with host, anyio.create_task_group() as tasks:
        await tasks.start(port.run)
        port.attach("host", ours, "host.")
        tasks.start_soon(host.serve, theirs, "host.")
        await ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        entries = host.declarations()
        for entry in entries:
            port.core.declare("host", entry["serverId"])
        await ask("session/new", {"cwd": "/", "mcpServers": entries})
        print(json.dumps({"ok": True, "value": None}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            prompt = [{"type": "text", "text": f"calls {json.loads(line)['calls']}"}]
            answer = await ask("session/prompt", {"sessionId": "bench", "prompt": prompt})
            print(json.dumps({"ok": True, "value": answer["_meta"]["times"]}), flush=True)
        tasks.cancel_scope.cancel()
    await channel.aclose()
    await agent.wait()


asyncio.run(main())
