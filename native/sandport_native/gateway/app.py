"""The ASGI application: routes, door, and the table of open sockets.

Invariant: `open_sockets` counts exactly the sockets that hold, or are about to hold, an agent; it never exceeds the
limit and is zero after `stop`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from sandport_native.gateway.access import SUBPROTOCOL, TOKEN_PREFIX, UTF8_SUBPROTOCOL, Access, Refusal
from sandport_native.gateway.relay import Relay
from sandport_native.gateway.static import Bundle
from sandport_native.lines import MAX_LINE_BYTES
from sandport_native.log import RateLimiter
from sandport_native.process import AgentSpec

log = logging.getLogger("sandport.gateway")

MAX_SOCKETS = 128
"""Open sockets, and so agent processes, at once. A page needs one; an agent costs 100 to 600 MB."""

SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
"""For answers that are not files of the bundle; those bring their own."""


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents a page can choose from; the first is the default."""

    specs: Mapping[str, AgentSpec]

    def __post_init__(self) -> None:
        if not self.specs:
            raise ValueError("at least one agent is needed")

    def get(self, name: str | None) -> AgentSpec | None:
        """The agent of that name, the default for None, None if unknown."""
        return next(iter(self.specs.values())) if name is None else self.specs.get(name)


class Gateway:
    """The gateway's application.

    Args:
        access: the door.
        agents: what a socket can be connected to.
        dist: the built bundle.
        max_sockets: sockets at once; more get 503.
        max_message: bytes of one message in either direction.
    """

    def __init__(
        self,
        access: Access,
        agents: Agents,
        dist: Path,
        *,
        max_sockets: int = MAX_SOCKETS,
        max_message: int = MAX_LINE_BYTES,
    ) -> None:
        self._access = access
        self._agents = agents
        self._bundle = Bundle(dist)
        self._max_sockets = max_sockets
        self._max_message = max_message
        self._relays: set[Relay] = set()
        self._stopping = False
        self._idle = anyio.Event()
        self._numbers = itertools.count(1)
        self._refusals = RateLimiter(20, 1.0)
        self.app: ASGIApp = _Door(
            Starlette(
                routes=[
                    WebSocketRoute("/acp", self._socket),
                    Route("/acp", self._upgrade_required, methods=["GET"]),
                    Route("/acp", self._why, methods=["POST"]),
                    Route("/health", self._health),
                    Route("/health/live", self._live),
                    Route("/health/ready", self._ready),
                    Route("/agents", self._list_agents),
                    Route("/{path:path}", self._file),
                ]
            ),
            self._refuse_host,
        )

    @property
    def open_sockets(self) -> int:
        """How many sockets hold an agent now."""
        return len(self._relays)

    async def stop(self) -> None:
        """Close every socket with 1001, end every agent, take no new ones; returns when all are gone."""
        self._stopping = True
        for relay in list(self._relays):
            relay.stop()
        if self._relays:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _refuse_host(self, connection: HTTPConnection) -> Refusal | None:
        return self._refused(connection, self._access.check_host(connection.headers.getlist("host")))

    def _refused(self, connection: HTTPConnection, refusal: Refusal | None) -> Refusal | None:
        if refusal is not None and self._refusals.allow(anyio.current_time()):
            log.warning("refused %s: %s", connection.scope["path"], refusal)
        return refusal

    def _admit(self, connection: HTTPConnection, subprotocols: Sequence[str]) -> AgentSpec | Response:
        """The agent for a socket, or why there is none."""
        headers = connection.headers
        refusal = self._refused(
            connection, self._access.check_socket(headers.getlist("host"), headers.getlist("origin"), subprotocols)
        )
        if refusal is not None:
            return PlainTextResponse(refusal.reason, 403, SECURITY_HEADERS)
        spec = self._agents.get(connection.query_params.get("agent"))
        if spec is None:
            known = ", ".join(self._agents.specs)
            unknown = Refusal("there is no such agent", f"choose another one; there are {known}")
            return PlainTextResponse(unknown.reason, 404, SECURITY_HEADERS)
        if self._stopping or len(self._relays) >= self._max_sockets:
            busy = (
                Refusal("sandport is shutting down", "start it again")
                if self._stopping
                else Refusal(
                    f"as many pages are open as it allows ({self._max_sockets})",
                    "close another one, or start sandport with a higher --max-sockets",
                )
            )
            log.warning("refused a socket: %s", busy)
            return PlainTextResponse(busy.reason, 503, {"Retry-After": "5", **SECURITY_HEADERS})
        return spec

    async def _socket(self, socket: WebSocket) -> None:
        spec = self._admit(socket, socket.scope["subprotocols"])
        if isinstance(spec, Response):
            await socket.send_denial_response(spec)
            return
        utf8 = UTF8_SUBPROTOCOL in socket.scope["subprotocols"]
        relay = Relay(socket, spec, limit=self._max_message, number=next(self._numbers), utf8=utf8)
        self._relays.add(relay)
        try:
            await socket.accept(UTF8_SUBPROTOCOL if utf8 else SUBPROTOCOL)
            await relay.run()
        finally:
            self._relays.discard(relay)
            if not self._relays:
                self._idle.set()

    async def _upgrade_required(self, request: Request) -> Response:
        text = "This address speaks WebSocket"
        if "sec-websocket-key" in request.headers:
            text = (
                "This was to be a WebSocket, but its Upgrade header is lost: a proxy in between dropped it (nginx: "
                "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade)"
            )
            if self._refusals.allow(anyio.current_time()):
                log.error("refused /acp: %s", text)
        return PlainTextResponse(text, 426, {"Upgrade": "websocket", **SECURITY_HEADERS})

    async def _why(self, request: Request) -> Response:
        """A page asks why its socket did not open, for browsers hide the answer to an upgrade from it.

        The answer reads `CAUSE: REMEDY`.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        answer = self._admit(request, [SUBPROTOCOL, TOKEN_PREFIX + token] if scheme.lower() == "bearer" else [])
        if isinstance(answer, Response):
            return answer
        lost = Refusal(
            "the gateway would let this page in, but the WebSocket does not reach it", "see the proxy's settings"
        )
        return PlainTextResponse(lost.reason, 426, {"Upgrade": "websocket", **SECURITY_HEADERS})

    def _unready(self) -> str | None:
        """Why this gateway should get no further pages, or None."""
        if self._stopping:
            return "stopping"
        if len(self._relays) >= self._max_sockets:
            return "full"
        return None if self._bundle.built else "no bundle"

    async def _health(self, request: Request) -> Response:
        status = {
            "status": "stopping" if self._stopping else "ok",
            "sockets": len(self._relays),
            "max_sockets": self._max_sockets,
            "bundle": self._bundle.built,
            "tasks": len(anyio.get_running_tasks()),
        }
        return _json(status, 503 if self._stopping else 200)

    async def _live(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        why = self._unready()
        return _json({"status": why or "ok"}, 200 if why is None else 503)

    async def _list_agents(self, request: Request) -> Response:
        names = list(self._agents.specs)
        return _json({"default": names[0], "agents": names})

    async def _file(self, request: Request) -> Response:
        return await self._bundle.respond(request, self._access.origin_for(request.headers["host"]))


def _json(content: Mapping[str, object], status: int = 200) -> Response:
    return JSONResponse(content, status, {"Cache-Control": "no-store", **SECURITY_HEADERS})


class _Door:
    """Checks the Host of every request before any route sees it."""

    def __init__(self, inner: Starlette, check: Callable[[HTTPConnection], Refusal | None]) -> None:
        self._inner, self._check = inner, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and (refusal := self._check(HTTPConnection(scope))) is not None:
            response = PlainTextResponse(refusal.reason, 403, SECURITY_HEADERS)
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(response)
            else:
                await response(scope, receive, send)
            return
        await self._inner(scope, receive, send)
