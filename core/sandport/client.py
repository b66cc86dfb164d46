"""An ACP client for programs without a page: the official `agent-client-protocol` package on a port's acp lane, and a
`ToolHost` on its mcp lane. Needs the extra `acp`.

Invariant: servers are declared only to an agent that advertised MCP over ACP; otherwise the program is told why not.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandport.channel import Channel, memory_channel_pair
from sandport.codec import decode, encode
from sandport.errors import ChannelClosed, LocalError
from sandport.host import ToolHost
from sandport.port import Port
from sandport.wire import LEGACY, Params, advertises_acp, advertises_legacy

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.interfaces import Client
    from acp.schema import InitializeResponse, NewSessionResponse

__all__ = ["AcpClient", "LaneTransport", "acp_client"]

logger = logging.getLogger(__name__)

_SESSION_METHODS: Final = frozenset({"session/new", "session/load", "session/resume", "session/fork"})
_HOST: Final = "host"
CLOSE_TIMEOUT: Final = 2.0
"""Seconds to take leave of an agent, and then to let the SDK's connection end."""


class LaneTransport:
    """The SDK's message transport over a channel; a `Port`'s acp lane, as a rule.

    It writes both id members into `mcpServers` entries of type `acp`: each release of the SDK knows one of them only.
    """

    def __init__(self, lane: Channel) -> None:
        self._lane = lane

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        if message.get("method") in _SESSION_METHODS:
            message = _with_both_ids(message)
        try:
            await self._lane.send(encode(message, limit=None))
        except ChannelClosed as error:
            raise ConnectionError(str(error)) from None

    async def receive(self) -> dict[str, Any] | None:
        """The next message, or `None` at the end."""
        try:
            text = await self._lane.receive()
        except ChannelClosed:
            return None
        # The port has judged its size.
        return decode(text, limit=len(text))

    async def close(self) -> None:
        """Close the lane."""
        await self._lane.aclose()


def _with_both_ids(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params") or {}
    servers = [_with_both(entry) for entry in params.get("mcpServers") or ()]
    return {**message, "params": {**params, "mcpServers": servers}}


def _with_both(entry: dict[str, Any]) -> dict[str, Any]:
    server_id = entry.get("serverId") or entry.get("id")
    if entry.get("type") != "acp" or not server_id:
        return entry
    return {**entry, "id": entry.get("id") or server_id, "serverId": server_id}


class AcpClient:
    """A connection to an agent that may use a host's tools; made by `acp_client`.

    Attributes:
        connection: the SDK's `ClientSideConnection`, for everything that has nothing to do with tools.
        port: the port, with its counters of what was dropped.
        offers: whether the agent takes servers over ACP; `None` before `initialize`.
    """

    def __init__(self, connection: ClientSideConnection, port: Port, host: ToolHost | None) -> None:
        self.connection = connection
        self.port = port
        self.offers: bool | None = None
        self._legacy = False
        self._host = host
        self._declared: dict[str, list[str]] = {}

    async def initialize(self, **options: Any) -> InitializeResponse:
        """`initialize` of the SDK (`protocol_version=1` by default); remembers what the agent offers."""
        answer = await self.connection.initialize(**{"protocol_version": 1, **options})
        said = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        self._legacy = advertises_legacy(said)
        self.offers = self._legacy or advertises_acp(said)
        if not self.offers and self._host is not None:
            logger.warning("the agent does not advertise mcpCapabilities.acp: the host's tools are not declared to it")
        return answer

    def declarations(self) -> list[Params]:
        """Fresh `mcpServers` entries for one session; none for an agent that did not offer to use them.

        Raises:
            LocalError: `initialize` has not been answered.
        """
        if self.offers is None:
            raise LocalError("await initialize first: it says whether the agent uses tools over ACP")
        if self._host is None or not self.offers:
            return []
        entries = self._host.declarations()
        for entry in entries:
            self.port.core.declare(_HOST, entry["serverId"])
        return entries

    async def new_session(
        self, cwd: str, *, mcp_servers: list[Any] | None = None, **options: Any
    ) -> NewSessionResponse:
        """`session/new` with the host's servers declared.

        Args:
            cwd: absolute path of the session.
            mcp_servers: further servers, as the SDK's models.
            **options: see `ClientSideConnection.new_session`.
        """
        from acp.schema import AcpMcpServer, HttpMcpServer

        entries = self.declarations()
        ours: list[Any]
        if self._legacy:
            old = [LEGACY.declaration(entry["name"], entry["serverId"]) for entry in entries]
            ours = [HttpMcpServer.model_validate(entry) for entry in old]
        else:
            ours = [AcpMcpServer.model_validate(entry) for entry in entries]
        server_ids = [entry["serverId"] for entry in entries]
        try:
            answer = await self.connection.new_session(cwd=cwd, mcp_servers=[*(mcp_servers or ()), *ours], **options)
        except BaseException:
            # No session, no offer.
            with anyio.CancelScope(shield=True):
                await self._withdraw(server_ids)
            raise
        self._declared.setdefault(answer.session_id, []).extend(server_ids)
        return answer

    async def cancel(self, session_id: str) -> None:
        """`session/cancel`; tool calls that the turn left open are cancelled too: not every agent does it itself."""
        await self.connection.cancel(session_id=session_id)
        for server_id in self._declared.get(session_id, ()):
            await self.port.stop(server_id)

    async def close_session(self, session_id: str) -> None:
        """`session/close`, and what was declared for the session is withdrawn even if the agent refuses."""
        try:
            await self.connection.close_session(session_id=session_id)
        finally:
            await self.withdraw(session_id)

    async def withdraw(self, session_id: str) -> None:
        """Stop offering what was declared for a session; open calls are answered with an error."""
        await self._withdraw(self._declared.pop(session_id, []))

    async def _withdraw(self, server_ids: list[str]) -> None:
        for server_id in server_ids:
            if self._host is not None:
                self._host.withdraw(server_id)
            await self.port.withdraw(server_id)


@asynccontextmanager
async def acp_client(channel: Channel, client: Client, host: ToolHost | None = None) -> AsyncIterator[AcpClient]:
    """Connect to an agent over a channel.

    Args:
        channel: to the agent; closed at the end.
        client: the SDK's `Client`: what the agent may ask of the program.
        host: lends its servers to the agent; it must have been entered.

    Example:
        >>> async with ToolHost() as host, acp_client(channel, MyClient(), host) as agent:  # doctest: +SKIP
        ...     await agent.initialize()
        ...     session = await agent.new_session("/project")
    """
    from acp.client.connection import ClientSideConnection

    port = Port(channel)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        await tasks.start(port.run)
        if host is not None:
            ours, theirs = memory_channel_pair()
            port.attach(_HOST, ours, "host.")
            tasks.start_soon(host.serve, theirs, "host.")
        connection = ClientSideConnection(client, LaneTransport(port.acp))
        agent = AcpClient(connection, port, host)
        try:
            yield agent
        except Exception as error:
            # Kept out of the group, which would wrap it.
            failure = error
        finally:
            # An agent that no longer reads is not waited for.
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                for session_id in list(agent._declared):
                    await agent.withdraw(session_id)
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await channel.aclose()
                await connection.close()
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
