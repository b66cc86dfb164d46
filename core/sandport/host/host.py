"""The host: MCP servers, mounted once, served to any agent in the dialect it speaks.

Invariants: a server id is declared once and never again. One server, tool or channel that fails harms nothing else.
Leaving the host settles everything that is open and leaves no task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import anyio
import anyio.abc

from sandport.channel import Channel
from sandport.errors import LimitExceeded, LocalError, MountError
from sandport.host.lane import HostLane
from sandport.host.limits import HostLimits
from sandport.host.mounted import LIST_KINDS, ListKind, MountedServer
from sandport.inline import install_inline_threads
from sandport.wire import Params, declaration

if TYPE_CHECKING:
    from fastmcp import FastMCP

__all__ = ["DEFAULT_TIME_LIMIT", "ToolHost"]

logger = logging.getLogger(__name__)

DEFAULT_TIME_LIMIT: Final = 30.0
"""Seconds a tool may run: what agents wait for an answer by default, so that the clearer error comes from here."""

UNWIND_TIMEOUT: Final = 5.0
"""Seconds that tools have, when the host is left, to unwind before the lifespans of their servers end."""


class ToolHost:
    """Hosts MCP servers and lends them to agents over ACP channels.

    Use it as an async context manager: servers mounted before or inside live until it is left.

    Args:
        time_limit: seconds a `tools/call` may take; `None` for no limit. Per tool: `mount(time_limits=...)`.
        limits: how much it takes on at once.
        threads: run sync tools in threads, where there are any; by default they run inline and none is started.

    Example:
        >>> async with ToolHost() as host:  # doctest: +SKIP
        ...     host.mount(server)
        ...     entries = host.declarations()  # for `mcpServers` of session/new
        ...     await host.serve(channel)
    """

    def __init__(
        self,
        *,
        time_limit: float | None = DEFAULT_TIME_LIMIT,
        limits: HostLimits | None = None,
        threads: bool = False,
    ) -> None:
        self.limits = limits or HostLimits()
        self._inline = not threads
        if self._inline:
            install_inline_threads()
        self._time_limit = time_limit
        self._mounted: dict[str, MountedServer] = {}
        self._ids: dict[str, MountedServer] = {}
        self._past_ids: set[str] = set()
        self._lanes: list[HostLane] = []
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        for mounted in self._mounted.values():
            await self._tasks.start(mounted.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        with anyio.CancelScope(shield=True):
            lanes = list(self._lanes)
            for lane in lanes:
                await lane.peer.aclose()
            # Tools unwind while what their server's lifespan holds is still there.
            with anyio.move_on_after(UNWIND_TIMEOUT):
                for lane in lanes:
                    await lane.done.wait()
        for mounted in self._mounted.values():
            mounted.end()
        # Without the error, which the group would wrap: it goes on as it is.
        await tasks.__aexit__(None, None, None)
        return None

    # -- servers --------------------------------------------------------------------------------------------

    def mount(
        self,
        server: FastMCP[Any] | Any,
        name: str | None = None,
        *,
        time_limits: Mapping[str, float | None] | None = None,
    ) -> None:
        """Offer a server.

        Args:
            server: a `FastMCP`, or the MCP SDK's `MCPServer`.
            name: as agents see it; by default the server's own name.
            time_limits: seconds by tool name; `None` lifts the limit for a tool.

        Raises:
            MountError: no MCP server, or the name is empty or taken.
        """
        name = name if name is not None else getattr(server, "name", None)
        if not name:
            raise MountError("a mounted server needs a name")
        if name in self._mounted:
            raise MountError(f"a server named {name!r} is mounted already: names are unique in a session")
        mounted = MountedServer(
            name,
            server,
            time_limit=self._time_limit,
            time_limits=time_limits or {},
            limits=self.limits,
            inline=self._inline,
        )
        self._mounted[name] = mounted
        if self._tasks is not None:
            self._tasks.start_soon(mounted.run)

    async def unmount(self, name: str) -> None:
        """Stop offering a server; what is open with it is closed.

        Raises:
            LocalError: no such server.
        """
        mounted = self._named(name)
        for server_id in [key for key, value in self._ids.items() if value is mounted]:
            self.withdraw(server_id)
        del self._mounted[name]
        mounted.end()

    @property
    def servers(self) -> Mapping[str, MountedServer]:
        """The mounted servers by name."""
        return self._mounted

    def server_of(self, server_id: str) -> MountedServer | None:
        """The server a declared id stands for."""
        return self._ids.get(server_id)

    # -- declarations ---------------------------------------------------------------------------------------

    def declare(self, name: str, server_id: str | None = None) -> Params:
        """Give a mounted server an id and return its `mcpServers` entry.

        Args:
            name: of a mounted server.
            server_id: a fresh one by default. Ids are never used twice: an agent may hold on to an old one.

        Raises:
            LocalError: no such server, or the id was used before.
            LimitExceeded: `max_servers` ids are declared.
        """
        mounted = self._named(name)
        server_id = server_id if server_id is not None else str(uuid4())
        if not server_id or server_id in self._ids or server_id in self._past_ids:
            raise LocalError(f"server id {server_id!r} is empty or was used before")
        if len(self._ids) >= self.limits.max_servers:
            raise LimitExceeded("max_servers", self.limits.max_servers, "Too many server ids are declared")
        self._ids[server_id] = mounted
        return declaration(name, server_id)

    def declarations(self) -> list[Params]:
        """Entries for `mcpServers`, one for each mounted server, under fresh ids. Make new ones for each session."""
        return [self.declare(name) for name in self._mounted]

    def withdraw(self, server_id: str) -> None:
        """An id is no longer offered: its connections end, its open requests stop and are not answered.

        Whoever withdraws an id while the channel lives answers for it, as the port does.
        """
        if self._ids.pop(server_id, None) is None:
            return
        self._past_ids.add(server_id)
        for lane in self._lanes:
            lane.withdraw(server_id)

    # -- serving --------------------------------------------------------------------------------------------

    async def serve(self, channel: Channel, id_prefix: str | None = None) -> None:
        """Serve the mounted servers on a channel's mcp lane until it ends. Several channels may be served at once.

        Args:
            channel: the lane: a `Port`'s, or a channel that carries nothing else.
            id_prefix: of the ids of requests that start here; a port says which.

        Raises:
            LocalError: the host was not entered.
        """
        if self._tasks is None:
            raise LocalError("enter the host first: async with host")
        lane = HostLane(self, channel, id_prefix)
        self._lanes.append(lane)
        try:
            await lane.run()
        finally:
            self._lanes.remove(lane)

    async def adopt(self, connection_id: str, server_id: str, initialize: dict[str, Any] | None) -> None:
        """Take up a connection that an agent holds with a sandbox that was restarted.

        Args:
            connection_id: as the agent knows it.
            server_id: the declared id it was opened by.
            initialize: the params of the agent's MCP `initialize`, or `None` if it had not come that far.

        Raises:
            LocalError: the id is not declared, the connection is open, or no channel is being served.
        """
        mounted = self._ids.get(server_id)
        if mounted is None:
            raise LocalError(f"server id {server_id!r} is not declared")
        if not self._lanes:
            raise LocalError("serve a channel first")
        lane = self._lanes[-1]
        if connection_id in lane.connections:
            raise LocalError(f"connection {connection_id!r} is open")
        await lane.adopt(mounted, server_id, connection_id, initialize)

    async def list_changed(self, name: str, kind: ListKind = "tools") -> None:
        """Tell every agent that a list of a server changed. Call it when the new list is in place.

        Args:
            name: of the mounted server.
            kind: `"tools"`, `"prompts"` or `"resources"`.

        Raises:
            LocalError: no such server, or no such kind of list.
        """
        mounted = self._named(name)
        if kind not in LIST_KINDS:
            raise LocalError(f"no list of {kind!r}; there are: {', '.join(LIST_KINDS)}")
        await mounted.publish(kind)
        # Side by side: an agent that does not read holds up none of the others.
        async with anyio.create_task_group() as tasks:
            for lane in list(self._lanes):
                tasks.start_soon(lane.list_changed, mounted, kind)

    def _named(self, name: str) -> MountedServer:
        mounted = self._mounted.get(name)
        if mounted is None:
            raise LocalError(f"no server named {name!r} is mounted; there are: {', '.join(self._mounted) or 'none'}")
        return mounted
