"""A mounted server: its life, and the rules that hold for every request to it in every dialect.

Invariant: whatever a tool does (raises, overruns, returns what JSON cannot carry, is interrupted), its request gets one
answer, and the server and its siblings live on.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.abc
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, SubscriptionBus
from mcp.shared.dispatcher import DispatchContext, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_PARAMS,
    SERVER_INFO_META_KEY,
    SubscriptionsListenRequestParams,
)

from sandport.errors import LimitExceeded, MountError
from sandport.host.ask import Questions
from sandport.host.call import CALL, CLOCK, TIME_LIMIT, CallInfo, Clock
from sandport.host.limits import HostLimits
from sandport.host.redact import redact
from sandport.inline import INLINE

if TYPE_CHECKING:
    from fastmcp import FastMCP
    from mcp.server.lowlevel import Server

__all__ = ["LIST_KINDS", "ListKind", "MountedServer", "guard_tools", "named_failure"]

logger = logging.getLogger(__name__)

OWN_LIMIT_AGE: Final = 1.0
"""Seconds for which a tool's own `timeout` is remembered. FastMCP's look-up takes a tenth of a small call's time; a
tool that is replaced without a word to the host gets its new limit this much later."""

_CHANGED: Final[dict[str, type[ToolsListChanged | PromptsListChanged | ResourcesListChanged]]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}
_MAY_ASK: Final = ("tools/call", "prompts/get", "resources/read")
LIST_KINDS: Final = tuple(_CHANGED)
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
        self._own_limits: dict[str, tuple[float | None, float]] = {}
        self._places = anyio.Semaphore(limits.max_active_requests)
        self._waiting = 0
        self._listening = 0
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self._bus = _subscription_bus(self.low)
        guard_tools(server)

    # -- life -----------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Hold the server's lifespan open until `end`; a lifespan that fails marks this server alone."""
        INLINE.set(self._inline)
        try:
            async with self.low.lifespan(self.low) as self.state:
                await self._check_tools()
                self._ready.set()
                task_status.started()
                await self._ended.wait()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self.failure = redact(f"{type(error).__name__}: {error}")
            logger.exception("server %r does not serve: its lifespan failed", self.name)
            if not self._ready.is_set():
                self._ready.set()
                task_status.started()

    async def _check_tools(self) -> None:
        """Find the tools that cannot be offered, and say so, before an agent asks for them."""
        try:
            tools: Sequence[Any] = await self.server.list_tools()
            for tool in tools:
                # FastMCP's own tool, or the MCP SDK's.
                self._sound_schema(tool.name, tool.parameters if hasattr(tool, "parameters") else tool.input_schema)
        except Exception:
            logger.exception("the tools of server %r could not be listed", self.name)

    async def started(self) -> None:
        """Wait until the lifespan was entered, or failed."""
        if not self._ready.is_set():
            await self._ready.wait()

    def end(self) -> None:
        """Let the lifespan end."""
        self._ended.set()

    async def publish(self, kind: ListKind) -> None:
        """Tell `subscriptions/listen` streams that a list changed."""
        self._own_limits.clear()
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
            await self._take_place(method)
            try:
                if method in _MAY_ASK and not context.transport.can_send_request:
                    questions, rest = Questions.of(params, _elicits(params))
                    stamp = {SERVER_INFO_META_KEY: self.low.server_info_stamp}
                    return await questions.run(lambda: self._work(kernel, context, method, rest), stamp)
                return await self._work(kernel, context, method, params)
            finally:
                self._give_place(method)

        return handle

    async def _work(
        self, kernel: OnRequest, context: Any, method: str, params: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        if method == "tools/call":
            return await self._call_tool(kernel, context, params or {})
        return await kernel(context, method, params)

    def _enter(self, context: Any, method: str, params: Mapping[str, Any] | None) -> None:
        INLINE.set(self._inline)
        _SERVING.set(self)
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

    async def _take_place(self, method: str) -> None:
        if method == "subscriptions/listen":
            most = self._limits.max_subscriptions
            if self._listening >= most:
                raise LimitExceeded("max_subscriptions", most, f"Server {self.name!r} has too many listeners")
            self._listening += 1
            return
        try:
            self._places.acquire_nowait()
            return
        except anyio.WouldBlock:
            pass
        limit = self._limits.max_waiting_requests
        if self._waiting >= limit:
            raise LimitExceeded("max_waiting_requests", limit, f"Server {self.name!r} has too much to do")
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def _give_place(self, method: str) -> None:
        if method == "subscriptions/listen":
            self._listening -= 1
        else:
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
            # It may have been replaced by a sound one since.
            await self._check_tools()
            if name in self.problems:
                raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {name} ({self.problems[name]})")
        if context.inbound is not None:
            context.inbound.unencodable = lambda error: self.tool_error(
                context, f"Tool {name!r} returned what cannot be sent: {error}"
            )
        limit = await self._limit_of(name)
        failure, result = await self._limited(name, limit, lambda: kernel(context, "tools/call", params))
        if failure is not None:
            return self.tool_error(context, failure)
        if result.get("isError") and isinstance(name, str) and not await self._has_tool(name):
            # The MCP specification wants a protocol error here; FastMCP answers a tool error.
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {name}")
        return result

    async def _limited(
        self, name: Any, limit: float | None, work: Callable[[], Awaitable[dict[str, Any]]]
    ) -> tuple[str | None, dict[str, Any]]:
        """Why the tool was stopped, if it was, and its result."""
        clock = Clock(limit)
        tokens = CLOCK.set(clock), TIME_LIMIT.set(limit)
        try:
            with clock.scope:
                return None, await work()
        except (KeyboardInterrupt, SystemExit, BaseExceptionGroup) as error:
            if _holds(error, KeyboardInterrupt):
                # A deadline object or an interrupt stopped endless code. The tool is out, the server is not.
                return self._overrun(name, limit), {}
            if _holds(error, SystemExit):
                return f"Tool {name!r} tried to exit the interpreter", {}
            raise
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # No scope around here was cancelled: the tool awaited something that was.
            return f"Tool {name!r} was cancelled from within", {}
        finally:
            CLOCK.reset(tokens[0])
            TIME_LIMIT.reset(tokens[1])
        return self._overrun(name, limit), {}

    @staticmethod
    def _overrun(name: Any, limit: float | None) -> str:
        if limit is None:
            return f"Tool {name!r} was interrupted"
        return f"Tool {name!r} was stopped: it ran longer than its time limit of {limit:g} s (time_limit)"

    async def _limit_of(self, name: Any) -> float | None:
        if name in self._time_limits:
            return self._time_limits[name]
        if not isinstance(name, str) or (find := getattr(self.server, "get_tool", None)) is None:
            return self._time_limit
        now = anyio.current_time()
        own, until = self._own_limits.get(name, (None, now))
        if until <= now and (tool := await find(name)) is not None:
            own = getattr(tool, "timeout", None)
            self._own_limits[name] = own, now + OWN_LIMIT_AGE
        return self._time_limit if own is None else own

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

    def sound_tools(self, tools: Sequence[Any]) -> list[Any]:
        """FastMCP's tools as they are offered.

        Clients drop a whole list for one input schema without root `type: object`, and the MCP SDK does not send it:
        the type is added, or the tool left out.
        """
        sound = []
        for tool in tools:
            schema = self._sound_schema(tool.name, tool.parameters)
            if schema is not None:
                sound.append(tool if schema is tool.parameters else tool.model_copy(update={"parameters": schema}))
        return sound

    def _sound_schema(self, tool: Any, schema: Any) -> dict[str, Any] | None:
        """The input schema with its root type; `None`, and a note among the problems, if it describes no object."""
        name = str(tool)
        if isinstance(schema, dict) and schema.get("type", "object") == "object":
            self.problems.pop(name, None)
            return schema if "type" in schema else {"type": "object", **schema}
        if name not in self.problems:
            logger.error("tool %r of server %r is not offered: its input schema has no root object", name, self.name)
        self.problems[name] = "its input schema describes no object"
        return None


def _elicits(params: Mapping[str, Any] | None) -> bool:
    """Whether the agent can put a form to a person, by the capabilities that a stateless request carries."""
    meta = (params or {}).get("_meta")
    declared = meta.get(CLIENT_CAPABILITIES_META_KEY) if isinstance(meta, Mapping) else None
    elicitation = declared.get("elicitation") if isinstance(declared, Mapping) else None
    # An empty object is a form, as in the revisions before there was anything else.
    return isinstance(elicitation, Mapping) and (not elicitation or "form" in elicitation)


def _holds(error: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_holds(inner, kind) for inner in error.exceptions)
    return isinstance(error, kind)


def _subscription_bus(low: Server[Any]) -> SubscriptionBus:
    """The bus behind a server's `subscriptions/listen`; a server without one gets it, once, however often mounted."""
    entry = low.get_request_handler("subscriptions/listen")
    handler = entry.handler if entry is not None else None
    if isinstance(handler, ListenHandler):
        return handler._bus
    bus = InMemorySubscriptionBus()
    if handler is None:
        # Its limit is the host's, which names itself.
        listen = ListenHandler(bus, max_subscriptions=sys.maxsize)
        low.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, listen)
    return bus


_SERVING: Final[ContextVar[MountedServer | None]] = ContextVar("sandport_serving", default=None)


def named_failure(tool: str, error: Exception) -> str | None:
    """FastMCP's text of what a tool raised, with the type's name: `'b'` alone is no message for a `KeyError`.

    `None` where the text is the tool's own, or the call none of a host's.
    """
    from fastmcp.exceptions import FastMCPError

    cause = error.__cause__
    plain = f"Error calling tool {tool!r}"
    if _SERVING.get() is None or cause is None or isinstance(cause, (FastMCPError, MCPError)):
        return None
    if str(error) != f"{plain}: {cause}":
        return None
    return redact(f"{plain}: {type(cause).__name__}: {cause}")


def guard_tools(server: Any) -> None:
    """Put this module's rules inside a FastMCP server, for what cannot be done around it; once, however often mounted.

    Where the server is used otherwise, nothing changes. A host does it to each server it mounts; a server that answers
    calls in the stead of a mounted one needs it too.
    """
    from fastmcp import FastMCP
    from fastmcp.exceptions import ToolError
    from fastmcp.server.middleware import Middleware

    class Guard(Middleware):
        sandport = True

        async def on_list_tools(self, context: Any, call_next: Any) -> Any:
            tools = await call_next(context)
            mounted = _SERVING.get()
            return tools if mounted is None else mounted.sound_tools(tools)

        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            try:
                return await call_next(context)
            except ToolError as error:
                if (text := named_failure(context.message.name, error)) is None:
                    raise
                raise ToolError(text) from error.__cause__

    if isinstance(server, FastMCP) and not any(getattr(item, "sandport", False) for item in server.middleware):
        # Innermost, so that the server's own middleware sees the final text.
        server.middleware.append(Guard())
