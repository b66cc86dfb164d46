"""The agent's connections to servers that its ACP client provides.

Invariants: one connection has one id, and an unknown, duplicate or empty one is never taken. A connection that ends is
out of the table at once; the peer is told, within a bound, and whatever it answers, nothing stays here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, Literal
from uuid import uuid4

import anyio

from sandport.agent.config import AcpMCPServerConfig
from sandport.connection import AcpTransportContext, McpConnection
from sandport.errors import LocalError
from sandport.rpc import AcpOuter, Inbound
from sandport.sdk import DISPATCHER, MCPError
from sandport.wire import DIALECTS, LANE_METHODS, Call, Dialect, Message, is_notification, read
from sandport.wire.errors import (
    BACKEND_FAILED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    REQUEST_CANCELLED,
    RESOURCE_LIMIT,
    UNKNOWN_SERVER,
    PeerError,
)

__all__ = ["CONNECT_TIMEOUT", "DISCONNECT_TIMEOUT", "AcpMcpConnection", "AcpMcpConnectionManager"]

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT: Final = 5.0
"""Seconds to find out how a provider speaks and to open a connection: a session start must not wait for a dead one."""
DISCONNECT_TIMEOUT: Final = 5.0
"""Seconds a provider has to answer a disconnect before the connection is gone all the same."""

Preference = Literal["connect", "stateless"]

_STATELESS_CODES: Final = frozenset({REQUEST_CANCELLED, RESOURCE_LIMIT, UNKNOWN_SERVER, BACKEND_FAILED})
"""Outer errors that only a stateless binding gives."""


class AcpMcpConnection(McpConnection):
    """One connection of the agent to a provided server; made by `AcpMcpConnectionManager.create_connection`.

    Attributes:
        config: what it was made from.
        connection_id: the id in the manager's table: the provider's, or one of our own where the dialect has none.
    """

    def __init__(
        self,
        manager: AcpMcpConnectionManager,
        config: AcpMCPServerConfig,
        dialect: Dialect,
        address: str,
        connection_id: str,
    ) -> None:
        context = AcpTransportContext(dialect=dialect.name, server_id=config.acp_id)
        super().__init__(manager.outer, dialect, address, timeout=config.timeout, context=context)
        self.config = config
        self.connection_id = connection_id
        self._manager = manager
        self._refusal: MCPError | None = None
        """What a stateless provider said to `server/discover`: why there is no session, whatever is tried after it."""

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        """Send an MCP request. Era probes that the dialect cannot carry are answered here, without a round trip."""
        if (method == "server/discover") == (self.dialect.family == "connect") and method in (
            "server/discover",
            "initialize",
        ):
            text = f"{method} does not exist in the dialect {self.dialect.name}"
            raise self._refusal or MCPError(code=METHOD_NOT_FOUND, message=text)
        try:
            return await super().send_raw_request(method, params, opts)
        except MCPError as error:
            if method == "server/discover":
                self._refusal = error
            raise

    async def aclose(self) -> None:
        """End the connection and tell the provider. Idempotent."""
        await self._manager.remove_connection(self.connection_id)


class AcpMcpConnectionManager:
    """Opens, finds and closes connections over one ACP connection, and feeds them what the client sends.

    Args:
        outer: sends requests and notifications to the ACP client.
        connect_timeout: seconds for finding the dialect and opening; once more after a stateless try met silence.
        disconnect_timeout: seconds for the answer to a disconnect.
        prefer: the family to try first where a provider may speak both. `connect` (the default) gives reverse requests
            (elicitation, sampling, roots); a provider without it answers at once, and the other is tried.
    """

    def __init__(
        self,
        outer: AcpOuter,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        disconnect_timeout: float = DISCONNECT_TIMEOUT,
        prefer: Preference = "connect",
    ) -> None:
        self.outer = outer
        self.connect_timeout = connect_timeout
        self.disconnect_timeout = disconnect_timeout
        self.prefer = prefer
        self._connections: dict[str, AcpMcpConnection] = {}
        self._closed = False

    @property
    def connections(self) -> list[AcpMcpConnection]:
        """The open connections."""
        return list(self._connections.values())

    async def create_connection(self, config: AcpMCPServerConfig) -> AcpMcpConnection:
        """Open a connection to a provided server, in the dialect its provider turns out to speak.

        Raises:
            PeerError: the provider refused, in every dialect that was tried; the last refusal.
            TimeoutError: it did not answer in time.
            ChannelClosed: the ACP connection ended.
            LocalError: the manager is closed, or the configuration names a dialect that does not exist.
        """
        if self._closed:
            raise LocalError("the connection manager is closed")
        refusal: Exception | None = None
        deadline = anyio.current_time() + self.connect_timeout
        for dialect in self._candidates(config):
            try:
                left = max(deadline - anyio.current_time(), 0.0)
                address = await self._try(dialect, config.acp_id, left)
            except PeerError as error:
                logger.debug("server %r does not speak %s: %s", config.name, dialect.name, error)
                refusal = error
                continue
            except TimeoutError as error:
                # Silence to a stateless message is a sign of a provider that wants a connection; silence to a connect
                # may be one that keeps it for later, and is final.
                if dialect.family == "connect":
                    raise TimeoutError(f"server {config.name!r} did not answer within {left:g} s") from None
                refusal, deadline = error, anyio.current_time() + self.connect_timeout
                continue
            connection_id = address if dialect.family == "connect" else uuid4().hex
            return await self._add(AcpMcpConnection(self, config, dialect, address, connection_id))
        raise refusal or PeerError(INTERNAL_ERROR, f"No dialect fits server {config.name!r}")

    def _candidates(self, config: AcpMCPServerConfig) -> Sequence[Dialect]:
        known = {dialect.name: dialect for dialect in DIALECTS}
        unknown = [name for name in config.dialects if name not in known]
        if unknown:
            raise LocalError(f"no such dialect: {', '.join(unknown)}; there are {', '.join(known)}")
        chosen = [known[name] for name in config.dialects] or [known["connect-serverId"], known["stateless"]]
        # What `stateless+` adds a request need not have, so one try serves both.
        distinct = [item for item in chosen if item.name != "stateless+" or known["stateless"] not in chosen]
        if not DISPATCHER:
            distinct = [item for item in distinct if item.family == "connect"]
            if not distinct:
                raise LocalError(
                    f"server {config.name!r} is stateless, which the installed MCP SDK 1 is not: get mcp>=2.3"
                )
        return sorted(distinct, key=lambda item: item.family != self.prefer)

    async def _try(self, dialect: Dialect, server_id: str, timeout: float) -> str:
        """The address to use with a dialect, if the provider speaks it. Never decided by the text of an error."""
        if dialect.family == "connect":
            out = dialect.open(server_id)

            async def late(result: Any) -> None:
                await self._opened_late(dialect, result)

            return dialect.read_opened(await self.outer.request(out.method, out.params, timeout=timeout, late=late))
        # A binding that knows no `server/discover` still answers it with a carrier, or with its own codes.
        out = dialect.message(server_id, uuid4().hex, "server/discover", _discover_params())
        try:
            result = await self.outer.request(out.method, out.params, timeout=timeout)
        except PeerError as error:
            if error.code in _STATELESS_CODES - {UNKNOWN_SERVER}:
                return server_id
            raise
        try:
            dialect.read_result(result)
        except PeerError as error:
            if not (isinstance(result, dict) and "error" in result):
                raise PeerError(INTERNAL_ERROR, "The answer carries neither an MCP result nor an MCP error") from error
        return server_id

    async def _opened_late(self, dialect: Dialect, result: Any) -> None:
        """The provider opened a connection that nobody waits for any more: it is told, or would keep it."""
        try:
            connection_id = dialect.read_opened(result)
        except PeerError:
            return
        if connection_id not in self._connections:
            await self._disconnect(dialect, connection_id)

    async def _add(self, connection: AcpMcpConnection) -> AcpMcpConnection:
        if self._closed:
            # Closed while it was opened: the provider has it, so it is told.
            await self._disconnect(connection.dialect, connection.address)
            raise LocalError("the connection manager was closed")
        if connection.connection_id in self._connections:
            raise PeerError(INTERNAL_ERROR, f"The provider gave the connection id {connection.connection_id!r} twice")
        self._connections[connection.connection_id] = connection
        return connection

    def get_connection(self, connection_id: str) -> AcpMcpConnection | None:
        """The open connection with an id, or `None`."""
        return self._connections.get(connection_id)

    async def remove_connection(self, connection_id: str) -> None:
        """End a connection: its pending calls fail at once, then the provider is told. An unknown id does nothing."""
        connection = self._connections.pop(connection_id, None)
        if connection is None:
            return
        connection.close()
        await self._disconnect(connection.dialect, connection.address)

    async def _disconnect(self, dialect: Dialect, address: str) -> None:
        """Tell the provider, within a bound; nothing it answers matters, nor what the ACP library makes of it."""
        out = dialect.close(address)
        if out is None:
            return
        # A caller that is being cancelled still tells the provider, which would otherwise keep the connection.
        with anyio.CancelScope(shield=True):
            try:
                if out.notification:
                    with anyio.fail_after(self.disconnect_timeout):
                        await self.outer.notify(out.method, out.params)
                else:
                    await self.outer.request(out.method, out.params, timeout=self.disconnect_timeout)
            except Exception as error:
                logger.debug("disconnect of %s: %r", address, error)

    async def close_all(self) -> None:
        """End every connection, side by side; none can be made after. Idempotent."""
        self._closed = True
        async with anyio.create_task_group() as tasks:
            for connection_id in list(self._connections):
                tasks.start_soon(self.remove_connection, connection_id)

    def abandon_all(self) -> None:
        """The ACP connection is gone: end every connection without a word."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- what the ACP client sends --------------------------------------------------------------------------

    async def handle_request(self, method: str, params: Any, inbound: Inbound | None = None) -> dict[str, Any]:
        """Answer an outer `mcp/*` request of the client.

        Args:
            method: the outer method.
            params: the outer params.
            inbound: the request's record, where a `Peer` made one: it ties cancellation to the handler.

        Raises:
            PeerError: what to answer instead.
        """
        if method not in LANE_METHODS:
            raise PeerError(METHOD_NOT_FOUND, f"Method not found: {method}")
        event = read(method, params, self._has_address)
        if not isinstance(event, Message):
            raise PeerError(METHOD_NOT_FOUND, f"Method not found: {method} is not for an agent")
        connection = self._connections.get(event.connection_id)
        if connection is None:
            raise PeerError(INVALID_PARAMS, f"Unknown connection {event.connection_id!r}")
        if is_notification(event.method):
            connection.handle_notification(event.method, event.params)
            return {}
        return await connection.handle_request(
            event.method, event.params, inbound or Inbound(uuid4().hex, method, params)
        )

    def handle_notification(self, method: str, params: Any) -> None:
        """Take an outer `mcp/*` notification of the client; one that concerns nobody is ignored.

        Raises:
            PeerError: no dialect reads it.
        """
        if method not in LANE_METHODS:
            return
        event = read(method, params, self._has_address)
        if isinstance(event, Message):
            connection = self._connections.get(event.connection_id)
            if connection is not None:
                connection.handle_notification(event.method, event.params)
        elif isinstance(event, Call):
            for connection in self.connections:
                # Several may be open to one server; the request says whose it is. None of them: it came late.
                if connection.address == event.server_id and connection.awaits(event.request_id):
                    connection.handle_notification(event.method, event.params)

    def _has_address(self, connection_id: str) -> bool:
        return connection_id in self._connections


def _discover_params() -> dict[str, Any]:
    from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
    from mcp_types.version import LATEST_MODERN_VERSION

    return {
        "_meta": {
            PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
            CLIENT_CAPABILITIES_META_KEY: {},
            CLIENT_INFO_META_KEY: {"name": "sandport", "version": "0"},
        }
    }
