"""Forms that buttons can answer, and those that they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from sandport.agent.forms import MAX_CHOICES, choices


def form(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema if required is None else {**schema, "required": required}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (form({}), [("Accept", {})]),
        (form({"a": {"type": "string"}}, []), [("Accept", {})]),
        (form({"a": {"type": "integer", "default": 3}}, ["a"]), [("Accept", {"a": 3})]),
        (form({"a": {"type": "boolean"}}), [("Yes", {"a": True}), ("No", {"a": False})]),
        (form({"a": {"type": "string", "enum": ["x", "y"]}}), [("x", {"a": "x"}), ("y", {"a": "y"})]),
        (form({"a": {"enum": ["x"], "enumNames": ["An x"]}}), [("An x", {"a": "x"})]),
        (
            form({"a": {"oneOf": [{"const": "x", "title": "An x"}, {"const": "y"}]}}),
            [("An x", {"a": "x"}), ("y", {"a": "y"})],
        ),
        (
            form({"a": {"type": "boolean"}, "b": {"type": "string", "default": "d"}}, ["a", "b"]),
            [("Yes", {"a": True, "b": "d"}), ("No", {"a": False, "b": "d"})],
        ),
    ],
)
def test_buttons(schema: dict[str, Any], expected: list[tuple[str, dict[str, Any]]]) -> None:
    assert choices(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        None,
        form({"a": {"type": "string"}}),
        form({"a": {"type": "boolean"}, "b": {"type": "boolean"}}),
        form({"a": {"type": "string", "enum": []}}),
        form({"a": {"enum": [str(number) for number in range(MAX_CHOICES + 1)]}}),
    ],
)
def test_what_buttons_cannot_fill_is_not_made_up(schema: Any) -> None:
    assert choices(schema) is None
