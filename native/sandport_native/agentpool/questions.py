"""What a page server asks back: elicitation goes to the person through ACP, sampling to the agent's own model.

Invariant: every question is put to the session that the server belongs to, and is answered by that person's choice;
when it cannot be put, the answer is `decline`, never an invented value.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mcp.types as mcp_types
from acp import PermissionOption
from acp.schema import AllowedOutcome
from fastmcp.client.elicitation import ElicitResult

from sandport.agent.forms import choices

if TYPE_CHECKING:
    from agentpool.agents.context import AgentContext
    from agentpool_server.acp_server.session import ACPSession

log = logging.getLogger("sandport.agentpool")


class Questions:
    """Answers the questions of one page server.

    Args:
        session: the ACP session.
        server: the server's name, shown in the question.
    """

    def __init__(self, session: ACPSession, server: str) -> None:
        self._session = session
        self._server = server
        self._calls: list[str] = []

    @contextmanager
    def during(self, call: AgentContext[Any] | None) -> Iterator[None]:
        """While a tool call runs: its id is shown with questions. No inner ids are on the wire, so with several
        running calls the newest is the best guess."""
        call_id = call.tool_call_id if call is not None and call.tool_call_id else None
        if call_id is None:
            yield
            return
        self._calls.append(call_id)
        try:
            yield
        finally:
            self._calls.remove(call_id)

    async def elicit(self, message: str, response_type: Any, params: Any, context: Any) -> Any:
        """fastmcp's elicitation handler: the value, or an `ElicitResult` to decline or cancel."""
        if isinstance(params, mcp_types.ElicitRequestURLParams):
            url = str(params.url)
            answer = await self._ask(f"{message}\n{url}", [("accept", "I have opened it"), ("decline", "Decline")])
            if answer not in ("accept", "decline"):
                return ElicitResult(action="cancel")
            return ElicitResult(action="accept" if answer == "accept" else "decline")
        # As it is on the wire: the fields have other names in each version of the MCP SDK.
        found = choices(params.model_dump(by_alias=True)["requestedSchema"])
        if found is None:
            log.info("%s asked for a form that permission buttons cannot show; declined", self._server)
            return ElicitResult(action="decline")
        options = [(str(index), label) for index, (label, _) in enumerate(found)]
        answer = await self._ask(message, [*options, ("decline", "Decline")])
        if answer is None:
            return ElicitResult(action="cancel")
        if answer == "decline":
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=found[int(answer)][1])

    async def sample(self, messages: Sequence[Any], params: Any, context: Any) -> str:
        """fastmcp's sampling handler: the model's text. The person is asked first, since it spends their key."""
        from agentpool.mcp_server.conversions import sampling_messages_to_user_content
        from pydantic_ai import Agent
        from pydantic_ai.settings import ModelSettings

        prompts = sampling_messages_to_user_content(list(messages))
        wire = params.model_dump(by_alias=True, exclude_none=True)
        # All that the model would read: what is cut off is what somebody wanted to get past the person.
        system = [f"System prompt: {wire['systemPrompt']}"] if wire.get("systemPrompt") else []
        parts = [item if isinstance(item, str) else f"[{getattr(item, 'media_type', 'data')}]" for item in prompts]
        shown = "\n".join([*system, *parts])
        if (
            await self._ask(f"Let the model answer this?\n{shown}", [("allow", "Allow"), ("decline", "Decline")])
            != "allow"
        ):
            raise PermissionError("The person declined the sampling request")
        agent = self._session.agent
        model = getattr(agent, "_model", None)
        if isinstance(model, str):
            model = agent._resolve_model_string(model)[0]  # type: ignore[attr-defined]
        if model is None:
            raise RuntimeError("The agent has no model that could answer")
        settings = ModelSettings(max_tokens=wire["maxTokens"])
        if "temperature" in wire:
            settings["temperature"] = wire["temperature"]
        sampler = Agent(model, instructions=wire.get("systemPrompt") or None, model_settings=settings)
        return (await sampler.run(prompts)).output

    async def _ask(self, question: str, options: Sequence[tuple[str, str]]) -> str | None:
        """Put a question with buttons; the chosen id, or None if it was cancelled."""
        response = await self._session.requests.request_permission(
            tool_call_id=self._calls[-1] if self._calls else f"question_{uuid.uuid4().hex}",
            title=f"{self._server} asks: {question}",
            options=[
                PermissionOption(
                    option_id=option, name=label, kind="reject_once" if option == "decline" else "allow_once"
                )
                for option, label in options
            ],
        )
        outcome = response.outcome
        if isinstance(outcome, AllowedOutcome) and outcome.option_id in dict(options):
            return outcome.option_id
        return None
