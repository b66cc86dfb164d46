"""Between an ACP client and an ACP agent: lends the client's `acp` servers to an agent that has no such thing.

Invariants: messages that need no change pass as the text that came; each `acp` entry is taken out of what the agent
sees and replaced by a server it can reach; a session's servers end with the session, and all with the bridge. An agent
that knows MCP-over-ACP sees every message as it came, but for the folder of a session that names none.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from sandport import memory_channel_pair
from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig
from sandport.codec import decode, encode, error_message, id_key, is_id
from sandport.errors import ChannelClosed, PeerError
from sandport.rpc import Inbound, Peer
from sandport.wire import CANCEL_METHODS, LANE_METHODS
from sandport_native.bridge.servers import LoopbackServers, Served, loopback_servers

log = logging.getLogger("sandport.bridge")

Send = Callable[[str], Awaitable[None]]

OPENERS = frozenset({"session/new", "session/load", "session/fork", "session/resume"})

CALL_TIMEOUT = 300.0
"""Seconds for one MCP request to the page; a tool may wait for a person."""


class Bridge:
    """See the module. Made by `open_bridge`; feed it both sides' messages in order.

    Attributes:
        native: whether the agent knows MCP-over-ACP itself; None until it has answered `initialize`.
    """

    def __init__(
        self,
        to_client: Send,
        to_agent: Send,
        manager: AcpMcpConnectionManager,
        lane: Send,
        prefix: str,
        folder: str | None,
    ) -> None:
        self.native: bool | None = None
        self._to_client, self._to_agent, self._to_lane = to_client, to_agent, lane
        self._manager = manager
        self._prefix = prefix
        self._folder = folder
        self._http = False
        self._initialize: Any = None
        self._opening: dict[Any, tuple[str | None, list[Served]]] = {}
        self._closing: dict[Any, str] = {}
        self._sessions: dict[str, list[Served]] = {}
        self._lane_requests: set[Any] = set()
        self.servers: LoopbackServers

    async def from_client(self, text: str) -> None:
        """Take one message of the client."""
        if self.native:
            await self._to_agent(self._housed(text))
            return
        message = _read(text)
        if message is None:
            await self._to_agent(text)
            return
        method, request_id = message.get("method"), message.get("id")
        params: dict[str, Any] = message["params"] if isinstance(message.get("params"), dict) else {}
        if method is None:
            ours = isinstance(request_id, str) and request_id.startswith(self._prefix)
            await (self._to_lane if ours else self._to_agent)(text)
        elif method in LANE_METHODS:
            if is_id(request_id):
                self._lane_requests.add(id_key(request_id))
            await self._to_lane(text)
        elif (
            method in CANCEL_METHODS
            and is_id(params.get("requestId"))
            and id_key(params["requestId"]) in self._lane_requests
        ):
            await self._to_lane(text)
        elif method in OPENERS and "id" in message and self.native is False:
            await self._open(message, params)
        elif method in OPENERS and "id" in message and _lends(params):
            # Nobody can say yet how the agent would take these servers, and ACP wants the client to wait.
            why = PeerError(-32600, f"{method} with acp servers, but the agent has not answered `initialize`")
            await self._to_client(encode(error_message(request_id, why)))
        else:
            if method == "initialize":
                self._initialize = request_id
            elif method == "session/close" and is_id(request_id):
                self._closing[id_key(request_id)] = str(params.get("sessionId"))
            await self._to_agent(text)
            if method == "session/cancel":
                # After the agent was told: it shall not take the end of its calls for a reason to go on.
                for served in self._sessions.get(str(params.get("sessionId")), ()):
                    served.relay.cancel()

    async def from_agent(self, text: str) -> None:
        """Take one message of the agent."""
        message = None if self.native else _read(text)
        if message is not None and "method" not in message and is_id(message.get("id")):
            key = id_key(message["id"])
            if self.native is None and self._initialize is not None and key == id_key(self._initialize):
                await self._initialized(text, message)
                return
            if key in self._opening:
                await self._opened(message, *self._opening.pop(key))
            elif key in self._closing:
                await self._drop(self._sessions.pop(self._closing.pop(key), []))
        await self._to_client(text)

    def answered(self, request_id: Any) -> None:
        """A request of the client was answered by the bridge itself."""
        if is_id(request_id):
            self._lane_requests.discard(id_key(request_id))

    async def _initialized(self, text: str, message: dict[str, Any]) -> None:
        result = message.get("result")
        if not isinstance(result, dict):
            await self._to_client(text)
            return
        capabilities = result.get("agentCapabilities")
        capabilities = capabilities if isinstance(capabilities, dict) else {}
        mcp = capabilities.get("mcpCapabilities")
        mcp = mcp if isinstance(mcp, dict) else {}
        # An absent `acp` is false; a tolerant reader takes `{}` for true (ACP v2 style).
        self.native = mcp.get("acp") is True or isinstance(mcp.get("acp"), dict)
        if self.native:
            await self._to_client(text)
            return
        self._http = mcp.get("http") is True
        log.info("the agent has no MCP-over-ACP: page tools reach it over %s", "http" if self._http else "stdio")
        result["agentCapabilities"] = {**capabilities, "mcpCapabilities": {**mcp, "acp": True}}
        await self._to_client(encode(message))

    async def _open(self, message: dict[str, Any], params: dict[str, Any]) -> None:
        served: list[Served] = []
        if isinstance(entries := params.get("mcpServers"), list):
            rewritten: list[Any] = []
            try:
                for entry in entries:
                    config = self._config(entry)
                    if config is not None:
                        served.append(await self.servers.add(config))
                    rewritten.append(entry if config is None else await self._entry(served[-1]))
            except PeerError as exc:
                await self._drop(served)
                await self._to_client(encode(error_message(message["id"], exc)))
                return
            message["params"] = params = {**params, "mcpServers": rewritten}
        self._house(message)
        session = params.get("sessionId") if message["method"] in ("session/load", "session/resume") else None
        if is_id(message["id"]):
            self._opening[id_key(message["id"])] = (session, served)
        await self._to_agent(encode(message))

    def _housed(self, text: str) -> str:
        """A message for an agent that needs nothing else changed. Only what may open a session is looked into."""
        message = _read(text) if self._folder is not None and '"cwd"' in text else None
        if message is None or message.get("method") not in OPENERS or not self._house(message):
            return text
        return encode(message)

    def _house(self, message: dict[str, Any]) -> bool:
        """Give a session that names the root for want of a folder the agent's own. Whether that was so."""
        params = message.get("params")
        if self._folder is None or not isinstance(params, dict) or params.get("cwd") != "/":
            return False
        message["params"] = {**params, "cwd": self._folder}
        return True

    def _config(self, entry: Any) -> AcpMCPServerConfig | None:
        if not isinstance(entry, dict) or entry.get("type") != "acp":
            return None
        return AcpMCPServerConfig.from_declaration(entry, timeout=CALL_TIMEOUT)

    async def _entry(self, served: Served) -> dict[str, Any]:
        """What the agent sees instead of an `acp` server."""
        if self._http:
            headers = [{"name": "Authorization", "value": f"Bearer {served.secret}"}]
            return {"type": "http", "name": served.config.name, "url": served.url, "headers": headers}
        (command, *arguments), env = await self.servers.shim(served)
        variables = [{"name": name, "value": value} for name, value in env.items()]
        return {"name": served.config.name, "command": command, "args": arguments, "env": variables}

    async def _opened(self, message: dict[str, Any], session: str | None, served: list[Served]) -> None:
        result = message.get("result")
        if isinstance(result, dict) and session is None and isinstance(result.get("sessionId"), str):
            session = result["sessionId"]
        if "error" in message or session is None:
            await self._drop(served)
            return
        old = self._sessions.get(session, [])
        self._sessions[session] = served
        await self._drop(old)

    async def _drop(self, served: list[Served]) -> None:
        for item in served:
            await self.servers.remove(item)


def _lends(params: dict[str, Any]) -> bool:
    entries = params.get("mcpServers")
    return isinstance(entries, list) and any(
        isinstance(entry, dict) and entry.get("type") == "acp" for entry in entries
    )


def _read(text: str) -> dict[str, Any] | None:
    try:
        return decode(text, limit=math.inf)  # type: ignore[arg-type]
    except PeerError:
        return None


@asynccontextmanager
async def open_bridge(to_client: Send, to_agent: Send, *, folder: str | None = None) -> AsyncIterator[Bridge]:
    """A bridge between two sides.

    Args:
        to_client, to_agent: send one message; called from several tasks, one message at a time each.
        folder: where sessions work whose client names the root folder, as a page does for want of one; agents keep
            settings there, and take what lies below for the project. None leaves it.
    """
    outside, inside = memory_channel_pair(math.inf)
    prefix = f"sandport-bridge-{secrets.token_hex(4)}."

    async def request(inbound: Inbound) -> dict[str, Any]:
        try:
            return await manager.handle_request(inbound.method, inbound.params, inbound)
        finally:
            bridge.answered(inbound.id)

    def notification(method: str, params: Any) -> None:
        if not bridge.servers.take(method, params):
            manager.handle_notification(method, params)

    peer = Peer(inside, request, notification, id_prefix=prefix)
    manager = AcpMcpConnectionManager(peer)
    bridge = Bridge(to_client, to_agent, manager, outside.send, prefix, folder)

    async def pump() -> None:
        try:
            while True:
                await to_client(await outside.receive())
        except ChannelClosed:
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        tasks.start_soon(pump)
        async with loopback_servers(manager) as servers:
            bridge.servers = servers
            try:
                yield bridge
            finally:
                manager.abandon_all()  # whoever ends the bridge has lost one of its sides
        await peer.aclose()
        tasks.cancel_scope.cancel()
