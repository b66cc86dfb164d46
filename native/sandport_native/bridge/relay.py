"""The way of MCP messages between an agent and one of the page's servers.

Invariant: where both ends speak the same MCP era, what passes is neither read nor rebuilt: requests, results, errors
with their code and data, notifications, and what the page asks of the agent. Only where the eras differ does FastMCP's
proxy behind it translate. A notification never overtakes, nor falls behind, the result it came before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.abc
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.transport_context import TransportContext
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from sandport.agent import AcpMcpConnection, AcpMcpConnectionManager, AcpMCPServerConfig
from sandport.connection import progress_token
from sandport.errors import ChannelClosed, LocalError, PeerError
from sandport.wire import DIALECTS, Call, Dialect, Family, read

__all__ = ["Relay"]

log = logging.getLogger("sandport.bridge")

NOTE_TIMEOUT: Final = 5.0
"""Seconds an agent gets to take one notification; one that reads nothing must not hold up results."""

MAX_NOTES: Final = 1024
"""Notifications that wait for an agent; more are dropped, as it is not reading."""

Front = DispatchContext[TransportContext]


class Relay:
    """The outermost middleware of the MCP server that the agent sees in place of a page's server.

    Args:
        manager: of the ACP connection to the page.
        config: the page's server.
        tasks: runs connections to the page that outlive the request that opened them.
    """

    def __init__(
        self, manager: AcpMcpConnectionManager, config: AcpMCPServerConfig, tasks: anyio.abc.TaskGroup
    ) -> None:
        self._manager = manager
        self._config = config
        self._tasks = tasks
        self._backs: dict[Connection, _Back] = {}
        self._exchanges: set[_Back] = set()
        self._stateless: Dialect | None = None
        """The dialect without connections that the page speaks, once it is known."""
        self._refused: set[Family] = set()
        self._calls: set[anyio.CancelScope] = set()

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Take one message of the agent."""
        if ctx.request_id is None:
            return await self._notified(ctx, call_next)
        if ctx.method != "tools/call":
            return await self._pass(ctx, call_next)
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await self._pass(ctx, call_next)
            finally:
                self._calls.discard(scope)
        return _stopped(ctx.protocol_version)

    def cancel(self) -> None:
        """Stop the tool calls that are running; each is answered with an error."""
        for scope in list(self._calls):
            scope.cancel()

    def take(self, method: str, params: Any) -> bool:
        """Hand over a notification of the page that belongs to a request without a connection. Whether it was ours.

        Raises:
            PeerError: no dialect reads it.
        """
        event = read(method, params, lambda _: False) if self._exchanges and "requestId" in params else None
        if not isinstance(event, Call):
            return False
        for exchange in self._exchanges:
            if exchange.connection.awaits(event.request_id):
                exchange.connection.handle_notification(event.method, event.params)
                return True
        return False

    # -- the agent's messages -------------------------------------------------------------------------------

    async def _pass(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        request, front = _ends(ctx)
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return await self._exchange(ctx, request, call_next)
        if ctx.method == "initialize":
            return await self._initialize(ctx, request, front, call_next)
        back = self._backs.get(front)
        if back is None:
            return await call_next(ctx)
        return await back.request(request, ctx.method, ctx.params)

    async def _initialize(
        self, ctx: ServerRequestContext[Any, Any], request: Front, front: Connection, call_next: CallNext
    ) -> HandlerResult:
        connection = await self._open("connect")
        if connection is None:
            return await call_next(ctx)
        back = _Back(connection, front.notify, front.outbound.send_raw_request)
        await self._tasks.start(back.run)
        # Whatever ends the agent's MCP session ends the page's.
        front.exit_stack.push_async_callback(self._forget, front, connection)
        self._backs[front] = back
        return await back.request(request, ctx.method, ctx.params)

    async def _forget(self, front: Connection, connection: AcpMcpConnection) -> None:
        self._backs.pop(front, None)
        await connection.aclose()

    async def _exchange(
        self, ctx: ServerRequestContext[Any, Any], request: Front, call_next: CallNext
    ) -> HandlerResult:
        if self._stateless is None:
            probe = await self._open("stateless")
            if probe is None:
                return await call_next(ctx)
            self._stateless = probe.dialect
            await probe.aclose()
        server_id = self._config.acp_id
        connection = AcpMcpConnection(self._manager, self._config, self._stateless, server_id, uuid4().hex)
        back = _Back(connection, request.notify, request.send_raw_request, ctx.request_id)
        failure: MCPError | None = None
        result: dict[str, Any] = {}
        self._exchanges.add(back)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(back.run)
                try:
                    result = await back.request(request, ctx.method, ctx.params)
                except MCPError as error:
                    failure = error  # kept out of the group, which would wrap it
                tasks.cancel_scope.cancel()
        finally:
            self._exchanges.discard(back)
        if failure is not None:
            raise failure
        return result

    async def _notified(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        back = self._backs.get(_ends(ctx)[1])
        # A cancellation has stopped the request here already, and with it the page's; ids do not go through.
        if back is not None and ctx.method != "notifications/cancelled":
            await back.connection.notify(ctx.method, ctx.params)
        return await call_next(ctx)

    async def _open(self, family: Family) -> AcpMcpConnection | None:
        """A connection in a dialect of this family, `None` if the page has only the other.

        Raises:
            MCPError: the page refused, in whatever it was asked.
        """
        known = self._config.dialects or tuple(dialect.name for dialect in DIALECTS)
        ours, others = (
            tuple(item.name for item in DIALECTS if item.name in known and (item.family == family) is wanted)
            for wanted in (True, False)
        )
        if family in self._refused or not ours:
            return None
        try:
            return await self._create(ours)
        except MCPError as error:
            if not others:
                raise
            # Without the other family either, the page has lost the server, and the agent is told.
            await (await self._create(others)).aclose()
            log.info("server %r does not speak the %s dialects: %s", self._config.name, family, error)
            self._refused.add(family)
            return None

    async def _create(self, dialects: tuple[str, ...]) -> AcpMcpConnection:
        try:
            return await self._manager.create_connection(self._config.model_copy(update={"dialects": dialects}))
        except PeerError as error:
            raise MCPError(code=error.code, message=error.message, data=error.data) from None
        except TimeoutError as error:
            raise MCPError(code=REQUEST_TIMEOUT, message=str(error)) from None
        except (ChannelClosed, LocalError):
            raise MCPError(code=CONNECTION_CLOSED, message="The page is gone") from None


class _Back:
    """A connection to the page and the agent's end of it.

    Args:
        connection: to the page.
        notify, ask: send to the agent what belongs to no request of its own.
        rename: the agent's id of the one request that the connection is for, in an era where the page says it back.
    """

    def __init__(
        self,
        connection: AcpMcpConnection,
        notify: Callable[..., Awaitable[None]],
        ask: Callable[..., Awaitable[dict[str, Any]]],
        rename: RequestId | None = None,
    ) -> None:
        self.connection = connection
        self._notify = notify
        self._ask = ask
        self._rename = rename
        self._open: list[Front] = []
        """The agent's requests that wait for the page, the newest last."""
        self._put, self._notes = anyio.create_memory_object_stream[anyio.Event | tuple[str, dict[str, Any] | None]](
            MAX_NOTES
        )

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry what the page sends of itself, until the connection ends."""
        with self._put, self._notes:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._deliver)
                await self.connection.run(self._asked, _nothing, self._noted, task_status=task_status)
                tasks.cancel_scope.cancel()

    async def request(self, front: Front, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        """Pass on a request of the agent.

        Raises:
            MCPError: the page's.
        """
        options: CallOptions = {}
        if progress_token(params) is not None:
            options["on_progress"] = front.progress
        if method == "subscriptions/listen":
            options["timeout"] = None  # type: ignore[typeddict-item]  # it lasts until somebody ends it
        self._open.append(front)
        try:
            result = await self.connection.send_raw_request(method, params, options)
            await self._settled()
        finally:
            self._open.remove(front)
        return self._renamed(result) or {}

    async def _settled(self) -> None:
        """Wait for the notifications that came before the result."""
        done = anyio.Event()
        try:
            self._put.send_nowait(done)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        await done.wait()

    # -- the page's messages --------------------------------------------------------------------------------

    async def _asked(self, _context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        # No dialect of the connect family says for which call the page asks. The newest is the likely one, and on HTTP
        # its stream is the one that an agent surely reads.
        ask = self._open[-1].send_raw_request if self._open else self._ask
        return await ask(method, params)

    def _noted(self, method: str, params: Mapping[str, Any] | None) -> bool:
        # Progress has gone to the call that it is of.
        if method != "notifications/progress":
            try:
                self._put.send_nowait((method, dict(params) if params is not None else None))
            except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
                log.warning("dropped %s: the agent takes no notifications", method)
        return True

    async def _deliver(self) -> None:
        async for note in self._notes:
            if isinstance(note, anyio.Event):
                note.set()
                continue
            method, params = note
            # Log messages are about what is being done; news of lists are about the server.
            about = method == "notifications/message" and self._open
            notify = self._open[-1].notify if about else self._notify
            with anyio.move_on_after(NOTE_TIMEOUT):
                await notify(method, self._renamed(params))

    def _renamed(self, params: dict[str, Any] | None) -> dict[str, Any] | None:
        meta = (params or {}).get("_meta")
        if params is None or self._rename is None or not isinstance(meta, dict) or SUBSCRIPTION_ID_META_KEY not in meta:
            return params
        return {**params, "_meta": {**meta, SUBSCRIPTION_ID_META_KEY: self._rename}}


async def _nothing(_context: Any, _method: str, _params: Any) -> None:
    """All notifications are taken in the order of their arrival, before they get here."""


def _ends(ctx: ServerRequestContext[Any, Any]) -> tuple[Front, Connection]:
    """The way back of one request, and the connection that it came on.

    The SDK gives handlers typed messages on them only; raw ones pass what its types do not know.
    """
    return ctx.session._request_outbound, ctx.session._connection


def _stopped(version: str) -> dict[str, Any]:
    """The result of a tool call that the person stopped."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": "The call was cancelled"}], "isError": True}
    return result | ({"resultType": "complete"} if version in MODERN_PROTOCOL_VERSIONS else {})
