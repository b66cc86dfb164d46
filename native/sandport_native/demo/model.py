"""The planner as a pydantic-ai model. Imported only where agentpool is installed.

Invariant: all state is in the message history that the framework hands in; the model keeps none.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from sandport_demo import Answer, Call, Done, Step, Tool, plan

MODEL_NAME = "sandport-demo"


_RESULTS = (ToolReturnPart, RetryPromptPart)


def _request_text(part: UserPromptPart) -> str:
    content = part.content
    return content if isinstance(content, str) else "\n".join(item for item in content if isinstance(item, str))


def read_history(messages: list[ModelMessage]) -> tuple[str, list[Done]]:
    """The newest request in the history and the calls made for it since, in the order they were asked for."""
    start, request = 0, ""
    for index, message in enumerate(messages):
        # A tool may hand content to the model as a prompt of its own, beside its result: that is no new request.
        if isinstance(message, ModelRequest) and not any(isinstance(part, _RESULTS) for part in message.parts):
            prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
            if prompts:
                start, request = index, "\n".join(map(_request_text, prompts))
    calls: dict[str, Call] = {}
    results: dict[str, Done] = {}
    for message in messages[start:]:
        for part in message.parts:
            match part:
                case ToolCallPart():
                    calls[part.tool_call_id] = Call(part.tool_name, part.args_as_dict())
                case ToolReturnPart() if part.tool_call_id in calls:
                    error = _failure(part.content)
                    results[part.tool_call_id] = Done(calls[part.tool_call_id], part.content, error)
                case RetryPromptPart() if part.tool_call_id in calls:
                    results[part.tool_call_id] = Done(calls[part.tool_call_id], None, _retry_text(part))
    return request, [results[call_id] for call_id in calls if call_id in results]


def _failure(content: Any) -> str | None:
    if isinstance(content, str) and content.startswith("Tool error: "):
        return content.removeprefix("Tool error: ")
    return None


def _retry_text(part: RetryPromptPart) -> str:
    return part.content if isinstance(part.content, str) else json.dumps(part.content, default=str)


def _next(messages: list[ModelMessage], info: AgentInfo) -> Step:
    request, done = read_history(messages)
    return plan(request, [Tool(tool.name, tool.description or "") for tool in info.function_tools], done)


async def _respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    step = _next(messages, info)
    if isinstance(step, Answer):
        return ModelResponse(parts=[TextPart(step.text)])
    return ModelResponse(parts=[ToolCallPart(call.tool, dict(call.arguments)) for call in step])


async def _stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    step = _next(messages, info)
    if isinstance(step, Answer):
        # Words with the space that follows them: enough pieces to see it stream, few enough to be quick.
        for piece in re.findall(r"\S+\s*|\s+", step.text):
            yield piece
    else:
        for index, call in enumerate(step):
            yield {index: DeltaToolCall(name=call.tool, json_args=json.dumps(dict(call.arguments)))}


MODEL = FunctionModel(_respond, stream_function=_stream, model_name=MODEL_NAME)
"""The demo model; agentpool configs can name it: `model: {type: import, model: sandport_native.demo.model.MODEL}`."""
