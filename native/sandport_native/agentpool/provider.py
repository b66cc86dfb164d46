"""One page server as one of agentpool's own resource providers.

Invariant: the provider shows its tools, prompts and resources only to code that works for its ACP session; a tool's
error reaches the model and never ends the turn.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio
import fastmcp
import mcp.types as mcp_types
from agentpool.agents.context import AgentContext
from agentpool.mcp_server.client import MCPClient
from agentpool.resource_providers.mcp_provider import MCPResourceProvider
from agentpool.tools.base import FunctionTool
from agentpool_config.mcp_server import StdioMCPServerConfig
from agentpool_config.tools import ToolHints
from fastmcp.client.messages import MessageHandler
from fastmcp.client.transports import ClientTransport
from pydantic_ai import ModelRetry, RunContext, ToolReturn

from sandport_native.agentpool.current import CURRENT_SESSION
from sandport_native.agentpool.questions import Questions

if TYPE_CHECKING:
    from agentpool.prompts.prompts import MCPClientPrompt
    from agentpool.resource_providers.resource_info import ResourceInfo
    from agentpool.tools.base import Tool
    from agentpool_config.mcp_server import MCPServerConfig

log = logging.getLogger("sandport.agentpool")

TOOL_ERROR = "Tool error: "
"""How an error reads that the model gets as a plain result, once its retries are used up."""

WRAPPED = "x-fastmcp-wrap-result"
"""FastMCP's mark on an output schema whose `result` key is only a wrapper around a value that is no object."""


class _Changes(MessageHandler):
    """Change notices of the server, to the provider's own callbacks. agentpool's handler needs mcp 1.x."""

    def __init__(self, provider: PageProvider) -> None:
        self._provider = provider

    async def on_tool_list_changed(self, message: mcp_types.ToolListChangedNotification) -> None:
        await self._provider._on_tools_changed({})

    async def on_prompt_list_changed(self, message: mcp_types.PromptListChangedNotification) -> None:
        await self._provider._on_prompts_changed({})

    async def on_resource_list_changed(self, message: mcp_types.ResourceListChangedNotification) -> None:
        await self._provider._on_resources_changed({})


class PageClient(MCPClient):
    """agentpool's MCP client over a transport of ours.

    Args:
        name: the server's name, for messages.
        transport: opens the MCP session.
        handler: gets the server's notifications.
        questions: answers the server's elicitations and samplings.
        roots: URIs the server may ask for.
        timeout: seconds for one MCP request.
    """

    def __init__(
        self,
        name: str,
        transport: ClientTransport,
        *,
        handler: MessageHandler,
        questions: Questions,
        roots: Sequence[str],
        timeout: float,
    ) -> None:
        self._transport = transport
        self._handler = handler
        self._questions = questions
        self._timeout = timeout
        self._schemas: dict[str, dict[str, Any]] = {}
        # The placeholder is never started: `_get_client` does not look at it. As a stdio config it keeps the base
        # class from trying OAuth after a failed connect.
        super().__init__(StdioMCPServerConfig(name=name, command="sandport-page-server"), accessible_roots=list(roots))

    def _get_client(self, config: MCPServerConfig, force_oauth: bool = False) -> fastmcp.Client[Any]:
        return fastmcp.Client(
            self._transport,
            log_handler=self._log_handler,
            roots=self._accessible_roots,
            timeout=self._timeout,
            elicitation_handler=self._questions.elicit,
            sampling_handler=self._questions.sample,
            message_handler=self._handler,
        )

    async def list_tools(self) -> list[mcp_types.Tool]:
        """The server's tools. Unlike the base class it lets a failure be seen, so that it is not cached as `none`."""
        self._ensure_connected()
        return list(await self._client.list_tools())

    def convert_tool(self, tool: mcp_types.Tool) -> FunctionTool:
        """The tool as agentpool wants it, with its schema exactly as the server gave it.

        The base class builds a Python signature from the schema and loses what a signature cannot say (unions,
        nested constraints); here the schema itself goes to the model, and the arguments pass untouched.
        """
        # As it is on the wire: the fields have other names in each version of the MCP SDK.
        wire = tool.model_dump(by_alias=True, exclude_none=True)
        schema: dict[str, Any] = wire["inputSchema"]
        properties: dict[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if "outputSchema" in wire:
            self._schemas[tool.name] = wire["outputSchema"]

        async def call(ctx: RunContext[Any], agent_ctx: AgentContext[Any], **kwargs: Any) -> Any:
            # Models fill optional parameters with null; most schemas do not take it.
            arguments = {
                name: value
                for name, value in kwargs.items()
                if value is not None or name in required or _takes_null(properties.get(name))
            }
            return await self.call_tool(tool.name, ctx, arguments, agent_ctx)

        call.__name__ = call.__qualname__ = tool.name
        call.__doc__ = tool.description or tool.title or "No description provided."
        return FunctionTool.from_callable(
            call,
            schema_override={
                "name": tool.name,
                "description": call.__doc__,
                "parameters": cast("Any", schema),
            },
            hints=ToolHints.from_mcp(tool.annotations) if tool.annotations else None,
            source="mcp",
        )

    async def call_tool(
        self,
        name: str,
        run_context: RunContext,
        arguments: dict[str, Any] | None = None,
        agent_ctx: AgentContext[Any] | None = None,
    ) -> ToolReturn | str | Any:
        """Call a tool. Errors of every kind go to the model: as a retry while it has some, then as the result."""

        async def show(progress: float, total: float | None, message: str | None) -> None:
            if agent_ctx is not None:
                await agent_ctx.report_progress(progress, total, message or "")

        try:
            self._ensure_connected()
            with self._questions.during(agent_ctx):
                result = await self._client.call_tool(
                    name,
                    arguments,
                    progress_handler=show,
                    raise_on_error=False,
                    # The client's own limit would cut off a person who thinks about a question.
                    timeout=self._timeout,
                )
        except Exception as exc:
            return _failed(_describe(exc), run_context)
        if result.is_error:
            return _failed(_text(result.content) or f"{name} failed without a message", run_context)
        return await self._value(name, result)

    async def _value(self, name: str, result: Any) -> Any:
        from agentpool.mcp_server.conversions import from_mcp_content

        structured = result.structured_content
        if structured is not None:
            if self._schemas.get(name, {}).get(WRAPPED) and set(structured) == {"result"}:
                structured = structured["result"]
            # The text blocks only repeat the structured content; pictures and the like do not.
            rest = [block for block in result.content if block.type != "text"]
            if not rest:
                return structured
            return ToolReturn(return_value=structured, content=await from_mcp_content(rest))
        if all(block.type == "text" for block in result.content):
            return _text(result.content)
        return ToolReturn(return_value="see content", content=await from_mcp_content(result.content))


class PageProvider(MCPResourceProvider):
    """agentpool's provider for one page server of one ACP session.

    Args:
        session_id: the session that may see it.
        name: the server's declared name.
        transport, questions, roots, timeout: see `PageClient`.
        owner: the agent's name.
        rename: maps a tool's name to one that is free in this session.
        refresh: called on a change notice, to list the tools again in the background.
    """

    def __init__(
        self,
        session_id: str,
        name: str,
        transport: ClientTransport,
        *,
        questions: Questions,
        roots: Sequence[str],
        timeout: float,
        owner: str | None,
        rename: Callable[[str], str],
        refresh: Callable[[PageProvider], None],
    ) -> None:
        placeholder = StdioMCPServerConfig(name=name, command="sandport-page-server")
        super().__init__(placeholder, name=f"acp_{name}", owner=owner, source="node")
        self.session_id = session_id
        self.server_name = name
        self._rename = rename
        self._refresh = refresh
        self._listing = anyio.Lock()
        self._generation = 0
        self.client = PageClient(
            name, transport, handler=_Changes(self), questions=questions, roots=roots, timeout=timeout
        )

    @property
    def transport_type(self) -> Literal["stdio", "http", "sse"]:
        """`acp`: honest, although the base class knows no such kind."""
        return cast("Literal['stdio', 'http', 'sse']", "acp")

    @property
    def visible(self) -> bool:
        """Whether the running code works for this provider's session."""
        return CURRENT_SESSION.get() == self.session_id

    async def get_tools(self) -> Sequence[Tool]:
        return await super().get_tools() if self.visible else []

    async def get_prompts(self) -> list[MCPClientPrompt]:  # type: ignore[override]
        return await super().get_prompts() if self.visible else []

    async def get_resources(self) -> list[ResourceInfo]:
        return await super().get_resources() if self.visible else []

    async def refresh_tools_cache(self) -> None:
        """List the tools. A failure leaves the cache empty, so the next use tries again."""
        async with self._listing:
            if self._tools_cache is not None:
                return
            generation = self._generation
            try:
                listed = await self.client.list_tools()
            except Exception as exc:
                log.warning("listing the tools of %s failed: %s", self.server_name, exc)
                return
            tools: list[FunctionTool] = []
            for tool in listed:
                try:
                    converted = self.client.convert_tool(tool)
                except Exception:
                    log.exception("the tool %s of %s cannot be used", tool.name, self.server_name)
                    continue
                converted.name = self._rename(tool.name)
                assert converted.schema_override is not None
                converted.schema_override["name"] = converted.name
                converted.enabled = self._saved_enabled_states.get(converted.name, True)
                tools.append(converted)
            if generation == self._generation:
                self._tools_cache = tools

    async def _on_tools_changed(self, _meta: dict[str, Any]) -> None:
        saved = dict(self._saved_enabled_states)
        cached = self._tools_cache
        self._generation += 1
        await super()._on_tools_changed(_meta)
        if cached is None:  # a second notice before the new list: the base class would forget what was disabled
            self._saved_enabled_states = saved
        self._refresh(self)


def _takes_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is True
    if not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"}:
        return True  # it takes anything
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return True
    return any(_takes_null(option) for key in ("anyOf", "oneOf") for option in schema.get(key, ()))


def _text(content: Sequence[Any]) -> str:
    return "\n".join(block.text for block in content if block.type == "text")


def _describe(error: Exception) -> str:
    """An MCP error with its code and data, anything else as it says."""
    inner = getattr(error, "error", None)
    if isinstance(inner, mcp_types.ErrorData):
        data = "" if inner.data is None else f" {json.dumps(inner.data, default=str, ensure_ascii=False)}"
        return f"{inner.message} (code {inner.code}){data}"
    return str(error) or type(error).__name__


def _failed(text: str, run_context: RunContext[Any]) -> str:
    if run_context.retry < run_context.max_retries:
        raise ModelRetry(text)
    return TOOL_ERROR + text
