"""The dialects: what each reads and writes, legal and not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandport.wire import (
    CANCEL_METHODS,
    CONNECT_ACP_ID,
    CONNECT_SERVER_ID,
    DIALECTS,
    LANE_METHODS,
    LEGACY,
    STATELESS,
    STATELESS_PLUS,
    Call,
    Close,
    Dialect,
    Event,
    LocalError,
    Message,
    Open,
    PeerError,
    advertises_acp,
    advertises_legacy,
    declaration,
    is_notification,
    read,
    read_declaration,
)
from sandport.wire.errors import BACKEND_FAILED, INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_LIMIT, UNKNOWN_SERVER

from .kit import CONNECT, NAMES, dialect_named
from .kit import STATELESS as STATELESS_NAMES
from .test_codec import json_values


def reads(method: str, params: Any, *owned: str) -> Event:
    return read(method, params, owned.__contains__)


def refuses(method: str, params: Any, *owned: str) -> None:
    with pytest.raises(PeerError) as caught:
        reads(method, params, *owned)
    assert caught.value.code == INVALID_PARAMS


# -- reading -----------------------------------------------------------------------------------------------------

OPENS: list[tuple[str, Any, Open]] = [
    ("mcp/connect", {"serverId": "S"}, Open("S", CONNECT_SERVER_ID)),
    ("mcp/connect", {"acpId": "S"}, Open("S", CONNECT_ACP_ID)),
    ("mcp/connect", {"acpId": "old", "serverId": "S"}, Open("S", CONNECT_SERVER_ID)),
    ("mcp/connect", {"acpId": "S", "server": {"name": "t", "type": "acp", "id": "S"}}, Open("S", CONNECT_ACP_ID)),
    ("mcp/connect", {"server": {"name": "t", "type": "acp", "id": "S"}}, Open("S", CONNECT_ACP_ID)),
    ("mcp/connect", {"server": {"name": "t", "type": "acp", "serverId": "S"}}, Open("S", CONNECT_ACP_ID)),
    ("mcp/connect", {"serverId": "S", "connectionId": "mine"}, Open("S", CONNECT_SERVER_ID, "mine")),
    ("mcp/connect", {"serverId": "S", "further": [1]}, Open("S", CONNECT_SERVER_ID)),
    ("_mcp/connect", {"acp_id": "S"}, Open("S", LEGACY)),
    ("_mcp/connect", {"acp_url": "acp:S"}, Open("S", LEGACY)),
    ("_mcp/connect", {"acp_id": "S", "acp_url": "acp:other"}, Open("S", LEGACY)),
    ("_mcp/connect", {"connectionId": "mine", "url": "acp:S"}, Open("S", LEGACY, "mine")),
]


@pytest.mark.parametrize(("method", "params", "event"), OPENS)
def test_p02_connect(method: str, params: Any, event: Open) -> None:
    assert reads(method, params) == event


@pytest.mark.parametrize("method", ["mcp/connect", "_mcp/connect"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        None,
        [],
        "S",
        1,
        {"serverId": ""},
        {"serverId": 1},
        {"serverId": None},
        {"acpId": ""},
        {"acpId": []},
        {"acp_id": ""},
        {"acp_id": 3},
        {"acp_url": {}},
        {"server": {}},
        {"server": "S"},
        {"server": {"id": ""}},
        {"name": "S"},
        {"serverId": "S", "acp_id": "S", "connectionId": ""},
        {"serverId": "S", "acp_id": "S", "connectionId": 4},
    ],
)
def test_p02_bad_connect(method: str, params: Any) -> None:
    refuses(method, params)


@pytest.mark.parametrize("method", ["mcp/message", "_mcp/message", "_mcp/request", "_mcp/notification"])
@pytest.mark.parametrize("name", ["connectionId", "connection_id"])
def test_message(method: str, name: str) -> None:
    event = reads(method, {name: "c", "method": "tools/list", "params": {"a": 1}}, "c")
    assert event == Message("c", "tools/list", {"a": 1})
    assert reads(method, {name: "c", "method": "ping"}) == Message("c", "ping", None)
    assert reads(method, {name: "c", "method": "ping", "params": None}) == Message("c", "ping", None)


@pytest.mark.parametrize(
    "params",
    [
        {},
        None,
        [],
        {"connectionId": "c"},
        {"connectionId": "c", "method": ""},
        {"connectionId": "c", "method": 1},
        {"connectionId": "c", "method": ["ping"]},
        {"connectionId": "c", "method": "ping", "params": []},
        {"connectionId": "c", "method": "ping", "params": "x"},
        {"connectionId": "c", "method": "ping", "params": 0},
        {"connectionId": 1, "method": "ping"},
        {"connectionId": None, "method": "ping"},
        {"method": "ping"},
        {"serverId": "S", "method": "ping"},
        {"requestId": "r", "method": "ping"},
        {"serverId": "S", "requestId": 1, "method": "ping"},
        {"serverId": "S", "requestId": "", "method": "ping"},
        {"serverId": 1, "requestId": "r", "method": "ping"},
        {"serverId": "S", "requestId": "r"},
        {"serverId": "S", "requestId": "r", "method": "ping", "params": []},
        {"serverId": "S", "requestId": "r", "method": None, "sessionId": "s"},
    ],
)
def test_bad_message(params: Any) -> None:
    refuses("mcp/message", params, "c")


def test_stateless_call() -> None:
    params = {"serverId": "S", "requestId": "r", "method": "tools/list", "params": {}}
    assert reads("mcp/message", params) == Call("S", "r", "tools/list", {}, STATELESS)
    plus = {**params, "sessionId": "s", "toolCallId": "t"}
    assert reads("mcp/message", plus) == Call("S", "r", "tools/list", {}, STATELESS_PLUS, "s", "t")
    hint = {**params, "toolCallId": 3}
    assert reads("mcp/message", hint) == Call("S", "r", "tools/list", {}, STATELESS_PLUS)


def test_the_address_that_was_given_out_counts() -> None:
    """A message that decodes in every version carries all addresses at once."""
    both = {"connectionId": "c", "serverId": "S", "requestId": "r", "method": "ping"}
    assert reads("mcp/message", both, "c") == Message("c", "ping", None)
    assert reads("mcp/message", both) == Call("S", "r", "ping", None, STATELESS)


@pytest.mark.parametrize(
    ("method", "name"),
    [("mcp/disconnect", "connectionId"), ("mcp/disconnect", "connection_id"), ("_mcp/disconnect", "connection_id")],
)
def test_disconnect(method: str, name: str) -> None:
    assert reads(method, {name: "c"}) == Close("c")


@pytest.mark.parametrize("method", ["mcp/disconnect", "_mcp/disconnect"])
@pytest.mark.parametrize("params", [{}, None, {"connectionId": ""}, {"connectionId": 1}, {"connection_id": None}])
def test_bad_disconnect(method: str, params: Any) -> None:
    refuses(method, params)


MEMBERS = [
    "connectionId",
    "connection_id",
    "serverId",
    "requestId",
    "acpId",
    "acp_id",
    "acp_url",
    "url",
    "server",
    "method",
    "params",
]


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(LANE_METHODS)),
    json_values
    | st.dictionaries(
        st.sampled_from(MEMBERS),
        json_values
        | st.sampled_from(["c", "S", "ping"])
        | st.dictionaries(st.sampled_from(["id", "serverId"]), json_values),
    ),
)
def test_fuzz_reading(method: str, params: Any) -> None:
    """Never an exception other than `PeerError`, and every event has what it needs."""
    try:
        event = reads(method, params, "c")
    except PeerError:
        return
    if isinstance(event, Open | Call):
        assert isinstance(event.server_id, str)
    if isinstance(event, Message | Call):
        assert event.method
        assert event.params is None or isinstance(event.params, dict)
    if isinstance(event, Message | Close):
        assert isinstance(event.connection_id, str)


# -- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONNECT)
def test_connect_family_reads_what_it_writes(name: str) -> None:
    dialect = dialect_named(name)
    out = dialect.open("S")
    event = reads(out.method, out.params)
    assert isinstance(event, Open)
    assert event.server_id == "S"
    answer = event.dialect.opened("c")
    assert dialect.read_opened(answer) == "c"
    out = dialect.message("c", "ignored", "tools/call", {"name": "x"})
    assert reads(out.method, out.params, "c") == Message("c", "tools/call", {"name": "x"})
    out = dialect.message("c", "ignored", "ping", None)
    assert "params" not in out.params
    closing = dialect.close("c")
    assert closing is not None
    assert reads(closing.method, closing.params) == Close("c")
    assert closing.notification == (name == "legacy")
    assert dialect.result({"a": 1}) == {"a": 1}
    assert dialect.error(-1, "x", None) is None
    assert dialect.read_result({"result": {}, "error": {}}) == {"result": {}, "error": {}}
    assert (dialect.unknown_server, dialect.resource_limit, dialect.backend_failed) == (
        INVALID_PARAMS,
        INTERNAL_ERROR,
        INTERNAL_ERROR,
    )


@pytest.mark.parametrize("name", STATELESS_NAMES)
def test_stateless_family_reads_what_it_writes(name: str) -> None:
    dialect = dialect_named(name)
    out = dialect.message("S", "r", "tools/call", {"name": "x"})
    event = reads(out.method, out.params)
    assert isinstance(event, Call)
    assert (event.server_id, event.request_id, event.method, event.params) == ("S", "r", "tools/call", {"name": "x"})
    assert dialect.close("S") is None
    for attempt in (lambda: dialect.open("S"), lambda: dialect.opened("c"), lambda: dialect.read_opened({})):
        with pytest.raises(LocalError):
            attempt()
    assert dialect.read_result(dialect.result({"a": 1})) == {"a": 1}
    with pytest.raises(PeerError) as caught:
        dialect.read_result(dialect.error(-5, "x", {"d": 1}))
    assert (caught.value.code, caught.value.message, caught.value.data) == (-5, "x", {"d": 1})
    assert dialect.error(-5, "x", None) == {"error": {"code": -5, "message": "x"}}
    assert (dialect.unknown_server, dialect.resource_limit, dialect.backend_failed) == (
        UNKNOWN_SERVER,
        RESOURCE_LIMIT,
        BACKEND_FAILED,
    )


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("result", [None, [], "x", 1, True])
def test_a_result_is_an_object(dialect: Dialect, result: Any) -> None:
    with pytest.raises(PeerError):
        dialect.read_result(result)


@pytest.mark.parametrize("name", STATELESS_NAMES)
@pytest.mark.parametrize(
    "carrier",
    [{}, {"result": None}, {"result": []}, {"error": None}, {"error": "x"}, {"error": {}}, {"error": {"code": True}},
     {"error": {"code": "1"}}, {"tools": []}],
)  # fmt: skip
def test_a_carrier_carries_something(name: str, carrier: Any) -> None:
    with pytest.raises(PeerError) as caught:
        dialect_named(name).read_result(carrier)
    assert caught.value.code == INTERNAL_ERROR


def test_p04_of_both_members_the_result_counts() -> None:
    assert STATELESS.read_result({"result": {"a": 1}, "error": {"code": 1, "message": "x"}}) == {"a": 1}


@pytest.mark.parametrize("name", CONNECT)
@pytest.mark.parametrize("result", [None, {}, [], {"connectionId": ""}, {"connectionId": None}, {"connectionId": 5}])
def test_an_opened_connection_has_an_id(name: str, result: Any) -> None:
    with pytest.raises(PeerError):
        dialect_named(name).read_opened(result)


def test_legacy_answers_in_both_spellings() -> None:
    assert LEGACY.opened("c") == {"connection_id": "c", "connectionId": "c"}
    assert LEGACY.read_opened({"connectionId": "c"}) == "c"
    assert LEGACY.read_opened({"connection_id": "c"}) == "c"


# -- declarations and capability ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_dialect_reads_its_own_declaration(name: str) -> None:
    dialect = dialect_named(name)
    entry = dialect.declaration("page", "S")
    assert entry["name"] == "page"
    assert dialect.read_declaration(entry) == "S"


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (declaration("n", "S"), ("S", ["connect-serverId", "stateless", "stateless+"])),
        ({"type": "acp", "name": "n", "serverId": "S"}, ("S", ["connect-serverId", "stateless", "stateless+"])),
        ({"type": "acp", "name": "n", "id": "S"}, ("S", ["connect-acpId"])),
        ({"type": "http", "name": "n", "url": "acp:S", "headers": []}, ("S", ["legacy"])),
        ({"type": "http", "name": "n", "url": "http://x/", "headers": []}, None),
        ({"type": "http", "name": "n", "url": "acp:", "headers": []}, None),
        ({"type": "http", "name": "n"}, None),
        ({"name": "n", "command": "x"}, None),
        ({"type": "sse", "id": "S"}, None),
        (None, None),
        ("acp:S", None),
        ([], None),
    ],
)
def test_read_declaration(entry: Any, found: tuple[str, list[str]] | None) -> None:
    result = read_declaration(entry)
    assert (result and (result[0], [dialect.name for dialect in result[1]])) == found


@pytest.mark.parametrize(
    "entry", [{"type": "acp"}, {"type": "acp", "id": ""}, {"type": "acp", "id": 1}, {"type": "acp", "serverId": None}]
)
def test_a_declaration_without_an_id_is_refused(entry: Any) -> None:
    with pytest.raises(PeerError) as caught:
        read_declaration(entry)
    assert caught.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("value", "on"),
    [(True, True), ({}, True), ({"x": 1}, True), (False, False), (None, False), (1, False), ("", False)],
)
def test_p06_capability(value: Any, on: bool) -> None:
    assert advertises_acp({"agentCapabilities": {"mcpCapabilities": {"acp": value}}}) is on
    assert advertises_acp({"capabilities": {"session": {"mcp": {"acp": value}}}}) is on


@pytest.mark.parametrize(
    "answer",
    [None, {}, [], {"agentCapabilities": None}, {"agentCapabilities": {"mcpCapabilities": []}}, {"capabilities": 1}],
)
def test_p06_absent(answer: Any) -> None:
    assert advertises_acp(answer) is False


@pytest.mark.parametrize(("value", "on"), [(True, True), ({}, True), ("1", True), (False, False), (None, False)])
def test_the_first_way_is_advertised_in_meta(value: Any, on: bool) -> None:
    said = {"_meta": {"symposium": {"version": "1.0", "mcp_acp_transport": value}}}
    for answer in ({"agentCapabilities": said}, said):
        assert advertises_legacy(answer) is on
        assert not advertises_acp(answer)
    # Who also says it as it is said today, is spoken to as today.
    assert not advertises_legacy({"agentCapabilities": {**said, "mcpCapabilities": {"acp": True}}})


@pytest.mark.parametrize("answer", [None, [], {"_meta": None}, {"_meta": {"symposium": []}}, {"agentCapabilities": 1}])
def test_the_first_way_is_not_advertised(answer: Any) -> None:
    assert not advertises_legacy(answer)


def test_methods_are_told_apart() -> None:
    assert not LANE_METHODS & CANCEL_METHODS
    assert is_notification("notifications/x")
    assert not is_notification("tools/notifications/x")
