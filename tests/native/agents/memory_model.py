"""A model for agentpool tests that tells what it can see of its history.

It answers with every prompt and every tool result there, in order; the prompts `echo VALUE` and `hang` make it call
that tool first.
"""

from collections.abc import AsyncIterator

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel


async def _stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    seen: list[str] = []
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                seen.append(part.content if isinstance(part.content, str) else " ".join(map(str, part.content)))
            elif isinstance(part, ToolReturnPart):
                seen.append(f"{part.tool_name} gave {part.content}")
    verb, _, value = seen[-1].partition(" ")
    if verb == "echo" and not value.startswith("gave "):
        yield {0: DeltaToolCall("echo", f'{{"value": "{value}"}}', tool_call_id=f"call-{len(messages)}")}
    elif verb == "hang" and not value:
        yield {0: DeltaToolCall("hang", "{}", tool_call_id=f"call-{len(messages)}")}
    else:
        yield "I see: " + " | ".join(seen)


MODEL = FunctionModel(stream_function=_stream)
