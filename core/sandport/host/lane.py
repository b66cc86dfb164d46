"""One channel's view of a host: it reads each message's dialect and moves it to its server and back.

Invariants: the dialect is decided a message at a time, per server, never for the channel as a whole. Unknown ids are
answered in the dialect's own code and nothing runs. When the channel ends, nothing of it stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.runner import ServerRunner, aclose_shielded, modern_error_data, serve_one
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request
from mcp.shared.transport_context import TransportContext
from mcp_types import ClientCapabilities, ElicitationCapability, RootsCapability, SamplingCapability

from sandport.channel import Channel
from sandport.connection import AcpRequestContext, AcpTransportContext, McpConnection, progress_token
from sandport.errors import ChannelClosed, LimitExceeded
from sandport.host.call import CLOCK
from sandport.host.mounted import MountedServer
from sandport.rpc import Inbound, Peer
from sandport.wire import CONNECT_SERVER_ID, LANE_METHODS, Call, Close, Dialect, Message, Open, is_notification, read
from sandport.wire.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, PeerError

if TYPE_CHECKING:
    from sandport.host.host import ToolHost

__all__ = ["HostLane", "HostedConnection"]

logger = logging.getLogger(__name__)

_NEEDS = {
    "elicitation/create": ClientCapabilities(elicitation=ElicitationCapability()),
    "sampling/createMessage": ClientCapabilities(sampling=SamplingCapability()),
    "roots/list": ClientCapabilities(roots=RootsCapability()),
}


class HostedConnection(McpConnection):
    """A connection that an agent opened to a mounted server.

    Attributes:
        mounted: the server.
        server_id: the id it was opened by.
        mcp: the MCP SDK's view of the agent, with what it declared in the handshake.
    """

    def __init__(
        self, lane: HostLane, mounted: MountedServer, server_id: str, dialect: Dialect, connection_id: str
    ) -> None:
        context = AcpTransportContext(dialect=dialect.name, server_id=server_id)
        super().__init__(lane.peer, dialect, connection_id, timeout=lane.host.limits.reverse_timeout, context=context)
        self.mounted = mounted
        self.server_id = server_id
        self.mcp = Connection.for_loop(self, session_id=connection_id)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Ask the agent; refused here if it never said that it can answer."""
        needed = _NEEDS.get(method)
        if needed is not None and not self.mcp.check_capability(needed):
            raise MCPError(code=METHOD_NOT_FOUND, message=f"The agent did not declare that it answers {method}")
        clock = CLOCK.get()
        if clock is None:
            return await super().send_raw_request(method, params, opts)
        # Bounded by `reverse_timeout` instead: a person may have to answer.
        with clock.stopped():
            return await super().send_raw_request(method, params, opts)

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the MCP kernel on this connection until it is closed."""
        runner = ServerRunner(self.mounted.low, self.mcp, self.mounted.state)
        try:
            await self.run(self.mounted.serve(runner.on_request), runner.on_notify, task_status=task_status)
        finally:
            await aclose_shielded(self.mcp)

    async def revive(self, initialize: dict[str, Any] | None) -> None:
        """Repeat the handshake that the agent had on this connection before its sandbox restarted."""
        if initialize is not None:
            await self.handle_request("initialize", initialize, Inbound("revive", "mcp/message", None))
            self.handle_notification("notifications/initialized", None)


@dataclass(eq=False, slots=True)
class _CallScope:
    """The back-channel of a stateless request: notifications that carry its ids, and no requests."""

    lane: HostLane
    call: Call

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        call = self.call
        out = call.dialect.message(
            call.server_id, call.request_id, method, dict(params) if params is not None else None
        )
        try:
            await self.lane.peer.notify(out.method, out.params)
        except ChannelClosed:
            logger.debug("dropped %s: the channel is closed", method)


class HostLane:
    """Serves a host on one channel; made by `ToolHost.serve`."""

    def __init__(self, host: ToolHost, channel: Channel, id_prefix: str | None) -> None:
        self.host = host
        self.peer = Peer(
            channel,
            self._request,
            self._notification,
            id_prefix=id_prefix,
            max_message_chars=host.limits.max_message_chars,
        )
        self.connections: dict[str, HostedConnection] = {}
        self.done = anyio.Event()
        """Set when nothing of the lane runs any more."""
        self._calls: dict[tuple[str, str], Inbound] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> None:
        """Serve until the channel ends; then close every connection."""
        try:
            async with anyio.create_task_group() as self._tasks:
                try:
                    await self.peer.run()
                finally:
                    for connection in list(self.connections.values()):
                        connection.close()
                    self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            self.done.set()

    async def adopt(
        self, mounted: MountedServer, server_id: str, connection_id: str, initialize: dict[str, Any] | None
    ) -> None:
        """Take up a connection under a known id. See `ToolHost.adopt`."""
        # The dialects of the connect family answer messages alike; which of them opened it no longer matters.
        connection = await self._connect(mounted, server_id, CONNECT_SERVER_ID, connection_id)
        try:
            await connection.revive(initialize)
        except BaseException:
            self._end(connection)
            raise

    def withdraw(self, server_id: str) -> None:
        """End everything of a server id, without an answer: who withdraws it answers in its stead."""
        for inbound in self.peer.inbound:
            if self._server_id_of(inbound) == server_id:
                inbound.abandon()
        for connection in list(self.connections.values()):
            if connection.server_id == server_id:
                self._end(connection)

    def _server_id_of(self, inbound: Inbound) -> str | None:
        """The server id a request is about, whatever its dialect calls it."""
        try:
            event = read(inbound.method, inbound.params, self.connections.__contains__)
        except PeerError:
            return None
        if isinstance(event, (Open, Call)):
            return event.server_id
        connection = self.connections.get(event.connection_id)
        return connection.server_id if connection is not None else None

    async def list_changed(self, mounted: MountedServer, kind: str) -> None:
        """Tell the agents on this channel that have shaken hands with a server that one of its lists changed."""
        for connection in list(self.connections.values()):
            if connection.mounted is mounted and connection.mcp.initialize_accepted:
                await connection.notify(f"notifications/{kind}/list_changed", None)

    # -- inbound --------------------------------------------------------------------------------------------

    async def _request(self, inbound: Inbound) -> Any:
        if inbound.method not in LANE_METHODS:
            raise PeerError(METHOD_NOT_FOUND, f"Method not found: {inbound.method}")
        event = read(inbound.method, inbound.params, self.connections.__contains__)
        match event:
            case Open():
                return await self._open(event, inbound)
            case Message():
                return await self._message(event, inbound)
            case Call():
                return await self._call(event, inbound)
            case Close():
                return self._close(event)

    def _notification(self, method: str, params: Any) -> None:
        if method not in LANE_METHODS:
            logger.debug("ignored notification %s", method)
            return
        event = read(method, params, self.connections.__contains__)
        if isinstance(event, Close):
            self._close(event)
        elif isinstance(event, Message) and event.connection_id in self.connections:
            self.connections[event.connection_id].handle_notification(event.method, event.params)
        elif isinstance(event, Call) and event.method == "notifications/cancelled":
            self._cancel_call(event)
        else:
            # The agent has no other stateless notification; one for an unknown connection concerns nobody.
            logger.debug("ignored %s: it concerns nobody here", method)

    def _cancel_call(self, event: Call) -> None:
        """An inner cancellation, in the one family whose inner ids are on the wire."""
        target = (event.params or {}).get("requestId")
        inbound = self._calls.get((event.server_id, target)) if isinstance(target, str) else None
        if inbound is not None:
            self.peer.cancel(inbound)

    async def _open(self, event: Open, inbound: Inbound) -> dict[str, Any]:
        mounted = await self._server(event.server_id, event.dialect)
        open_now = sum(connection.mounted is mounted for connection in self.connections.values())
        if open_now >= self.host.limits.max_connections:
            limit = LimitExceeded(
                "max_connections", self.host.limits.max_connections, f"Server {mounted.name!r} has too many connections"
            )
            raise PeerError(event.dialect.resource_limit, str(limit), {"limit": limit.limit})
        connection_id = event.connection_id or uuid4().hex
        if connection_id in self.connections:
            raise PeerError(INVALID_PARAMS, f"Connection id {connection_id!r} is in use")
        connection = await self._connect(mounted, event.server_id, event.dialect, connection_id)
        if inbound.settled or connection.closed:
            # Cancelled, or withdrawn, in the last moment: nobody learns the id, so nobody could close it.
            self._end(connection)
            self._server_now(event.server_id, event.dialect)
            raise PeerError(event.dialect.backend_failed, f"Server {mounted.name!r} ended while it was connected")
        return event.dialect.opened(connection_id)

    async def _connect(
        self, mounted: MountedServer, server_id: str, dialect: Dialect, connection_id: str
    ) -> HostedConnection:
        assert self._tasks is not None
        connection = HostedConnection(self, mounted, server_id, dialect, connection_id)
        self.connections[connection_id] = connection
        try:
            await self._tasks.start(self._serve, connection)
        except BaseException:
            # Stopped before it ran, perhaps; then only this takes it out of the table.
            self._forget(connection)
            raise
        return connection

    async def _serve(
        self, connection: HostedConnection, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await connection.serve(task_status=task_status)
        finally:
            self._forget(connection)

    def _end(self, connection: HostedConnection) -> None:
        """Out of the table at once; the kernel on it unwinds after."""
        self._forget(connection)
        connection.close()

    def _forget(self, connection: HostedConnection) -> None:
        if self.connections.get(connection.address) is connection:
            del self.connections[connection.address]

    async def _message(self, event: Message, inbound: Inbound) -> dict[str, Any]:
        connection = self.connections.get(event.connection_id)
        if connection is None:
            raise PeerError(INVALID_PARAMS, f"Unknown connection {event.connection_id!r}")
        if is_notification(event.method):
            # Some agents send notifications as requests; without an answer they stall.
            connection.handle_notification(event.method, event.params)
            return {}
        result = await connection.handle_request(event.method, event.params, inbound)
        if "error" in result:
            # Such a result is read as an error by some agents; no MCP result has the member.
            raise PeerError(connection.dialect.backend_failed, f"The result of {event.method} has a member 'error'")
        return result

    async def _call(self, event: Call, inbound: Inbound) -> Any:
        if is_notification(event.method):
            # Not of this binding, but harmless; a cancellation even says which call it means.
            self._server_now(event.server_id, event.dialect)
            if event.method == "notifications/cancelled":
                self._cancel_call(event)
            return event.dialect.result({})
        mounted = await self._server(event.server_id, event.dialect)
        key = (event.server_id, event.request_id)
        if key in self._calls:
            raise PeerError(INVALID_PARAMS, "Invalid params: the requestId is active already")
        self._calls[key] = inbound
        try:
            return await self._stateless(mounted, event, inbound)
        except LimitExceeded as limit:
            raise PeerError(event.dialect.resource_limit, str(limit), {"limit": limit.limit}) from None
        finally:
            del self._calls[key]

    async def _stateless(self, mounted: MountedServer, event: Call, inbound: Inbound) -> Any:
        verdict = classify_inbound_request({"method": event.method, "params": event.params})
        if isinstance(verdict, InboundLadderRejection):
            return event.dialect.error(verdict.code, verdict.message, verdict.data)
        transport = AcpTransportContext(
            can_send_request=False,
            dialect=event.dialect.name,
            server_id=event.server_id,
            session_id=event.session_id,
            tool_call_id=event.tool_call_id,
        )
        context = AcpRequestContext(
            _CallScope(self, event), transport, inbound, progress_token(event.params), event.request_id
        )
        connection = Connection.from_envelope(
            verdict.protocol_version, verdict.client_info, verdict.client_capabilities
        )

        async def kernel(
            context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            return await serve_one(
                mounted.low, context, method, params, connection=connection, lifespan_state=mounted.state
            )

        try:
            result = await mounted.serve(kernel)(context, event.method, event.params)
        except LimitExceeded:
            raise
        except Exception as error:
            data = modern_error_data(error)
            return event.dialect.error(data.code, data.message, data.data)
        replace = inbound.unencodable

        def unencodable(error: Exception) -> Any:
            if replace is not None:
                return event.dialect.result(replace(error))
            return event.dialect.error(INTERNAL_ERROR, f"The result cannot be written as JSON: {error}", None)

        inbound.unencodable = unencodable
        return event.dialect.result(result)

    def _close(self, event: Close) -> dict[str, Any]:
        connection = self.connections.get(event.connection_id)
        if connection is not None:
            self._end(connection)
        return {}

    async def _server(self, server_id: str, dialect: Dialect) -> MountedServer:
        """The server an id stands for, once its lifespan has begun."""
        await self._server_now(server_id, dialect).started()
        return self._server_now(server_id, dialect)

    def _server_now(self, server_id: str, dialect: Dialect) -> MountedServer:
        mounted = self.host.server_of(server_id)
        if mounted is None:
            raise PeerError(dialect.unknown_server, f"Unknown server {server_id!r}", {"serverId": server_id})
        if mounted.failure is not None:
            raise PeerError(
                dialect.backend_failed,
                f"Server {mounted.name!r} does not serve: {mounted.failure}",
                {"serverId": server_id},
            )
        return mounted
