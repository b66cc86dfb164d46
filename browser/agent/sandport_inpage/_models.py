"""The models: a script that needs no key, and any endpoint that speaks OpenAI's chat API.

Invariant: nothing here knows a key. The page adds it to the requests on their way out.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from sandport_demo import Answer, Call, Done, Step, Tool, plan

if TYPE_CHECKING:
    import httpx2

__all__ = ["LOCAL_BASE", "ModelChoice", "demo_model", "endpoint_model"]

LOCAL_BASE: Final = "https://endpoint.invalid/"
"""Stands for the endpoint's address, which only the page knows; requests leave as paths below it."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model and how to use it."""

    model: Model
    name: str
    """Shown to the person."""
    scripted: bool = False
    """It is no language model: instructions and the plan tool are not for it."""


def demo_model() -> ModelChoice:
    """The demo script: deterministic, needs nothing, and says that it is a script."""
    model = FunctionModel(_respond, stream_function=_stream, model_name="sandport-demo")
    return ModelChoice(model, "demo script", scripted=True)


def endpoint_model(name: str, client: Callable[[], httpx2.AsyncClient]) -> ModelChoice:
    """A model behind an OpenAI-compatible endpoint.

    Args:
        name: the model's name there.
        client: makes the HTTP client, whose requests to paths below `LOCAL_BASE` reach the endpoint.
    """
    # Imported when it is wanted: it takes a second, and the demo does without.
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    openai = AsyncOpenAI(
        base_url=LOCAL_BASE,
        # The client insists on one; the page takes this header off and puts the real one on, if there is one.
        api_key="none",
        http_client=client(),
        max_retries=1,
    )
    provider = OpenAICompatibleProvider("endpoint", openai_client=openai)
    return ModelChoice(OpenAIChatModel(name, provider=provider), name)


# ---------------------------------------------------------------- the demo script


def _read_history(messages: list[ModelMessage]) -> tuple[str, list[Done]]:
    """The newest request in the history and the calls made for it since, in the order they were asked for."""
    start, request = 0, ""
    for index, message in enumerate(messages):
        if isinstance(message, ModelRequest):
            prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
            if prompts:
                start, request = index, "\n".join(map(_text, prompts))
    calls: dict[str, Call] = {}
    results: dict[str, Done] = {}
    for message in messages[start:]:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                calls[part.tool_call_id] = Call(part.tool_name, part.args_as_dict())
            elif isinstance(part, ToolReturnPart) and part.tool_call_id in calls:
                good = part.outcome == "success"
                error = None if good else part.model_response_str(wrap_if_error=False)
                results[part.tool_call_id] = Done(calls[part.tool_call_id], part.content if good else None, error)
    return request, [results[call_id] for call_id in calls if call_id in results]


def _text(part: UserPromptPart) -> str:
    content = part.content
    return content if isinstance(content, str) else "\n".join(item for item in content if isinstance(item, str))


def _next(messages: list[ModelMessage], info: AgentInfo) -> Step:
    request, done = _read_history(messages)
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
        return
    for index, call in enumerate(step):
        arguments: dict[str, Any] = dict(call.arguments)
        yield {index: DeltaToolCall(name=call.tool, json_args=json.dumps(arguments))}
