"""An agent's MCP lane on a channel of its own, for agents that use no ACP library on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from sandport.agent.config import AcpMCPServerConfig
from sandport.agent.manager import AcpMcpConnection, AcpMcpConnectionManager
from sandport.channel import Channel
from sandport.rpc import Inbound, Peer

__all__ = ["connect_acp_mcp_server", "disconnect_acp_mcp_server", "manager_on_channel"]


@asynccontextmanager
async def manager_on_channel(channel: Channel, **options: Any) -> AsyncIterator[AcpMcpConnectionManager]:
    """A connection manager that speaks on a channel directly; the channel is closed with it.

    Args:
        channel: to the provider, or to a port in front of it.
        **options: see `AcpMcpConnectionManager`.
    """

    async def request(inbound: Inbound) -> dict[str, Any]:
        return await manager.handle_request(inbound.method, inbound.params, inbound)

    peer = Peer(channel, request, lambda method, params: manager.handle_notification(method, params))
    manager = AcpMcpConnectionManager(peer, **options)

    async def run() -> None:
        try:
            await peer.run()
        finally:
            manager.abandon_all()

    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield manager
        except Exception as error:
            # Kept out of the group, which would wrap it.
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                await manager.close_all()
                await peer.aclose()
    if failure is not None:
        raise failure


async def connect_acp_mcp_server(manager: AcpMcpConnectionManager, config: AcpMCPServerConfig) -> AcpMcpConnection:
    """Open a connection to a provided server. See `AcpMcpConnectionManager.create_connection`."""
    return await manager.create_connection(config)


async def disconnect_acp_mcp_server(manager: AcpMcpConnectionManager, connection_id: str) -> None:
    """End a connection. See `AcpMcpConnectionManager.remove_connection`."""
    await manager.remove_connection(connection_id)
