"""Helpers of the core's tests: a server with a tool for every behaviour, a raw agent that speaks any dialect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from fastmcp import Context, FastMCP

from sandport import MemoryChannel, Port, ToolHost, memory_channel_pair
from sandport.wire import DIALECTS, Dialect

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "0"},
}
NAMES = [dialect.name for dialect in DIALECTS]
CONNECT = [dialect.name for dialect in DIALECTS if dialect.family == "connect"]
STATELESS = [dialect.name for dialect in DIALECTS if dialect.family == "stateless"]


def dialect_named(name: str) -> Dialect:
    return next(dialect for dialect in DIALECTS if dialect.name == name)


class Gate:
    """Where a test and its tools wait for each other."""

    def __init__(self) -> None:
        self.entered = anyio.Event()
        self.go = anyio.Event()
        self.finished = anyio.Event()
        self.ran: list[Any] = []


def make_server(name: str = "tools", gate: Gate | None = None) -> FastMCP:
    """A server with a tool for every behaviour."""
    server = FastMCP(name)
    gate = gate or Gate()

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def echo(value: Any = None) -> dict[str, Any]:
        return {"value": value}

    @server.tool
    async def fail() -> str:
        raise ValueError("no such luck")

    @server.tool
    async def wait() -> str:
        """Runs until `gate.go`."""
        gate.ran.append("wait")
        gate.entered.set()
        try:
            await gate.go.wait()
            return "waited"
        finally:
            gate.finished.set()

    @server.tool
    async def progress(ctx: Context, steps: int = 3) -> str:
        for step in range(steps):
            await ctx.report_progress(step, steps, f"step {step}")
        return "done"

    return server


class RawAgent:
    """Sends and reads raw messages. Reads only when asked to, in one place."""

    def __init__(self, channel: MemoryChannel, dialect: str = "connect-serverId") -> None:
        self.channel = channel
        self.dialect = dialect_named(dialect)
        self.other: list[dict[str, Any]] = []
        """What came and was no answer anybody waited for."""
        self._answers: dict[Any, dict[str, Any]] = {}
        self._next = 0

    def next_id(self) -> int:
        self._next += 1
        return self._next - 1

    async def send(self, message: dict[str, Any] | str) -> None:
        await self.channel.send(message if isinstance(message, str) else json.dumps(message))

    async def post(self, method: str, params: Any = None, request_id: Any = None) -> Any:
        request_id = self.next_id() if request_id is None else request_id
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    async def notify(self, method: str, params: Any = None) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def receive(self) -> dict[str, Any]:
        with anyio.fail_after(5):
            return json.loads(await self.channel.receive())  # type: ignore[no-any-return]

    async def answer(self, request_id: Any) -> dict[str, Any]:
        """The answer to a request that was posted."""
        key = json.dumps(request_id)
        while key not in self._answers:
            message = await self.receive()
            if "method" in message:
                self.other.append(message)
            else:
                assert json.dumps(message["id"]) not in self._answers, f"a second answer: {message}"
                self._answers[json.dumps(message["id"])] = message
        return self._answers.pop(key)

    async def ask(self, method: str, params: Any = None, request_id: Any = None) -> dict[str, Any]:
        return await self.answer(await self.post(method, params, request_id))

    # -- MCP, in the agent's dialect ------------------------------------------------------------------------

    async def open(self, server_id: str, capabilities: dict[str, Any] | None = None) -> str:
        """Open a connection and shake hands; in a stateless dialect nothing has to be done."""
        if self.dialect.family == "stateless":
            self.capabilities = capabilities or {}
            return server_id
        out = self.dialect.open(server_id)
        opened = await self.ask(out.method, out.params)
        address = self.dialect.read_opened(opened["result"])
        await self.mcp(address, "initialize", {**INITIALIZE, "capabilities": capabilities or {}})
        note = self.dialect.message(address, "", "notifications/initialized", None)
        await self.notify(note.method, note.params)
        return address

    def message(self, address: str, method: str, params: dict[str, Any] | None = None) -> tuple[str, Any]:
        if self.dialect.family == "stateless":
            meta = {**META, "io.modelcontextprotocol/clientCapabilities": getattr(self, "capabilities", {})}
            params = {**(params or {}), "_meta": {**meta, **(params or {}).get("_meta", {})}}
        out = self.dialect.message(address, f"r{self._next}", method, params)
        if self.dialect.name == "stateless+":
            out.params.update(sessionId="s1", toolCallId="t1")
        return out.method, out.params

    async def mcp(self, address: str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """An MCP request: `{"result": ...}` or `{"error": {...}}`, whatever the dialect wraps around it."""
        return self.inner(await self.ask(*self.message(address, method, params)))

    async def call(self, address: str, tool: str, arguments: Any = None) -> dict[str, Any]:
        return await self.mcp(address, "tools/call", {"name": tool, "arguments": arguments or {}})

    def inner(self, message: dict[str, Any]) -> dict[str, Any]:
        if "error" in message:
            assert "data" in message["error"], f"an error without data: {message}"
            return {"error": message["error"], "outer": True}
        assert isinstance(message["result"], dict)
        if self.dialect.family == "stateless":
            assert set(message["result"]) in ({"result"}, {"error"})
            return message["result"]
        return {"result": message["result"]}


def text_of(result: dict[str, Any]) -> str:
    """The text of a tool result."""
    return "".join(block.get("text", "") for block in result["content"])


@asynccontextmanager
async def serving(host: ToolHost, *, port: bool = False) -> AsyncIterator[MemoryChannel]:
    """The agent's end of a channel that a host serves, behind a port if asked for. The host must have been entered."""
    agent_end, ours = memory_channel_pair()
    async with anyio.create_task_group() as tasks:
        if port:
            gate = Port(ours)
            await tasks.start(gate.run)
            lane, sandbox = memory_channel_pair()
            gate.attach("a", lane, "sa.")
            for server_id in list(host._ids):
                gate.core.declare("a", server_id)
            tasks.start_soon(host.serve, sandbox, "sa.")
        else:
            tasks.start_soon(host.serve, ours, "sa.")
        yield agent_end
        await agent_end.aclose()
        with anyio.fail_after(5):
            while host._lanes:
                await host._lanes[0].done.wait()
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
