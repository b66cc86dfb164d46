"""What the agentpool add-on repairs in incoming messages. The module imports nothing of agentpool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandport_native.agentpool.streams import REQUEST_ID_KEY, repair, too_long
from sandport_native.lines import LineSplitter, Oversize


def repaired(message: Any) -> Any:
    return json.loads(repair(json.dumps(message).encode())[0])


def test_error_without_data_gets_null() -> None:
    error = {"code": -32601, "message": "no"}
    assert repaired({"jsonrpc": "2.0", "id": 0, "error": error})["error"] == {**error, "data": None}


def test_broken_errors_stay_errors() -> None:
    assert repaired({"id": 0, "error": {}})["error"] == {"code": -32603, "message": "Error", "data": None}


@pytest.mark.parametrize("result", [None, [], "x", 3, True])
def test_results_that_are_no_objects_become_errors(result: Any) -> None:
    message = repaired({"jsonrpc": "2.0", "id": 0, "result": result})
    assert "result" not in message
    assert message["error"]["code"] == -32603
    assert "data" in message["error"]


def test_lane_requests_carry_their_id_to_the_handler() -> None:
    message = {"id": "sp0.1", "method": "mcp/message", "params": {"connectionId": "c", "method": "ping"}}
    assert repaired(message)["params"] == {"connectionId": "c", "method": "ping", REQUEST_ID_KEY: "sp0.1"}
    assert repaired({"id": 1, "method": "mcp/message"})["params"] == {REQUEST_ID_KEY: 1}


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc": "2.0", "id": 1, "result": {"x": 1915883588174806058, "\\ud800": 1}}',
        b'{"id":1,"error":{"code":1,"message":"m","data":{"a":1}}}',
        b'{"method":"mcp/message","params":{"connectionId":"c","method":"notifications/x"}}',
        b'{"id":3,"method":"session/prompt","params":{}}',
        b"no json",
        b"[1]",
        b"[" * 100_000,
    ],
)
def test_everything_else_passes_byte_for_byte(line: bytes) -> None:
    assert repair(line) == (line, b"notifications/x" in line)


def oversized(text: str) -> Oversize:
    (event,) = LineSplitter(100).feed(text.encode() + b"x" * 100 + b"\n")
    assert isinstance(event, Oversize)
    return event


@pytest.mark.parametrize("ident", ["0", '"sp0.1"', "9007199254740993"])
def test_who_waits_for_a_message_that_is_too_long_is_told(ident: str) -> None:
    inwards, back = too_long(oversized(f'{{"jsonrpc":"2.0","id":{ident},"method":"session/prompt","params":"'))
    assert inwards is None
    assert back is not None
    answer = json.loads(back)
    assert (json.dumps(answer["id"]), answer["error"]["code"], answer["error"]["data"]) == (ident, -32600, None)
    assert "limit of 100 bytes" in answer["error"]["message"]
    inwards, back = too_long(oversized(f'{{"jsonrpc":"2.0","id":{ident},"result":{{"text":"'))
    assert back is None
    assert inwards is not None
    assert json.loads(inwards)["error"]["code"] == -32603


@pytest.mark.parametrize("text", ['{"jsonrpc":"2.0","method":"session/cancel","params":"', "no message at all "])
def test_for_a_long_message_that_nobody_waits_for_nobody_is_told(text: str) -> None:
    assert too_long(oversized(text)) == (None, None)
