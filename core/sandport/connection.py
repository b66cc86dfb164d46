"""One MCP connection over the lane: an MCP dispatcher on one side, outer messages on the other.

`McpConnection` implements the `Dispatcher` of MCP SDK 2, so an MCP server kernel or a `ClientSession` runs on it as on
any transport, without an inner JSON-RPC layer: no inner ids exist, hence none can be confused, and each message is
parsed and written once. (For SDK 1 see `sandport.sdk`.) Host and agent use the same class; they differ only in who
opened it.

Invariants: `close` settles every pending call at once, both ways; after it nothing is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import anyio
import anyio.abc
from pydantic import ValidationError

from sandport.codec import is_id
from sandport.errors import ChannelClosed, LimitExceeded
from sandport.rpc import AcpOuter, Inbound
from sandport.sdk import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    MCPError,
    NoBackChannelError,
    TransportContext,
    run_notify_intercept,
)
from sandport.wire import Dialect
from sandport.wire.errors import INTERNAL_ERROR, INVALID_PARAMS, PeerError

if TYPE_CHECKING:
    from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest, Outbound, ProgressFnT
    from mcp.shared.message import MessageMetadata
    from mcp_types import RequestId

__all__ = ["AcpRequestContext", "AcpTransportContext", "McpConnection", "as_peer_error", "progress_token"]

logger = logging.getLogger(__name__)

TRANSPORT_KIND: Final = "acp"

MAX_NOTIFICATIONS: Final = 1024
"""Notifications of the peer whose handlers still run, a connection: a server that floods a client which is busy meets
it, in place of eating the memory."""

PROGRESS_TIMEOUT: Final = 1.0
"""Seconds a result waits for the callbacks of the progress that came before it."""


@dataclass(kw_only=True, frozen=True)
class AcpTransportContext(TransportContext):
    """What the lane knows about an inbound message."""

    kind: str = TRANSPORT_KIND
    can_send_request: bool = True
    dialect: str = ""
    """The name of the dialect that carried it."""
    server_id: str | None = None
    """The id under which the server was declared."""
    session_id: str | None = None
    """The ACP session, as the agent says (`stateless+`): an untrusted hint."""
    tool_call_id: str | None = None
    """The ACP tool call, as the agent says (`stateless+`): an untrusted hint."""


def as_peer_error(error: Exception) -> PeerError:
    """An exception of an MCP handler as it goes on the wire; what is not meant for the peer stays in the log."""
    if isinstance(error, PeerError):
        return error
    if isinstance(error, MCPError):
        return PeerError(error.error.code, error.error.message, error.error.data)
    if isinstance(error, ValidationError):
        return PeerError(INVALID_PARAMS, "Invalid request parameters", "")
    logger.error("an MCP handler failed", exc_info=error)
    return PeerError(INTERNAL_ERROR, "Internal server error")


def progress_token(params: Mapping[str, Any] | None) -> str | int | None:
    """The progress token a request carries, or `None`."""
    meta = params.get("_meta") if params else None
    token = meta.get("progressToken") if isinstance(meta, Mapping) else None
    # 0 and "" are tokens; true is none although Python takes it for 1.
    return token if isinstance(token, (str, int)) and not isinstance(token, bool) else None


@dataclass(eq=False)
class AcpRequestContext:
    """The MCP SDK's `DispatchContext` of one inbound message."""

    connection: Outbound
    """Where what the handler sends goes."""
    transport: AcpTransportContext
    inbound: Inbound | None = None
    """`None` for a notification."""
    progress_token: str | int | None = None
    mcp_request_id: str | None = None
    """The id the MCP request has on the wire, in a dialect where it has one; else the outer id stands for it."""
    message_metadata: MessageMetadata = None

    @cached_property
    def cancel_requested(self) -> anyio.Event:
        """Made when somebody asks for it: hardly a call does."""
        return anyio.Event()

    @property
    def request_id(self) -> RequestId | None:
        if self.inbound is None:
            return None
        request_id: RequestId = self.inbound.id if self.mcp_request_id is None else self.mcp_request_id
        return request_id

    @property
    def _over(self) -> bool:
        return self.inbound is not None and self.inbound.settled

    @property
    def can_send_request(self) -> bool:
        return self.transport.can_send_request and not self._over

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        if not self.can_send_request:
            raise NoBackChannelError(method)
        return await self.connection.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        if self._over:
            logger.debug("dropped %s: its request is over", method)
            return
        await self.connection.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self.progress_token is None:
            return
        params: dict[str, Any] = {"progressToken": self.progress_token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.notify("notifications/progress", params)


@dataclass(eq=False, slots=True)
class _Progress:
    """Who hears of a call's progress, one message after the other."""

    callback: ProgressFnT
    turn: anyio.Lock = field(default_factory=anyio.Lock)

    async def report(self, params: dict[str, Any]) -> None:
        progress, total, message = params.get("progress"), params.get("total"), params.get("message")
        async with self.turn:
            try:
                await self.callback(
                    float(progress),  # type: ignore[arg-type]
                    float(total) if isinstance(total, (int, float)) else None,
                    message if isinstance(message, str) else None,
                )
            except Exception:
                logger.exception("a progress callback failed")

    async def settle(self) -> None:
        """Wait for what is being reported, so that the result does not overtake it."""
        with anyio.move_on_after(PROGRESS_TIMEOUT):
            async with self.turn:
                pass


class McpConnection:
    """An MCP `Dispatcher` whose messages travel as `mcp/message`.

    Args:
        outer: sends outer messages.
        dialect: how they are written.
        address: the connection id, or the server id in a stateless dialect.
        timeout: seconds a request waits for its answer when the caller names no time; `None` waits for ever.
        context: what inbound messages tell their handlers about the transport.
    """

    def __init__(
        self,
        outer: AcpOuter,
        dialect: Dialect,
        address: str,
        *,
        timeout: float | None = None,
        context: AcpTransportContext | None = None,
    ) -> None:
        self.dialect = dialect
        self.address = address
        self.timeout = timeout
        self.context = context or AcpTransportContext(dialect=dialect.name)
        self._outer = outer
        self._closed = anyio.Event()
        self._ready = anyio.Event()
        self._handshake: anyio.Event | None = None
        self._calls: set[anyio.CancelScope] = set()
        self._work: set[Inbound] = set()
        self._active: set[str] = set()
        self._progress: dict[str | int, _Progress] = {}
        self._next_token = 0
        self._notifications = 0
        self._tasks: anyio.abc.TaskGroup | None = None
        self._on_request: OnRequest | None = None
        self._on_notify: OnNotify | None = None
        self._intercept: OnNotifyIntercept | None = None

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._closed.is_set()

    @property
    def pending(self) -> int:
        """Calls that wait for an answer, both ways."""
        return len(self._calls) + len(self._work)

    def awaits(self, request_id: str) -> bool:
        """Whether a request of this side with an id of its own (a stateless dialect's) waits for its answer."""
        return request_id in self._active

    # -- the MCP side: `mcp.shared.dispatcher.Dispatcher` ---------------------------------------------------

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send an MCP request and wait for its result.

        Raises:
            MCPError: the peer's own error with its code and data; `REQUEST_TIMEOUT`; `CONNECTION_CLOSED`.
        """
        if self.closed:
            raise MCPError(code=CONNECTION_CLOSED, message="Connection closed")
        opts = opts or {}
        body = dict(params) if params is not None else None
        progress: _Progress | None = None
        if (on_progress := opts.get("on_progress")) is not None:
            progress = _Progress(on_progress)
            body = self._expect_progress(body, progress)
        timeout = opts.get("timeout", self.timeout)
        request_id = uuid4().hex
        out = self.dialect.message(self.address, request_id, method, body)
        scope = anyio.CancelScope()
        self._calls.add(scope)
        self._active.add(request_id)
        try:
            with scope:
                result = await self._outer.request(out.method, out.params, timeout=timeout)
                if progress is not None:
                    await progress.settle()
                return self.dialect.read_result(result)
        except PeerError as error:
            raise MCPError(code=error.code, message=error.message, data=error.data) from None
        except TimeoutError:
            text = f"Timed out after {timeout:g} s waiting for {method}"
            raise MCPError(code=REQUEST_TIMEOUT, message=text) from None
        except ChannelClosed:
            raise MCPError(code=CONNECTION_CLOSED, message="Connection closed") from None
        finally:
            self._calls.discard(scope)
            self._active.discard(request_id)
            if progress is not None:
                self._progress = {key: value for key, value in self._progress.items() if value is not progress}
        raise MCPError(code=CONNECTION_CLOSED, message="Connection closed")

    def _expect_progress(self, params: dict[str, Any] | None, progress: _Progress) -> dict[str, Any]:
        params = params or {}
        token = progress_token(params)
        if token is None:
            while self._next_token in self._progress:
                self._next_token += 1
            token, self._next_token = self._next_token, self._next_token + 1
            params["_meta"] = {**(params.get("_meta") or {}), "progressToken": token}
        self._progress[token] = progress
        return params

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send an MCP notification. After the end it is dropped, as the SDK's dispatchers do."""
        if self.closed:
            logger.debug("dropped %s: the connection is closed", method)
            return
        out = self.dialect.message(self.address, "", method, dict(params) if params is not None else None)
        try:
            await self._outer.notify(out.method, out.params)
        except ChannelClosed:
            logger.debug("dropped %s: the channel is closed", method)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve inbound messages until `close`."""
        self._on_request, self._on_notify, self._intercept = on_request, on_notify, on_notify_intercept
        try:
            async with anyio.create_task_group() as self._tasks:
                self._ready.set()
                task_status.started()
                await self._closed.wait()
                self._tasks.cancel_scope.cancel()
        finally:
            self.close()
            self._tasks = None

    def close(self) -> None:
        """End the connection locally: pending calls fail, running handlers are cancelled. Idempotent."""
        self._closed.set()
        self._ready.set()
        for scope in list(self._calls):
            scope.cancel()
        for inbound in list(self._work):
            inbound.scope.cancel()
        if self._handshake is not None:
            self._handshake.set()

    # -- the ACP side ---------------------------------------------------------------------------------------

    async def handle_request(
        self, method: str, params: dict[str, Any] | None, inbound: Inbound, context: AcpTransportContext | None = None
    ) -> dict[str, Any]:
        """Answer an MCP request of the peer.

        Raises:
            PeerError: the MCP error.
        """
        self._work.add(inbound)
        try:
            await self._turn()
            if method != "initialize":
                return await self._dispatch(method, params, inbound, context)
            # Nothing overtakes the handshake: what comes behind it must find it done.
            self._handshake = anyio.Event()
            try:
                return await self._dispatch(method, params, inbound, context)
            finally:
                self._handshake.set()
                self._handshake = None
        finally:
            self._work.discard(inbound)

    async def _turn(self) -> None:
        if not self._ready.is_set():
            await self._ready.wait()
        while self._handshake is not None:
            await self._handshake.wait()
        if self.closed:
            raise PeerError(CONNECTION_CLOSED, "Connection closed")

    async def _dispatch(
        self, method: str, params: dict[str, Any] | None, inbound: Inbound, context: AcpTransportContext | None
    ) -> dict[str, Any]:
        assert self._on_request is not None
        request = AcpRequestContext(self, context or self.context, inbound, progress_token(params))
        try:
            return await self._on_request(request, method, params)
        except LimitExceeded as limit:
            raise PeerError(self.dialect.resource_limit, str(limit), {"limit": limit.limit}) from None
        except Exception as error:
            raise as_peer_error(error) from error
        except anyio.get_cancelled_exc_class():
            request.cancel_requested.set()
            # Closed under its hands, not cancelled by anyone who waits: the request still gets its answer.
            if self.closed and not inbound.settled:
                raise PeerError(CONNECTION_CLOSED, "Connection closed") from None
            raise

    def handle_notification(self, method: str, params: dict[str, Any] | None) -> None:
        """Take an MCP notification of the peer, in the order of arrival."""
        if self._tasks is None or self.closed:
            logger.debug("dropped %s: the connection does not run", method)
            return
        if self._notifications >= MAX_NOTIFICATIONS:
            logger.warning("dropped %s: too many are being handled (MAX_NOTIFICATIONS = %d)", method, MAX_NOTIFICATIONS)
            return
        if method == "notifications/progress" and params is not None:
            token, progress = params.get("progressToken"), params.get("progress")
            listener = self._progress.get(token) if isinstance(token, (str, int)) and is_id(token) else None
            if listener is not None and isinstance(progress, (int, float)) and not isinstance(progress, bool):
                self._handle(listener.report, params)
        if not run_notify_intercept(self._intercept, method, params):
            self._handle(self._notification, method, params)

    def _handle(self, handler: Callable[..., Awaitable[None]], *args: Any) -> None:
        assert self._tasks is not None
        self._notifications += 1
        self._tasks.start_soon(self._counted, handler, args)

    async def _counted(self, handler: Callable[..., Awaitable[None]], args: tuple[Any, ...]) -> None:
        try:
            await handler(*args)
        finally:
            self._notifications -= 1

    async def _notification(self, method: str, params: dict[str, Any] | None) -> None:
        assert self._on_notify is not None
        try:
            await self._turn()
            await self._on_notify(AcpRequestContext(self, self.context), method, params)
        except PeerError as error:
            logger.debug("dropped %s: %s", method, error)
        except Exception:
            logger.exception("the handler of %s failed", method)
