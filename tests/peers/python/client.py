"""An ACP client on the Python SDK, its connection on the acp lane of Sandport's port and a `ToolHost` on the mcp lane.

It is an ordinary program with `sandport.client`; the agent is at the other end of stdin and stdout. It lends the tools
of js/provider.mjs and understands its ops.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Annotated, Any

import anyio
from acp.stdio import stdio_streams
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult
from mcp_types import TextContent
from pydantic import BaseModel, Field

from sandport import ChannelClosed, ToolHost, ask
from sandport.client import acp_client


class Answer(BaseModel):
    """What the person is asked for."""

    ok: bool


class Stdio:
    """A `Channel` on the SDK's own streams of stdin and stdout."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, text: str) -> None:
        self._writer.write(text.encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> str:
        line = await self._reader.readline()
        if not line:
            raise ChannelClosed("stdin has ended")
        return line.decode()

    async def aclose(self) -> None:
        self._reader.feed_eof()


class Events:
    """What happened, for those who wait for it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.changed = anyio.Event()

    def push(self, event: str) -> None:
        """Something happened."""
        self.seen.append(event)
        self.changed.set()
        self.changed = anyio.Event()

    async def wait(self, event: str) -> None:
        """Until it happened."""
        while event not in self.seen:
            await self.changed.wait()


def tools(events: Events) -> FastMCP[Any]:
    """The server that is lent."""
    server: FastMCP[Any] = FastMCP("peer-tools")

    @server.tool(output_schema={"type": "object", "properties": {"sum": {"type": "number"}}})
    def add(a: float, b: float) -> ToolResult:
        text = TextContent(type="text", text=f"{a + b:g}")
        return ToolResult(content=[text], structured_content={"sum": a + b})

    @server.tool
    def echo(text: Annotated[str, Field()]) -> str:
        return text

    @server.tool
    def fail() -> str:
        raise ToolError("the tool failed")

    @server.tool
    async def count(to: int, ctx: Context) -> str:
        for step in range(1, to + 1):
            await ctx.report_progress(step, to)
        return f"counted to {to}"

    @server.tool
    async def block() -> str:
        events.push("blocked")
        try:
            await anyio.sleep_forever()
        finally:
            events.push("aborted")
        return "never"

    @server.tool(name="ask")
    async def ask_person(ctx: Context) -> str:
        answer = await ask(ctx, "Sure?", Answer)
        data = getattr(answer, "data", None)
        return f"{answer.action}: {data.model_dump_json() if data is not None else 'null'}"

    return server


class Client:
    """The SDK's `Client`."""

    def __init__(self, host: ToolHost, events: Events) -> None:
        self._host = host
        self._events = events

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Nothing is shown."""

    async def ext_method(self, method: str, params: dict[str, Any]) -> Any:
        """`_test/do`."""
        match params:
            case {"op": "event", "event": event}:
                await self._events.wait(event)
                return {"event": event}
            case {"op": "connections"}:
                return sum(len(lane.connections) for lane in self._host._lanes)
            case {"op": "changed"}:
                await self._host.list_changed("peer-tools")
                return {}
            case {"op": "leave"}:
                os._exit(0)
            case _:
                raise ValueError(f"no such op: {params}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Nothing is asked for."""

    def on_connect(self, conn: Any) -> None:
        """Nothing to keep."""


async def main() -> None:
    """Open a session with the tools, and stay until the agent is gone."""
    logging.disable(logging.CRITICAL)
    events = Events()
    ended = anyio.Event()
    reader, writer = await stdio_streams(limit=64 * 1024 * 1024)

    class UntilEnd(Stdio):
        async def receive(self) -> str:
            try:
                return await super().receive()
            except ChannelClosed:
                ended.set()
                raise

    async with ToolHost() as host:
        host.mount(tools(events))
        client: Any = Client(host, events)
        async with acp_client(UntilEnd(reader, writer), client, host) as agent:
            await agent.initialize()
            await agent.new_session("/project")
            await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
