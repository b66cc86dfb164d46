"""A mounted server: its life, and the rules that hold for every request to it in every dialect.

Invariant: whatever a tool does (raises, overruns, returns what JSON cannot carry, is interrupted), its request gets one
answer, and the server and its siblings live on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.dispatcher import DispatchContext, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged
from mcp.shared.transport_context import TransportContext
from mcp_types import INVALID_PARAMS, SERVER_INFO_META_KEY, SubscriptionsListenRequestParams

from sandport.errors import LimitExceeded, MountError
from sandport.host.call import CALL, TIME_LIMIT, CallInfo
from sandport.host.limits import HostLimits
from sandport.inline import INLINE

if TYPE_CHECKING:
    from fastmcp import FastMCP
    from mcp.server.lowlevel import Server

__all__ = ["ListKind", "MountedServer"]

logger = logging.getLogger(__name__)

_CHANGED: Final[dict[str, type[ToolsListChanged | PromptsListChanged | ResourcesListChanged]]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}
ListKind = str
"""`"tools"`, `"prompts"` or `"resources"`."""


def _low_level(server: Any) -> Server[Any]:
    low = getattr(server, "_mcp_server", None) or getattr(server, "_lowlevel_server", None)
    if low is None or not hasattr(low, "add_request_handler"):
        raise MountError(f"{type(server).__name__} is no MCP server: mount a FastMCP or an MCPServer")
    return low  # type: ignore[no-any-return]


class MountedServer:
    """One server under its name, serving any number of connections.

    Args:
        name: as declared to agents; unique in a host.
        server: a `FastMCP`, or the MCP SDK's `MCPServer`.
        time_limit: seconds a `tools/call` may take; `None` for no limit.
        time_limits: seconds by tool, before the tool's own `timeout` and `time_limit`.
        limits: how much it takes on.
        inline: run sync tools on the event loop, not in threads.
    """

    def __init__(
        self,
        name: str,
        server: FastMCP[Any] | Any,
        *,
        time_limit: float | None,
        time_limits: Mapping[str, float | None],
        limits: HostLimits,
        inline: bool,
    ) -> None:
        self.name = name
        self.server = server
        self.low = _low_level(server)
        self.failure: str | None = None
        """Why it does not serve, if its lifespan failed."""
        self.state: Any = None
        self.problems: dict[str, str] = {}
        """Tools that are not offered, and why."""
        self._time_limit = time_limit
        self._time_limits = dict(time_limits)
        self._limits = limits
        self._inline = inline
        self._places = anyio.Semaphore(limits.max_active_requests)
        self._waiting = 0
        self._listening = 0
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self._bus = InMemorySubscriptionBus()
        if self.low.get_request_handler("subscriptions/listen") is None:
            self.low.add_request_handler(
                "subscriptions/listen",
                SubscriptionsListenRequestParams,
                ListenHandler(self._bus, max_subscriptions=limits.max_subscriptions),
            )

    # -- life -----------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Hold the server's lifespan open until `end`; a lifespan that fails marks this server alone."""
        INLINE.set(self._inline)
        try:
            async with self.low.lifespan(self.low) as self.state:
                self._ready.set()
                task_status.started()
                await self._ended.wait()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            logger.exception("server %r does not serve: its lifespan failed", self.name)
            if not self._ready.is_set():
                self._ready.set()
                task_status.started()

    def end(self) -> None:
        """Let the lifespan end."""
        self._ended.set()

    async def publish(self, kind: ListKind) -> None:
        """Tell `subscriptions/listen` streams that a list changed."""
        await self._bus.publish(_CHANGED[kind]())

    # -- requests -------------------------------------------------------------------------------------------

    def serve(self, kernel: OnRequest) -> OnRequest:
        """The kernel's handler with this server's rules around it."""

        async def handle(
            context: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            self._enter(context, method, params)
            if method in ("initialize", "ping"):
                return await kernel(context, method, params)
            async with self._place(method):
                if method == "tools/call":
                    return await self._call_tool(kernel, context, params or {})
                result = await kernel(context, method, params)
                return self._with_sound_schemas(result) if method == "tools/list" else result

        return handle

    def _enter(self, context: Any, method: str, params: Mapping[str, Any] | None) -> None:
        INLINE.set(self._inline)
        transport = context.transport
        tool = params.get("name") if params and method == "tools/call" else None
        CALL.set(
            CallInfo(
                self.name,
                transport.server_id or "",
                transport.dialect,
                transport.session_id,
                transport.tool_call_id,
                tool if isinstance(tool, str) else None,
            )
        )

    @asynccontextmanager
    async def _place(self, method: str) -> AsyncIterator[None]:
        if method == "subscriptions/listen":
            # The MCP SDK's listen handler holds the limit of these.
            yield
            return
        if self._places.value == 0 and self._waiting >= self._limits.max_waiting_requests:
            raise LimitExceeded(
                "max_waiting_requests", self._limits.max_waiting_requests, f"Server {self.name!r} has too much to do"
            )
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()

    async def _call_tool(self, kernel: OnRequest, context: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        name = params.get("name")
        arguments = params.get("arguments")
        if "arguments" in params and arguments is None:
            # Absent, null and {} are the same to a caller; only absent passes every revision's schema.
            params = {key: value for key, value in params.items() if key != "arguments"}
        elif arguments is not None and not isinstance(arguments, dict):
            raise MCPError(code=INVALID_PARAMS, message="Invalid params: arguments must be an object")
        if isinstance(name, str) and name in self.problems:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {name}")
        limit = await self._limit_of(name)
        if context.inbound is not None:
            context.inbound.unencodable = lambda error: self.tool_error(
                context, f"Tool {name!r} returned what JSON cannot carry: {error}"
            )
        TIME_LIMIT.set(limit)
        try:
            with anyio.move_on_after(limit) as scope:
                result = await kernel(context, "tools/call", params)
        except KeyboardInterrupt:
            # A deadline object or an interrupt stopped endless code. The tool is out, the server is not.
            return self.tool_error(context, self._overrun(name, limit))
        finally:
            TIME_LIMIT.set(None)
        if scope.cancelled_caught:
            return self.tool_error(context, self._overrun(name, limit))
        if result.get("isError") and isinstance(name, str) and not await self._has_tool(name):
            # The MCP specification wants a protocol error here; FastMCP answers a tool error.
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {name}")
        return result

    @staticmethod
    def _overrun(name: Any, limit: float | None) -> str:
        return f"Tool {name!r} was stopped: it ran longer than its time limit of {limit or math.inf:g} s (time_limit)"

    async def _limit_of(self, name: Any) -> float | None:
        if name in self._time_limits:
            return self._time_limits[name]
        return self._time_limit

    async def _has_tool(self, name: str) -> bool:
        find = getattr(self.server, "get_tool", None)
        if find is None:
            return any(tool.name == name for tool in await self.server.list_tools())
        return await find(name) is not None

    def tool_error(self, context: Any, text: str) -> dict[str, Any]:
        """A `tools/call` result that says the tool failed, in the form of the request's MCP revision."""
        result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
        if not context.transport.can_send_request:
            result |= {
                "resultType": "complete",
                "_meta": {SERVER_INFO_META_KEY: self.low.server_info_stamp},
            }
        return result

    def _with_sound_schemas(self, result: dict[str, Any]) -> dict[str, Any]:
        """Clients drop a whole list for one input schema without root `type: object`: add it, or leave the tool out."""
        tools = []
        for tool in result.get("tools", ()):
            schema = tool.get("inputSchema")
            if isinstance(schema, dict) and schema.get("type") == "object":
                tools.append(tool)
            elif isinstance(schema, dict) and "type" not in schema:
                tools.append({**tool, "inputSchema": {"type": "object", **schema}})
            else:
                name = str(tool.get("name"))
                if name not in self.problems:
                    logger.error(
                        "tool %r of server %r is not offered: its input schema has no root object", name, self.name
                    )
                self.problems[name] = "its input schema describes no object"
        return {**result, "tools": tools}
