"""FastMCP with the sandbox's shortcuts answers as it does without them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.settings import Settings
from fastmcp.utilities.async_utils import gather as original
from sandport_runtime import _lean

pytestmark = pytest.mark.anyio


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
