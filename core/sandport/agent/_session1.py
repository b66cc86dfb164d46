"""A client session of MCP SDK 1 on a connection. Imported with SDK 1 only; SDK 2 needs nothing of the kind.

SDK 1's session speaks JSON-RPC over two streams. This one leaves them empty: what it sends goes to the connection, and
what the server sends is handed to the methods the SDK has for subclasses. So here too no inner ids exist, a call that
is cancelled is cancelled at the server, and a question of the server's waits for no other.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import anyio
from mcp import ClientSession
from mcp.shared.message import MessageMetadata, SessionMessage
from mcp.shared.session import ProgressFnT, RequestResponder
from mcp.types import (
    ClientNotification,
    ClientRequest,
    ClientResult,
    ErrorData,
    RequestId,
    ServerNotification,
    ServerRequest,
)
from pydantic import BaseModel, ValidationError

from sandport.connection import AcpRequestContext, McpConnection
from sandport.sdk import MCPError
from sandport.wire.errors import METHOD_NOT_FOUND

__all__ = ["session_on"]

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT", bound=BaseModel)


def _dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class _Responder(RequestResponder[ServerRequest, ClientResult]):
    """A request of the server; keeps its answer for who asked in place of writing it to a stream."""

    answer: ClientResult | ErrorData | None = None

    async def respond(self, response: ClientResult | ErrorData) -> None:
        self.answer = response
        self._completed = True


class _Session(ClientSession):
    def __init__(self, connection: McpConnection, silent: Any, unused: Any, options: dict[str, Any]) -> None:
        super().__init__(silent, unused, **options)
        self._connection = connection
        self._read_timeout: timedelta | None = options.get("read_timeout_seconds")

    async def send_request(
        self,
        request: ClientRequest,
        result_type: type[ResultT],
        request_read_timeout_seconds: timedelta | None = None,
        metadata: MessageMetadata = None,
        progress_callback: ProgressFnT | None = None,
    ) -> ResultT:
        """Send a request over the connection; see the base class."""
        body = _dump(request)
        options: dict[str, Any] = {"on_progress": progress_callback}
        timeout = self._read_timeout if request_read_timeout_seconds is None else request_read_timeout_seconds
        if timeout is not None:
            options["timeout"] = timeout.total_seconds()
        result = await self._connection.send_raw_request(body["method"], body.get("params"), options)
        return result_type.model_validate(result)

    async def send_notification(
        self, notification: ClientNotification, related_request_id: RequestId | None = None
    ) -> None:
        """Send a notification over the connection; see the base class."""
        body = _dump(notification)
        await self._connection.notify(body["method"], body.get("params"))

    async def on_request(
        self, context: AcpRequestContext, method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Answer a request of the server."""
        request = ServerRequest.model_validate(_message(method, params))
        assert context.request_id is not None
        meta = request.root.params.meta if request.root.params else None
        responder = _Responder(context.request_id, meta, request, self, on_complete=lambda _: None)
        await self._received_request(responder)
        if isinstance(responder.answer, ErrorData):
            error = responder.answer
            raise MCPError(error.code, error.message, error.data)
        if responder.answer is None:
            raise MCPError(METHOD_NOT_FOUND, f"Method not found: {method}")
        return _dump(responder.answer)

    async def on_notify(self, context: AcpRequestContext, method: str, params: Mapping[str, Any] | None) -> None:
        """Take a notification of the server; one that the SDK does not know is nobody's."""
        try:
            notification = ServerNotification.model_validate(_message(method, params))
        except ValidationError:
            logger.debug("dropped %s: the SDK does not know it", method)
            return
        await self._received_notification(notification)
        await self._handle_incoming(notification)


def _message(method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"method": method} if params is None else {"method": method, "params": params}


@contextlib.asynccontextmanager
async def session_on(connection: McpConnection, **options: Any) -> AsyncGenerator[ClientSession, None]:
    """Run a client session on a connection, until the end of the context.

    Args:
        connection: an open one.
        **options: of `mcp.ClientSession`, but for its streams.
    """
    failure: Exception | None = None
    feed, silent = anyio.create_memory_object_stream[SessionMessage | Exception]()
    unused, drain = anyio.create_memory_object_stream[SessionMessage]()
    with feed, drain:
        async with _Session(connection, silent, unused, options) as session, anyio.create_task_group() as tasks:
            await tasks.start(connection.run, session.on_request, session.on_notify)
            try:
                yield session
            except Exception as error:
                # Kept out of the groups, which would wrap it.
                failure = error
            finally:
                connection.close()
    if failure is not None:
        raise failure
