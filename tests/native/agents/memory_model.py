"""A model for agentpool tests that tells what it can see of its history.

It answers with every prompt and every tool result there, in order, and with what a tool's failure told it. The prompts
`echo VALUE`, `hang`, `peek` and `picky` make it call that tool first; `picky` it calls with a wrong word, and once more
when it is told better.
"""

from collections.abc import AsyncIterator

from agentpool.agents.context import AgentContext
from pydantic_ai.messages import ModelMessage, ModelRequest, RetryPromptPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel


async def _stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    seen: list[str] = []
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                seen.append(part.content if isinstance(part.content, str) else " ".join(map(str, part.content)))
            elif isinstance(part, ToolReturnPart):
                seen.append(f"{part.tool_name} gave {part.content}")
            elif isinstance(part, RetryPromptPart):
                seen.append(f"{part.tool_name} failed: {part.content}")
    verb, _, value = seen[-1].partition(" ")
    if verb == "echo" and not value.startswith("gave "):
        yield {0: DeltaToolCall("echo", f'{{"value": "{value}"}}', tool_call_id=f"call-{len(messages)}")}
    elif verb in ("hang", "peek") and not value:
        yield {0: DeltaToolCall(verb, "{}", tool_call_id=f"call-{len(messages)}")}
    elif verb == "picky" and not value.startswith("gave "):
        word = "right" if value.startswith("failed: ") else "wrong"
        yield {0: DeltaToolCall("picky", f'{{"word": "{word}"}}', tool_call_id=f"call-{len(messages)}")}
    else:
        yield "I see: " + " | ".join(seen)


async def peek(agent_ctx: AgentContext) -> str:
    """What agentpool's own list of resources has, read."""
    resources = await agent_ctx.native_agent.tools.list_resources()
    return str({resource.uri: await resource.read() for resource in resources})


MODEL = FunctionModel(stream_function=_stream)
