"""A model for agentpool tests that answers with every prompt it can see in its history."""

from collections.abc import AsyncIterator

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def _seen(messages: list[ModelMessage]) -> str:
    prompts = [
        part.content if isinstance(part.content, str) else " ".join(map(str, part.content))
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    return "I see: " + " | ".join(prompts)


async def _respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(_seen(messages))])


async def _stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    yield _seen(messages)


MODEL = FunctionModel(_respond, stream_function=_stream)
