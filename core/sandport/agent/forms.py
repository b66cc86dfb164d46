"""Forms that a server asks a person to fill in (MCP elicitation), as far as buttons can answer them.

For agents whose client can only put a question with a choice (ACP `session/request_permission`). Invariant: an answer
holds what the person chose and the form's own defaults; nothing else is invented.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["MAX_CHOICES", "choices"]

MAX_CHOICES: Final = 8
"""More than this many buttons are no question any more."""


def choices(schema: Any) -> list[tuple[str, dict[str, Any]]] | None:
    """The answers that buttons can give to a form.

    Args:
        schema: the form's JSON schema, an object of primitive members.

    Returns:
        (label, content) for each button; `None` when buttons cannot fill the form.
    """
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
