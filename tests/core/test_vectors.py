"""Recorded conversations of real agents, replayed against a real host behind a real port.

Every message that the agent sent is sent again, in its order. What the recording client answered is often wrong on
purpose; what a conforming client must do stands in the last column of `tests/vectors/README.md`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from fastmcp import Context, FastMCP
from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult
from mcp.shared.exceptions import MCPError

from sandport import LocalError, Port, ToolHost, memory_channel_pair
from sandport.wire import LANE_METHODS

from .kit import RawAgent

VECTORS = Path(__file__).parent.parent / "vectors"
FILES = sorted(path.stem for path in VECTORS.glob("*.jsonl"))
Record = dict[str, Any]


def sockets(name: str) -> Iterator[list[Record]]:
    """The records of one file, by socket: the recordings start their clock anew with each."""
    part: list[Record] = []
    for line in (VECTORS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["dir"] == "note" and "opened" in str(record["msg"].get("event")) and part:
            yield part
            part = []
        part.append(record)
    yield part


class RecordedTool(Tool):
    """A tool with a recorded schema that says how it was called."""

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(content=json.dumps(arguments))


def recorded_tools(records: list[Record]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        result = record["msg"].get("result") if record["dir"] == "client->agent" else None
        inner = result.get("result", result) if isinstance(result, dict) else None
        for tool in (inner or {}).get("tools", ()) if isinstance(inner, dict) else ():
            found[tool["name"]] = tool
    return found


def server_for(name: str, records: list[Record]) -> FastMCP:
    server = FastMCP("page-tools", list_page_size=1 if "pagination" in name else None)
    if not name.startswith("ts-sdk"):
        for tool in recorded_tools(records).values():
            server.add_tool(
                RecordedTool(name=tool["name"], description=tool.get("description", ""), parameters=tool["inputSchema"])
            )
        return server

    @server.tool
    async def echo(message: str) -> str:
        return message

    @server.tool
    async def boom() -> str:
        raise ValueError("boom!")

    @server.tool
    async def slow(ctx: Context, n: int = 3) -> str:
        for step in range(min(n, 3)):
            await ctx.report_progress(step, n)
        if n > 3:
            await anyio.sleep_forever()
        return "done"

    @server.tool
    async def ask(ctx: Context) -> Any:
        if ctx.input_responses:
            return f"got {ctx.input_responses['confirm'].content}"  # type: ignore[union-attr]
        capabilities = ctx.session.client_capabilities
        if capabilities is None or capabilities.elicitation is None:
            raise MCPError(-32021, "not declared", {"requiredCapabilities": {"elicitation": {"form": {}}}})
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        params = mcp_types.ElicitRequestFormParams(message="Sure?", requested_schema=schema)
        return mcp_types.InputRequiredResult(input_requests={"confirm": mcp_types.ElicitRequest(params=params)})

    return server


class Replay:
    """One socket of a recording against the host."""

    def __init__(self, host: ToolHost, agent: RawAgent, port: Port, lane: RawAgent) -> None:
        self.host, self.agent, self.port, self.lane = host, agent, port, lane
        self.connections: dict[str, str] = {}
        self.cursors: dict[str, str] = {}
        self.open: dict[str, Record] = {}
        self.outcomes: list[tuple[Record, Record, Record | None]] = []

    async def run(self, records: list[Record]) -> None:
        for record in records:
            message = record["msg"]
            if record["dir"] == "client->agent":
                await self.from_client(message)
            elif record["dir"] == "agent->client":
                await self.from_agent(message)
        for key in list(self.open):
            await self.settle(key, None)

    async def from_client(self, message: Record) -> None:
        params = message.get("params") or {}
        for entry in params.get("mcpServers") or ():
            server_id = entry.get("serverId") or entry["id"]
            try:
                self.host.declare("page-tools", server_id)
                self.port.core.declare("a", server_id)
            except LocalError:
                # The one recording in which an id is declared twice: never do this.
                assert server_id in self.host._ids
        if "method" not in message:
            key = json.dumps(message["id"])
            if key in self.open:
                await self.settle(key, message)
        elif params.get("method") == "notifications/tools/list_changed":
            await self.host.list_changed("page-tools")
            if "requestId" in params:
                await self.heard("notifications/tools/list_changed")
        elif params.get("method") in ("notifications/progress", "notifications/subscriptions/acknowledged"):
            # So that what follows, a cancellation or a change, finds the request running.
            await self.heard(params["method"])

    async def heard(self, method: str) -> None:
        """Wait until the agent got such a notification."""
        while not any(note["params"]["method"] == method for note in self.agent.other):
            self.agent.other.append(await self.agent.receive())

    async def from_agent(self, message: Record) -> None:
        params = message.get("params")
        if isinstance(params, dict):
            params = dict(params)
            if params.get("connectionId") in self.connections:
                params["connectionId"] = self.connections[params["connectionId"]]
            inner = params.get("params")
            if isinstance(inner, dict) and inner.get("cursor") in self.cursors:
                params["params"] = {**inner, "cursor": self.cursors[inner["cursor"]]}
            message = {**message, "params": params}
        await self.agent.send(message)
        if message.get("method") in LANE_METHODS:
            if "id" in message:
                self.open[json.dumps(message["id"])] = message
        elif message.get("method") != "$/cancel_request":
            assert await self.lane.receive() == message

    async def settle(self, key: str, recorded: Record | None) -> None:
        request = self.open.pop(key)
        answer = await self.agent.answer(json.loads(key))
        check_answer(request, answer)
        self.outcomes.append((request, answer, recorded))
        theirs = (recorded or {}).get("result")
        ours = answer.get("result")
        if isinstance(theirs, dict) and isinstance(ours, dict):
            if isinstance(theirs.get("connectionId"), str) and "connectionId" in ours:
                self.connections[theirs["connectionId"]] = ours["connectionId"]
            if "nextCursor" in theirs:
                self.cursors[theirs["nextCursor"]] = ours["nextCursor"]
        if "connect" in request["method"] and isinstance(ours, dict) and "connectionId" in ours:
            # What the recording client gave out wrongly or never is known to the agent by our answer here.
            for name in ("None", "", "conn-1"):
                self.connections.setdefault(name, ours["connectionId"])


def check_answer(request: Record, answer: Record) -> None:
    """What holds for every answer to an agent."""
    assert type(answer["id"]) is type(request["id"])
    assert answer["id"] == request["id"]
    assert ("result" in answer) != ("error" in answer)
    if "error" in answer:
        assert "data" in answer["error"]
        return
    assert isinstance(answer["result"], dict)
    params = request["params"]
    if "connectionId" in params:
        assert "error" not in answer["result"]
    if str(params.get("method")).startswith("notifications/"):
        assert answer["result"] == {}
    if request["method"] == "mcp/connect":
        assert isinstance(answer["result"]["connectionId"], str)
        assert answer["result"]["connectionId"]


def outcome(message: Record) -> tuple[Any, ...]:
    """The kind of a stateless answer: outer error, inner error, or a result and what it says."""
    if "error" in message:
        return "outer", message["error"]["code"]
    inner = message["result"]
    if "error" in inner:
        return "inner", inner["error"]["code"]
    return "result", inner["result"].get("resultType"), bool(inner["result"].get("isError"))


async def replay(name: str) -> list[Replay]:
    parts = list(sockets(name))
    done: list[Replay] = []
    async with ToolHost() as host:
        host.mount(server_for(name, [record for part in parts for record in part]), "page-tools")
        for part in parts:
            agent_end, port_end = memory_channel_pair()
            lane, sandbox = memory_channel_pair()
            port = Port(port_end)
            async with anyio.create_task_group() as tasks:
                await tasks.start(port.run)
                port.attach("a", lane, "sp1.")
                tasks.start_soon(host.serve, sandbox, "sp1.")
                run = Replay(host, RawAgent(agent_end, "stateless"), port, RawAgent(port.acp))  # type: ignore[arg-type]
                with anyio.fail_after(20):
                    await run.run(part)
                assert port.core.dropped == {}
                # No disconnect comes from the fork: the end of the channel is all there is.
                await agent_end.aclose()
                with anyio.fail_after(5):
                    for serving in list(host._lanes):
                        await serving.done.wait()
            # What was declared on one channel is not offered on the next.
            for server_id in list(host._ids):
                host.withdraw(server_id)
            done.append(run)
    return done


@pytest.mark.parametrize("name", FILES)
async def test_every_request_is_answered_well(name: str) -> None:
    for run in await replay(name):
        if "half-open" not in name:
            assert run.outcomes
        assert run.agent._answers == {}


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("ts-sdk")])
async def test_the_connect_family_gets_results(name: str) -> None:
    for run in await replay(name):
        for request, answer, _ in run.outcomes:
            what = request["params"].get("method", request["method"])
            if what == "server/discover":
                assert answer["error"]["code"] == -32601
                continue
            assert "result" in answer, (request, answer)
            result = answer["result"]
            if what == "initialize":
                assert result["protocolVersion"] == request["params"]["params"]["protocolVersion"]
            if what == "tools/list":
                assert result["tools"]
            if what == "tools/call":
                expected = request["params"]["params"].get("arguments") or {}
                assert json.loads(result["content"][0]["text"]) == expected


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("ts-sdk")])
async def test_the_stateless_family_gets_the_recorded_outcomes(name: str) -> None:
    (run,) = await replay(name)
    assert len(run.outcomes) >= 20
    for request, answer, recorded in run.outcomes:
        assert recorded is not None
        if "connect" in request["method"]:
            # Sandport speaks these dialects too; the recorded provider does not.
            assert answer["result"]["connectionId"]
            continue
        assert outcome(answer) == outcome(recorded), (request, answer)
    notes = [note["params"] for note in run.agent.other]
    acknowledged = next(note for note in notes if note["method"] == "notifications/subscriptions/acknowledged")
    changed = next(note for note in notes if note["method"] == "notifications/tools/list_changed")
    assert acknowledged["requestId"] == changed["requestId"]
    key = "io.modelcontextprotocol/subscriptionId"
    assert acknowledged["params"]["_meta"][key] == changed["params"]["_meta"][key] == changed["requestId"]


async def test_both_sockets_of_a_resumed_session_have_their_own_connection() -> None:
    first, second = await replay("agentpool-ws-drop-resume")
    assert set(first.connections.values()).isdisjoint(second.connections.values())


# -- the eleven things a client of agentpool's fork must do (docs/dialects.md) ---------------------------------------

CLIENT: dict[str, Any] = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "mcp", "version": "0.1.0"}}


class Fork:
    """Speaks as the fork does: all on the lane is a request, ids count from 0, what is asked is answered `{}`."""

    def __init__(self, agent: RawAgent, port: Port, lane: RawAgent, host: ToolHost) -> None:
        self.agent, self.port, self.lane, self.host = agent, port, lane, host

    async def connect(self, **params: Any) -> str:
        params = params or {"server": {"name": "page-tools", "type": "acp", "id": "S"}, "acpId": "S"}
        answer = await self.agent.ask("mcp/connect", params)
        connection: str = answer["result"]["connectionId"]
        return connection

    async def mcp(self, connection: str, method: str, params: Any = None, outer: str = "mcp/message") -> Record:
        message = {"connectionId": connection, "method": method}
        return await self.agent.ask(outer, message if params is None else {**message, "params": params})

    async def call(self, connection: str, tool: str, **arguments: Any) -> Record:
        return await self.mcp(connection, "tools/call", {"name": tool, "arguments": arguments})

    async def open(self, **capabilities: Any) -> str:
        connection = await self.connect()
        await self.mcp(connection, "initialize", {**CLIENT, "capabilities": capabilities})
        await self.mcp(connection, "notifications/initialized")
        return connection


@asynccontextmanager
async def fork() -> AsyncIterator[Fork]:
    server = FastMCP("page-tools")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    def verdict() -> dict[str, int]:
        return {"error": 7}

    @server.tool
    async def hang() -> None:
        await anyio.sleep_forever()

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Sure?", response_type=bool)
        return answer.action

    agent_end, port_end = memory_channel_pair()
    ours, sandbox = memory_channel_pair()
    async with ToolHost() as host, anyio.create_task_group() as tasks:
        host.mount(server, "page-tools")
        host.declare("page-tools", "S")
        port = Port(port_end)
        await tasks.start(port.run)
        port.attach("a", ours, "sp1.")
        port.core.declare("a", "S")
        tasks.start_soon(host.serve, sandbox, "sp1.")
        with anyio.fail_after(20):
            yield Fork(RawAgent(agent_end), port, RawAgent(port.acp), host)  # type: ignore[arg-type]
        await agent_end.aclose()


@pytest.mark.parametrize("params", [{"acpId": "S"}, {"server": {"type": "acp", "name": "n", "id": "S"}}])
async def test_fork_01_the_server_is_found_by_either_id(params: Record) -> None:
    async with fork() as peer:
        assert await peer.connect(**params)


async def test_fork_02_notifications_sent_as_requests_are_answered() -> None:
    async with fork() as peer:
        connection = await peer.open()
        for method in ("notifications/initialized", "notifications/cancelled", "notifications/vendor"):
            assert (await peer.mcp(connection, method))["result"] == {}


async def test_fork_03_every_error_has_data() -> None:
    async with fork() as peer:
        connection = await peer.open()
        assert "data" in (await peer.call(connection, "nope"))["error"]
        assert "data" in (await peer.mcp(connection, "vendor/x"))["error"]
        assert "data" in (await peer.mcp("nobody's", "ping"))["error"]
        asked = await peer.agent.post("fs/read_text_file", {"path": "AGENTS.md"})
        assert (await peer.lane.receive())["id"] == asked
        await peer.lane.send({"jsonrpc": "2.0", "id": asked, "error": {"code": -32601, "message": "no files"}})
        assert (await peer.agent.answer(asked))["error"] == {"code": -32601, "message": "no files", "data": None}


async def test_fork_04_results_are_objects_without_error() -> None:
    async with fork() as peer:
        connection = await peer.open()
        for answer in (
            await peer.call(connection, "verdict"),
            await peer.call(connection, "add", a=1, b=2),
            await peer.mcp(connection, "tools/list"),
            await peer.mcp(connection, "ping"),
        ):
            assert isinstance(answer["result"], dict)
            assert "error" not in answer["result"]


async def test_fork_05_an_empty_answer_to_a_question_fails_its_tool_alone() -> None:
    async with fork() as peer:
        connection = await peer.open(elicitation={"form": {}})
        call = await peer.agent.post(
            "mcp/message", {"connectionId": connection, "method": "tools/call", "params": {"name": "ask"}}
        )
        question = await peer.agent.receive()
        assert question["params"]["method"] == "elicitation/create"
        await peer.agent.send({"jsonrpc": "2.0", "id": question["id"], "result": {}})
        assert (await peer.agent.answer(call))["result"]["isError"] is True
        assert (await peer.call(connection, "add", a=1, b=2))["result"]["structuredContent"] == {"result": 3}


async def test_fork_06_connections_end_without_a_disconnect() -> None:
    async with fork() as peer:
        connection = await peer.open()
        peer.host.withdraw("S")  # the session was closed
        await peer.port.withdraw("S")
        assert (await peer.mcp(connection, "ping"))["error"]["code"] == -32602
        assert peer.port.core.connections("a") == []


async def test_fork_07_a_call_that_a_cancelled_turn_leaves_is_settled() -> None:
    async with fork() as peer:
        connection = await peer.open()
        message = {"connectionId": connection, "method": "tools/call", "params": {"name": "hang"}}
        call = await peer.agent.post("mcp/message", message)
        while not peer.port.core.open_requests:
            await anyio.lowlevel.checkpoint()
        await peer.port.stop("S")
        assert (await peer.agent.answer(call))["error"]["code"] == -32800
        assert (await peer.call(connection, "add", a=1, b=2))["result"]["structuredContent"] == {"result": 3}


async def test_fork_08_the_alias_is_read_and_nothing_is_connected_from_here() -> None:
    async with fork() as peer:
        connection = await peer.open()
        assert (await peer.mcp(connection, "ping", outer="_mcp/message"))["result"] == {}
        assert [m for m in peer.agent.other if "connect" in m["method"]] == []


async def test_fork_09_connection_ids_are_texts_of_their_own() -> None:
    async with fork() as peer:
        ids = [await peer.connect() for _ in range(3)]
        assert len(set(ids)) == 3
        assert all(isinstance(connection, str) and connection for connection in ids)


async def test_fork_10_zero_is_an_id_and_the_directions_do_not_meet() -> None:
    async with fork() as peer:
        await peer.lane.post("session/new", {"cwd": "/"}, request_id=0)
        asked = await peer.agent.receive()
        assert (asked["id"], asked["method"]) == (0, "session/new")
        opened = await peer.agent.ask("mcp/connect", {"acpId": "S"}, request_id=0)
        assert opened["id"] == 0
        await peer.agent.send({"jsonrpc": "2.0", "id": 0, "result": {"sessionId": "s"}})
        assert (await peer.lane.answer(0))["result"] == {"sessionId": "s"}


async def test_fork_11_the_probe_for_the_other_era_is_refused_and_the_handshake_follows() -> None:
    async with fork() as peer:
        connection = await peer.connect()
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        refused = await peer.mcp(connection, "server/discover", {"_meta": meta})
        assert refused["error"]["code"] == -32601
        assert "data" in refused["error"]
        assert "result" in await peer.mcp(connection, "initialize", {**CLIENT, "capabilities": {}})


def test_there_are_all_recordings() -> None:
    assert len(FILES) == 24
