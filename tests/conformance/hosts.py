"""Where the everything-server runs, and the ACP client in front of it.

A host is a lane: a channel of MCP-over-ACP messages, and a way to declare the server under an id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import anyio
from tests.conformance import everything

from sandport import Channel, HostLimits, Port, ToolHost, memory_channel_pair
from sandport.errors import PeerError
from sandport.rpc import Inbound, Peer
from sandport.wire import advertises_acp, declaration

__all__ = ["NAME", "PREFIX", "Lane", "Make", "client", "native"]

NAME = "everything"
PREFIX = "host."
"""Of the ids of requests that start in the host."""


@dataclass(frozen=True)
class Lane:
    """A host that runs."""

    channel: Channel
    declare: Callable[[str], Awaitable[None]]
    """Declares the everything-server under an id."""


Make = Callable[[], AbstractAsyncContextManager[Lane]]
"""Starts a host."""


@asynccontextmanager
async def native() -> AsyncIterator[Lane]:
    """The host in this process."""
    async with ToolHost(limits=HostLimits()) as host, anyio.create_task_group() as tasks:
        host.mount(everything.mcp, NAME)
        everything.listen_for_changes(lambda kind: host.list_changed(NAME, kind))  # type: ignore[arg-type]
        outer, inner = memory_channel_pair()
        tasks.start_soon(host.serve, inner, PREFIX)

        async def declare(server_id: str) -> None:
            host.declare(NAME, server_id)

        yield Lane(outer, declare)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def client(channel: Channel, lane: Lane) -> AsyncIterator[Peer]:
    """An ACP client on `channel`, a session open in which the lane's server is declared; yields its ACP connection."""

    async def refuse(inbound: Inbound) -> Any:
        raise PeerError(-32601, f"Method not found: {inbound.method}")

    async with anyio.create_task_group() as tasks:
        port = Port(channel)
        await tasks.start(port.run)
        port.attach("host", lane.channel, PREFIX)
        acp = Peer(port.acp, refuse, lambda method, params: None)
        tasks.start_soon(acp.run)
        hello = await acp.request("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        assert advertises_acp(hello), "the agent does not advertise acp"
        server_id = str(uuid4())
        await lane.declare(server_id)
        port.core.declare("host", server_id)
        await acp.request("session/new", {"cwd": "/", "mcpServers": [declaration(NAME, server_id)]})
        yield acp
        tasks.cancel_scope.cancel()
