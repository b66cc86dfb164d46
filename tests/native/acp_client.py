"""A raw ACP client for tests: a real agent process on stdio, a real port, a real ToolHost behind it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandport import Port, ToolHost, memory_channel_pair
from sandport.errors import ChannelClosed, PeerError
from sandport.rpc import Inbound, Peer
from sandport_native.lines import Line
from sandport_native.process import AgentProcess, AgentSpec, open_agent

ROOT = Path(__file__).resolve().parents[2]
AGENTPOOL = Path(os.environ.get("SANDPORT_AGENTPOOL") or ROOT / ".venv-agentpool" / "bin" / "sandport")
"""The `sandport` beside the agentpool to test: any of the dependency sets."""
START = 90
"""Seconds for the first answer: agentpool's imports are slow on a busy machine."""


def agentpool_env(home: Path) -> dict[str, str]:
    """Environment for an agentpool that keeps its history and logs below `home`, else as a person's would run.

    Without the variable that pytest sets: agentpool would take it for a reason to keep its history in memory.
    """
    if not AGENTPOOL.exists():
        pytest.fail(f"{AGENTPOOL} is missing: `./build.sh test` sets it up, then runs this")
    folders = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("DATA", "STATE", "CACHE", "CONFIG")}
    return {"HOME": str(home), **folders, "LOGFIRE_IGNORE_NO_CONFIG": "1", "PYTEST_CURRENT_TEST": ""}


class StdioChannel:
    """An agent process as a `Channel`, keeping what passed."""

    def __init__(self, agent: AgentProcess) -> None:
        self._agent = agent
        self._lines = agent.receive()
        self.sent: list[str] = []
        self.received: list[str] = []
        self.mute = False
        """Set, the agent hears nothing more: a client that hangs."""
        self._grew = anyio.Event()

    async def send(self, text: str) -> None:
        if self.mute:
            return
        self.sent.append(text)
        try:
            await self._agent.send(text)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ChannelClosed("the agent is gone") from None

    async def receive(self) -> str:
        async for event in self._lines:
            assert isinstance(event, Line)
            text = event.data.decode()
            self.received.append(text)
            self._grew.set()
            self._grew = anyio.Event()
            return text
        raise ChannelClosed("the agent is gone")

    async def wait_received(self, arrived: Callable[[], bool]) -> None:
        """Wait until what came from the agent makes this true."""
        with anyio.fail_after(30):
            while not arrived():
                await self._grew.wait()

    async def aclose(self) -> None:
        """The process ends with its context."""

    def messages(self, sent: bool = False) -> list[dict[str, Any]]:
        return [json.loads(text) for text in (self.sent if sent else self.received)]


Answer = Callable[[str, dict[str, Any]], Any]


def refuse(method: str, params: dict[str, Any]) -> Any:
    raise PeerError(-32601, f"Method not found: {method}", None)


@dataclass
class Turn:
    """What one prompt brought."""

    stop_reason: str
    updates: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return "".join(
            update["content"]["text"] for update in self.updates if update["sessionUpdate"] == "agent_message_chunk"
        )

    @property
    def chunks(self) -> int:
        return sum(update["sessionUpdate"] == "agent_message_chunk" for update in self.updates)

    def tool_updates(self) -> list[dict[str, Any]]:
        return [update for update in self.updates if update["sessionUpdate"] in ("tool_call", "tool_call_update")]


@dataclass
class Client:
    """The ACP side of the page."""

    process: AgentProcess
    channel: StdioChannel
    host: ToolHost
    port: Port
    peer: Peer
    updates: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    _update_arrived: anyio.Event = field(default_factory=anyio.Event)

    async def initialize(self, **capabilities: Any) -> dict[str, Any]:
        with anyio.fail_after(START):
            result: dict[str, Any] = await self.peer.request(
                "initialize", {"protocolVersion": 1, "clientCapabilities": capabilities}
            )
        return result

    def declare(self, *names: str) -> list[dict[str, Any]]:
        entries = []
        for name in names:
            entry = dict(self.host.declare(name))
            self.port.core.declare("host", entry["id"])
            entries.append(entry)
        return entries

    async def open(self, *names: str, method: str = "session/new", **params: Any) -> str:
        """Open a session with these mounted servers; returns its id."""
        result = await self.request(method, {"cwd": "/tmp", "mcpServers": self.declare(*names), **params})
        session_id: str = params.get("sessionId") or result["sessionId"]
        return session_id

    async def request(self, method: str, params: Any, timeout: float = 60) -> Any:
        with anyio.fail_after(timeout):
            return await self.peer.request(method, params)

    async def prompt(self, session_id: str, text: str, timeout: float = 60) -> Turn:
        start = len(self.updates.setdefault(session_id, []))
        result = await self.request(
            "session/prompt", {"sessionId": session_id, "prompt": [{"type": "text", "text": text}]}, timeout
        )
        return Turn(result["stopReason"], self.updates[session_id][start:])

    async def wait_update(self, session_id: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with anyio.fail_after(30):
            while True:
                for update in self.updates.get(session_id, []):
                    if wanted(update):
                        return update
                await self._update_arrived.wait()

    async def _on_request(self, inbound: Inbound) -> Any:
        answer = self.answers.get(inbound.method, refuse)(inbound.method, inbound.params)
        return await answer if asyncio.iscoroutine(answer) else answer

    def _on_notification(self, method: str, params: Any) -> None:
        if method == "session/update":
            self.updates.setdefault(params["sessionId"], []).append(params["update"])
            self._update_arrived.set()
            self._update_arrived = anyio.Event()

    def lane(self, method: str) -> list[dict[str, Any]]:
        """The `mcp/message` requests and notifications the agent sent with this inner method."""
        return [
            message
            for message in self.channel.messages()
            if message.get("method") == "mcp/message" and message["params"].get("method") == method
        ]


@asynccontextmanager
async def run_client(
    mount: Mapping[str, Any],
    arguments: Sequence[str] = ("--demo",),
    *,
    home: Path,
    env: Mapping[str, str] | None = None,
    time_limit: float | None = 30.0,
) -> AsyncIterator[Client]:
    """Start `sandport agentpool serve-acp`, connect a host with these servers to it, initialize."""
    spec = AgentSpec(
        "agentpool",
        [str(AGENTPOOL), "agentpool", "serve-acp", *arguments],
        {**agentpool_env(home), **(env or {})},
        home,
    )
    async with (
        ToolHost(time_limit=time_limit) as host,
        open_agent(spec) as process,
        anyio.create_task_group() as tasks,
    ):
        for name, server in mount.items():
            host.mount(server, name)
        channel = StdioChannel(process)
        port = Port(channel)
        await tasks.start(port.run)
        outer, inner = memory_channel_pair()
        port.attach("host", outer, "sp0.")
        tasks.start_soon(host.serve, inner, "sp0.")
        client: Client
        peer = Peer(port.acp, lambda inbound: client._on_request(inbound), lambda m, p: client._on_notification(m, p))
        client = Client(process, channel, host, port, peer)
        tasks.start_soon(peer.run)
        try:
            yield client
        finally:
            tasks.cancel_scope.cancel()
