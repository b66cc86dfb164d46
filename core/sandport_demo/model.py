"""The script as a pydantic-ai model, for whoever has pydantic-ai; nothing else of this package needs it.

Invariant: all state is in the message history that the framework hands in; the model keeps none.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Final

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

from sandport_demo.planner import Answer, Call, Done, Step, Tool, plan

__all__ = ["MODEL_NAME", "function_model", "read_history"]

MODEL_NAME: Final = "sandport-demo"
Failure = Callable[[ToolReturnPart], str | None]
"""Why a call failed, read from its result; `None` for one that did not. Agents differ in how they say it."""


def function_model(failure: Failure) -> FunctionModel:
    """The script as a model."""

    def following(messages: list[ModelMessage], info: AgentInfo) -> Step:
        request, done = read_history(messages, failure)
        return plan(request, [Tool(tool.name, tool.description or "") for tool in info.function_tools], done)

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = following(messages, info)
        if isinstance(step, Answer):
            return ModelResponse(parts=[TextPart(step.text)])
        return ModelResponse(parts=[ToolCallPart(call.tool, dict(call.arguments)) for call in step])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        step = following(messages, info)
        if isinstance(step, Answer):
            # Words with the space that follows them: enough pieces to see it stream, few enough to be quick.
            for piece in re.findall(r"\S+\s*|\s+", step.text):
                yield piece
            return
        for index, call in enumerate(step):
            yield {index: DeltaToolCall(name=call.tool, json_args=json.dumps(dict(call.arguments)))}

    return FunctionModel(respond, stream_function=stream, model_name=MODEL_NAME)


def read_history(messages: list[ModelMessage], failure: Failure) -> tuple[str, list[Done]]:
    """The newest request in the history and the calls made for it since, in the order they were asked for."""
    start, request = 0, ""
    for index, message in enumerate(messages):
        # A tool may hand content to the model as a prompt of its own, beside its result: that is no new request.
        if isinstance(message, ModelRequest) and not any(map(_is_result, message.parts)):
            prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
            if prompts:
                start, request = index, "\n".join(map(_text, prompts))
    calls: dict[str, Call] = {}
    results: dict[str, Done] = {}
    for message in messages[start:]:
        for part in message.parts:
            match part:
                case ToolCallPart():
                    calls[part.tool_call_id] = Call(part.tool_name, part.args_as_dict())
                case ToolReturnPart() if part.tool_call_id in calls:
                    error = failure(part)
                    content = part.content if error is None else None
                    results[part.tool_call_id] = Done(calls[part.tool_call_id], content, error)
                case RetryPromptPart() if part.tool_call_id in calls:
                    results[part.tool_call_id] = Done(calls[part.tool_call_id], None, _retry(part))
    return request, [results[call_id] for call_id in calls if call_id in results]


def _is_result(part: object) -> bool:
    if isinstance(part, ToolReturnPart):
        # For a call that was cut off, pydantic-ai 2 puts one beside the next request; version 1 has no such outcome.
        return str(part.outcome) != "interrupted"
    return isinstance(part, RetryPromptPart)


def _text(part: UserPromptPart) -> str:
    content = part.content
    return content if isinstance(content, str) else "\n".join(item for item in content if isinstance(item, str))


def _retry(part: RetryPromptPart) -> str:
    return part.content if isinstance(part.content, str) else json.dumps(part.content, default=str)
