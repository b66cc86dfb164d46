"""Sandport as an agent that uses tools which a client of somebody else lends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from fastmcp import Client
from tests.peers.channels import Exchange, recorded

from sandport import Channel
from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig, AcpMcpTransport
from sandport.errors import PeerError
from sandport.rpc import Inbound, Peer
from sandport.wire import LANE_METHODS

__all__ = ["Agent", "ProviderPeer", "lend"]


class Agent:
    """The least ACP agent that uses Sandport's agent side: it opens sessions and keeps what they declare.

    Args:
        channel: to the client.
        version: of ACP.
        options: see `AcpMcpConnectionManager`.
    """

    def __init__(self, channel: Channel, version: int = 1, **options: Any) -> None:
        self.version = version
        self.declared: list[dict[str, Any]] = []
        self.session = anyio.Event()
        self.peer = Peer(channel, self._request, self._notification)
        self.manager = AcpMcpConnectionManager(self.peer, **options)

    async def run(self, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until the channel ends."""
        try:
            await self.peer.run(task_status=task_status)
        finally:
            self.manager.abandon_all()

    async def _request(self, inbound: Inbound) -> Any:
        match inbound.method:
            case "initialize" if self.version == 2:
                capabilities = {"session": {"prompt": {}, "mcp": {"acp": {}}}}
                return {
                    "protocolVersion": 2,
                    "info": {"name": "sandport", "version": "1"},
                    "capabilities": capabilities,
                }
            case "initialize":
                return {"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"acp": True}}}
            case "session/new":
                self.declared = inbound.params["mcpServers"]
                self.session.set()
                return {"sessionId": "s1"}
            case method if method in LANE_METHODS:
                return await self.manager.handle_request(method, inbound.params, inbound)
            case method:
                raise PeerError(-32601, f"Method not found: {method}")

    def _notification(self, method: str, params: Any) -> None:
        if method in LANE_METHODS:
            self.manager.handle_notification(method, params)


@dataclass
class ProviderPeer:
    """A client of somebody else that runs and has declared its server."""

    agent: Agent
    config: AcpMCPServerConfig
    exchange: Exchange
    dialect: str

    @property
    def stateless(self) -> bool:
        """Whether the provider speaks a stateless dialect."""
        return self.dialect.startswith("stateless")

    @property
    def manager(self) -> AcpMcpConnectionManager:
        """Sandport's agent side."""
        return self.agent.manager

    async def do(self, op: str, **arguments: Any) -> Any:
        """Let the provider do something; see `ops` in js/provider.mjs."""
        return await self.agent.peer.request("_test/do", {"op": op, **arguments})

    def client(self, **options: Any) -> Client[AcpMcpTransport]:
        """A FastMCP client of the provider's server; see `fastmcp.Client` for the options."""
        return Client(AcpMcpTransport(self.manager, self.config), **options)


@asynccontextmanager
async def lend(
    channel: Channel, exchange: Exchange, dialect: str, *, version: int = 1, **options: Any
) -> AsyncIterator[ProviderPeer]:
    """Be the agent of a client that declares one server."""
    async with anyio.create_task_group() as tasks:
        agent = Agent(recorded(channel, exchange), version, **options)
        await tasks.start(agent.run)
        await agent.session.wait()
        config = AcpMCPServerConfig.from_declaration(agent.declared[0])
        assert config is not None, f"no server over ACP: {agent.declared}"
        yield ProviderPeer(agent, config, exchange, dialect)
        await agent.manager.close_all()
        tasks.cancel_scope.cancel()
