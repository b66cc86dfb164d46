"""The tools of a session: those of the servers that the client lends it, and the plan tool.

Invariants: one bad server harms only itself: it is reported, and its siblings list and call. A tool's failure of every
kind reaches the model as the call's result and never ends the turn. Two tools of one name are offered under two names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastmcp
import mcp_types
from acp.schema import PlanEntry
from fastmcp.client.messages import MessageHandler
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import BinaryContent, RunContext, ToolDefinition, ToolReturn
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets.abstract import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig, AcpMcpTransport
from sandport_inpage._questions import Questions
from sandport_inpage._turn import Kind, Refused, Turn

__all__ = ["CALL_TIMEOUT", "Failure", "LentTools", "PlanTool", "Servers"]

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT: Final = 15.0
"""Seconds for opening a server and listing its tools; a session must not wait for a dead one."""
CALL_TIMEOUT: Final = 300.0
"""Seconds for one MCP request. The host has its own, shorter limit for a tool's code; a person thinks longer."""
WRAPPED: Final = "x-fastmcp-wrap-result"
"""FastMCP's mark on an output schema whose `result` is only a wrapper around a value that is no object."""
_ANY: Final = SchemaValidator(core_schema.any_schema())


@dataclass(frozen=True, slots=True)
class Failure:
    """A server that a session does without."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Tool:
    server: _Server
    name: str
    title: str
    kind: Kind
    harmless: bool
    wrapped: bool
    definition: ToolDefinition


class _Changes(MessageHandler):
    def __init__(self, server: _Server) -> None:
        self._server = server

    async def on_tool_list_changed(self, message: mcp_types.ToolListChangedNotification) -> None:
        self._server.listed = None


class _Server:
    """One lent server: a client that lives in a task of its own, since it must be left where it was entered."""

    def __init__(self, config: AcpMCPServerConfig, manager: AcpMcpConnectionManager, questions: Questions) -> None:
        self.name = config.name
        self.listed: list[mcp_types.Tool] | None = None
        self.client = fastmcp.Client(
            AcpMcpTransport(manager, config),
            timeout=CALL_TIMEOUT,
            message_handler=_Changes(self),
            elicitation_handler=questions.elicitation(config.name),
        )
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and list the tools.

        Raises:
            Exception: whatever keeps the server from being used.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name=f"server {self.name}")
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                await asyncio.shield(ready)
        except BaseException:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if ready.done() and not ready.cancelled():
                ready.exception()
            raise

    async def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self.client:
                await self.tools()
                if not ready.done():
                    ready.set_result(None)
                await self._stop.wait()
        except Exception as error:
            if ready.done():
                logger.warning("the server %r ended: %s", self.name, _reason(error))
            else:
                ready.set_exception(error)

    async def tools(self) -> list[mcp_types.Tool]:
        """The tools, listed anew after the server said that they changed."""
        if self.listed is None:
            listed: list[mcp_types.Tool] = list(await self.client.list_tools())
            self.listed = listed
        return self.listed

    async def aclose(self) -> None:
        """Disconnect. Idempotent."""
        self._stop.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class Servers:
    """The servers of one session."""

    def __init__(self, manager: AcpMcpConnectionManager, questions: Questions) -> None:
        self._manager = manager
        self._questions = questions
        self._servers: list[_Server] = []

    @property
    def names(self) -> list[str]:
        """Those that are connected."""
        return [server.name for server in self._servers]

    async def attach(self, configs: Sequence[AcpMCPServerConfig]) -> list[Failure]:
        """Connect servers, side by side, in place of earlier ones; returns those that could not be."""
        await self.aclose()
        servers = [_Server(config, self._manager, self._questions) for config in configs]
        results = await asyncio.gather(*(server.open() for server in servers), return_exceptions=True)
        failures = []
        for server, result in zip(servers, results, strict=True):
            if result is None:
                self._servers.append(server)
            elif isinstance(result, Exception):
                failures.append(Failure(server.name, _reason(result)))
            else:
                raise result
        return failures

    async def aclose(self) -> None:
        """Disconnect all."""
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.aclose() for server in servers))

    async def offered(self) -> dict[str, _Tool]:
        """All tools by the name under which a model gets them."""
        found: dict[str, _Tool] = {}
        for server in self._servers:
            try:
                tools = await server.tools()
            except Exception as error:
                logger.warning("the tools of %r cannot be listed: %s", server.name, _reason(error))
                continue
            for tool in tools:
                name = _free_name(tool.name, server.name, found)
                found[name] = _read(tool, server, name)
        return found


class LentTools(AbstractToolset[Turn]):
    """A session's lent tools, for pydantic-ai."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    @property
    def id(self) -> str | None:
        return "lent"

    async def get_tools(self, ctx: RunContext[Turn]) -> dict[str, ToolsetTool[Turn]]:
        offered = await self._servers.offered()
        return {
            name: _LentTool(toolset=self, tool_def=tool.definition, max_retries=1, args_validator=_ANY, lent=tool)
            for name, tool in offered.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Turn], tool: ToolsetTool[Turn]
    ) -> Any:
        assert isinstance(tool, _LentTool)
        lent, turn, call_id = tool.lent, ctx.deps, ctx.tool_call_id or ""
        arguments = _without_nulls(tool_args, lent.definition.parameters_json_schema)
        await turn.announce(call_id, lent.title, lent.kind, arguments)

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g} of {total:g}" if total is not None else f"{progress:g}"
            await turn.report(call_id, f"{share} {message or ''}".strip())

        try:
            await turn.allow(call_id, name, lent.title, arguments, harmless=lent.harmless)
            result = await lent.server.client.call_tool(
                lent.name, arguments, progress_handler=progress, raise_on_error=False, timeout=CALL_TIMEOUT
            )
        except Exception as error:
            reason = str(error) if isinstance(error, Refused) else _reason(error)
            await turn.finish(call_id, False, reason)
            raise ToolFailed(reason) from error
        text = _text(result.content)
        if result.is_error:
            reason = text or f"{name} failed without a message"
            await turn.finish(call_id, False, reason)
            raise ToolFailed(reason)
        value = _value(result, lent)
        shown = text or json.dumps(value, ensure_ascii=False, default=str)
        await turn.finish(call_id, True, shown, result.structured_content)
        pictures = [_picture(block) for block in result.content if block.type == "image"]
        return ToolReturn(return_value=value, content=pictures) if pictures else value


@dataclass(kw_only=True)
class _LentTool(ToolsetTool[Turn]):
    lent: _Tool


class PlanTool(AbstractToolset[Turn]):
    """A tool by which a model shows the person its plan."""

    NAME: Final = "update_plan"
    _ENTRIES: Final = TypeAdapter(list[PlanEntry])
    _DEFINITION: Final = ToolDefinition(
        name=NAME,
        description=(
            "Show the person your plan for a task of several steps, and keep it up to date. Always send the whole plan."
        ),
        parameters_json_schema={
            "type": "object",
            "properties": {
                "entries": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "content": {"type": "string", "description": "The step, in a few words"},
                            "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                            "priority": {"type": "string", "enum": ["high", "medium", "low"]},
                        },
                        "required": ["content", "status", "priority"],
                    },
                }
            },
            "required": ["entries"],
        },
    )

    @property
    def id(self) -> str | None:
        return "plan"

    async def get_tools(self, ctx: RunContext[Turn]) -> dict[str, ToolsetTool[Turn]]:
        return {self.NAME: ToolsetTool(toolset=self, tool_def=self._DEFINITION, max_retries=1, args_validator=_ANY)}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Turn], tool: ToolsetTool[Turn]
    ) -> Any:
        try:
            entries = self._ENTRIES.validate_python(tool_args.get("entries"))
        except ValidationError as error:
            raise ToolFailed(f"The plan cannot be shown: {error}") from error
        await ctx.deps.plan(entries)
        return "The person sees the plan."


# ---------------------------------------------------------------- between MCP and the model


def _free_name(tool: str, server: str, taken: dict[str, _Tool]) -> str:
    name, number = tool, 1
    while name in taken:
        name = f"{server}_{tool}" if number == 1 else f"{server}_{tool}_{number}"
        number += 1
    return name


def _read(tool: mcp_types.Tool, server: _Server, name: str) -> _Tool:
    schema = tool.input_schema
    annotations = tool.annotations
    harmless = annotations is not None and annotations.read_only_hint is True
    return _Tool(
        server=server,
        name=tool.name,
        title=name,
        kind=_kind(tool.name, harmless),
        harmless=harmless,
        wrapped=bool((tool.output_schema or {}).get(WRAPPED)),
        definition=ToolDefinition(
            name=name, description=tool.description, parameters_json_schema={"type": "object", **schema}
        ),
    )


def _kind(name: str, harmless: bool) -> Kind:
    """How the client may picture the tool: a hint, by its first word."""
    word = name.partition("_")[0]
    if word in ("search", "find", "grep"):
        return "search"
    if word in ("run", "exec", "execute", "eval"):
        return "execute"
    if word in ("write", "edit", "replace", "create"):
        return "edit"
    return "read" if harmless or word in ("read", "list", "get", "show") else "other"


def _without_nulls(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Models fill optional parameters with null; most schemas do not take it."""
    properties: dict[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    return {
        name: value
        for name, value in arguments.items()
        if value is not None or name in required or _takes_null(properties.get(name))
    }


def _takes_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is True
    if not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"}:
        return True
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return True
    return any(_takes_null(option) for key in ("anyOf", "oneOf") for option in schema.get(key, ()))


def _value(result: Any, tool: _Tool) -> Any:
    structured = result.structured_content
    if structured is None:
        return _text(result.content)
    if tool.wrapped and set(structured) == {"result"}:
        return structured["result"]
    return structured


def _text(content: Sequence[Any]) -> str:
    return "\n".join(block.text for block in content if block.type == "text")


def _picture(block: Any) -> BinaryContent:
    import base64

    return BinaryContent(data=base64.b64decode(block.data), media_type=block.mime_type)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        # The group says nothing; its first member does.
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "no answer in time"
    inner = getattr(error, "error", None)
    if isinstance(inner, mcp_types.ErrorData):
        data = ""
        if inner.data is not None:
            with contextlib.suppress(TypeError, ValueError):
                data = f" {json.dumps(inner.data, ensure_ascii=False)}"
        return f"{inner.message} (code {inner.code}){data}"
    return str(error) or type(error).__name__
