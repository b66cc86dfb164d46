"""FastMCP with the sandbox's shortcuts answers as it does without them.

Each shortcut is given FastMCP's own function and compared with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server import server as server_module
from fastmcp.server.middleware import Middleware
from fastmcp.server.transforms import visibility
from fastmcp.settings import Settings
from fastmcp.tools import base as tools_base
from fastmcp.utilities.async_utils import gather as original
from sandport_runtime import _lean

pytestmark = pytest.mark.anyio

PARTS: list[tuple[Any, str]] = [
    (FastMCP, "call_tool"),
    (server_module, "_component_auth_allows"),
    (visibility, "get_visibility_rules"),
    (tools_base, "_serialize_to_jsonable"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[original, _lean.gather], ids=["fastmcp", "sandport"])
def lookups(request: pytest.FixtureRequest) -> Iterator[None]:
    modules = [importlib.import_module(name) for name in _lean.LOOKUPS]
    before = [module.gather for module in modules]
    for module in modules:
        module.gather = request.param
    yield
    for module, function in zip(modules, before, strict=True):
        module.gather = function


def test_fastmcp_has_the_parts_that_are_meant() -> None:
    assert "propagation_only" in str(Settings.model_fields["telemetry_mode"].annotation)
    for name in _lean.LOOKUPS:
        assert callable(importlib.import_module(name).gather)
    for owner, part in PARTS:
        assert callable(getattr(owner, part))
    assert FastMCP("new")._state_storage is None
    assert FastMCP("new")._extensions == {}


async def test_results_keep_their_order_and_errors_their_place() -> None:
    async def give(value: int) -> int:
        if value == 2:
            raise ValueError("two")
        return value

    assert await _lean.gather(give(n) for n in (1, 3)) == [1, 3]
    assert await _lean.gather([]) == []
    one, error, three = await _lean.gather((give(n) for n in (1, 2, 3)), return_exceptions=True)
    assert (one, str(error), three) == (1, "two", 3)


async def test_the_first_error_ends_it_and_no_coroutine_stays_unawaited() -> None:
    ran: list[int] = []

    async def give(value: int) -> None:
        ran.append(value)
        if value == 1:
            raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        await _lean.gather([give(1), give(2)])
    assert ran == [1]


async def test_tools_of_a_server_and_of_those_mounted_below(lookups: None) -> None:
    below: FastMCP[Any] = FastMCP("below")
    above: FastMCP[Any] = FastMCP("above")

    @below.tool
    def inner(text: str) -> str:
        return f"inner {text}"

    @above.tool
    def outer(text: str) -> str:
        return f"outer {text}"

    above.mount(below)
    async with Client(above) as client:
        assert sorted(tool.name for tool in await client.list_tools()) == ["inner", "outer"]
        assert (await client.call_tool("inner", {"text": "a"})).data == "inner a"
        assert (await client.call_tool("outer", {"text": "b"})).data == "outer b"
        missing = await client.call_tool("missing", {}, raise_on_error=False)
        assert missing.is_error


# -- calls ----------------------------------------------------------------------------------------------------------


def _own(function: Any) -> Any:
    """FastMCP's own function, where a shortcut is in its place already: inside the sandbox's interpreter."""
    return getattr(function, "sandport_original", function)


@pytest.fixture(params=[False, True], ids=["fastmcp", "sandport"])
def shortcuts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for owner, part in PARTS:
        monkeypatch.setattr(owner, part, _own(getattr(owner, part)))
    if request.param:
        _lean.install()
    return bool(request.param)


def _server() -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("tools")

    @server.tool
    def plain(text: str, times: int = 1) -> str:
        return text * times

    @server.tool
    def structured() -> dict[str, Any]:
        return {"values": [1.5, None, True, 2**60], "deep": {"a": {"b": ["c"]}}}

    @server.tool
    def broken() -> str:
        return {}["key"]  # type: ignore[no-any-return]

    @server.tool
    def refused() -> str:
        raise ToolError("not now")

    @server.tool
    def infinite() -> dict[str, Any]:
        return {"value": float("inf")}

    @server.tool
    def surrogate() -> str:
        return "a\ud800"

    @server.tool
    async def hide(ctx: Context) -> str:
        await ctx.disable_components(names={"plain"})
        return "hidden"

    @server.tool(auth=lambda ctx: False)
    def forbidden() -> str:
        return "never"

    return server


CALLS: list[tuple[str, dict[str, Any], bool]] = [
    ("plain", {"text": "é", "times": 2}, False),
    ("plain", {"text": "a", "times": "many"}, True),
    ("structured", {}, False),
    ("broken", {}, True),
    ("refused", {}, True),
    ("infinite", {}, True),
    ("surrogate", {}, True),
    ("forbidden", {}, True),
    ("nothing", {}, True),
]
ANSWERS: dict[str, Any] = {}


@pytest.mark.parametrize(("tool", "arguments", "fails"), CALLS)
async def test_a_call_is_answered_the_same(shortcuts: bool, tool: str, arguments: dict[str, Any], fails: bool) -> None:
    async with Client(_server(), mode="legacy") as client:
        result = await client.call_tool_mcp(tool, arguments)
    assert result.is_error == fails
    key = f"{tool} {arguments}"
    assert ANSWERS.setdefault(key, result) == result


async def test_a_tool_that_a_session_hides_is_hidden_in_it(shortcuts: bool) -> None:
    async with Client(_server(), mode="legacy") as client:
        assert not (await client.call_tool_mcp("plain", {"text": "a"})).is_error
        await client.call_tool("hide", {})
        assert (await client.call_tool_mcp("plain", {"text": "a"})).is_error


@pytest.mark.parametrize("hook", ["on_call_tool", "on_request", "on_message", "__call__"])
async def test_middleware_that_has_a_say_in_calls_is_asked(shortcuts: bool, hook: str) -> None:
    asked: list[str] = []

    async def note(self: Any, context: Any, call_next: Any) -> Any:
        if context.method == "tools/call":
            asked.append(context.message.name)
        return await call_next(context)

    server = _server()
    server.add_middleware(type("Noting", (Middleware,), {hook: note})())
    async with Client(server, mode="legacy") as client:
        await client.call_tool("plain", {"text": "a"})
    assert asked == ["plain"]


VALUES: list[Any] = [
    "", "text", "é漢😀", "a\ud800", 0, -1, 2**63 - 1, 2**63, 10**400, True, None, 0.1, -0.0, 1e300, 5e-324,
    float("nan"), float("inf"), b"bytes", [], {}, [1, "a", [None]], (1, 2), {1, 2}, {"a": {"b": [1.5]}}, {1: 2},
    {"é": 1}, {"a\ud800": 1}, list(range(100)), {"deep": [[[[[[1]]]]]]}, object(),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("value", VALUES, ids=[str(number) for number in range(len(VALUES))])
@pytest.mark.parametrize("annotation", [Any, None, ..., str, dict, int, list[int]])
def test_a_value_becomes_what_json_makes_of_it(value: Any, annotation: Any) -> None:
    own = _own(tools_base._serialize_to_jsonable)

    def outcome(function: Any) -> str:
        try:
            return repr(function(value, annotation))
        except Exception as error:
            return type(error).__name__

    assert outcome(_lean._jsonable(own)) == outcome(own)


def test_a_value_is_copied() -> None:
    value: dict[str, Any] = {"a": [1]}
    copy = _lean._jsonable(_own(tools_base._serialize_to_jsonable))(value)
    copy["a"].append(2)
    assert value == {"a": [1]}
