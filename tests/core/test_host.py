"""The tool host, through raw messages of every dialect."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Any
from uuid import UUID

import anyio
import pytest
from fastmcp import Context, FastMCP
from mcp.server.mcpserver import MCPServer

from sandport import HostLimits, LimitExceeded, LocalError, MemoryChannel, MountError, ToolHost, current_call
from sandport.host import TIME_LIMIT, mounted
from sandport.host.redact import redact

from .kit import CONNECT, INITIALIZE, META, NAMES, STATELESS, Gate, RawAgent, make_server, serving, text_of

dialects = pytest.mark.parametrize("dialect", NAMES)
connect_family = pytest.mark.parametrize("dialect", CONNECT)
stateless_family = pytest.mark.parametrize("dialect", STATELESS)


@asynccontextmanager
async def agent_for(
    server: Any, dialect: str, *, port: bool = False, **options: Any
) -> AsyncIterator[tuple[RawAgent, ToolHost]]:
    """A raw agent on a host that has one server, declared as `S`."""
    async with ToolHost(**options) as host:
        host.mount(server, "tools")
        host.declare("tools", "S")
        async with serving(host, port=port) as channel:
            yield RawAgent(channel, dialect), host


# -- one server, every dialect -----------------------------------------------------------------------------------


@dialects
@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_p01_one_server_every_dialect(dialect: str, port: bool) -> None:
    async with agent_for(make_server(), dialect, port=port) as (agent, _):
        address = await agent.open("S")
        listed = await agent.mcp(address, "tools/list")
        assert {tool["name"] for tool in listed["result"]["tools"]} >= {"add", "echo", "fail", "wait"}
        result = (await agent.call(address, "add", {"a": 2, "b": 3}))["result"]
        assert result["structuredContent"] == {"result": 5}
        assert text_of(result) == "5"
        assert not result.get("isError")


async def test_p01_all_dialects_at_once_on_one_channel() -> None:
    async with agent_for(make_server(), "legacy") as (agent, _):
        answers = []
        for name in NAMES:
            other = RawAgent(agent.channel, name)
            other._next = 1000 * (1 + NAMES.index(name))
            address = await other.open("S")
            answers.append((await other.call(address, "add", {"a": 1, "b": 1}))["result"]["structuredContent"])
        assert answers == [{"result": 2}] * len(NAMES)


@pytest.mark.parametrize(
    "params",
    [{"server": {"type": "acp", "name": "t", "id": "S"}, "acpId": "S"}, {"serverId": "S"}, {"acpId": "S"}],
)
async def test_p02_connect_forms(params: dict[str, Any]) -> None:
    async with agent_for(make_server(), "connect-acpId") as (agent, _):
        opened = (await agent.ask("mcp/connect", params, 0))["result"]
        assert UUID(hex=opened["connectionId"]).version == 4
        assert opened["connectionId"] == UUID(hex=opened["connectionId"]).hex


@pytest.mark.parametrize("params", [{}, {"name": "S"}, {"serverId": "other"}, {"acpId": "s"}, None, []])
async def test_p02_connect_to_nobody(params: Any) -> None:
    async with agent_for(make_server(), "connect-acpId") as (agent, _):
        error = (await agent.ask("mcp/connect", params))["error"]
        assert error["code"] == -32602
        assert "data" in error


@connect_family
async def test_p03_a_notification_sent_as_a_request_is_answered(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        address = await agent.open("S")
        for method in (
            "notifications/initialized",
            "notifications/cancelled",
            "notifications/vendor",
            "notifications/",
        ):
            assert await agent.mcp(address, method) == {"result": {}}


@stateless_family
async def test_p03_stateless_notification_as_request(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        await agent.open("S")
        assert await agent.mcp("S", "notifications/initialized") == {"result": {}}
        assert (await agent.mcp("no", "notifications/initialized"))["error"]["code"] == -33001


@dialects
async def test_p04_a_key_named_error_is_not_misread(dialect: str) -> None:
    server = FastMCP("t")

    @server.tool
    async def odd() -> dict[str, Any]:
        return {"error": {"code": 1, "message": "not an error"}, "result": 2}

    async with agent_for(server, dialect) as (agent, _):
        address = await agent.open("S")
        result = (await agent.call(address, "odd"))["result"]
        assert result["structuredContent"] == {"error": {"code": 1, "message": "not an error"}, "result": 2}
        assert "error" not in result


@dialects
async def test_p07_a_server_that_does_not_start_says_why(dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def broken(server: Any) -> AsyncIterator[None]:
        raise ImportError("no module named 'numpy'")
        yield

    server = FastMCP("broken", lifespan=broken)
    with caplog.at_level(logging.ERROR, "sandport"):
        async with ToolHost() as host:
            host.mount(server, "broken")
            host.mount(make_server(), "good")
            host.declare("broken", "B")
            host.declare("good", "S")
            async with serving(host) as channel:
                agent = RawAgent(channel, dialect)
                out = agent.message("B", "tools/list") if agent.dialect.family == "stateless" else None
                opening = agent.dialect.open("B") if out is None else None
                method, params = out or (opening.method, opening.params)  # type: ignore[union-attr]
                error = (await agent.ask(method, params))["error"]
                assert error["code"] == agent.dialect.backend_failed
                assert "broken" in error["message"]
                assert "numpy" in error["message"]
                address = await agent.open("S")
                assert (await agent.call(address, "add", {"a": 1, "b": 2}))["result"]["structuredContent"] == {
                    "result": 3
                }
    assert any("'broken'" in record.getMessage() for record in caplog.records)


@connect_family
async def test_p10_ping_before_initialize(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        out = agent.dialect.open("S")
        address = agent.dialect.read_opened((await agent.ask(out.method, out.params))["result"])
        assert await agent.mcp(address, "ping") == {"result": {}}


@connect_family
async def test_p11_nothing_overtakes_the_handshake(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        out = agent.dialect.open("S")
        address = agent.dialect.read_opened((await agent.ask(out.method, out.params))["result"])
        await agent.post(*agent.message(address, "initialize", INITIALIZE), "i")
        await agent.notify(*agent.message(address, "notifications/initialized"))
        await agent.post(*agent.message(address, "tools/list"), "l")
        assert "tools" in (await agent.answer("l"))["result"]
        assert "serverInfo" in (await agent.answer("i"))["result"]


@connect_family
async def test_p11_before_the_handshake_a_request_is_refused(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        out = agent.dialect.open("S")
        address = agent.dialect.read_opened((await agent.ask(out.method, out.params))["result"])
        assert (await agent.mcp(address, "tools/list"))["error"]["code"] == -32602
        await agent.mcp(address, "initialize", INITIALIZE)
        # `initialized` is not waited for.
        assert "result" in await agent.mcp(address, "tools/list")


IDS = ["1", 1, 0, "", "6f9d0d0e-0000-4000-8000-000000000000", 2**53 + 1, -5, "😀", "a b"]


@pytest.mark.parametrize("request_id", IDS, ids=ascii)
@pytest.mark.parametrize("dialect", ["connect-acpId", "stateless"])
@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_p12_ids_are_echoed(request_id: Any, dialect: str, port: bool) -> None:
    async with agent_for(make_server(), dialect, port=port) as (agent, _):
        agent._next = 100
        address = await agent.open("S")
        answer = await agent.ask(*agent.message(address, "tools/list"), request_id)
        assert answer["id"] == request_id
        assert type(answer["id"]) is type(request_id)


@pytest.mark.parametrize("request_id", ["null", "true", "[]", "{}", "1.5", "1e400"])
@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_p12_what_is_no_id_is_refused(request_id: str, port: bool) -> None:
    async with agent_for(make_server(), "stateless", port=port) as (agent, _):
        method, params = agent.message("S", "tools/list")
        await agent.send(f'{{"jsonrpc":"2.0","id":{request_id},"method":"{method}","params":{json.dumps(params)}}}')
        answer = await agent.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)


@dialects
async def test_p14_answers_are_correlated(dialect: str) -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect) as (agent, _):
        address = await agent.open("S")
        await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), "a")
        agent._next += 1
        await agent.post(*agent.message(address, "tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}}), 42)
        assert agent.inner(await agent.answer(42))["result"]["structuredContent"] == {"result": 2}
        gate.go.set()
        assert text_of(agent.inner(await agent.answer("a"))["result"]) == "waited"


@dialects
async def test_p17_a_vendor_notification_is_quiet(dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        address = await agent.open("S")
        with caplog.at_level(logging.INFO):
            for method in ("notifications/vendor/x", "vendor/x"):
                await agent.notify(*agent.message(address, method))
            assert "result" in await agent.mcp(address, "tools/list")
        assert not [record for record in caplog.records if record.levelno > logging.INFO]
        assert agent.other == []


# -- connections -------------------------------------------------------------------------------------------------


@connect_family
async def test_r11_connections_are_independent(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, host):
        first, second = await agent.open("S"), await agent.open("S")
        assert first != second
        closing = agent.dialect.close(first)
        assert closing is not None
        for _ in range(2):
            assert (await agent.ask(closing.method, closing.params))["result"] == {}
            await agent.notify(closing.method, closing.params)
        assert (await agent.mcp(first, "ping"))["error"]["code"] == -32602
        assert (await agent.call(second, "add", {"a": 1, "b": 2}))["result"]["structuredContent"] == {"result": 3}
        assert list(host._lanes[0].connections) == [second]


@connect_family
@pytest.mark.parametrize("address", ["nope", "", "__proto__"])
async def test_unknown_connection(dialect: str, address: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        assert (await agent.mcp(address, "ping"))["error"]["code"] == -32602


@stateless_family
async def test_stateless_unknown_server(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        answer = await agent.mcp("nope", "tools/list")
        assert answer["outer"]
        assert answer["error"]["code"] == -33001
        assert answer["error"]["data"] == {"serverId": "nope"}


@pytest.mark.parametrize("method", ["session/prompt", "initialize", "mcp/other", "", "tools/list"])
async def test_other_methods_are_not_found(method: str) -> None:
    async with agent_for(make_server(), "connect-acpId") as (agent, _):
        error = (await agent.ask(method, {}))["error"]
        assert error["code"] == -32601
        assert "data" in error


@connect_family
async def test_server_discover_is_not_found_on_a_connection(dialect: str) -> None:
    """agentpool.md, behaviour 11: `initialize` follows on it."""
    async with agent_for(make_server(), dialect) as (agent, _):
        out = agent.dialect.open("S")
        address = agent.dialect.read_opened((await agent.ask(out.method, out.params))["result"])
        error = (await agent.mcp(address, "server/discover", {"_meta": META}))["error"]
        assert error["code"] == -32601
        assert "data" in error
        assert "serverInfo" in (await agent.mcp(address, "initialize", INITIALIZE))["result"]


@connect_family
async def test_closing_a_connection_settles_its_calls(dialect: str) -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect) as (agent, _):
        address = await agent.open("S")
        await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), "w")
        await gate.entered.wait()
        closing = agent.dialect.close(address)
        assert closing is not None
        await agent.notify(closing.method, closing.params)
        assert (await agent.answer("w"))["error"]["code"] == -32000
        await gate.finished.wait()


@dialects
async def test_r09_closing_the_channel_stops_the_tools(dialect: str) -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect) as (agent, host):
        address = await agent.open("S")
        for n in range(3):
            agent._next += 1
            await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), f"w{n}")
        await gate.entered.wait()
        await agent.channel.aclose()
        with anyio.fail_after(2):
            await gate.finished.wait()
            await host._lanes[0].done.wait()


@dialects
async def test_withdraw_ends_everything_without_an_answer(dialect: str) -> None:
    """The port answers in the host's stead."""
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect) as (agent, host):
        host.declare("tools", "T")
        address, other = await agent.open("S"), await agent.open("T")
        await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), "w")
        await gate.entered.wait()
        host.withdraw("S")
        host.withdraw("S")
        await gate.finished.wait()
        agent._next += 1
        assert "error" in await agent.mcp(address, "tools/list")
        agent._next += 1
        assert "result" in await agent.mcp(other, "tools/list")
        assert '"w"' not in agent._answers
        with pytest.raises(LocalError):
            host.declare("tools", "S")


@connect_family
@pytest.mark.parametrize("how", ["cancel", "withdraw"])
async def test_an_open_that_is_stopped_leaves_no_connection(dialect: str, how: str) -> None:
    """However far it had come."""
    for turns in range(12):
        async with agent_for(make_server(), dialect) as (agent, host):
            out = agent.dialect.open("S")
            await agent.post(out.method, out.params, "o")
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            if how == "withdraw":
                host.withdraw("S")
            else:
                await agent.notify("$/cancel_request", {"requestId": "o"})
            await agent.ask("mcp/message", {"connectionId": "x", "method": "ping"}, "sync")
            await anyio.wait_all_tasks_blocked()
            answer = agent._answers.get('"o"')
            connections = list(host._lanes[0].connections)
            if answer is not None and "result" in answer and how == "cancel":
                assert connections == [answer["result"].get("connectionId")]
            else:
                assert connections == []


@connect_family
async def test_adopt_takes_up_a_connection(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, host):
        await agent.open("S")
        await host.adopt("old", "S", INITIALIZE)
        assert (await agent.call("old", "add", {"a": 1, "b": 2}))["result"]["structuredContent"] == {"result": 3}
        await host.adopt("fresh", "S", None)
        assert (await agent.mcp("fresh", "tools/list"))["error"]["code"] == -32602
        await agent.mcp("fresh", "initialize", INITIALIZE)
        assert "result" in await agent.mcp("fresh", "tools/list")
        with pytest.raises(LocalError):
            await host.adopt("old", "S", None)
        with pytest.raises(LocalError):
            await host.adopt("x", "nope", None)


# -- framing and payload -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_l01_half_a_message_is_an_error_and_no_hang(port: bool) -> None:
    async with agent_for(make_server(), "stateless", port=port) as (agent, _):
        method, params = agent.message("S", "tools/list")
        text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        for half in (text[:50], text[50:]):
            await agent.send(half)
            assert (await agent.receive())["error"]["code"] == -32700
        assert "result" in await agent.mcp("S", "tools/list")


@pytest.mark.parametrize("tail", ["", "\n", "\r\n", " \n\n"])
async def test_l02_a_trailing_newline_is_accepted_and_none_is_sent(tail: str) -> None:
    async with agent_for(make_server(), "stateless") as (agent, _):
        method, params = agent.message("S", "tools/list")
        await agent.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + tail)
        text = await agent.channel.receive()
        assert "\n" not in text
        assert "result" in json.loads(text)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 132_000])
@dialects
async def test_l05_sizes(size: int, dialect: str) -> None:
    async with agent_for(make_server(), dialect, port=True) as (agent, _):
        address = await agent.open("S")
        result = (await agent.call(address, "echo", {"value": "x" * size}))["result"]
        assert result["structuredContent"] == {"value": "x" * size}


@dialects
async def test_l06_over_the_cap_inwards(dialect: str) -> None:
    async with agent_for(make_server(), dialect, limits=HostLimits(max_message_chars=5000)) as (agent, _):
        address = await agent.open("S")
        await agent.post(*agent.message(address, "tools/call", {"name": "echo", "arguments": {"value": "x" * 6000}}))
        refused = await agent.receive()
        assert refused["id"] is None
        assert "max_message_chars" in refused["error"]["message"]
        assert "result" in await agent.call(address, "add", {"a": 1, "b": 1})


@dialects
async def test_l06_over_the_cap_outwards(dialect: str) -> None:
    server = make_server()

    @server.tool
    async def big() -> str:
        return "x" * 10_000

    async with agent_for(server, dialect, limits=HostLimits(max_message_chars=5000)) as (agent, _):
        address = await agent.open("S")
        result = (await agent.call(address, "big"))["result"]
        assert result["isError"]
        assert "max_message_chars" in text_of(result)
        assert "result" in await agent.call(address, "add", {"a": 1, "b": 1})


# -- cancellation and time ---------------------------------------------------------------------------------------


@dialects
@pytest.mark.parametrize("form", ["$/cancel_request", "mcp/cancel"])
@pytest.mark.parametrize("as_request", [False, True], ids=["notification", "request"])
@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_x01_x02_x04_cancel(dialect: str, form: str, as_request: bool, port: bool) -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect, port=port) as (agent, host):
        address = await agent.open("S")
        await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), "w")
        await gate.entered.wait()
        if as_request:
            assert (await agent.ask(form, {"requestId": "w"}, "c"))["result"] == {}
        else:
            await agent.notify(form, {"requestId": "w"})
        answer = await agent.answer("w")
        assert answer["error"]["code"] == -32800
        assert "data" in answer["error"]
        await gate.finished.wait()
        # Again, and of what is not there: silence.
        await agent.notify(form, {"requestId": "w"})
        for stray in ("nope", 0, None, [], {"a": 1}, 1.5):
            await agent.notify(form, {"requestId": stray})
        await agent.notify(form, None)
        agent._next += 1
        assert "result" in await agent.call(address, "add", {"a": 1, "b": 1})
        assert agent._answers == {}
        assert host.servers["tools"]._places.value == host.limits.max_active_requests


@stateless_family
@pytest.mark.parametrize("as_request", [False, True], ids=["notification", "request"])
async def test_x02_inner_cancellation_where_it_can_be_mapped(dialect: str, as_request: bool) -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect) as (agent, _):
        await agent.open("S")
        _, params = agent.message("S", "tools/call", {"name": "wait"})
        await agent.post("mcp/message", {**params, "requestId": "R1"}, "w")
        await gate.entered.wait()
        inner = {"serverId": "S", "requestId": "R2", "method": "notifications/cancelled"}
        for target in ("R9", "w", 0, None):
            await agent.notify("mcp/message", {**inner, "params": {"requestId": target}})
        assert "result" in await agent.mcp("S", "tools/list")
        cancelling = {**inner, "params": {"requestId": "R1"}}
        if as_request:
            assert (await agent.ask("mcp/message", cancelling, "c"))["result"] == {"result": {}}
        else:
            await agent.notify("mcp/message", cancelling)
        assert (await agent.answer("w"))["error"]["code"] == -32800
        await gate.finished.wait()


@connect_family
async def test_x06_inner_cancellation_cannot_hit_another_call(dialect: str) -> None:
    """No inner ids are on the wire: one that equals an outer id means another request."""
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect) as (agent, _):
        address = await agent.open("S")
        await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), 77)
        await gate.entered.wait()
        assert await agent.mcp(address, "notifications/cancelled", {"requestId": 77}) == {"result": {}}
        await agent.notify(*agent.message(address, "notifications/cancelled", {"requestId": 77}))
        gate.go.set()
        assert text_of((await agent.answer(77))["result"]) == "waited"


@dialects
async def test_x01_a_queued_call_that_is_cancelled_never_starts(dialect: str) -> None:
    gate = Gate()
    limits = HostLimits(max_active_requests=1)
    async with agent_for(make_server(gate=gate), dialect, limits=limits) as (agent, _):
        address = await agent.open("S")
        for name in ("w1", "w2", "w3"):
            agent._next += 1
            await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), name)
        await gate.entered.wait()
        await agent.notify("$/cancel_request", {"requestId": "w2"})
        assert (await agent.answer("w2"))["error"]["code"] == -32800
        gate.go.set()
        for name in ("w1", "w3"):
            assert text_of(agent.inner(await agent.answer(name))["result"]) == "waited"
        assert gate.ran == ["wait", "wait"]


@pytest.mark.skipif(
    sys.platform == "emscripten", reason="the sandbox's FastMCP starts a tool in fewer steps than this takes"
)
async def test_x01_cancelled_before_its_task_ran() -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), "stateless") as (agent, _):
        await agent.post(*agent.message("S", "tools/call", {"name": "wait"}), "w")
        await agent.notify("$/cancel_request", {"requestId": "w"})
        assert (await agent.answer("w"))["error"]["code"] == -32800
        agent._next += 1
        await agent.mcp("S", "tools/list")
        assert gate.ran == []


@dialects
async def test_x09_a_hung_tool_meets_its_limit(dialect: str) -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect, time_limit=0.05) as (agent, _):
        address = await agent.open("S")
        result = (await agent.call(address, "wait"))["result"]
        assert result["isError"]
        assert "time_limit" in text_of(result)
        assert "0.05" in text_of(result)
        assert gate.finished.is_set()
        assert "result" in await agent.call(address, "add", {"a": 1, "b": 1})


async def test_time_limits_by_tool_and_of_the_tool_itself() -> None:
    server = FastMCP("t")
    seen: dict[str, float | None] = {}

    @server.tool
    async def one() -> None:
        seen["one"] = TIME_LIMIT.get()

    @server.tool(timeout=7.0)
    async def two() -> None:
        seen["two"] = TIME_LIMIT.get()

    @server.tool
    async def three() -> None:
        seen["three"] = TIME_LIMIT.get()

    async with ToolHost(time_limit=3) as host:
        host.mount(server, time_limits={"three": None})
        host.declare("t", "S")
        async with serving(host) as channel:
            agent = RawAgent(channel, "stateless")
            for name in ("one", "two", "three"):
                await agent.call("S", name)
    assert seen == {"one": 3, "two": 7, "three": None}
    assert TIME_LIMIT.get() is None


async def test_a_tools_own_limit_is_remembered_until_its_list_changed_or_it_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FastMCP("t")
    seen: list[float | None] = []
    looked_up: list[str] = []

    def offer(timeout: float | None) -> None:
        if seen:
            server.local_provider.remove_tool("tool")

        @server.tool(name="tool", timeout=timeout)
        async def tool() -> None:
            seen.append(TIME_LIMIT.get())

    offer(7.0)
    find = server.get_tool

    async def get_tool(name: str, version: Any = None) -> Any:
        looked_up.append(name)
        return await find(name, version)

    async with ToolHost(time_limit=3) as host:
        host.mount(server)
        host.declare("t", "S")
        async with serving(host) as channel:
            agent = RawAgent(channel, "stateless")
            monkeypatch.setattr(mounted, "OWN_LIMIT_AGE", 1000.0)
            await agent.call("S", "tool")
            monkeypatch.setattr(server, "get_tool", get_tool)
            await agent.call("S", "tool")
            # FastMCP's own look-up of the call, and none of the host's.
            assert looked_up == ["tool"]
            offer(8.0)
            await agent.call("S", "tool")
            assert seen == [7, 7, 7]
            await host.list_changed("t")
            await agent.call("S", "tool")
            assert seen[3:] == [8]
            offer(None)
            monkeypatch.setattr(mounted, "OWN_LIMIT_AGE", -1000.0)
            await host.list_changed("t")
            await agent.call("S", "tool")
            offer(9.0)
            await agent.call("S", "tool")
            assert seen[4:] == [3, 9]
            for number in range(20):
                await agent.call("S", f"unknown {number}")
            assert list(host.servers["t"]._own_limits) == ["tool"]


@connect_family
async def test_waiting_for_a_person_does_not_count(dialect: str) -> None:
    server = FastMCP("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", bool)
        return answer.action

    async with agent_for(server, dialect, time_limit=0.05) as (agent, _):
        address = await agent.open("S", {"elicitation": {}})
        await agent.post(*agent.message(address, "tools/call", {"name": "ask"}), "q")
        question = await agent.receive()
        assert question["params"]["method"] == "elicitation/create"
        with anyio.move_on_after(0.2):
            await anyio.sleep_forever()
        await agent.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})
        assert text_of((await agent.answer("q"))["result"]) == "decline"


# -- what tools do -----------------------------------------------------------------------------------------------


@dialects
@pytest.mark.parametrize("arguments", [None, {}, "absent"])
async def test_s01_no_arguments(dialect: str, arguments: Any) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        address = await agent.open("S")
        params: dict[str, Any] = {"name": "echo"} if arguments == "absent" else {"name": "echo", "arguments": arguments}
        assert (await agent.mcp(address, "tools/call", params))["result"]["structuredContent"] == {"value": None}


@dialects
@pytest.mark.parametrize("arguments", [[], "x", 3, True])
async def test_s01_arguments_that_are_no_object(dialect: str, arguments: Any) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        address = await agent.open("S")
        error = (await agent.mcp(address, "tools/call", {"name": "echo", "arguments": arguments}))["error"]
        assert error["code"] == -32602


@dialects
async def test_s03_no_null_for_absent_members(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        address = await agent.open("S")
        for answer in (await agent.mcp(address, "tools/list"), await agent.call(address, "add", {"a": 1, "b": 2})):
            assert not _nulls(answer["result"])


def _nulls(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        # `default: null` is a schema's own word.
        return [at for key, item in value.items() if key != "default" for at in _nulls(item, f"{path}.{key}")]
    if isinstance(value, list):
        return [at for item in value for at in _nulls(item, path + "[]")]
    return [path] if value is None else []


@dialects
async def test_s04_a_schema_without_a_root_object(dialect: str) -> None:
    server = make_server()
    for name, parameters in (
        ("any_of", {"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object"}]}),
        ("empty", {}),
        ("array", {"type": "array"}),
        ("string", {"type": "string"}),
    ):
        tool = await server.get_tool("echo")
        assert tool is not None
        server.add_tool(tool.model_copy(update={"name": name, "parameters": parameters}))
    async with agent_for(server, dialect) as (agent, host):
        address = await agent.open("S")
        await host.servers["tools"].started()
        assert set(host.servers["tools"].problems) == {"array", "string"}
        tools = {tool["name"]: tool for tool in (await agent.mcp(address, "tools/list"))["result"]["tools"]}
        assert {"add", "any_of", "empty"} <= set(tools)
        assert not {"array", "string"} & set(tools)
        assert all(tool["inputSchema"]["type"] == "object" for tool in tools.values())
        assert (await agent.call(address, "array"))["error"]["code"] == -32602
        # A sound one of the same name takes its place.
        server.add_tool(tool.model_copy(update={"name": "array", "parameters": {"type": "object"}}))
        assert "result" in await agent.call(address, "array")


@dialects
async def test_s06_unions_keep_their_types(dialect: str) -> None:
    server = FastMCP("t")

    @server.tool
    async def one(x: int | str) -> dict[str, Any]:
        return {"type": type(x).__name__, "x": x}

    @server.tool
    async def many(x: list[int] | str) -> dict[str, Any]:
        return {"type": type(x).__name__}

    async with agent_for(server, dialect) as (agent, _):
        address = await agent.open("S")
        tools = {tool["name"]: tool for tool in (await agent.mcp(address, "tools/list"))["result"]["tools"]}
        assert {"type": "array", "items": {"type": "integer"}} in tools["many"]["inputSchema"]["properties"]["x"][
            "anyOf"
        ]
        for value, kind in ((1, "int"), ("1", "str")):
            result = (await agent.call(address, "one", {"x": value}))["result"]["structuredContent"]
            assert result == {"type": kind, "x": value}
        assert (await agent.call(address, "many", {"x": [1, 2]}))["result"]["structuredContent"] == {"type": "list"}


@dialects
@pytest.mark.parametrize(
    "value", [1915883588174806058, 2**63, -(2**53) - 1, "日本 😀 é \u2028", "\x00", [1, None, {"": 0}]], ids=ascii
)
async def test_s08_values_are_exact(dialect: str, value: Any) -> None:
    async with agent_for(make_server(), dialect, port=True) as (agent, _):
        address = await agent.open("S")
        result = (await agent.call(address, "echo", {"value": value}))["result"]
        assert result["structuredContent"] == {"value": value}


@dialects
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_s10_nan_is_a_tool_error(dialect: str, value: float) -> None:
    server = make_server()

    @server.tool
    async def bad() -> dict[str, float]:
        return {"x": value}

    async with agent_for(server, dialect) as (agent, _):
        address = await agent.open("S")
        await agent.post(*agent.message(address, "tools/call", {"name": "bad"}), "b")
        with anyio.fail_after(5):
            text = await agent.channel.receive()

        def bare(constant: str) -> None:
            raise AssertionError(f"{constant} on the wire")

        answer = agent.inner(json.loads(text, parse_constant=bare))["result"]
        # pydantic writes null for them in JSON mode: either is no bare NaN.
        assert answer.get("isError") or answer["structuredContent"] == {"x": None}


@dialects
async def test_s12_declared_results_are_structured(dialect: str) -> None:
    server = FastMCP("t")

    @server.tool
    async def number() -> int:
        return 3

    @server.tool
    async def numbers() -> list[int]:
        return [1, 2]

    async with agent_for(server, dialect) as (agent, _):
        address = await agent.open("S")
        for name, value in (("number", 3), ("numbers", [1, 2])):
            result = (await agent.call(address, name))["result"]
            assert result["structuredContent"] == {"result": value}


@dialects
async def test_s13_e02_a_tool_that_raises(dialect: str) -> None:
    server = FastMCP("t")

    def helper(*, right: int) -> int:
        return right

    @server.tool
    async def wrong() -> int:
        return helper(wrong=1)  # type: ignore[call-arg]

    @server.tool
    async def missing() -> int:
        return {}["k"]  # type: ignore[no-any-return]

    @server.tool
    async def machine() -> int:
        raise ImportError(f"cannot import name 'x' from 'json' ({json.__file__})")

    @server.tool
    async def data() -> int:
        raise FileNotFoundError(2, "No such file", "/workspace/a.csv")

    async with agent_for(server, dialect) as (agent, _):
        address = await agent.open("S")
        texts = {}
        for name in ("wrong", "missing", "machine", "data"):
            result = (await agent.call(address, name))["result"]
            assert result["isError"] is True
            assert "structuredContent" not in result
            texts[name] = text_of(result)
        assert "TypeError" in texts["wrong"]
        assert "KeyError: 'k'" in texts["missing"]
        assert "ImportError" in texts["machine"]
        assert f"({PurePath(json.__file__).name})" in texts["machine"]
        assert "/workspace/a.csv" in texts["data"]
        machine = str(PurePath(json.__file__).parent)
        assert not any(machine in text or "Traceback" in text for text in texts.values())


def test_e02_redaction_keeps_the_tools_own_paths() -> None:
    assert redact(f"at {json.__file__}, line 3") == f"at {PurePath(json.__file__).name}, line 3"
    assert redact("/workspace/a.py and C:\\x and /") == "/workspace/a.py and C:\\x and /"


@dialects
async def test_e01_an_unknown_tool_is_a_protocol_error(dialect: str) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        address = await agent.open("S")
        for name in ("nope", "", "é"):
            assert (await agent.call(address, name))["error"]["code"] == -32602
        # A tool that fails is none.
        assert (await agent.call(address, "fail"))["result"]["isError"]


@dialects
async def test_s16_binary_is_standard_base64(dialect: str) -> None:
    server = FastMCP("t")
    blobs = {
        "all": bytes(range(256)),
        "58": b"\xfb" * 58,
        "100": b"\xff\xef" * 50,
        "big": b"\xff\xfe\xfd\xfc" * 1_048_576,
    }

    @server.resource("data://{name}")
    async def blob(name: str) -> bytes:
        return blobs[name]

    async with agent_for(server, dialect, port=True) as (agent, _):
        address = await agent.open("S")
        for name, data in blobs.items():
            content = (await agent.mcp(address, "resources/read", {"uri": f"data://{name}"}))["result"]["contents"][0]
            assert content["blob"] == base64.b64encode(data).decode()


class Stray(BaseException):
    """Neither an `Exception` nor anything Python knows."""


@dialects
@pytest.mark.parametrize("how", ["exit", "interrupt", "interrupt in a group", "cancelled", "group", "sync interrupt"])
async def test_whatever_a_tool_does_its_call_is_answered(dialect: str, how: str) -> None:
    server = make_server()

    @server.tool
    async def odd() -> str:
        if how == "exit":
            sys.exit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "interrupt in a group":
            raise BaseExceptionGroup("x", [KeyboardInterrupt()])
        if how == "group":
            raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return str(await future)

    @server.tool
    def odd_sync() -> str:
        raise KeyboardInterrupt

    async with agent_for(server, dialect) as (agent, _):
        address = await agent.open("S")
        result = (await agent.call(address, "odd_sync" if how == "sync interrupt" else "odd"))["result"]
        assert result["isError"]
        assert text_of(result)
        assert "result" in await agent.call(address, "add", {"a": 1, "b": 1})


async def test_y03_sync_tools_run_inline() -> None:
    server = FastMCP("t")
    where: list[Any] = []

    @server.tool
    def sync() -> str:
        where.append((threading.current_thread(), current_call()))
        return "ok"

    @server.resource("data://x")
    def resource() -> str:
        return "r"

    @server.prompt
    def prompt() -> str:
        return "p"

    async with agent_for(server, "stateless") as (agent, _):
        assert text_of((await agent.call("S", "sync"))["result"]) == "ok"
        assert "result" in await agent.mcp("S", "resources/read", {"uri": "data://x"})
        assert "result" in await agent.mcp("S", "prompts/get", {"name": "prompt"})
    thread, call = where[0]
    assert thread is threading.main_thread()
    assert (call.server, call.server_id, call.dialect, call.tool) == ("tools", "S", "stateless", "sync")


async def test_a_call_knows_where_it_came_from() -> None:
    server = FastMCP("t")
    seen = []

    @server.tool
    async def look() -> None:
        seen.append(current_call())

    async with agent_for(server, "stateless+") as (agent, _):
        await agent.open("S")
        await agent.call("S", "look")
    assert seen[0] is not None
    assert (seen[0].session_id, seen[0].tool_call_id, seen[0].dialect) == ("s1", "t1", "stateless+")
    assert current_call() is None


async def test_an_mcpserver_can_be_mounted() -> None:
    server = MCPServer("sdk")

    @server.tool()
    async def twice(n: int) -> int:
        return 2 * n

    for dialect in ("connect-acpId", "stateless"):
        async with agent_for(server, dialect) as (agent, _):
            address = await agent.open("S")
            assert (await agent.call(address, "twice", {"n": 4}))["result"]["structuredContent"] == {"result": 8}
            assert (await agent.call(address, "nope"))["error"]["code"] == -32602


# -- notifications -----------------------------------------------------------------------------------------------


@connect_family
async def test_n01_the_list_is_new_when_the_notification_comes(dialect: str) -> None:
    server = make_server()
    async with agent_for(server, dialect) as (agent, host):
        out = agent.dialect.open("S")
        address = agent.dialect.read_opened((await agent.ask(out.method, out.params))["result"])
        capabilities = (await agent.mcp(address, "initialize", INITIALIZE))["result"]["capabilities"]
        assert capabilities["tools"]["listChanged"] is True
        for n in range(20):
            if n % 2 == 0:
                server.tool(lambda: 1, name="extra")
            else:
                server.local_provider.remove_tool("extra")
            await host.list_changed("tools")
            note = await agent.receive()
            assert note["params"]["method"] == "notifications/tools/list_changed"
            tools = (await agent.mcp(address, "tools/list"))["result"]["tools"]
            assert ("extra" in {tool["name"] for tool in tools}) == (n % 2 == 0)


@stateless_family
async def test_n02_list_changed_is_opt_in(dialect: str) -> None:
    async with agent_for(make_server(), dialect, port=True) as (agent, host):
        await agent.open("S")
        discovered = (await agent.mcp("S", "server/discover"))["result"]
        assert discovered["capabilities"]["tools"]["listChanged"] is True
        await host.list_changed("tools")
        _, params = agent.message("S", "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await agent.post("mcp/message", {**params, "requestId": "L"}, "l")
        first = await agent.receive()
        assert first["params"]["method"] == "notifications/subscriptions/acknowledged"
        await host.list_changed("tools")
        await host.list_changed("tools", "prompts")
        event = await agent.receive()
        for note in (first, event):
            assert note["params"]["requestId"] == "L"
            assert note["params"]["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "L"
        assert event["params"]["method"] == "notifications/tools/list_changed"
        await agent.notify("$/cancel_request", {"requestId": "l"})
        assert (await agent.answer("l"))["error"]["code"] == -32800
        await host.list_changed("tools")
        await agent.mcp("S", "tools/list")
        assert agent.other == []
        assert host.servers["tools"]._listening == 0


@dialects
@pytest.mark.parametrize("token", [0, "", "abc", 7, None, True])
async def test_n03_progress_tokens(dialect: str, token: Any) -> None:
    async with agent_for(make_server(), dialect) as (agent, _):
        address = await agent.open("S")
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        answer = await agent.mcp(address, "tools/call", {"name": "progress", **meta})
        notes = [note["params"]["params"] for note in agent.other]
        if token is None:
            assert notes == []
        elif token is not True:
            assert [note["progress"] for note in notes] == [0, 1, 2]
            assert all(note["progressToken"] == token and type(note["progressToken"]) is type(token) for note in notes)
        assert ("result" in answer) or token is True
        if agent.dialect.family == "stateless":
            assert all(note["params"]["serverId"] == "S" for note in agent.other)


async def test_list_changed_of_an_unknown_kind_or_server() -> None:
    async with ToolHost() as host:
        host.mount(make_server())
        for name, kind in (("nope", "tools"), ("tools", "nope")):
            with pytest.raises(LocalError):
                await host.list_changed(name, kind)


# -- mounting ----------------------------------------------------------------------------------------------------


async def test_mounting() -> None:
    async with ToolHost() as host:
        host.mount(make_server("a"))
        for bad, name in ((object(), "x"), (make_server("a"), None), (make_server("b"), "a"), (make_server("b"), "")):
            with pytest.raises(MountError):
                host.mount(bad, name)
        host.mount(make_server("b"), "second")
        entries = host.declarations()
        assert [entry["name"] for entry in entries] == ["a", "second"]
        assert all(entry["id"] == entry["serverId"] and entry["type"] == "acp" for entry in entries)
        assert len({entry["id"] for entry in entries} | {entry["id"] for entry in host.declarations()}) == 4
        with pytest.raises(LocalError):
            host.declare("nope")
        with pytest.raises(LocalError):
            host.declare("a", "")


@dialects
async def test_a_server_can_come_and_go_while_serving(dialect: str) -> None:
    began, ended = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        await anyio.lowlevel.checkpoint()
        began.set()
        yield
        ended.set()

    late = FastMCP("late", lifespan=lifespan)
    late.tool(lambda: "late", name="when")
    async with agent_for(make_server(), dialect) as (agent, host):
        host.mount(late)
        host.declare("late", "L")
        # At once: it is waited for until its lifespan began.
        address = await agent.open("L")
        assert text_of((await agent.call(address, "when"))["result"]) == "late"
        assert began.is_set()
        await host.unmount("late")
        agent._next += 1
        assert "error" in await agent.mcp(address, "tools/list")
        await ended.wait()


async def test_errors_of_the_body_are_not_wrapped() -> None:
    async def body() -> None:
        async with ToolHost() as host:
            host.mount(make_server())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()


async def test_serving_needs_an_entered_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LocalError):
        await ToolHost().serve(MemoryChannel(None, None, None))  # type: ignore[arg-type]


async def test_leaving_the_host_ends_what_it_serves() -> None:
    gate = Gate()
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[None]:
        yield
        order.append("lifespan" if gate.finished.is_set() else "too early")

    server = make_server(gate=gate)
    server._lifespan = lifespan
    from sandport import memory_channel_pair

    theirs, ours = memory_channel_pair()
    async with anyio.create_task_group() as tasks:
        async with ToolHost() as host:
            host.mount(server)
            host.declare("tools", "S")
            tasks.start_soon(host.serve, ours)
            agent = RawAgent(theirs, "stateless")
            await agent.post(*agent.message("S", "tools/call", {"name": "wait"}))
            await gate.entered.wait()
        assert gate.finished.is_set()
    assert order in (["lifespan"], [])


# -- limits ------------------------------------------------------------------------------------------------------


@dialects
async def test_limit_waiting_requests(dialect: str) -> None:
    gate = Gate()
    limits = HostLimits(max_active_requests=4, max_waiting_requests=3)
    async with agent_for(make_server(gate=gate), dialect, limits=limits) as (agent, _):
        address = await agent.open("S")
        for n in range(8):
            agent._next += 1
            await agent.post(*agent.message(address, "tools/call", {"name": "wait"}), f"w{n}")
        refused = await agent.answer("w7")
        assert refused["error"]["code"] == agent.dialect.resource_limit
        assert "max_waiting_requests" in refused["error"]["message"]
        assert refused["error"]["data"] == {"limit": "max_waiting_requests"}
        gate.go.set()
        for n in range(7):
            assert "result" in agent.inner(await agent.answer(f"w{n}"))
        assert len(gate.ran) == 7


@stateless_family
async def test_limit_subscriptions(dialect: str) -> None:
    async with agent_for(make_server(), dialect, limits=HostLimits(max_subscriptions=2)) as (agent, _):
        _, params = agent.message("S", "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        for n in range(3):
            await agent.post("mcp/message", {**params, "requestId": f"L{n}"}, f"l{n}")
        refused = await agent.answer("l2")
        assert refused["error"]["code"] == -33000
        assert refused["error"]["data"] == {"limit": "max_subscriptions"}
        # They take none of the places of calls.
        assert "result" in await agent.mcp("S", "tools/list")


@stateless_family
async def test_a_request_id_is_active_once(dialect: str) -> None:
    gate = Gate()
    async with agent_for(make_server(gate=gate), dialect) as (agent, host):
        host.declare("tools", "T")
        _, params = agent.message("S", "tools/call", {"name": "wait"})
        await agent.post("mcp/message", {**params, "requestId": "R"}, "w")
        await gate.entered.wait()
        assert (await agent.ask("mcp/message", {**params, "requestId": "R"}, "x"))["error"]["code"] == -32602
        # Ids are per server.
        await agent.post("mcp/message", {**params, "serverId": "T", "requestId": "R"}, "t")
        gate.go.set()
        for request_id in ("w", "t"):
            assert "result" in agent.inner(await agent.answer(request_id))


@connect_family
async def test_limit_connections(dialect: str) -> None:
    async with agent_for(make_server(), dialect, limits=HostLimits(max_connections=2)) as (agent, _):
        first = await agent.open("S")
        await agent.open("S")
        out = agent.dialect.open("S")
        refused = await agent.ask(out.method, out.params)
        assert refused["error"]["data"] == {"limit": "max_connections"}
        assert "max_connections" in refused["error"]["message"]
        closing = agent.dialect.close(first)
        assert closing is not None
        await agent.ask(closing.method, closing.params)
        await agent.open("S")


async def test_limit_servers() -> None:
    async with ToolHost(limits=HostLimits(max_servers=1)) as host:
        host.mount(make_server())
        host.declare("tools", "A")
        with pytest.raises(LimitExceeded, match="max_servers"):
            host.declare("tools", "B")
        host.withdraw("A")
        host.declare("tools", "B")


@connect_family
async def test_limit_reverse_timeout(dialect: str) -> None:
    server = FastMCP("t")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Sure?", bool)).action

    async with agent_for(server, dialect, limits=HostLimits(reverse_timeout=0.05)) as (agent, _):
        address = await agent.open("S", {"elicitation": {"form": {}}})
        result = (await agent.call(address, "ask"))["result"]
        assert result["isError"]
        assert agent.other[0]["id"].startswith("sa.")
        assert agent.other[1]["params"] == {"requestId": agent.other[0]["id"]}
