"""The shim for the handshake era: Streamable HTTP sessions in front of Sandport's agent side.

The MCP SDK's own HTTP transport speaks with the suite. Behind it there is no server but, for each session, a connection
over ACP, to which every message is passed on. Invariant: what a message says is not changed; only ids are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any
from uuid import uuid4

import anyio
import anyio.abc
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from starlette.types import Receive, Scope, Send
from tests.conformance.hosts import Lane, client
from tests.conformance.http import serve
from tests.peers.provider_driver import Agent

from sandport import memory_channel_pair
from sandport.agent import AcpMCPServerConfig
from sandport.agent.manager import AcpMcpConnection

__all__ = ["shim"]

_ONLY_LOCAL = TransportSecuritySettings(
    allowed_hosts=["localhost:*", "127.0.0.1:*"], allowed_origins=["http://localhost:*", "http://127.0.0.1:*"]
)


class _Session:
    """One HTTP session and its connection."""

    def __init__(self, connection: AcpMcpConnection, write: Any) -> None:
        self._connection = connection
        self._write = write
        self._open: dict[Any, anyio.CancelScope] = {}
        self._asked: dict[Any, tuple[anyio.Event, list[Any]]] = {}
        self._ids = count()

    async def run(self, read: Any) -> None:
        """Pass messages on, both ways, until the session ends."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._connection.run, self._on_request, self._on_notify)
            with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
                while True:
                    item = await read.receive()
                    if not isinstance(item, Exception):
                        await self._pass_on(item.message, tasks)
            tasks.cancel_scope.cancel()

    async def _pass_on(self, message: Any, tasks: anyio.abc.TaskGroup) -> None:
        """A message of the suite."""
        match message:
            case JSONRPCRequest():
                self._open[message.id] = anyio.CancelScope()
                tasks.start_soon(self._request, message)
            case JSONRPCNotification(method="notifications/cancelled"):
                scope = self._open.get((message.params or {}).get("requestId"))
                if scope is not None:
                    scope.cancel()
            case JSONRPCNotification():
                await self._connection.notify(message.method, message.params)
            case _ if message.id in self._asked:
                done, box = self._asked.pop(message.id)
                box.append(message)
                done.set()

    async def _request(self, message: JSONRPCRequest) -> None:
        answer: JSONRPCResponse | JSONRPCError
        with self._open[message.id]:
            try:
                result = await self._connection.send_raw_request(message.method, message.params)
                answer = JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result)
            except MCPError as error:
                answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=error.error)
            del self._open[message.id]
            await self._send(answer)
        self._open.pop(message.id, None)

    async def _send(self, message: Any, metadata: ServerMessageMetadata | None = None) -> None:
        # A session that ended takes no more.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._write.send(SessionMessage(message, metadata=metadata))

    def _metadata(self) -> ServerMessageMetadata | None:
        """On which HTTP stream a message goes out. The lane carries no inner ids, so only a lone request is known."""
        return ServerMessageMetadata(related_request_id=next(iter(self._open))) if len(self._open) == 1 else None

    async def _on_notify(self, context: Any, method: str, params: Any) -> None:
        note = JSONRPCNotification(jsonrpc="2.0", method=method, params=params)
        await self._send(note, self._metadata())

    async def _on_request(self, context: Any, method: str, params: Any) -> dict[str, Any]:
        request_id = f"server-{next(self._ids)}"
        done, box = self._asked[request_id] = (anyio.Event(), [])
        request = JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=params)
        await self._send(request, self._metadata())
        await done.wait()
        answer = box[0]
        if isinstance(answer, JSONRPCError):
            raise MCPError(answer.error.code, answer.error.message, answer.error.data)
        return dict(answer.result)


class _Sessions:
    """The ASGI application."""

    def __init__(self, agent: Agent, config: AcpMCPServerConfig, tasks: anyio.abc.TaskGroup) -> None:
        self._agent = agent
        self._config = config
        self._tasks = tasks
        self._transports: dict[str, StreamableHTTPServerTransport] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        session_id = headers.get(b"mcp-session-id", b"").decode()
        transport = self._transports.get(session_id)
        if transport is None and session_id:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if transport is None:
            transport = StreamableHTTPServerTransport(mcp_session_id=uuid4().hex, security_settings=_ONLY_LOCAL)
            await self._tasks.start(self._serve, transport)
        await transport.handle_request(scope, receive, send)

    async def _serve(
        self, transport: StreamableHTTPServerTransport, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        session_id = str(transport.mcp_session_id)
        async with transport.connect() as (read, write):
            connection = await self._agent.manager.create_connection(self._config)
            self._transports[session_id] = transport
            task_status.started()
            try:
                await _Session(connection, write).run(read)
            finally:
                del self._transports[session_id]
                with anyio.CancelScope(shield=True):
                    await connection.aclose()


@asynccontextmanager
async def shim(lane: Lane) -> AsyncIterator[str]:
    """Serve the lane's server over HTTP, by way of a connect dialect; yields the address."""
    theirs, ours = memory_channel_pair()
    async with anyio.create_task_group() as tasks:
        agent = Agent(ours)
        await tasks.start(agent.run)
        async with client(theirs, lane):
            await agent.session.wait()
            config = AcpMCPServerConfig.from_declaration(agent.declared[0])
            assert config is not None
            config = config.model_copy(update={"dialects": ("connect-serverId",)})
            async with serve(_Sessions(agent, config, tasks)) as url:
                yield url
        tasks.cancel_scope.cancel()
