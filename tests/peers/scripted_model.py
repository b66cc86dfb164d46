"""A language model that does as the prompt says, over HTTP on loopback, in four vendors' dialects.

A prompt of the form `request(TOOL, ARGUMENTS)` makes it call that tool once and then say `TOOL SAID: ` and the result.
It decides from the conversation alone, never from the number of requests: agents ask for titles, summaries and the
like in between, often at the same time.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sandport_native.http import QuietServer, listen

__all__ = ["ScriptedModel", "request", "scripted_model"]

SAID = "TOOL SAID: "
IDLE = "Nothing to call."
_TRIGGER = re.compile(r"please call (\w+) now with (?=\{)")


def request(tool: str, arguments: dict[str, Any]) -> str:
    """The prompt that makes the model call a tool; the tool's name without what an agent puts before it."""
    return f"please call {tool} now with {json.dumps(arguments)}"


@dataclass(frozen=True)
class User:
    """Something said to the model, by the person or by the agent in their name."""

    text: str


@dataclass(frozen=True)
class Called:
    """A call that the model made before."""

    id: str
    name: str


@dataclass(frozen=True)
class Result:
    """What came of a call."""

    id: str
    text: str


@dataclass(frozen=True)
class Tool:
    """A tool on offer; `namespace` is OpenAI's group of tools, where it has one."""

    name: str
    namespace: str | None = None


@dataclass(frozen=True)
class Say:
    """The model answers in words."""

    text: str


@dataclass(frozen=True)
class Call:
    """The model calls a tool."""

    tool: Tool
    arguments: dict[str, Any]
    id: str = field(default_factory=lambda: f"call_{uuid4().hex[:24]}")


History = Sequence[User | Called | Result]


def decide(history: History, tools: Sequence[Tool]) -> Say | Call:
    """What the model does next: the newest order counts, and only what came after it."""
    order: tuple[str, dict[str, Any]] | None = None
    since: list[User | Called | Result] = []
    for item in history:
        found = list(_TRIGGER.finditer(item.text)) if isinstance(item, User) else []
        if found and isinstance(item, User):
            arguments, _ = json.JSONDecoder().raw_decode(item.text, found[-1].end())
            order, since = (found[-1][1], arguments), []
        else:
            since.append(item)
    if order is None or not tools:
        return Say(IDLE)
    wanted, arguments = order
    # Results of other tools, such as a search for tools, are not the answer.
    ours = {item.id for item in since if isinstance(item, Called) and item.name.endswith(wanted)}
    for item in since:
        if isinstance(item, Result) and item.id in ours:
            return Say(SAID + item.text)
    for tool in tools:
        if tool.name.endswith(wanted):
            return Call(tool, arguments)
    return Say(f"There is no tool {wanted}; on offer: {', '.join(tool.name for tool in tools)}")


def _texts(content: Any) -> str:
    """The text of a content that may be text, a list of parts, or anything else."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return "" if content is None else json.dumps(content)


def _sse(*events: dict[str, Any], named: bool = False, done: bool = False) -> Iterator[str]:
    for event in events:
        head = f"event: {event['type']}\n" if named else ""
        yield f"{head}data: {json.dumps(event)}\n\n"
    if done:
        yield "data: [DONE]\n\n"


def _stream(events: Iterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


# -- OpenAI chat completions --------------------------------------------------------------------------------------


def _read_chat(body: dict[str, Any]) -> tuple[History, list[Tool]]:
    history: list[User | Called | Result] = []
    for message in body.get("messages", []):
        role = message.get("role")
        if role == "user":
            history.append(User(_texts(message.get("content"))))
        elif role == "tool":
            history.append(Result(message["tool_call_id"], _texts(message.get("content"))))
        history += [Called(call["id"], call["function"]["name"]) for call in message.get("tool_calls") or []]
    return history, [Tool(tool["function"]["name"]) for tool in body.get("tools") or [] if "function" in tool]


def _write_chat(body: dict[str, Any], move: Say | Call) -> Response:
    base = {"id": "chat_1", "created": 0, "model": body.get("model", "scripted")}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    finish = "tool_calls" if isinstance(move, Call) else "stop"
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    message: dict[str, Any]
    if isinstance(move, Call):
        head = {"index": 0, "id": move.id, "type": "function"}
        arguments = json.dumps(move.arguments)
        deltas.append({"tool_calls": [{**head, "function": {"name": move.tool.name, "arguments": ""}}]})
        deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]})
        call = {"id": move.id, "type": "function", "function": {"name": move.tool.name, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    else:
        deltas.append({"content": move.text})
        message = {"role": "assistant", "content": move.text}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return JSONResponse({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    base["object"] = "chat.completion.chunk"
    chunks = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**base, "choices": [], "usage": usage})
    return _stream(_sse(*chunks, done=True))


# -- OpenAI responses ---------------------------------------------------------------------------------------------


def _read_responses(body: dict[str, Any]) -> tuple[History, list[Tool]]:
    history: list[User | Called | Result] = []
    given = body.get("input", [])
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") == "user":
            history.append(User(_texts(item.get("content"))))
        elif kind == "function_call":
            history.append(Called(item["call_id"], item["name"]))
        elif kind == "function_call_output":
            history.append(Result(item["call_id"], _texts(item.get("output"))))
    tools: list[Tool] = []
    for tool in body.get("tools") or []:
        if tool.get("type") == "namespace":
            tools += [Tool(inner["name"], tool["name"]) for inner in tool.get("tools", [])]
        elif tool.get("type") == "function":
            tools.append(Tool(tool["name"]))
    return history, tools


def _write_responses(body: dict[str, Any], move: Say | Call) -> Response:
    response: dict[str, Any] = {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": 0,
        "model": body.get("model", "scripted"),
        "status": "in_progress",
        "output": [],
    }
    item: dict[str, Any]
    events: list[dict[str, Any]]
    if isinstance(move, Call):
        arguments = json.dumps(move.arguments)
        item = {"type": "function_call", "id": f"fc_{move.id}", "call_id": move.id, "name": move.tool.name}
        if move.tool.namespace is not None:
            item["namespace"] = move.tool.namespace
        at = {"item_id": item["id"], "output_index": 0}
        opened = {**item, "arguments": "", "status": "in_progress"}
        item = {**item, "arguments": arguments, "status": "completed"}
        events = [
            {"type": "response.function_call_arguments.delta", **at, "delta": arguments},
            {"type": "response.function_call_arguments.done", **at, "arguments": arguments},
        ]
    else:
        item = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant"}
        at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        opened = {**item, "content": [], "status": "in_progress"}
        item = {
            **item,
            "content": [{"type": "output_text", "text": move.text, "annotations": []}],
            "status": "completed",
        }
        events = [
            {"type": "response.output_text.delta", **at, "delta": move.text},
            {"type": "response.output_text.done", **at, "text": move.text},
        ]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # type: ignore[dict-item]
    whole = {**response, "status": "completed", "output": [item], "usage": usage}
    if not body.get("stream"):
        return JSONResponse(whole)
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        *events,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return _stream(_sse(*numbered, named=True))


# -- Anthropic messages -------------------------------------------------------------------------------------------


def _read_anthropic(body: dict[str, Any]) -> tuple[History, list[Tool]]:
    history: list[User | Called | Result] = []
    for message in body.get("messages", []):
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        calls = [Called(block["id"], block["name"]) for block in blocks if block.get("type") == "tool_use"]
        results = [
            Result(block["tool_use_id"], _texts(block.get("content")))
            for block in blocks
            if block.get("type") == "tool_result"
        ]
        said = [User(block["text"]) for block in blocks if block.get("type") == "text" and message["role"] == "user"]
        # After a cancellation one message holds the aborted result and the new order: the order is the newer one.
        history += [*calls, *results, *said]
    return history, [Tool(tool["name"]) for tool in body.get("tools") or [] if "name" in tool]


def _write_anthropic(body: dict[str, Any], move: Say | Call) -> Response:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message: dict[str, Any] = {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "scripted"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    block: dict[str, Any]
    if isinstance(move, Call):
        block = {"type": "tool_use", "id": move.id.replace("call_", "toolu_"), "name": move.tool.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(move.arguments)}
        whole, stop = {**block, "input": move.arguments}, "tool_use"
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": move.text}
        whole, stop = {"type": "text", "text": move.text}, "end_turn"
    if not body.get("stream"):
        return JSONResponse({**message, "content": [whole], "stop_reason": stop})
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    return _stream(_sse(*events, named=True))


# -- Gemini generateContent ---------------------------------------------------------------------------------------


def _read_gemini(body: dict[str, Any]) -> tuple[History, list[Tool]]:
    history: list[User | Called | Result] = []
    for content in body.get("contents", []):
        for part in content.get("parts", []):
            if "functionCall" in part:
                call = part["functionCall"]
                history.append(Called(call.get("id") or call["name"], call["name"]))
            elif "functionResponse" in part:
                answer = part["functionResponse"]
                history.append(Result(answer.get("id") or answer["name"], json.dumps(answer.get("response"))))
            elif "text" in part and content.get("role") != "model":
                history.append(User(part["text"]))
    tools = [Tool(one["name"]) for group in body.get("tools") or [] for one in group.get("functionDeclarations") or []]
    return history, tools


def _fitting(schema: dict[str, Any]) -> Any:
    """A small value of a JSON schema, for questions that want JSON and have nothing to do with tools."""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = str(schema.get("type", "object")).lower()
    if kind == "object":
        return {name: _fitting(inner) for name, inner in (schema.get("properties") or {}).items()}
    return {"array": [], "string": "none", "boolean": False, "integer": 0, "number": 0}.get(kind)


def _write_gemini(body: dict[str, Any], move: Say | Call, *, stream: bool) -> Response:
    config = body.get("generationConfig") or {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if schema is not None:
        move = Say(json.dumps(_fitting(schema)))
    part: dict[str, Any]
    if isinstance(move, Call):
        part = {"functionCall": {"name": move.tool.name, "args": move.arguments, "id": move.id}}
    else:
        part = {"text": move.text}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
    return _stream(_sse(answer)) if stream else JSONResponse(answer)


# -- the server ---------------------------------------------------------------------------------------------------


class ScriptedModel:
    """The endpoint. Made by `scripted_model`.

    Attributes:
        base: its origin, without a path.
        note: gets one line for each request: where, which tools were on offer, what it did. For people.
    """

    def __init__(self, base: str, note: Callable[[str], None]) -> None:
        self.base = base
        self.note = note
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/responses", self._responses, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
                Route("/v1/messages", self._anthropic, methods=["POST"]),
                Route("/v1beta/models/{call:path}", self._gemini, methods=["POST"]),
                Route("/{path:path}", self._nothing, methods=["GET", "HEAD", "POST"]),
            ]
        )

    def _decide(self, request: Request, history: History, tools: Sequence[Tool]) -> Say | Call:
        move = decide(history, tools)
        what = f"calls {move.tool.name}" if isinstance(move, Call) else f"says {move.text[:200]!r}"
        self.note(f"{request.url.path} [{' '.join(tool.name for tool in tools)}]: {what}")
        return move

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        return _write_chat(body, self._decide(request, *_read_chat(body)))

    async def _responses(self, request: Request) -> Response:
        body = await request.json()
        return _write_responses(body, self._decide(request, *_read_responses(body)))

    async def _anthropic(self, request: Request) -> Response:
        body = await request.json()
        return _write_anthropic(body, self._decide(request, *_read_anthropic(body)))

    async def _gemini(self, request: Request) -> Response:
        body = await request.json()
        move = self._decide(request, *_read_gemini(body))
        return _write_gemini(body, move, stream="stream" in request.path_params["call"])

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "tests"}]})

    async def _count(self, request: Request) -> Response:
        return JSONResponse({"input_tokens": 1})

    async def _nothing(self, request: Request) -> Response:
        self.note(f"{request.method} {request.url.path}: nothing there")
        return Response(status_code=200 if request.url.path == "/" else 404)


@asynccontextmanager
async def scripted_model(note: Callable[[str], None]) -> AsyncIterator[ScriptedModel]:
    """Serve the model on a free loopback port while the context is open."""
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    with listen("127.0.0.1", 0) as sock:
        model = ScriptedModel(f"http://127.0.0.1:{sock.getsockname()[1]}", note)
        config = uvicorn.Config(
            model.app, access_log=False, log_config=None, lifespan="off", timeout_graceful_shutdown=1
        )
        server = QuietServer(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            await server.ready.wait()
            try:
                yield model
            finally:
                server.should_exit = True
