"""What a lent server asks back while a tool runs: elicitation goes to the person, as a question with buttons.

Invariant: a question is put in the session that the server belongs to, and only while one of its turns runs; what
buttons cannot answer is declined, never invented.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from acp.schema import PermissionOption
from fastmcp.client.elicitation import ElicitResult

from sandport_inpage._turn import Refused

if TYPE_CHECKING:
    from sandport_inpage._turn import Turn

__all__ = ["Questions"]

MAX_CHOICES: Final = 8
"""More than this many buttons are no question any more."""
DECLINE: Final = "decline"


class Questions:
    """The questions of one session.

    Args:
        turn: the turn that runs, if one does.
    """

    def __init__(self, turn: Callable[[], Turn | None]) -> None:
        self._turn = turn

    def elicitation(self, server: str) -> Callable[..., Awaitable[Any]]:
        """FastMCP's elicitation handler for a server."""

        async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
            choices = _choices(getattr(params, "requested_schema", None))
            turn = self._turn()
            if choices is None or turn is None:
                return ElicitResult(action="decline")
            options = [
                PermissionOption(option_id=str(index), name=label, kind="allow_once")
                for index, (label, _) in enumerate(choices)
            ]
            options.append(PermissionOption(option_id=DECLINE, name="Decline", kind="reject_once"))
            try:
                answer = await turn.ask(None, f"{server} asks: {message}", options)
            except Refused:
                answer = None
            if answer is None:
                return ElicitResult(action="cancel")
            if not answer.isdecimal() or int(answer) >= len(choices):
                return ElicitResult(action="decline")
            return ElicitResult(action="accept", content=choices[int(answer)][1])

        return elicit


def _choices(schema: Any) -> list[tuple[str, dict[str, Any]]] | None:
    """The answers that buttons can give to a form: (label, content). None if buttons cannot fill the form."""
    if not isinstance(schema, dict):
        return None
    properties: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", list(properties))
    defaults = {name: prop["default"] for name, prop in properties.items() if "default" in prop}
    asked = [name for name in properties if name in required and name not in defaults]
    if not asked:
        return [("Accept", defaults)]
    if len(asked) > 1:
        return None
    name, prop = asked[0], properties[asked[0]]
    if prop.get("type") == "boolean":
        return [("Yes", {**defaults, name: True}), ("No", {**defaults, name: False})]
    titled = [
        (option.get("title", str(option["const"])), option["const"])
        for option in prop.get("oneOf", ())
        if "const" in option
    ]
    plain = list(zip(prop.get("enumNames", map(str, prop.get("enum", ()))), prop.get("enum", ()), strict=False))
    values = titled or plain
    if not values or len(values) > MAX_CHOICES:
        return None
    return [(str(label), {**defaults, name: value}) for label, value in values]
