"""Which words of a history are the request that the script answers."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from sandport_demo import Done
from sandport_demo.model import read_history


def failure(part: ToolReturnPart) -> str | None:
    return None if part.outcome == "success" else str(part.content)


CALL = ToolCallPart("wait", {"n": 1}, tool_call_id="1")
BEFORE: list[ModelMessage] = [ModelRequest([UserPromptPart("first")]), ModelResponse([CALL])]


def result(outcome: str) -> ToolReturnPart:
    return ToolReturnPart("wait", "the content", tool_call_id="1", outcome=outcome)  # type: ignore[arg-type]


def test_a_request_after_a_call_that_was_cut_off_is_a_new_one() -> None:
    history = [*BEFORE, ModelRequest([result("interrupted"), UserPromptPart("second")])]
    assert read_history(history, failure) == ("second", [])


@pytest.mark.parametrize("outcome", ["success", "failed", "retried"])
def test_content_beside_a_result_is_no_request(outcome: str) -> None:
    history = [*BEFORE, ModelRequest([result(outcome), UserPromptPart(["a picture"])])]
    request, [done] = read_history(history, failure)
    assert request == "first"
    assert isinstance(done, Done)
    assert done.error == (None if outcome == "success" else "the content")
