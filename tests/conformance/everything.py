"""The server with the tools, resources and prompts that the suite calls by name, as a FastMCP server `mcp`.

It imports nothing of Sandport, so that it is what any author would mount, natively and in the sandbox alike.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from fastmcp import Context, FastMCP
from fastmcp.prompts import Message
from fastmcp.tools import FunctionTool
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel, Field

__all__ = ["listen_for_changes", "mcp"]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel."""
SILENCE = base64.b64encode(
    b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0data\x02\0\0\0\x80\x80"
).decode()
"""A WAV of two samples."""

mcp: FastMCP[Any] = FastMCP("sandport-everything", version="1.0.0", dereference_schemas=False)
_changed: Callable[[str], Awaitable[None]] | None = None


def listen_for_changes(changed: Callable[[str], Awaitable[None]]) -> None:
    """Have `changed("tools" or "prompts")` awaited when a list changed."""
    global _changed
    _changed = changed


async def _tell(kind: str) -> None:
    if _changed is not None:
        await _changed(kind)


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _image() -> ImageContent:
    return ImageContent(type="image", data=PIXEL, mime_type="image/png")


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, text=text, mime_type=mime_type))


# -- tools: content -------------------------------------------------------------------------------------------


@mcp.tool
def test_simple_text() -> str:
    """A text."""
    return "This is a simple text response for testing."


@mcp.tool(output_schema=None)
def test_image_content() -> ImageContent:
    """An image."""
    return _image()


@mcp.tool(output_schema=None)
def test_audio_content() -> AudioContent:
    """A sound."""
    return AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")


@mcp.tool(output_schema=None)
def test_embedded_resource() -> EmbeddedResource:
    """A resource inside the result."""
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


@mcp.tool(output_schema=None)
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """A text, an image and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    return [
        _text("Multiple content types test:"),
        _image(),
        _embedded("test://mixed-content-resource", data, "application/json"),
    ]


@mcp.tool
def test_error_handling() -> str:
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@mcp.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs while it runs."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
    return "Tool with logging executed successfully"


@mcp.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress while it runs, as the suite wants it: with a pause after each step.

    Without one the TypeScript SDK's caller (2.4.0) may read the last of them together with the answer, and drops them.
    """
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"Completed step {done} of 100")
        await anyio.sleep(0.05)
    return "Tool with progress executed successfully"


# -- tools: asking back in the handshake era -------------------------------------------------------------------


@mcp.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Has the client's model complete a prompt."""
    result = await ctx.session.create_message([SamplingMessage(role="user", content=_text(prompt))], max_tokens=100)
    return f"LLM response: {getattr(result.content, 'text', 'none')}"


class UserResponse(BaseModel):
    """What `test_elicitation` asks for."""

    response: str = Field(description="User's response")


class Defaults(BaseModel):
    """A default for each primitive type (SEP-1034)."""

    name: str = Field(default="John Doe", description="User name")
    age: int = Field(default=30, description="User age")
    score: float = Field(default=95.5, description="User score")
    status: str = Field(
        default="active", description="User status", json_schema_extra={"enum": ["active", "inactive", "pending"]}
    )
    verified: bool = Field(default=True, description="Verification status")


def _titled(**titles: str) -> list[Any]:
    return [{"const": const, "title": title} for const, title in titles.items()]


class Enums(BaseModel):
    """Each way to write a choice (SEP-1330)."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": _titled(value1="First", value2="Second", value3="Third")})
    untitledMulti: list[str] = Field(
        json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2", "option3"]}}
    )
    titledMulti: list[str] = Field(
        json_schema_extra={"items": {"anyOf": _titled(value1="First", value2="Second", value3="Third")}}
    )
    legacyEnum: str = Field(json_schema_extra={"enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]})


async def _elicit(ctx: Context, message: str, schema: type[BaseModel]) -> str:
    answer = await ctx.session.elicit_form(message, schema.model_json_schema())
    return f"action={answer.action}, content={json.dumps(answer.content or {})}"


@mcp.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the person a question."""
    return "User response: " + await _elicit(ctx, message, UserResponse)


@mcp.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks with defaults."""
    return "Elicitation completed: " + await _elicit(ctx, "Please provide user information", Defaults)


@mcp.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks for choices."""
    return "Elicitation completed: " + await _elicit(ctx, "Please choose", Enums)


# -- tools: asking in the stateless era (SEP-2322) -------------------------------------------------------------


def _form(message: str, **properties: str) -> ElicitRequest:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=_text(text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def _given(ctx: Context, key: str) -> Any:
    return (ctx.input_responses or {}).get(key)


def _content(answer: Any, key: str) -> Any:
    return answer.content.get(key) if isinstance(answer, ElicitResult) and answer.content else None


@mcp.tool(output_schema=None)
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Asks for a name."""
    answer = _given(ctx, "user_name")
    if answer is None:
        return InputRequiredResult(input_requests={"user_name": _form("What is your name?", name="string")})
    return f"Hello, {_content(answer, 'name')}!"


@mcp.tool(output_schema=None)
async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    """Has a model answer."""
    answer = _given(ctx, "capital")
    if not isinstance(answer, CreateMessageResult):
        return InputRequiredResult(input_requests={"capital": _sample("What is the capital of France?")})
    return f"Model said: {getattr(answer.content, 'text', '')}"


@mcp.tool(output_schema=None)
async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    """Asks for the roots."""
    answer = _given(ctx, "roots")
    if not isinstance(answer, ListRootsResult):
        return InputRequiredResult(input_requests={"roots": ListRootsRequest()})
    return f"{len(answer.roots)} roots"


@mcp.tool(output_schema=None)
async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    """Gets its state back."""
    if _given(ctx, "confirm") is None or ctx.request_state != "asked once":
        return InputRequiredResult(
            input_requests={"confirm": _form("Please confirm", ok="boolean")}, request_state="asked once"
        )
    return "state-ok: confirmed"


@mcp.tool(output_schema=None)
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    """Asks three things at once."""
    if set(ctx.input_responses or ()) >= {"name", "greeting", "roots"}:
        return "All inputs received."
    requests: dict[str, InputRequest] = {
        "name": _form("What is your name?", name="string"),
        "greeting": _sample("Greet the user"),
        "roots": ListRootsRequest(),
    }
    return InputRequiredResult(input_requests=requests, request_state="three things")


@mcp.tool(output_schema=None)
async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    """Asks one thing after another."""
    name = _content(_given(ctx, "name"), "name")
    colour = _content(_given(ctx, "colour"), "color")
    if colour is not None and ctx.request_state is not None:
        return f"{ctx.request_state} likes {colour}."
    if name is not None:
        return InputRequiredResult(
            input_requests={"colour": _form("What is your favourite colour?", color="string")}, request_state=name
        )
    return InputRequiredResult(
        input_requests={"name": _form("What is your name?", name="string")}, request_state="first round"
    )


@mcp.tool(output_schema=None)
async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
    """Trusts its state, since FastMCP seals it."""
    if ctx.request_state is None:
        return InputRequiredResult(
            input_requests={"confirm": _form("Please confirm", ok="boolean")}, request_state="genuine"
        )
    return f"state-ok: {ctx.request_state}"


def _capabilities(ctx: Context) -> Any:
    return ctx.session.client_capabilities


@mcp.tool(output_schema=None)
async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    """Asks only what the client can answer."""
    can = _capabilities(ctx)
    requests: dict[str, InputRequest] = {}
    if can is not None and can.sampling is not None:
        requests["sample"] = _sample("Say hello")
    if can is not None and can.elicitation is not None:
        requests["ask"] = _form("What is your name?", name="string")
    return InputRequiredResult(input_requests=requests, request_state="asked")


@mcp.tool
async def test_missing_capability(ctx: Context) -> str:
    """Needs the capability `sampling`."""
    can = _capabilities(ctx)
    if can is None or can.sampling is None:
        raise MCPError(
            code=MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This tool needs the client capability sampling",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return "The client can sample."


@mcp.tool
async def test_logging_tool(ctx: Context) -> str:
    """Logs; a request that names no level gets none of it."""
    await ctx.info("not to be sent")
    return "Logged."


@mcp.tool(output_schema=None)
async def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
    """Reports progress, then asks: no request of its own may go out on the stream."""
    await ctx.report_progress(1, 2)
    if _given(ctx, "confirm") is None:
        return InputRequiredResult(input_requests={"confirm": _form("Please confirm", ok="boolean")})
    return "confirmed"


# -- tools: schemas and changes --------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
"""Keywords of JSON Schema 2020-12 that have to arrive as they are."""


def _schema_tool() -> str:
    return "ok"


mcp.add_tool(
    FunctionTool.from_function(
        _schema_tool, name="json_schema_2020_12_tool", description="Its schema has many keywords."
    ).model_copy(update={"parameters": SCHEMA})
)


@mcp.tool
async def test_trigger_tool_change() -> str:
    """Changes the list of tools."""

    def test_dynamic_tool() -> str:
        return "dynamic"

    mcp.tool(test_dynamic_tool)
    mcp.local_provider.remove_tool("test_dynamic_tool")
    await _tell("tools")
    return "tool list changed"


@mcp.tool
async def test_trigger_prompt_change() -> str:
    """Changes the list of prompts."""
    await _tell("prompts")
    return "prompt list changed"


# -- resources -------------------------------------------------------------------------------------------------


@mcp.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@mcp.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PIXEL)


@mcp.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """One for each id."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@mcp.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """One to subscribe to."""
    return "Watched resource content"


# -- prompts ---------------------------------------------------------------------------------------------------


@mcp.prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@mcp.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@mcp.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """A prompt with a resource inside."""
    return [
        Message(_embedded(resourceUri, "Embedded resource content for testing.")),
        Message("Please process the embedded resource above."),
    ]


@mcp.prompt
def test_prompt_with_image() -> list[Message]:
    """A prompt with an image."""
    return [Message(_image()), Message("Please analyze the image above.")]


@mcp.prompt
async def test_input_required_result_prompt(ctx: Context) -> Any:
    """A prompt that asks first."""
    answer = _given(ctx, "context")
    if answer is None:
        return InputRequiredResult(input_requests={"context": _form("Which context?", context="string")})
    return f"Use the following context: {_content(answer, 'context')}"


# -- the rest --------------------------------------------------------------------------------------------------


@mcp.completion
async def complete(ref: Any, argument: Any, context: Any) -> Completion:
    """Suggestions for an argument."""
    return Completion(values=["paris", "park"], total=2, has_more=False)


async def _subscribed(context: Any, params: SubscribeRequestParams | UnsubscribeRequestParams) -> EmptyResult:
    return EmptyResult()


# FastMCP has no way to offer resource subscriptions of its own.
mcp._mcp_server.add_request_handler("resources/subscribe", SubscribeRequestParams, _subscribed)
mcp._mcp_server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _subscribed)
