"""Asking the person: one way that works in both eras of MCP.

With a handshake, a question is a request to the agent, and the tool waits for the answer. In the stateless era there is
no way back: the call ends with the question, the agent puts it to the person and calls again with the answer, and the
tool runs once more from its start, now getting the answer where it asked.

Invariant: a question is put once a call; answers are kept, in the agent's hands, until the tool has all it asks for.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, ElicitResult
from pydantic import ValidationError

if TYPE_CHECKING:
    from fastmcp import Context
    from fastmcp.server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation

__all__ = ["Questions", "ask"]

_KEY: Final = "sandport-ask-"
_STATE: Final = "sandport-ask:"


class _Asked(BaseException):
    """Ends a run of a tool that needs an answer first. No `Exception`, so that no tool takes it for a failure."""

    def __init__(self, key: str, params: dict[str, Any]) -> None:
        super().__init__(key)
        self.key = key
        self.params = params


@dataclass(eq=False)
class Questions:
    """The questions of one stateless request, and the answers it brought along."""

    may_ask: bool
    """Whether the agent said that it can put a question to a person."""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: int = 0

    @classmethod
    def of(cls, params: Mapping[str, Any] | None, may_ask: bool) -> tuple[Questions, dict[str, Any]]:
        """Take the answers out of a request's params; returns what is left of them for the server.

        Raises:
            MCPError: the state is not what was handed out.
        """
        rest = dict(params or {})
        questions = cls(may_ask)
        state = rest.get("requestState")
        if isinstance(state, str) and state.startswith(_STATE):
            del rest["requestState"]
            try:
                kept = json.loads(state.removeprefix(_STATE))
            except (ValueError, RecursionError):
                kept = None
            if not isinstance(kept, dict):
                raise MCPError(
                    code=INVALID_PARAMS, message="Invalid params: the requestState is not one of this server"
                )
            questions.answers.update(kept)
        responses = rest.get("inputResponses")
        if isinstance(responses, dict):
            questions.answers.update({key: value for key, value in responses.items() if key.startswith(_KEY)})
            others = {key: value for key, value in responses.items() if not key.startswith(_KEY)}
            rest["inputResponses"] = others
            if not others:
                del rest["inputResponses"]
        return questions, rest

    async def run(self, work: Callable[[], Awaitable[dict[str, Any]]], stamp: dict[str, Any]) -> dict[str, Any]:
        """The result of `work`, or the result that asks for what it needs first.

        Args:
            work: runs the tool.
            stamp: `_meta` of a result.
        """
        token = QUESTIONS.set(self)
        try:
            return await work()
        except _Asked as asked:
            return self._input_required([asked], stamp)
        except BaseExceptionGroup as group:
            # Asked from within a task group of the tool.
            questions, others = group.split(_Asked)
            if questions is None or others is not None:
                raise
            return self._input_required(list(_leaves(questions)), stamp)
        finally:
            QUESTIONS.reset(token)

    def _input_required(self, asked: list[_Asked], stamp: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {
            "resultType": "input_required",
            "inputRequests": {
                question.key: {"method": "elicitation/create", "params": question.params} for question in asked
            },
            "_meta": stamp,
        }
        if self.answers:
            # They are the agent's own words, so nothing is gained by sealing them.
            result["requestState"] = _STATE + json.dumps(self.answers, separators=(",", ":"))
        return result

    def answer(self, message: str, schema: dict[str, Any]) -> Any:
        """The answer to a question, if it has been given; else the run ends here."""
        self.asked += 1
        # A tool that asks something else this time gets no answer to another question.
        what = zlib.crc32(json.dumps([message, schema], sort_keys=True).encode())
        key = f"{_KEY}{self.asked}-{what:08x}"
        if key in self.answers:
            return self.answers[key]
        if not self.may_ask:
            raise MCPError(
                code=MISSING_REQUIRED_CLIENT_CAPABILITY,
                message="The tool has a question, and the agent did not declare that it can put one (elicitation)",
                data={"requiredCapabilities": {"elicitation": {"form": {}}}},
            )
        raise _Asked(key, {"mode": "form", "message": message, "requestedSchema": schema})


def _leaves(group: BaseExceptionGroup[_Asked]) -> Iterator[_Asked]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


QUESTIONS: Final[ContextVar[Questions | None]] = ContextVar("sandport_questions", default=None)


async def ask(
    ctx: Context, message: str, response_type: Any
) -> AcceptedElicitation[Any] | DeclinedElicitation | CancelledElicitation:
    """Ask the person a question from within a tool, whatever era of MCP the agent speaks.

    In the stateless era a tool that asks runs again from its start for every answer: do what must happen once after
    the last question, and ask the same questions in the same order. Do not catch `BaseException` around it.

    Args:
        ctx: the tool's FastMCP context.
        message: the question.
        response_type: as for `Context.elicit`: a primitive type, a dataclass or a pydantic model.

    Returns:
        As `Context.elicit`: accepted with `data`, declined, or cancelled.

    Raises:
        ToolError: the agent cannot ask, or gave no usable answer.

    Example:
        >>> @server.tool  # doctest: +SKIP
        ... async def remove(path: str, ctx: Context) -> str:
        ...     answer = await ask(ctx, f"Remove {path}?", bool)
        ...     return "removed" if answer.action == "accept" and answer.data else "kept"
    """
    from fastmcp.exceptions import ToolError
    from fastmcp.server.elicitation import (
        CancelledElicitation,
        DeclinedElicitation,
        handle_elicit_accept,
        parse_elicit_response_type,
    )

    questions = QUESTIONS.get()
    try:
        if questions is None:
            live: AcceptedElicitation[Any] | DeclinedElicitation | CancelledElicitation
            live = await ctx.elicit(message, response_type)
            return live
        config = parse_elicit_response_type(response_type)
        answer = ElicitResult.model_validate(questions.answer(message, config.schema))
        if answer.action == "decline":
            return DeclinedElicitation()
        if answer.action == "cancel":
            return CancelledElicitation()
        accepted: AcceptedElicitation[Any] = handle_elicit_accept(config, answer.content)
        return accepted
    except ValidationError:
        raise ToolError("The agent gave no usable answer to the question") from None
    except MCPError as error:
        if error.error.code == METHOD_NOT_FOUND:
            raise ToolError("The tool has a question, and the agent cannot put one to a person") from None
        raise
