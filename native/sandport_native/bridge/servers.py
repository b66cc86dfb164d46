"""The page's servers as MCP servers on loopback, over the MCP SDK's own Streamable HTTP server, or over a socket for
agents that only start programs.

Invariants: each server has an address and a secret of its own and answers nobody without it; it lives exactly from
`add` to `remove`; when `remove` returns, its connections to the page are closed.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import uvicorn
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.stapled import MultiListener
from fastmcp.server.providers.proxy import FastMCPProxy, StatefulProxyClient
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_dual_era_loop
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig, AcpMcpTransport
from sandport_native.bridge.relay import Relay
from sandport_native.http import QuietServer, listen
from sandport_native.lines import MAX_LINE_BYTES

log = logging.getLogger("sandport.bridge")

PATH = "/mcp"

SHIM = Path(__file__).with_name("shim.py")
"""Run as a file: as a module of this package it would load all of it."""

SECRET_TIMEOUT = 10.0
"""Seconds a shim has to say whose it is."""


@dataclass(eq=False)
class Served:
    """One page server on loopback.

    Attributes:
        config: the server as the client declared it.
        url, secret: where the agent finds it, and what it must send as a bearer token.
        relay: what carries its messages.
    """

    config: AcpMCPServerConfig
    url: str
    secret: str
    relay: Relay
    server: Server[Any]
    http: StreamableHTTPSessionManager
    stop: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)


class LoopbackServers:
    """Serves any number of page servers from one loopback port. Made by `loopback_servers`."""

    def __init__(self, manager: AcpMcpConnectionManager, tasks: anyio.abc.TaskGroup) -> None:
        self._manager = manager
        self._tasks = tasks
        self._table: dict[str, Served] = {}
        self._server: QuietServer | None = None
        self._shims: MultiListener[SocketStream] | None = None
        self._port = 0
        self._starting = anyio.Lock()

    def __len__(self) -> int:
        return len(self._table)

    async def add(self, config: AcpMCPServerConfig) -> Served:
        """Put a page server on loopback. Nothing is opened at the page before the agent connects."""
        await self._start()
        key, secret = secrets.token_urlsafe(16), secrets.token_urlsafe(32)
        relay = Relay(self._manager, config, self._tasks)
        server = self._proxy(config)
        server.middleware.insert(0, relay)
        http = StreamableHTTPSessionManager(
            server,
            security_settings=TransportSecuritySettings(allowed_hosts=[f"127.0.0.1:{self._port}"]),
            session_idle_timeout=None,  # it ends with the session of the agent, however long that is idle
            max_request_body_size=MAX_LINE_BYTES,
        )
        served = Served(config, f"http://127.0.0.1:{self._port}/{key}{PATH}", secret, relay, server, http)
        await self._tasks.start(self._host, served)
        self._table[key] = served
        return served

    async def shim(self, served: Served) -> tuple[list[str], dict[str, str]]:
        """The command and the variables that make a stdio MCP server of a page server."""
        async with self._starting:
            if self._shims is None:
                self._shims = await anyio.create_tcp_listener(local_host="127.0.0.1")
                self._tasks.start_soon(self._listen, self._shims)
        port = self._shims.extra(SocketAttribute.local_port)
        env = {"SANDPORT_BRIDGE_PORT": str(port), "SANDPORT_BRIDGE_SECRET": served.secret}
        return [sys.executable, "-I", str(SHIM)], env

    def _proxy(self, config: AcpMCPServerConfig) -> Server[Any]:
        """What translates between MCP eras where the relay cannot pass messages as they are."""
        backend: StatefulProxyClient[AcpMcpTransport] = StatefulProxyClient(
            AcpMcpTransport(self._manager, config), forward_incoming_headers=False, mode="auto"
        )
        proxy = FastMCPProxy(client_factory=backend.new_stateful, name=config.name, provider_error_strategy="raise")
        server: Server[Any] = proxy._mcp_server
        # Else each call of a tool would be preceded by a list of tools, to check headers that the page never sees.
        server.get_tool_input_schema = lambda _name: None
        return server

    def take(self, method: str, params: Any) -> bool:
        """Hand over a notification of the page. Whether it belonged to a request of one of the servers."""
        return isinstance(params, dict) and any(served.relay.take(method, params) for served in self._table.values())

    async def remove(self, served: Served) -> None:
        """End a server: its running calls, its sessions, its connections to the page."""
        self._table = {key: other for key, other in self._table.items() if other is not served}
        served.relay.cancel()
        served.stop.set()
        await served.gone.wait()

    async def close(self) -> None:
        """End all servers and stop listening."""
        for served in list(self._table.values()):
            await self.remove(served)
        if self._server is not None:
            self._server.should_exit = True

    async def _start(self) -> None:
        async with self._starting:
            if self._server is not None:
                return
            sock = listen("127.0.0.1", 0)
            self._port = sock.getsockname()[1]
            self._server = QuietServer(
                uvicorn.Config(
                    self._app,
                    interface="asgi3",
                    access_log=False,
                    log_config=None,
                    server_header=False,
                    lifespan="off",
                    proxy_headers=False,
                    timeout_graceful_shutdown=1,
                )
            )
            self._tasks.start_soon(self._server.serve, [sock])
            await self._server.ready.wait()

    async def _host(self, served: Served, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        try:
            async with served.http.run():
                task_status.started()
                await served.stop.wait()
        finally:
            with anyio.CancelScope(shield=True):
                for connection in self._manager.connections:
                    if connection.config.acp_id == served.config.acp_id:
                        await self._manager.remove_connection(connection.connection_id)
            served.gone.set()

    async def _listen(self, shims: MultiListener[SocketStream]) -> None:
        async with shims:
            await shims.serve(self._shim)

    async def _shim(self, stream: SocketStream) -> None:
        """A shim has connected; its first line is the secret of its server."""
        incoming = BufferedByteReceiveStream(stream)
        async with stream:
            try:
                with anyio.fail_after(SECRET_TIMEOUT):
                    given = await incoming.receive_until(b"\n", 256)
            except (TimeoutError, anyio.DelimiterNotFound, anyio.IncompleteRead, anyio.BrokenResourceError):
                return  # none of ours
            for served in list(self._table.values()):
                if hmac.compare_digest(given, served.secret.encode()):
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._speak, served, _Lines(incoming, stream), tasks.cancel_scope)
                        await served.stop.wait()
                        tasks.cancel_scope.cancel()
                    return

    @staticmethod
    async def _speak(served: Served, lines: _Lines, over: anyio.CancelScope) -> None:
        server = served.server
        try:
            async with (
                server.lifespan(server) as state,
                stdio_server(stdin=lines, stdout=lines) as (read, write),  # type: ignore[arg-type]
            ):
                await serve_dual_era_loop(server, read, write, lifespan_state=state)
        except Exception as error:
            # It hung up in the middle of a message, as a rule; the others must not suffer.
            log.debug("a shim of %r is gone: %r", served.config.name, error)
        over.cancel()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # Agents also ask for OAuth metadata below the origin: whatever is no server of ours is not found.
        _, key, rest = [*scope["path"].split("/", 2), "", ""][:3]
        served = self._table.get(key)
        if served is None or f"/{rest}" != PATH:
            await PlainTextResponse("Not found", 404)(scope, receive, send)
            return
        given = Request(scope).headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {served.secret}".encode()):
            await PlainTextResponse("Not allowed", 403)(scope, receive, send)
            return
        await served.http.handle_request(scope, receive, send)


class _Lines:
    """A socket as the text files that the MCP SDK's stdio server reads and writes."""

    def __init__(self, incoming: BufferedByteReceiveStream, outgoing: SocketStream) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        try:
            return (await self._incoming.receive_until(b"\n", MAX_LINE_BYTES)).decode("utf-8", "replace")
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def write(self, text: str) -> None:
        await self._outgoing.send(text.encode())

    async def flush(self) -> None:
        """Nothing is held back."""


@asynccontextmanager
async def loopback_servers(manager: AcpMcpConnectionManager) -> AsyncIterator[LoopbackServers]:
    """Serve page servers while the context is open."""
    async with anyio.create_task_group() as tasks:
        servers = LoopbackServers(manager, tasks)
        try:
            yield servers
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(10):
                await servers.close()
            tasks.cancel_scope.cancel()
