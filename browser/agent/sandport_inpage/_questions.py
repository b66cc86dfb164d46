"""What a lent server asks back while a tool runs: elicitation goes to the person.

As a form where the client shows forms (ACP elicitation), else as a question with buttons. Invariant: a question is put
in the session that the server belongs to, and only while one of its turns runs; what cannot be put is declined, never
invented.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from acp.exceptions import RequestError
from acp.schema import (
    AcceptElicitationResponse,
    ClientCapabilities,
    DeclineElicitationResponse,
    ElicitationFormSessionMode,
    ElicitationMode,
    ElicitationSchema,
    ElicitationUrlSessionMode,
    PermissionOption,
)
from fastmcp.client.elicitation import ElicitResult
from pydantic import ValidationError

from sandport.agent.forms import choices
from sandport_inpage._turn import Refused

if TYPE_CHECKING:
    from sandport_inpage._turn import Turn

__all__ = ["Questions"]

DECLINE: Final = "decline"


class Questions:
    """The questions of one session.

    Args:
        turn: the turn that runs, if one does.
        client: what the client can show.
    """

    def __init__(self, turn: Callable[[], Turn | None], client: Callable[[], ClientCapabilities | None]) -> None:
        self._turn = turn
        self._client = client

    def elicitation(self, server: str) -> Callable[..., Awaitable[Any]]:
        """FastMCP's elicitation handler for a server."""

        async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
            turn = self._turn()
            if turn is None:
                return ElicitResult(action="decline")
            question = f"{server} asks: {message}"
            try:
                mode = self._mode(turn, params)
                if mode is not None:
                    return await _form(turn, question, mode)
                return await _buttons(turn, question, params)
            except (Refused, RequestError):
                return ElicitResult(action="cancel")

        return elicit

    def _mode(self, turn: Turn, params: Any) -> ElicitationMode | None:
        """The question as ACP has it; `None` when the client does not show such."""
        capabilities = self._client()
        shown = capabilities.elicitation if capabilities is not None else None
        if shown is None:
            return None
        if (url := getattr(params, "url", None)) is not None and shown.url is not None:
            return ElicitationUrlSessionMode(session_id=turn.session_id, elicitation_id=uuid4().hex, url=url)
        schema = getattr(params, "requested_schema", None)
        if schema is None or shown.form is None:
            return None
        try:
            form = ElicitationSchema.model_validate(schema)
        except ValidationError:
            return None
        return ElicitationFormSessionMode(session_id=turn.session_id, requested_schema=form)


async def _form(turn: Turn, question: str, mode: ElicitationMode) -> Any:
    response = await turn.client.create_elicitation(question, mode)
    if isinstance(response, AcceptElicitationResponse):
        return ElicitResult(action="accept", content=response.content or {})
    return ElicitResult(action="decline" if isinstance(response, DeclineElicitationResponse) else "cancel")


async def _buttons(turn: Turn, question: str, params: Any) -> Any:
    url = getattr(params, "url", None)
    answers: list[tuple[str, dict[str, Any]]]
    if url is not None:
        question, answers = f"{question}\n{url}", [("I have opened it", {})]
    else:
        found = choices(getattr(params, "requested_schema", None))
        if found is None:
            return ElicitResult(action="decline")
        answers = found
    options = [
        PermissionOption(option_id=str(index), name=label, kind="allow_once")
        for index, (label, _) in enumerate(answers)
    ]
    options.append(PermissionOption(option_id=DECLINE, name="Decline", kind="reject_once"))
    answer = await turn.ask(None, question, options)
    if answer is None:
        return ElicitResult(action="cancel")
    if not answer.isdecimal() or int(answer) >= len(answers):
        return ElicitResult(action="decline")
    return ElicitResult(action="accept", content=answers[int(answer)][1])
