"""The agent side: the manager, the FastMCP transport and the converters, against a real host."""

# ruff: noqa: SIM117  (the manager and a client on it read better nested)

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types
import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp.mcp_config import RemoteMCPServer, StdioMCPServer
from mcp.shared.exceptions import MCPError

from sandport import ChannelClosed, LocalError, MemoryChannel, PeerError, Port, ToolHost, ask, memory_channel_pair
from sandport.agent import (
    AcpMcpConnectionManager,
    AcpMcpServer,
    AcpMCPServerConfig,
    AcpMcpTransport,
    EnvVariable,
    HttpHeader,
    HttpMcpServer,
    SseMcpServer,
    StdioMcpServer,
    connect_acp_mcp_server,
    convert_acp_mcp_server_to_config,
    disconnect_acp_mcp_server,
    manager_on_channel,
    mcp_config_to_acp,
)

from .kit import CONNECT, NAMES, STATELESS, Gate, RawAgent, make_server, text_of

dialects = pytest.mark.parametrize("dialect", NAMES)


def config(dialect: str, **options: Any) -> AcpMCPServerConfig:
    return AcpMCPServerConfig(name="tools", acp_id="S", dialects=(dialect,), **options)


@asynccontextmanager
async def managed(
    server: FastMCP, *, port: bool = False, host_options: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[AcpMcpConnectionManager, ToolHost, MemoryChannel]]:
    """A manager on a channel to a host that offers a server as `S`."""
    theirs, ours = memory_channel_pair()
    async with ToolHost(**host_options or {}) as host, anyio.create_task_group() as tasks:
        host.mount(server, "tools")
        host.declare("tools", "S")
        if port:
            gate = Port(ours)
            await tasks.start(gate.run)
            lane, ours = memory_channel_pair()
            gate.attach("a", lane, "sa.")
            gate.core.declare("a", "S")
        tasks.start_soon(host.serve, ours, "sa.")
        async with manager_on_channel(theirs, **options) as manager:
            yield manager, host, theirs
        with anyio.fail_after(5):
            for serving in list(host._lanes):
                await serving.done.wait()
        tasks.cancel_scope.cancel()


# -- a plain FastMCP client --------------------------------------------------------------------------------------


@dialects
@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_list_call_progress_and_errors(dialect: str, port: bool) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with managed(make_server(), port=port) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect))) as client:
            assert {tool.name for tool in await client.list_tools()} >= {"add", "echo"}
            assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
            await client.call_tool("progress", {"steps": 3}, progress_handler=on_progress)
            assert seen == [(0, 3, "step 0"), (1, 3, "step 1"), (2, 3, "step 2")]
            with pytest.raises(ToolError, match="no such luck"):
                await client.call_tool("fail")
            with pytest.raises(MCPError) as caught:
                await client.call_tool("nope")
            assert caught.value.error.code == -32602
            assert len(manager.connections) == 1
        assert manager.connections == []


@dialects
async def test_without_pinning_a_dialect_one_is_found(dialect: str) -> None:
    """What `mcpServers` says is all an agent knows."""
    from sandport.wire import declaration

    entry = declaration("tools", "S")
    found = AcpMCPServerConfig.from_declaration(entry)
    assert found is not None
    prefer: Any = "stateless" if dialect in STATELESS else "connect"
    async with managed(make_server(), prefer=prefer) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, found)) as client:
            assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3
            assert manager.connections[0].dialect.family == prefer


@dialects
async def test_64_calls_at_once(dialect: str) -> None:
    gate = Gate()
    server = FastMCP("t")
    running = 0

    @server.tool
    async def meet(n: int) -> int:
        nonlocal running
        running += 1
        if running == 64:
            gate.go.set()
        await gate.go.wait()
        return n * n

    results: dict[int, int] = {}
    async with managed(server, port=True) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect))) as client, anyio.create_task_group() as tasks:

            async def call(n: int) -> None:
                results[n] = (await client.call_tool("meet", {"n": n})).data

            for n in range(64):
                tasks.start_soon(call, n)
    assert results == {n: n * n for n in range(64)}


@dialects
async def test_a_cancelled_call_stops_its_own_tool(dialect: str) -> None:
    started: dict[str, anyio.Event] = {name: anyio.Event() for name in "abc"}
    ended: dict[str, str] = {}
    release = anyio.Event()
    server = FastMCP("t")

    @server.tool
    async def wait(name: str) -> str:
        started[name].set()
        try:
            await release.wait()
        except BaseException:
            ended[name] = "stopped"
            raise
        ended[name] = "done"
        return name

    results: list[str] = []
    async with managed(server, port=True) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect))) as client, anyio.create_task_group() as tasks:
            scopes = {name: anyio.CancelScope() for name in "abc"}

            async def call(name: str) -> None:
                with scopes[name]:
                    results.append((await client.call_tool("wait", {"name": name})).data)

            for name in "abc":
                tasks.start_soon(call, name)
                await started[name].wait()
            scopes["b"].cancel()
            await anyio.wait_all_tasks_blocked()
            assert ended == {"b": "stopped"}
            release.set()
    assert sorted(results) == ["a", "c"]
    assert ended == {"a": "done", "b": "stopped", "c": "done"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecated")
@pytest.mark.parametrize("dialect", CONNECT)
async def test_what_a_server_sends_and_asks(dialect: str) -> None:
    """list_changed, logging, elicitation, sampling and roots, live, with a handshake."""
    server = make_server()
    changed = anyio.Event()
    logged: list[Any] = []

    @server.tool
    async def everything(ctx: Context) -> dict[str, Any]:
        await ctx.info("hello")
        answer = await ctx.elicit("Who?", str)
        message = mcp_types.SamplingMessage(role="user", content=mcp_types.TextContent(type="text", text="Say hi"))
        sample = await ctx.session.create_message([message], max_tokens=9)
        roots = (await ctx.session.list_roots()).roots
        return {"answer": answer.data, "sample": sample.content.text, "roots": [str(root.uri) for root in roots]}  # type: ignore[union-attr]

    async def on_message(message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            changed.set()

    async def on_log(entry: Any) -> None:
        logged.append(entry.data)

    async def on_elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return ElicitResult(action="accept", content={"value": f"me, {message}"})

    async def on_sample(messages: Any, params: Any, context: Any) -> str:
        return "hi"

    async with managed(server, port=True) as (manager, host, _):
        client = Client(
            AcpMcpTransport(manager, config(dialect)),
            message_handler=on_message,
            log_handler=on_log,
            elicitation_handler=on_elicit,
            sampling_handler=on_sample,
            roots=["file:///workspace"],
        )
        async with client:
            data = (await client.call_tool("everything")).data
            assert data == {"answer": "me, Who?", "sample": "hi", "roots": ["file:///workspace"]}
            await host.list_changed("tools")
            with anyio.fail_after(2):
                await changed.wait()
    assert len(logged) == 1


@pytest.mark.parametrize("dialect", CONNECT)
async def test_what_the_agent_did_not_declare_is_not_asked(dialect: str) -> None:
    server = FastMCP("t")

    @server.tool
    async def curious(ctx: Context) -> str:
        return (await ctx.elicit("Who?", str)).action

    async with managed(server) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect))) as client:
            with pytest.raises(ToolError, match="did not declare"):
                await client.call_tool("curious")


@dialects
async def test_several_connections_to_one_server(dialect: str) -> None:
    """Progress of one never reaches another, though the tokens are the same."""
    server = make_server()
    seen: dict[str, list[float]] = {"one": [], "two": []}

    async with managed(server) as (manager, _, _channel):
        transport = AcpMcpTransport(manager, config(dialect))
        async with Client(transport) as one, Client(AcpMcpTransport(manager, config(dialect))) as two:
            assert len(manager.connections) == 2
            async with anyio.create_task_group() as tasks:
                for name, client, steps in (("one", one, 3), ("two", two, 5)):

                    async def call(name: str = name, client: Any = client, steps: int = steps) -> None:
                        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                            assert total == steps
                            seen[name].append(progress)

                        await client.call_tool("progress", {"steps": steps}, progress_handler=on_progress)

                    tasks.start_soon(call)
        assert seen == {"one": [0, 1, 2], "two": [0, 1, 2, 3, 4]}
        assert transport.get_session_id() is not None


@dialects
@pytest.mark.parametrize("end", ["agent", "host"])
async def test_the_channel_closes_in_mid_call(dialect: str, end: str) -> None:
    gate = Gate()
    async with managed(make_server(gate=gate)) as (manager, host, channel):
        async with Client(AcpMcpTransport(manager, config(dialect))) as client, anyio.create_task_group() as tasks:

            async def call() -> None:
                with anyio.fail_after(2), pytest.raises((MCPError, ToolError, RuntimeError)):
                    await client.call_tool("wait")

            tasks.start_soon(call)
            await gate.entered.wait()
            if end == "agent":
                await channel.aclose()
            else:
                await host._lanes[0].peer.aclose()
        assert manager.connections == []
        with anyio.fail_after(2):
            await gate.finished.wait()
        with pytest.raises((ChannelClosed, LocalError)):
            await manager.create_connection(config(dialect))


@dialects
async def test_a_call_times_out_and_the_tool_stops(dialect: str) -> None:
    gate = Gate()
    async with managed(make_server(gate=gate)) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect, timeout=0.1))) as client:
            with pytest.raises((MCPError, ToolError), match=r"0\.1|[Tt]imed out"):
                await client.call_tool("wait")
            with anyio.fail_after(2):
                await gate.finished.wait()
            assert (await client.call_tool("add", {"a": 1, "b": 1})).data == 2


# -- asking the person: one way in both eras ---------------------------------------------------------------------


def asking_server() -> tuple[FastMCP, list[str]]:
    server, runs = FastMCP("t"), []

    @server.tool
    async def remove(path: str, ctx: Context) -> str:
        runs.append("begin")
        first = await ask(ctx, f"Remove {path}?", bool)
        if first.action != "accept" or not first.data:
            return f"kept: {first.action}"
        second = await ask(ctx, "Really? Say why.", str)
        runs.append("end")
        return f"removed {path}: {second.data}" if second.action == "accept" else "kept after all"

    @server.tool
    async def grouped(ctx: Context) -> str:
        answers = {}
        async with anyio.create_task_group() as tasks:

            async def one(name: str) -> None:
                answers[name] = (await ask(ctx, f"{name}?", str)).data  # type: ignore[union-attr]

            tasks.start_soon(one, "a")
        return str(answers)

    return server, runs


@dialects
@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_ask_works_in_both_eras(dialect: str, port: bool) -> None:
    server, runs = asking_server()
    questions: list[str] = []

    async def on_elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
        questions.append(message)
        value = True if "Remove" in message else "because"
        return ElicitResult(action="accept", content={"value": value})

    async with managed(server, port=port) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect)), elicitation_handler=on_elicit) as client:
            assert (await client.call_tool("remove", {"path": "a.txt"})).data == "removed a.txt: because"
            assert questions == ["Remove a.txt?", "Really? Say why."]
            assert runs.count("end") == 1
            assert runs.count("begin") == (3 if dialect in STATELESS else 1)
            assert (await client.call_tool("grouped")).data == "{'a': 'because'}"


@dialects
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_ask_declined(dialect: str, action: Any) -> None:
    async def on_elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return ElicitResult(action=action)

    async with managed(asking_server()[0]) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect)), elicitation_handler=on_elicit) as client:
            assert (await client.call_tool("remove", {"path": "a.txt"})).data == f"kept: {action}"


@dialects
async def test_ask_an_agent_that_cannot(dialect: str) -> None:
    async with managed(asking_server()[0]) as (manager, _, _channel):
        async with Client(AcpMcpTransport(manager, config(dialect))) as client:
            if dialect in STATELESS:
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("remove", {"path": "a.txt"})
                assert caught.value.error.code == -32021
                assert caught.value.error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}
            else:
                with pytest.raises(ToolError, match="cannot put"):
                    await client.call_tool("remove", {"path": "a.txt"})


@pytest.mark.parametrize("dialect", STATELESS)
@pytest.mark.parametrize(
    "bad",
    [
        {"requestState": "sandport-ask:{"},
        {"requestState": "sandport-ask:[]"},
        {"requestState": "v1.whatever"},
        {"requestState": 3},
        {"inputResponses": {"sandport-ask-1-00000000": {"action": "accept", "content": {"value": True}}}},
        {"inputResponses": {"other": {"action": "accept"}}},
        {"inputResponses": []},
    ],
)
async def test_ask_takes_no_answer_to_another_question(dialect: str, bad: dict[str, Any]) -> None:
    server, runs = asking_server()
    theirs, ours = memory_channel_pair()
    async with ToolHost() as host, anyio.create_task_group() as tasks:
        host.mount(server, "tools")
        host.declare("tools", "S")
        tasks.start_soon(host.serve, ours)
        agent = RawAgent(theirs, dialect)
        await agent.open("S", {"elicitation": {"form": {}}})
        call = {"name": "remove", "arguments": {"path": "a"}}
        answer = await agent.mcp("S", "tools/call", {**call, **bad})
        asked = answer.get("result", {})
        assert answer.get("error", {}).get("code") == -32602 or asked.get("resultType") == "input_required"
        assert runs in ([], ["begin"])
        # An answer of the right key and the wrong shape is none.
        asked = (await agent.mcp("S", "tools/call", call))["result"]
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        for shape in ({}, {"action": "maybe"}):
            wrong = await agent.mcp("S", "tools/call", {**call, "inputResponses": {key: shape}})
            assert "error" in wrong or wrong["result"]["isError"]
        await theirs.aclose()
        await host._lanes[0].done.wait()


@pytest.mark.parametrize("dialect", CONNECT)
async def test_ask_gets_no_usable_answer(dialect: str) -> None:
    """agentpool.md, behaviour 5: the fork answers `{}` to everything."""
    theirs, ours = memory_channel_pair()
    async with ToolHost() as host, anyio.create_task_group() as tasks:
        host.mount(asking_server()[0], "tools")
        host.declare("tools", "S")
        tasks.start_soon(host.serve, ours)
        agent = RawAgent(theirs, dialect)
        address = await agent.open("S", {"elicitation": {"form": {}}})
        call = {"name": "remove", "arguments": {"path": "a"}}
        await agent.post(*agent.message(address, "tools/call", call), "q")
        question = await agent.receive()
        await agent.send({"jsonrpc": "2.0", "id": question["id"], "result": {}})
        result = (await agent.answer("q"))["result"]
        assert result["isError"]
        assert "no usable answer" in text_of(result)
        await theirs.aclose()
        await host._lanes[0].done.wait()


# -- the manager -------------------------------------------------------------------------------------------------


class Outer:
    """An ACP connection whose answers a test gives."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.sent: list[tuple[str, Any]] = []

    async def request(self, method: str, params: Any, *, timeout: float | None = None, late: Any = None) -> Any:
        self.sent.append((method, params))
        with anyio.fail_after(timeout):
            result = self.answer(method, params)
            if isinstance(result, Exception):
                raise result
            if result is None:
                await anyio.sleep_forever()
            return result

    async def notify(self, method: str, params: Any) -> None:
        self.sent.append((method, params))


ANY = AcpMCPServerConfig(name="tools", acp_id="S")


@pytest.mark.parametrize(
    "answer", [{}, {"connectionId": ""}, {"connectionId": None}, {"connectionId": 7}, [], "c", 1, True]
)
async def test_a_connection_without_an_id_is_none(answer: Any) -> None:
    manager = AcpMcpConnectionManager(Outer(lambda method, params: answer))
    with pytest.raises(PeerError):
        await manager.create_connection(config("connect-acpId"))
    assert manager.connections == []


async def test_an_id_given_twice_is_refused_and_the_first_stays() -> None:
    manager = AcpMcpConnectionManager(Outer(lambda method, params: {"connectionId": "c"}))
    first = await connect_acp_mcp_server(manager, config("connect-acpId"))
    with pytest.raises(PeerError, match="twice"):
        await manager.create_connection(config("connect-acpId"))
    assert manager.get_connection("c") is first
    await disconnect_acp_mcp_server(manager, "c")
    await manager.remove_connection("c")
    await manager.remove_connection("never")
    assert manager.get_connection("c") is None


@pytest.mark.parametrize("dialect", CONNECT)
async def test_connect_times_out(dialect: str) -> None:
    manager = AcpMcpConnectionManager(Outer(lambda method, params: None), connect_timeout=0.05)
    with anyio.fail_after(2), pytest.raises(TimeoutError):
        await manager.create_connection(config(dialect))
    assert manager.connections == []


async def test_silence_to_a_stateless_probe_means_connect() -> None:
    outer = Outer(lambda method, params: {"connectionId": "c"} if method == "mcp/connect" else None)
    manager = AcpMcpConnectionManager(outer, connect_timeout=0.05, prefer="stateless")
    connection = await manager.create_connection(ANY)
    assert connection.dialect.family == "connect"
    assert [method for method, _ in outer.sent] == ["mcp/message", "mcp/connect"]
    await manager.close_all()


@pytest.mark.parametrize("code", [-33000, -33002, -32800])
async def test_codes_of_the_binding_mean_stateless(code: int) -> None:
    def answer(method: str, params: Any) -> Any:
        return PeerError(-32601 if method == "mcp/connect" else code, "x")

    manager = AcpMcpConnectionManager(Outer(answer))
    connection = await manager.create_connection(ANY)
    assert connection.dialect.name == "stateless"
    assert connection.address == "S"
    await manager.close_all()


@pytest.mark.parametrize("code", [-32700, -32602, -32603, -32042])
async def test_the_reason_of_a_stateless_provider_reaches_who_wanted_a_session(code: int) -> None:
    """A client that then tries the older handshake is told that reason, not that the handshake does not exist."""

    def answer(method: str, params: Any) -> Any:
        if method == "mcp/connect":
            return PeerError(-32601, "no")
        return {"error": {"code": code, "message": "the body could not be read"}}

    manager = AcpMcpConnectionManager(Outer(answer))
    with pytest.raises(MCPError) as caught:
        async with Client(AcpMcpTransport(manager, ANY)):
            pass
    assert (caught.value.error.code, caught.value.error.message) == (code, "the body could not be read")
    assert manager.connections == []


@pytest.mark.parametrize("prefer", ["connect", "stateless"])
@pytest.mark.parametrize("code", [-32601, -32602, -32603, -33001])
async def test_nobody_answers_well(prefer: Any, code: int) -> None:
    manager = AcpMcpConnectionManager(Outer(lambda method, params: PeerError(code, "no")), prefer=prefer)
    with pytest.raises(PeerError) as caught:
        await manager.create_connection(ANY)
    assert caught.value.code == code


@pytest.mark.parametrize("answer", [None, PeerError(-1, "no"), RuntimeError("of some ACP library")])
async def test_a_disconnect_that_fails_still_cleans_up(answer: Any) -> None:
    outer = Outer(lambda method, params: {"connectionId": "c"} if method == "mcp/connect" else answer)
    manager = AcpMcpConnectionManager(outer, disconnect_timeout=0.05)
    connection = await manager.create_connection(config("connect-acpId"))
    with anyio.fail_after(2):
        await connection.aclose()
    assert connection.closed
    assert manager.connections == []
    assert outer.sent[-1] == ("mcp/disconnect", {"connectionId": "c"})


async def test_closed_while_a_connection_is_opened() -> None:
    opening, go = anyio.Event(), anyio.Event()

    class Slow(Outer):
        async def request(self, method: str, params: Any, *, timeout: float | None = None, late: Any = None) -> Any:
            if method == "mcp/connect":
                opening.set()
                await go.wait()
            return await super().request(method, params, timeout=timeout)

    outer = Slow(lambda method, params: {"connectionId": "c"})
    manager = AcpMcpConnectionManager(outer)

    async def create() -> None:
        with pytest.raises(LocalError):
            await manager.create_connection(config("connect-acpId"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        await opening.wait()
        await manager.close_all()
        go.set()
    assert outer.sent[-1] == ("mcp/disconnect", {"connectionId": "c"})
    assert manager.connections == []
    with pytest.raises(LocalError):
        await manager.create_connection(ANY)


@pytest.mark.parametrize("dialect", CONNECT)
@pytest.mark.parametrize("how", ["times out", "is cancelled", "is cancelled, answered meanwhile"])
async def test_a_connection_that_comes_too_late_is_disconnected(dialect: str, how: str) -> None:
    """A provider that knows no cancellation, or whose answer crosses it, must not keep the connection."""
    theirs, ours = memory_channel_pair()
    provider = RawAgent(ours)
    opened: dict[str, Any] = {"connection_id": "late", "connectionId": "late"}
    async with manager_on_channel(theirs, connect_timeout=0.05 if how == "times out" else 5) as manager:
        scope, given_up = anyio.CancelScope(), anyio.Event()

        async def create() -> None:
            with scope:
                try:
                    await manager.create_connection(config(dialect))
                except TimeoutError:
                    assert how == "times out"
            given_up.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(create)
            connect = await provider.receive()
            if how == "is cancelled, answered meanwhile":
                await provider.send({"jsonrpc": "2.0", "id": connect["id"], "result": opened})
            if how != "times out":
                scope.cancel()
            await given_up.wait()
        cancel = await provider.receive()
        assert cancel["method"] == "$/cancel_request"
        assert cancel["params"] == {"requestId": connect["id"]}
        if how != "is cancelled, answered meanwhile":
            await provider.send({"jsonrpc": "2.0", "id": connect["id"], "result": opened})
        bye = await provider.receive()
        assert bye["method"] == ("_mcp/disconnect" if dialect == "legacy" else "mcp/disconnect")
        assert set(bye["params"].values()) == {"late"}
        if "id" in bye:
            await provider.send({"jsonrpc": "2.0", "id": bye["id"], "result": {}})
        assert manager.connections == []


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32800, "message": "cancelled", "data": None}},
        {"result": {"connectionId": "live"}},
        {"result": {}},
        {"result": None},
    ],
)
async def test_a_late_answer_that_opened_nothing_is_let_be(answer: dict[str, Any]) -> None:
    theirs, ours = memory_channel_pair()
    provider = RawAgent(ours)
    async with manager_on_channel(theirs, connect_timeout=0.05) as manager:
        with pytest.raises(TimeoutError):
            await manager.create_connection(config("connect-acpId"))
        first, cancel = await provider.receive(), await provider.receive()
        assert cancel["method"] == "$/cancel_request"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.create_connection, config("connect-acpId"))
            second = await provider.receive()
            await provider.send({"jsonrpc": "2.0", "id": second["id"], "result": {"connectionId": "live"}})
        await provider.send({"jsonrpc": "2.0", "id": first["id"], **answer})
        # The next that comes is the good-bye of the live one: nothing was sent for the late answer.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(manager.remove_connection, "live")
            bye = await provider.receive()
            assert bye["params"] == {"connectionId": "live"}
            await provider.send({"jsonrpc": "2.0", "id": bye["id"], "result": {}})


async def test_a_cancelled_session_still_disconnects() -> None:
    outer = Outer(lambda method, params: {"connectionId": "c"} if method == "mcp/connect" else {})
    manager = AcpMcpConnectionManager(outer)
    connection = await manager.create_connection(config("connect-acpId"))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await connection.aclose()
    assert outer.sent[-1][0] == "mcp/disconnect"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("mcp/connect", {"serverId": "S"}, -32601),
        ("mcp/disconnect", {"connectionId": "c"}, -32601),
        ("mcp/message", {"connectionId": "nope", "method": "ping"}, -32602),
        ("mcp/message", {"connectionId": "c"}, -32602),
        ("mcp/message", {"serverId": "S", "requestId": "r", "method": "ping"}, -32601),
        ("mcp/other", {}, -32601),
        ("mcp/message", None, -32602),
    ],
)
async def test_what_a_client_may_not_send(method: str, params: Any, code: int) -> None:
    manager = AcpMcpConnectionManager(Outer(lambda method, params: {"connectionId": "c"}))
    await manager.create_connection(config("connect-acpId"))
    with pytest.raises(PeerError) as caught:
        await manager.handle_request(method, params)
    assert caught.value.code == code
    assert await manager.handle_request("mcp/message", {"connectionId": "c", "method": "notifications/x"}) == {}
    manager.abandon_all()


async def test_unknown_dialects_are_refused() -> None:
    manager = AcpMcpConnectionManager(Outer(lambda method, params: {}))
    with pytest.raises(LocalError, match="telepathy"):
        await manager.create_connection(config("telepathy"))


async def test_errors_of_the_body_are_not_wrapped() -> None:
    theirs, _ours = memory_channel_pair()

    async def body() -> None:
        async with manager_on_channel(theirs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()


# -- converters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "dialects"),
    [
        (AcpMcpServer(name="n", id="S"), ("connect-acpId",)),
        (AcpMcpServer(name="n", server_id="S"), ("connect-serverId", "stateless", "stateless+")),
        (AcpMcpServer(name="n", id="S", server_id="S"), ("connect-serverId", "stateless", "stateless+")),
    ],
)
def test_acp_servers_convert(server: AcpMcpServer, dialects: tuple[str, ...]) -> None:
    found = convert_acp_mcp_server_to_config(server)
    assert found == AcpMCPServerConfig(name="n", acp_id="S", dialects=dialects)
    assert found.timeout == 30.0
    back = mcp_config_to_acp("", found)
    assert back.model_dump(by_alias=True) == {"type": "acp", "name": "n", "id": "S", "serverId": "S"}


@pytest.mark.parametrize(
    "server",
    [
        HttpMcpServer(name="n", url="http://x/", headers=[HttpHeader(name="a", value="b")]),
        SseMcpServer(name="n", url="http://x/", headers=[]),
        StdioMcpServer(name="n", command="c", args=["-x"], env=[EnvVariable(name="A", value="1")]),
    ],
)
def test_other_servers_convert_there_and_back(server: Any) -> None:
    found = convert_acp_mcp_server_to_config(server)
    assert isinstance(found, (RemoteMCPServer, StdioMCPServer))
    assert mcp_config_to_acp("n", found) == server


@pytest.mark.parametrize("entry", [{"type": "acp", "name": "n"}, {"type": "acp", "name": "n", "id": ""}])
def test_an_acp_server_needs_an_id(entry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="id"):
        AcpMcpServer.model_validate(entry)
    with pytest.raises(PeerError):
        AcpMCPServerConfig.from_declaration(entry)
    assert AcpMCPServerConfig.from_declaration({"type": "http", "url": "http://x/"}) is None
