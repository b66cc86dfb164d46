"""Arbitrary traffic of all dialects at once, legal and not, with closes, cancels and restarts anywhere.

A real port stands between a raw agent and two real hosts. Every step is followed by the whole system coming to rest, so
that a failure shrinks to the shortest story that shows it. What must hold stands in `check`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any

import anyio
import pytest
from fastmcp import Context, FastMCP
from hypothesis import given, settings
from hypothesis import strategies as st

from sandport import ChannelClosed, Port, ToolHost, memory_channel_pair

from .kit import INITIALIZE, META, NAMES, dialect_named

BOXES = ("a", "b")


def make_server(name: str, log: Counter[str]) -> FastMCP:
    """Tools that say who they are, so that no answer can come from the wrong sandbox."""
    server = FastMCP(name)

    @server.tool
    async def who(nonce: int) -> str:
        return f"{name}:{nonce}"

    @server.tool
    async def hang(nonce: int, ctx: Context) -> str:
        log["started"] += 1
        try:
            await ctx.report_progress(nonce, None)
            await anyio.sleep_forever()
        finally:
            log["ended"] += 1
        return "never"

    @server.tool
    async def bad(nonce: int) -> str:
        raise ValueError(f"{name}:{nonce}")

    @server.tool
    async def elicit(nonce: int, ctx: Context) -> str:
        log["started"] += 1
        try:
            return f"{name}:{nonce}:{(await ctx.elicit(f'{nonce}?', bool)).action}"
        finally:
            log["ended"] += 1

    return server


class World:
    """The system under test and what the agent knows of it."""

    def __init__(self) -> None:
        self.log: Counter[str] = Counter()
        self.sent: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.reverse: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.cancelled: set[str] = set()
        self.connections: list[tuple[str, str, str]] = []
        """connection id, dialect, server id"""
        self.servers: dict[str, str] = {}
        """server id to sandbox, for every id that ever was declared"""
        self.nonce = 0

    async def run(self, steps: list[Any]) -> None:
        agent, ours = memory_channel_pair(1000)
        self.agent = agent
        self.port = Port(ours)
        self.hosts: dict[str, ToolHost] = {}
        async with ToolHost() as one, ToolHost() as two, anyio.create_task_group() as tasks:
            await tasks.start(self.port.run)
            for name, host in zip(BOXES, (one, two), strict=True):
                host.mount(make_server(name, self.log), "tools")
                self.hosts[name] = host
                lane, sandbox = memory_channel_pair(1000)
                self.port.attach(name, lane, f"{name}.")
                tasks.start_soon(host.serve, sandbox, f"{name}.")
                self.declare(name)
            tasks.start_soon(self.read)
            tasks.start_soon(self.read_acp)
            await anyio.wait_all_tasks_blocked()
            for step in steps:
                await getattr(self, step[0])(*step[1:])
                await anyio.wait_all_tasks_blocked()
                self.check()
            # The agent gives up on what hangs; then all must be answered.
            for key in self.sent.keys() - self.answers.keys():
                await self.send(
                    {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": json.loads(key)}}
                )
            await anyio.wait_all_tasks_blocked()
            self.check()
            assert self.answers.keys() >= self.sent.keys(), self.sent.keys() - self.answers.keys()
            assert len(self.port.core._requests) == 0
            await agent.aclose()
            with anyio.fail_after(5):
                for host in self.hosts.values():
                    for lane in list(host._lanes):
                        await lane.done.wait()
        assert self.log["started"] == self.log["ended"]
        assert self.port.core.open_requests == 0

    # -- the agent's eyes -------------------------------------------------------------------------------------

    async def read(self) -> None:
        try:
            while True:
                message = json.loads(await self.agent.receive())
                if "method" not in message:
                    key = json.dumps(message["id"])
                    if message["id"] is None:
                        assert message["error"]["code"] in (-32700, -32600)
                        continue
                    assert key in self.sent, f"an answer to nothing: {message}"
                    assert key not in self.answers, f"a second answer: {message}"
                    assert ("result" in message) != ("error" in message)
                    assert "error" not in message or "data" in message["error"]
                    self.answers[key] = message
                elif "id" in message:
                    self.reverse.append(message)
                else:
                    self.notes.append(message)
                    await self.note(message)
        except ChannelClosed:
            pass

    async def note(self, message: dict[str, Any]) -> None:
        if message["method"] == "$/cancel_request":
            return
        params = message["params"]
        if "requestId" in params:
            # A stateless notification belongs to a request that is active.
            assert any(
                sent["params"].get("requestId") == params["requestId"] and key not in self.answers
                for key, sent in self.sent.items()
                if isinstance(sent.get("params"), dict)
            ), f"a notification after the answer: {message}"

    async def read_acp(self) -> None:
        try:
            while True:
                message = json.loads(await self.port.acp.receive())
                # The ACP client never sees the lane.
                assert not str(message.get("method")).lstrip("_").startswith("mcp/")
        except ChannelClosed:
            pass

    def check(self) -> None:
        for key, answer in self.answers.items():
            expected = self.sent[key].get("expected")
            result = answer.get("result", {})
            result = result.get("result", result)
            if expected and "content" in result and not result.get("isError"):
                text = result["content"][0]["text"]
                assert text == expected or text.startswith(f"{expected}:"), f"{self.sent[key]}: another's {answer}"
        core = self.port.core
        assert sum(state.open for state in core._sandboxes.values()) == len(core._requests)
        assert all(state.open >= 0 for state in core._sandboxes.values())
        assert core._calls.keys() == {request.call for request in core._requests.values() if request.call}

    # -- steps ------------------------------------------------------------------------------------------------

    async def send(self, message: Any) -> None:
        await self.agent.send(message if isinstance(message, str) else json.dumps(message))

    async def request(self, method: str, params: Any, as_text: bool, expected: str | None = None) -> None:
        self.nonce += 1
        request_id: Any = f"q{self.nonce}" if as_text else self.nonce
        self.sent[json.dumps(request_id)] = {"params": params, "method": method, "expected": expected}
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    def declare(self, box: str) -> None:
        if box in self.port.core._sandboxes:
            entry = self.hosts[box].declare("tools")
            self.port.core.declare(box, entry["serverId"])
            self.servers[entry["serverId"]] = box

    async def redeclare(self, box: str) -> None:
        self.declare(box)

    async def open(self, dialect_name: str, pick: int, as_text: bool) -> None:
        dialect = dialect_named(dialect_name)
        server_id = sorted(self.servers)[pick % len(self.servers)]
        if dialect.family == "stateless":
            self.connections.append((server_id, dialect_name, server_id))
            return
        out = dialect.open(server_id)
        await self.request(out.method, out.params, as_text)
        await anyio.wait_all_tasks_blocked()
        answer = self.answers.get(json.dumps(f"q{self.nonce}" if as_text else self.nonce))
        if answer is not None and "result" in answer:
            address = dialect.read_opened(answer["result"])
            assert address not in {known for known, _, _ in self.connections}, "a connection id came twice"
            self.connections.append((address, dialect_name, server_id))
            capabilities = {"elicitation": {"form": {}}} if pick % 2 else {}
            out = dialect.message(address, "", "initialize", {**INITIALIZE, "capabilities": capabilities})
            await self.request(out.method, out.params, as_text)

    async def call(self, pick: int, tool: str, as_text: bool, token: Any) -> None:
        if not self.connections:
            return
        address, dialect_name, server_id = self.connections[pick % len(self.connections)]
        dialect = dialect_named(dialect_name)
        nonce = self.nonce + 1
        params: dict[str, Any] = {"name": tool, "arguments": {"nonce": nonce}, "_meta": {"progressToken": token}}
        if dialect.family == "stateless":
            params["_meta"] |= META
        out = dialect.message(address, f"r{nonce}", "tools/call", params)
        if dialect_name == "stateless+":
            out.params["sessionId"] = "s"
        await self.request(out.method, out.params, as_text, f"{self.servers[server_id]}:{nonce}")

    async def close(self, pick: int, as_request: bool) -> None:
        family = [item for item in self.connections if dialect_named(item[1]).family == "connect"]
        if not family:
            return
        address, dialect_name, _ = family[pick % len(family)]
        out = dialect_named(dialect_name).close(address)
        assert out is not None
        if as_request:
            await self.request(out.method, out.params, False)
        else:
            await self.send({"jsonrpc": "2.0", "method": out.method, "params": out.params})

    async def cancel(self, pick: int, method: str) -> None:
        keys = sorted(self.sent)
        if keys:
            target = json.loads(keys[pick % len(keys)])
            await self.send({"jsonrpc": "2.0", "method": method, "params": {"requestId": target}})

    async def inner_cancel(self, pick: int) -> None:
        if not self.connections:
            return
        address, dialect_name, _ = self.connections[pick % len(self.connections)]
        dialect = dialect_named(dialect_name)
        out = dialect.message(address, "rc", "notifications/cancelled", {"requestId": f"r{pick}"})
        await self.send({"jsonrpc": "2.0", "method": out.method, "params": out.params})

    async def answer(self, pick: int, result: Any) -> None:
        if self.reverse:
            request = self.reverse[pick % len(self.reverse)]
            await self.send({"jsonrpc": "2.0", "id": request["id"], **result})

    async def illegal(self, text: str) -> None:
        await self.send(text)

    async def illegal_request(self, method: str, params: Any) -> None:
        await self.request(method, params, True)

    async def forge(self, box: str, text: str) -> None:
        """Tool code that reaches its end of the lane and writes what it likes."""
        lanes = self.hosts[box]._lanes
        if lanes:
            await lanes[0].peer._channel.send(text)

    async def withdraw(self, pick: int) -> None:
        server_id = sorted(self.servers)[pick % len(self.servers)]
        self.hosts[self.servers[server_id]].withdraw(server_id)
        await self.port.withdraw(server_id)

    async def restart(self, box: str) -> None:
        """The sandbox dies and comes back: what is open is answered, what comes meanwhile is held."""
        if box not in self.port.core._sandboxes or not self.hosts[box]._lanes:
            return
        self.nonce += 1
        await self.port._deliver(self.port.core.suspend(box, "restarted"))
        host = self.hosts[box]
        lane = host._lanes[0]
        for inbound in lane.peer.inbound:
            inbound.abandon()
        for connection in list(lane.connections.values()):
            connection.close()
        await anyio.wait_all_tasks_blocked()
        for live in self.port.core.connections(box):
            await host.adopt(live.connection_id, live.server_id, live.initialize)
        prefix = f"{box}{self.nonce}."
        lane.peer._id_prefix = prefix
        await self.port._deliver(self.port.core.resume(box, prefix))

    async def detach(self, box: str) -> None:
        await self.port.detach(box, "gone")


small = st.integers(0, 30)
boxes = st.sampled_from(BOXES)
junk = st.one_of(
    st.sampled_from(
        [
            "", "{", "[]", "[{}]", "null", '{"jsonrpc":"2.0"}', '{"id":1}', '{"id":null,"method":"mcp/message"}', "NaN",
            '{"jsonrpc":"2.0","method":{}}', '{"jsonrpc":"2.0","method":"mcp/message","params":[]}',
            '{"jsonrpc":"2.0","method":"mcp/message","params":{"connectionId":"no","method":"x"}}',
            '{"jsonrpc":"2.0","id":1.5,"method":"mcp/connect","params":{}}',
            '{"jsonrpc":"2.0","id":"a.0","result":{}}', '{"jsonrpc":"2.0","id":99,"result":{}}',
            '{"jsonrpc":"2.0","method":"$/cancel_request"}', '{"jsonrpc":"2.0","method":"session/update","params":{}}',
        ]
    ),
    st.text(max_size=20),
)  # fmt: skip
forged = st.sampled_from(
    [
        '{"jsonrpc":"2.0","id":1,"result":{"forged":1}}',
        '{"jsonrpc":"2.0","id":"q1","result":{"forged":1}}',
        '{"jsonrpc":"2.0","id":"a.99","method":"session/prompt","params":{}}',
        '{"jsonrpc":"2.0","id":"zz","method":"mcp/message","params":{"connectionId":"no","method":"ping"}}',
        '{"jsonrpc":"2.0","method":"mcp/message","params":{"serverId":"no","requestId":"r1","method":"notifications/x"}}',
        '{"jsonrpc":"2.0","method":"mcp/message","params":{"connectionId":"no","method":"notifications/x"}}',
        '{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}',
        "junk",
    ]
)
step = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(NAMES), small, st.booleans()),
    st.tuples(st.just("open"), st.sampled_from(NAMES), small, st.booleans()),
    st.tuples(
        st.just("call"), small, st.sampled_from(["who", "hang", "bad", "elicit", "nope"]), st.booleans(),
        st.sampled_from([0, "", "p", 7]),
    ),
    st.tuples(st.just("call"), small, st.sampled_from(["who", "hang", "elicit"]), st.booleans(), st.just(0)),
    st.tuples(st.just("close"), small, st.booleans()),
    st.tuples(st.just("cancel"), small, st.sampled_from(["$/cancel_request", "mcp/cancel"])),
    st.tuples(st.just("inner_cancel"), small),
    st.tuples(
        st.just("answer"), small,
        st.sampled_from(
            [
                {"result": {"action": "accept", "content": {"value": True}}}, {"result": {}},
                {"error": {"code": 1, "message": ""}},
            ]
        ),
    ),
    st.tuples(st.just("illegal"), junk),
    st.tuples(
        st.just("illegal_request"), st.sampled_from(["mcp/connect", "mcp/message", "_mcp/connect", "mcp/disconnect"]),
        st.sampled_from(
            [None, [], {}, {"connectionId": "no", "method": "x"}, {"serverId": "no", "requestId": "r", "method": "x"}]
        ),
    ),
    st.tuples(st.just("forge"), boxes, forged),
    st.tuples(st.just("withdraw"), small),
    st.tuples(st.just("redeclare"), boxes),
    st.tuples(st.just("restart"), boxes),
    st.tuples(st.just("detach"), st.just("b")),
)  # fmt: skip


EXAMPLES = int(os.environ.get("SANDPORT_EXAMPLES", "40"))
"""Stories; a long search sets more."""


@pytest.mark.timeout(3 * max(EXAMPLES, 40))
@settings(max_examples=EXAMPLES)
@given(st.lists(step, min_size=1, max_size=25))
def test_invariants_hold_through_any_traffic(steps: list[Any]) -> None:
    async def story() -> None:
        before = len(asyncio.all_tasks())
        await World().run(steps)
        assert len(asyncio.all_tasks()) == before

    anyio.run(story)
