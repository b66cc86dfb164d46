"""A FastMCP client transport over a connection of the manager."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Unpack

from fastmcp.client.transports.base import ClientTransport, SessionKwargs, TransportOptions
from mcp import ClientSession

from sandport.agent.config import AcpMCPServerConfig
from sandport.agent.manager import AcpMcpConnection, AcpMcpConnectionManager

__all__ = ["AcpMcpTransport"]


class AcpMcpTransport(ClientTransport):
    """Lets a `fastmcp.Client` use a server that the ACP client provides. Each session has a connection of its own.

    Args:
        manager: of the ACP connection.
        config: which server.

    Example:
        >>> async with Client(AcpMcpTransport(manager, config)) as client:  # doctest: +SKIP
        ...     await client.list_tools()
    """

    def __init__(self, manager: AcpMcpConnectionManager, config: AcpMCPServerConfig) -> None:
        self.manager = manager
        self.config = config
        self.connection: AcpMcpConnection | None = None
        """The connection of the newest session."""

    @contextlib.asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncGenerator[ClientSession, None]:
        """Open a connection and run a client session on it; the connection ends with the session.

        Raises:
            PeerError, TimeoutError, ChannelClosed: see `AcpMcpConnectionManager.create_connection`.
        """
        options = transport_options or TransportOptions()
        connection = self.connection = await self.manager.create_connection(self.config)
        try:
            async with options.session_class(dispatcher=connection, **session_kwargs) as session:
                yield session
        finally:
            await connection.aclose()

    def get_session_id(self) -> str | None:
        """The connection id."""
        return self.connection.connection_id if self.connection is not None else None

    def __repr__(self) -> str:
        return f"<AcpMcpTransport({self.config.name!r})>"
