"""The page's servers as MCP servers on loopback, over the MCP SDK's own Streamable HTTP server.

Invariants: each server has an address and a secret of its own and answers nobody without it; it lives exactly from
`add` to `remove`; when `remove` returns, its connections to the page are closed.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import uvicorn
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers.proxy import FastMCPProxy, StatefulProxyClient
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig, AcpMcpTransport
from sandport_native.http import QuietServer, listen

log = logging.getLogger("sandport.bridge")

PATH = "/mcp"


class _Calls(Middleware):
    """The running tool calls, so that `session/cancel` stops them even where the agent tells the server nothing."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                return await call_next(context)
        finally:
            self._scopes.discard(scope)
        raise ToolError("The call was cancelled")

    def cancel(self) -> None:
        """Stop all of them. Each is answered with an error."""
        for scope in list(self._scopes):
            scope.cancel()


@dataclass(eq=False)
class Served:
    """One page server on loopback.

    Attributes:
        config: the server as the client declared it.
        url, secret: where the agent finds it, and what it must send as a bearer token.
    """

    config: AcpMCPServerConfig
    url: str
    secret: str
    app: Any
    calls: _Calls
    stop: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)


class LoopbackServers:
    """Serves any number of page servers from one loopback port. Made by `loopback_servers`."""

    def __init__(self, manager: AcpMcpConnectionManager, tasks: anyio.abc.TaskGroup) -> None:
        self._manager = manager
        self._tasks = tasks
        self._table: dict[str, Served] = {}
        self._server: QuietServer | None = None
        self._port = 0
        self._starting = anyio.Lock()

    async def add(self, config: AcpMCPServerConfig) -> Served:
        """Put a page server on loopback. Nothing is opened at the page before the agent connects."""
        await self._start()
        key, secret = secrets.token_urlsafe(16), secrets.token_urlsafe(32)
        calls = _Calls()
        backend: StatefulProxyClient[AcpMcpTransport] = StatefulProxyClient(
            AcpMcpTransport(self._manager, config), forward_incoming_headers=False, mode="auto"
        )
        proxy = FastMCPProxy(client_factory=backend.new_stateful, name=config.name, middleware=[calls])
        app = proxy.http_app(path=PATH, allowed_hosts=[f"127.0.0.1:{self._port}"])
        served = Served(config, f"http://127.0.0.1:{self._port}/{key}{PATH}", secret, app, calls)
        await self._tasks.start(self._host, served)
        self._table[key] = served
        return served

    async def remove(self, served: Served) -> None:
        """End a server: its running calls, its sessions, its connections to the page."""
        self._table = {key: other for key, other in self._table.items() if other is not served}
        served.calls.cancel()
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
            async with served.app.lifespan(served.app):
                task_status.started()
                await served.stop.wait()
        finally:
            with anyio.CancelScope(shield=True):
                for connection in self._manager.connections:
                    if connection.config.acp_id == served.config.acp_id:
                        await self._manager.remove_connection(connection.connection_id)
            served.gone.set()

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
        app: ASGIApp = served.app
        await app({**scope, "path": PATH, "raw_path": PATH.encode()}, receive, send)


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
