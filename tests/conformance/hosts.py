"""Where the everything-server runs, and the ACP client in front of it.

A host is a lane: a channel of MCP-over-ACP messages, and a way to declare the server under an id.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from tests.conformance import everything
from tests.peers.channels import Exchange, process

from sandport import Channel, ChannelClosed, Port, ToolHost, memory_channel_pair
from sandport.errors import PeerError
from sandport.rpc import Inbound, Peer
from sandport.wire import advertises_acp, declaration

__all__ = ["NAME", "PREFIX", "Lane", "Make", "client", "native", "pyodide"]

NAME = "everything"
PREFIX = "host."
"""Of the ids of requests that start in the host."""
HERE = Path(__file__).resolve().parent
BOOT_LIMIT = 120.0
"""Seconds for Pyodide to boot; it takes five on an idle machine."""


@dataclass(frozen=True)
class Lane:
    """A host that runs."""

    channel: Channel
    declare: Callable[[str], Awaitable[None]]
    """Declares the everything-server under an id; called before the channel is read by anyone else."""


Make = Callable[[], AbstractAsyncContextManager[Lane]]
"""Starts a host."""


@asynccontextmanager
async def native() -> AsyncIterator[Lane]:
    """The host in this process."""
    async with ToolHost() as host, anyio.create_task_group() as tasks:
        host.mount(everything.mcp, NAME)
        everything.listen_for_changes(lambda kind: host.list_changed(NAME, kind))  # type: ignore[arg-type]
        outer, inner = memory_channel_pair()
        tasks.start_soon(host.serve, inner, PREFIX)

        async def declare(server_id: str) -> None:
            host.declare(NAME, server_id)

        yield Lane(outer, declare)
        tasks.cancel_scope.cancel()


class _PyodideLane:
    """The lane of pyodide_host.mjs: lines, of which those that begin with `CONTROL` are not the lane's."""

    CONTROL = '{"control":'

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._seq = count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._ready = False

    async def send(self, text: str) -> None:
        await self._channel.send(text)

    async def receive(self) -> str:
        while True:
            text = await self._channel.receive()
            if not text.startswith(self.CONTROL):
                return text
            self._heard(text)

    async def aclose(self) -> None:
        await self._channel.aclose()

    def _heard(self, text: str) -> None:
        event = json.loads(text)["control"]
        if "seq" in event:
            self._answers[event["seq"]] = event
        elif event.get("event") in ("failed", "fatal"):
            raise RuntimeError(f"the host in Pyodide failed: {event}")
        elif event.get("event") == "ready":
            broken = [server["error"] for server in event["servers"] if "error" in server]
            if broken:
                raise RuntimeError(f"a server is not available in Pyodide: {broken}")
            self._ready = True

    async def ready(self) -> None:
        """Until the servers serve."""
        while not self._ready:
            self._heard(await self._channel.receive())

    async def control(self, op: str, **members: Any) -> None:
        """A request to the runtime, made before the lane is read by anyone else."""
        seq = next(self._seq)
        await self._channel.send(self.CONTROL + json.dumps({"op": op, "seq": seq, **members}) + "}")
        while seq not in self._answers:
            self._heard(await self._channel.receive())
        answer = self._answers.pop(seq)
        if not answer["ok"]:
            raise RuntimeError(f"{op}: {answer['error']}")


@asynccontextmanager
async def pyodide() -> AsyncIterator[Lane]:
    """The host inside Pyodide, in a process of Node."""
    exchange = Exchange()
    async with process(["node", str(HERE / "pyodide_host.mjs")], exchange) as channel:
        lane = _PyodideLane(channel)
        try:
            with anyio.fail_after(BOOT_LIMIT):
                await lane.ready()
        except ChannelClosed:
            raise RuntimeError("the host in Pyodide did not start: " + "\n".join(exchange.errors)) from None
        await lane.control("lane", prefix=PREFIX)

        async def declare(server_id: str) -> None:
            await lane.control("declare", servers=[{"name": NAME, "id": server_id}])

        yield Lane(lane, declare)


@asynccontextmanager
async def client(channel: Channel, lane: Lane) -> AsyncIterator[Peer]:
    """An ACP client on `channel`, a session open in which the lane's server is declared; yields its ACP connection."""

    async def refuse(inbound: Inbound) -> Any:
        raise PeerError(-32601, f"Method not found: {inbound.method}")

    async with anyio.create_task_group() as tasks:
        server_id = str(uuid4())
        await lane.declare(server_id)
        port = Port(channel)
        await tasks.start(port.run)
        port.attach("host", lane.channel, PREFIX)
        port.core.declare("host", server_id)
        acp = Peer(port.acp, refuse, lambda method, params: None)
        tasks.start_soon(acp.run)
        hello = await acp.request("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        assert advertises_acp(hello), "the agent does not advertise acp"
        await acp.request("session/new", {"cwd": "/", "mcpServers": [declaration(NAME, server_id)]})
        yield acp
        tasks.cancel_scope.cancel()
