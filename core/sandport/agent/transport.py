"""A FastMCP client transport over a connection of the manager."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Unpack

from fastmcp.client.transports.base import ClientTransport, SessionKwargs
from mcp import ClientSession

from sandport.agent.config import AcpMCPServerConfig
from sandport.agent.manager import AcpMcpConnection, AcpMcpConnectionManager
from sandport.sdk import DISPATCHER

if TYPE_CHECKING or DISPATCHER:
    from fastmcp.client.transports.base import TransportOptions

    def _session(
        connection: AcpMcpConnection, options: TransportOptions | None, session_kwargs: SessionKwargs
    ) -> contextlib.AbstractAsyncContextManager[ClientSession]:
        session_class = (options or TransportOptions()).session_class
        return session_class(dispatcher=connection, **session_kwargs)

else:
    from sandport.agent._session1 import session_on

    def _session(connection, options, session_kwargs):
        return session_on(connection, **session_kwargs)


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
        connection = self.connection = await self.manager.create_connection(self.config)
        try:
            async with _session(connection, transport_options, session_kwargs) as session:
                yield session
        finally:
            await connection.aclose()

    def get_session_id(self) -> str | None:
        """The connection id."""
        return self.connection.connection_id if self.connection is not None else None

    def __repr__(self) -> str:
        return f"<AcpMcpTransport({self.config.name!r})>"
