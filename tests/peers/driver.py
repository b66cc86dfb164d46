"""A running agent of somebody else, with Sandport as its client, and the ops a test drives it with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio
from acp.exceptions import RequestError
from acp.helpers import text_block
from acp.schema import AllowedOutcome, RequestPermissionResponse
from tests.peers.channels import Exchange, recorded
from tests.peers.tools import NAME, Tools

from sandport import Channel, HostLimits, Port, ToolHost, memory_channel_pair
from sandport.client import acp_client
from sandport.errors import PeerError
from sandport.rpc import Inbound, Peer
from sandport.wire import LEGACY, advertises_acp

__all__ = ["AgentPeer", "Failure", "drive", "drive_raw"]


class Failure(Exception):
    """An error that came back to the agent: `where` is `"outer"` (ACP) or `"inner"` (the carrier of a result)."""

    def __init__(self, where: str, error: dict[str, Any]) -> None:
        super().__init__(f"{where} {error}")
        self.where = where
        self.code: Any = error.get("code")
        self.data: Any = error.get("data")


@dataclass
class AgentPeer:
    """An agent that runs, has a session, and does as it is told."""

    tools: Tools
    host: ToolHost
    exchange: Exchange
    dialect: str
    updates: list[dict[str, Any]] = field(default_factory=list)
    session: str = "s1"
    connection: str | None = None
    """The agent's MCP connection, in the connect family."""
    _keys: Any = field(default_factory=count)
    _do: Any = None
    _prompt: Any = None
    _cancel: Any = None
    questions: list[Any] = field(default_factory=list)
    """Titles of what the agent asked the client."""

    @property
    def stateless(self) -> bool:
        """Whether the agent speaks a stateless dialect."""
        return self.dialect.startswith("stateless")

    @property
    def legacy(self) -> bool:
        """Whether the agent speaks one of the forms of `legacy`."""
        return self.dialect.startswith("legacy")

    async def do(self, op: str, **arguments: Any) -> Any:
        """Let the agent do something; see `ops` in js/agent.mjs."""
        return await self._do({"op": op, **arguments})

    async def prompt(self, op: str, **arguments: Any) -> Any:
        """The same in a prompt turn; the outcome comes back as an agent message."""
        self.updates.clear()
        await self._prompt(json.dumps({"op": op, **arguments}))
        texts = [update["content"]["text"] for update in self.updates if "content" in update]
        return json.loads("".join(texts))

    async def say(self, text: str) -> str:
        """A prompt in plain words; what the agent answered."""
        self.updates.clear()
        await self._prompt(text)
        chunks = (update for update in self.updates if update["sessionUpdate"] == "agent_message_chunk")
        return "".join(update["content"]["text"] for update in chunks)

    async def cancel(self) -> None:
        """`session/cancel`."""
        await self._cancel()

    def where(self) -> dict[str, Any]:
        """How a request of the agent says whom it is for."""
        return {"server": NAME} if self.stateless else {"server": NAME, "connection": self.connection}

    async def request(self, method: str, params: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
        """An MCP request of the agent; its result.

        Raises:
            Failure: the MCP error, or the ACP error.
        """
        return result_of(await self.do("call", method=method, params=params or {}, **self.where(), **extra))

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """A `tools/call` of the agent."""
        return await self.request("tools/call", {"name": tool, "arguments": arguments or {}, **params})

    async def start(self, method: str, params: dict[str, Any], **extra: Any) -> str:
        """Begin an MCP request and go on; returns its key."""
        key = f"k{next(self._keys)}"
        await self.do("start", key=key, method=method, params=params, **self.where(), **extra)
        return key

    async def outcome(self, key: str) -> dict[str, Any]:
        """The result of a request that was begun. Raises as `request` does."""
        return result_of(await self.do("outcome", key=key))


def result_of(outcome: dict[str, Any]) -> dict[str, Any]:
    """What came back to the agent, or `Failure`."""
    if "outer" in outcome:
        raise Failure("outer", outcome["outer"])
    if "error" in outcome:
        raise Failure("inner", outcome["error"])
    result: dict[str, Any] = outcome["result"]
    return result


class _Client:
    """The SDK's `Client`: keeps updates, permits what it is asked for, refuses the rest."""

    def __init__(self, updates: list[dict[str, Any]], questions: list[Any]) -> None:
        self._updates = updates
        self._questions = questions

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self._updates.append(update.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def request_permission(self, tool_call: Any, options: list[Any], **_: Any) -> RequestPermissionResponse:
        self._questions.append(tool_call.title)
        chosen = AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return RequestPermissionResponse(outcome=chosen)

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Nothing is asked for."""

    def on_connect(self, conn: Any) -> None:
        """Nothing to keep."""


@asynccontextmanager
async def drive(
    channel: Channel, exchange: Exchange, dialect: str, *, limits: HostLimits | None = None, stops_calls: bool = False
) -> AsyncIterator[AgentPeer]:
    """Be the client of an agent of ACP v1, as `sandport.client` is.

    Args:
        channel: to the agent.
        exchange: where to note what passes.
        dialect: which the agent is expected to speak.
        limits: of the host.
        stops_calls: cancelling also stops the calls it leaves open: for agents that pass no cancellation on.
    """
    tools = Tools()
    async with ToolHost(limits=limits) as host:
        host.mount(tools.server)
        peer = AgentPeer(tools, host, exchange, dialect)
        client: Any = _Client(peer.updates, peer.questions)
        async with acp_client(recorded(channel, exchange), client, host) as acp:
            await acp.initialize()
            session = await acp.new_session("/project")
            peer.session = session.session_id

            async def do(command: dict[str, Any]) -> Any:
                return await acp.connection.ext_method("test/do", command)

            async def prompt(text: str) -> None:
                answer = await acp.connection.prompt(prompt=[text_block(text)], session_id=session.session_id)
                assert answer.stop_reason in ("end_turn", "cancelled")

            async def cancel() -> None:
                cancelling = acp.cancel if stops_calls else acp.connection.cancel
                await cancelling(session_id=session.session_id)

            peer._do, peer._prompt, peer._cancel = do, prompt, cancel
            yield peer


@asynccontextmanager
async def drive_raw(
    channel: Channel, exchange: Exchange, dialect: str, *, hello: dict[str, Any]
) -> AsyncIterator[AgentPeer]:
    """Be the client of an agent with nothing but the port: for ACP v2, which no Python SDK speaks, and for `legacy`,
    whose declaration only its own agents understand.

    Args:
        channel: to the agent.
        exchange: where to note what passes.
        dialect: which the agent is expected to speak.
        hello: the params of `initialize`.
    """
    tools = Tools()

    async def refuse(inbound: Inbound) -> Any:
        raise PeerError(-32601, f"Method not found: {inbound.method}")

    def note(method: str, params: Any) -> None:
        if method == "session/update":
            peer.updates.append(params["update"])

    async with ToolHost() as host, anyio.create_task_group() as tasks:
        host.mount(tools.server)
        peer = AgentPeer(tools, host, exchange, dialect)
        port = Port(recorded(channel, exchange))
        await tasks.start(port.run)
        outer, inner = memory_channel_pair()
        port.attach("host", outer, "host.")
        tasks.start_soon(host.serve, inner, "host.")
        acp = Peer(port.acp, refuse, note)
        tasks.start_soon(acp.run)
        assert advertises_acp(await acp.request("initialize", hello)), "the agent does not advertise acp"
        entry = host.declare(NAME)
        port.core.declare("host", entry["serverId"])
        if dialect.startswith("legacy"):
            entry = LEGACY.declaration(NAME, entry["serverId"])
        session = await acp.request("session/new", {"cwd": "/project", "mcpServers": [entry]})
        peer.session = session["sessionId"]

        async def do(command: dict[str, Any]) -> Any:
            return await acp.request("_test/do", command)

        async def prompt(text: str) -> None:
            block = {"type": "text", "text": text}
            await acp.request("session/prompt", {"sessionId": peer.session, "prompt": [block]})

        peer._do, peer._prompt = do, prompt
        try:
            yield peer
        finally:
            tasks.cancel_scope.cancel()
