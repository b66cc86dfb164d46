"""The port over real channels. Its rules are held by the vectors; here is the moving of texts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandport import ChannelClosed, LocalError, MemoryChannel, Port, PortLimits, memory_channel_pair
from sandport.port import PortCore

from .kit import RawAgent
from .test_codec import json_values


class Ends:
    """A running port and the far ends of its lanes."""

    def __init__(self, port: Port, agent: MemoryChannel, boxes: dict[str, MemoryChannel]) -> None:
        self.port = port
        self.agent = RawAgent(agent)
        self.client = RawAgent(port.acp)  # type: ignore[arg-type]
        self.boxes = boxes


@asynccontextmanager
async def ported(
    *names: str, limits: PortLimits | None = None, buffer: int = 64, agent_buffer: int = 64
) -> AsyncIterator[Ends]:
    agent, ours = memory_channel_pair(agent_buffer)
    port = Port(ours, limits)
    async with anyio.create_task_group() as tasks:
        await tasks.start(port.run)
        boxes = {}
        for name in names:
            lane, boxes[name] = memory_channel_pair(buffer)
            port.attach(name, lane, f"{name}.")
            port.core.declare(name, f"S{name}")
        yield Ends(port, agent, boxes)
        await agent.aclose()


def call(server: str, number: int, method: str = "tools/list") -> dict[str, Any]:
    params = {"serverId": server, "requestId": f"r{number}", "method": method, "params": {}}
    return {"jsonrpc": "2.0", "id": number, "method": "mcp/message", "params": params}


async def read(end: MemoryChannel) -> dict[str, Any]:
    with anyio.fail_after(2):
        return json.loads(await end.receive())  # type: ignore[no-any-return]


async def read_on(end: Any) -> None:
    while True:
        await end.receive()


async def test_two_lanes() -> None:
    async with ported("a", "b") as ends:
        for name in ("a", "b"):
            await ends.agent.send(call(f"S{name}", ord(name)))
            assert (await read(ends.boxes[name]))["id"] == ord(name)
        await ends.agent.send({"jsonrpc": "2.0", "method": "session/update", "params": {}})
        assert (await ends.client.receive())["method"] == "session/update"
        await ends.client.send({"jsonrpc": "2.0", "id": 1, "method": "session/prompt"})
        assert (await ends.agent.receive())["method"] == "session/prompt"
        for name in ("b", "a"):
            await ends.boxes[name].send(json.dumps({"jsonrpc": "2.0", "id": ord(name), "result": {"result": {}}}))
            assert (await ends.agent.receive())["id"] == ord(name)
        assert ends.port.core.open_requests == 0


async def test_a_sandbox_that_ends_is_detached_and_its_requests_answered() -> None:
    """R07."""
    async with ported("a", "b") as ends:
        await ends.agent.send(call("Sa", 1))
        await read(ends.boxes["a"])
        with anyio.fail_after(1):
            await ends.boxes["a"].aclose()
            answer = await ends.agent.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -33002)
        await ends.agent.send(call("Sa", 2))
        assert (await ends.agent.receive())["error"]["code"] == -33001
        await ends.agent.send(call("Sb", 3))
        assert (await read(ends.boxes["b"]))["id"] == 3
        await ends.port.withdraw("Sb")
        assert (await ends.agent.receive())["error"]["code"] == -33002


@pytest.mark.parametrize("closer", ["agent", "client"])
async def test_r09_either_end_closes_everything(closer: str) -> None:
    async with ported("a") as ends:
        await ends.agent.send(call("Sa", 1))
        await read(ends.boxes["a"])
        await (ends.agent.channel if closer == "agent" else ends.client.channel).aclose()
        for end in (ends.boxes["a"], ends.client.channel, ends.agent.channel):
            with anyio.fail_after(2), pytest.raises(ChannelClosed):
                await read_on(end)
        with pytest.raises(LocalError):
            ends.port.attach("c", memory_channel_pair()[0], "c.")


async def test_what_came_before_the_end_is_delivered() -> None:
    async with ported() as ends:
        for n in range(200):
            await ends.agent.send({"jsonrpc": "2.0", "method": "session/update", "params": n})
        await ends.agent.channel.aclose()
        assert [(await ends.client.receive())["params"] for _ in range(200)] == list(range(200))


async def test_a_sandbox_that_does_not_read_holds_up_nobody() -> None:
    """Beyond its queue it is answered for; what nobody waits for is counted."""
    limits = PortLimits(max_queued=10)
    async with ported("a", "b", limits=limits, buffer=4) as ends:
        for n in range(30):
            await ends.agent.send(call("Sa", n))
        refused = [await ends.agent.receive() for _ in range(16)]
        assert {answer["error"]["code"] for answer in refused} == {-33000}
        assert all(answer["error"]["data"] == {"limit": "max_queued"} for answer in refused)
        # The others and the ACP client go on.
        await ends.agent.send(call("Sb", 100))
        assert (await read(ends.boxes["b"]))["id"] == 100
        await ends.agent.send({"jsonrpc": "2.0", "method": "session/update"})
        assert (await ends.client.receive())["method"] == "session/update"
        for _ in range(30):
            await ends.agent.notify("$/cancel_request", {"requestId": 0})
        await ends.agent.send(call("Sb", 101))
        assert (await read(ends.boxes["b"]))["id"] == 101
        assert ends.port.core.dropped["overflow"] > 0
        assert ends.port.core.open_requests == 14 + 2


async def test_the_queue_is_bounded_in_characters_too() -> None:
    limits = PortLimits(max_queued_chars=1000)
    async with ported("a", limits=limits, buffer=1) as ends:
        for n in range(12):
            await ends.agent.send(call("Sa", n, "x" * 200))
        assert (await ends.agent.receive())["error"]["data"] == {"limit": "max_queued_chars"}


async def test_a_slow_client_slows_the_channel_and_loses_nothing() -> None:
    count, sent = 3000, 0
    async with ported() as ends, anyio.create_task_group() as tasks:

        async def flood() -> None:
            nonlocal sent
            for n in range(count):
                await ends.agent.send({"jsonrpc": "2.0", "method": "session/update", "params": n})
                sent += 1

        tasks.start_soon(flood)
        await anyio.wait_all_tasks_blocked()
        assert sent < 1024 + 3 * 64 + 5
        for n in range(count):
            assert (await ends.client.receive())["params"] == n


async def test_a_slow_agent_slows_the_sandbox() -> None:
    sent = 0
    async with ported("a", buffer=4, agent_buffer=4) as ends, anyio.create_task_group() as tasks:
        await ends.agent.send(call("Sa", 1))
        await read(ends.boxes["a"])

        async def flood() -> None:
            nonlocal sent
            params = {"serverId": "Sa", "requestId": "r1", "method": "notifications/progress", "params": {}}
            for _ in range(500):
                await ends.boxes["a"].send(json.dumps({"jsonrpc": "2.0", "method": "mcp/message", "params": params}))
                sent += 1

        tasks.start_soon(flood)
        await anyio.wait_all_tasks_blocked()
        assert sent < 20
        for _ in range(500):
            await ends.agent.receive()
        assert sent == 500
        assert ends.port.core.dropped == {}


# -- fuzz: whatever comes from wherever, the core answers or drops, and raises nothing -----------------------------

ids = st.sampled_from([0, 1, "a.1", "b.1", "x", None, 1.5, True, [], {}]) | json_values
methods = (
    st.sampled_from(
        [
            "mcp/connect",
            "mcp/message",
            "mcp/disconnect",
            "_mcp/connect",
            "_mcp/message",
            "_mcp/disconnect",
            "$/cancel_request",
            "mcp/cancel",
            "session/prompt",
            "",
            None,
        ]
    )
    | json_values
)
params_ = (
    st.fixed_dictionaries(
        {},
        optional={
            "serverId": st.sampled_from(["Sa", "Sb", "no"]) | json_values,
            "acpId": st.sampled_from(["Sa", "Sb"]) | json_values,
            "connectionId": st.sampled_from(["c1", "c2"]) | json_values,
            "requestId": st.sampled_from([0, 1, "r", "a.1"]) | json_values,
            "method": st.sampled_from(["initialize", "ping", "notifications/x"]) | json_values,
            "params": json_values,
        },
    )
    | json_values
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": ids,
        "method": methods,
        "params": params_,
        "result": st.sampled_from([{"connectionId": "c1"}, {"connectionId": "c2"}, {}]) | json_values,
        "error": st.sampled_from([{"code": 1, "message": "x"}, {}]) | json_values,
    },
)
sources = st.sampled_from(["channel", "acp", "a", "b", "nobody"])


@settings(max_examples=200)
@given(st.lists(st.tuples(sources, messages.map(json.dumps) | st.text(max_size=30)), max_size=25))
def test_fuzz_the_core_raises_nothing(texts: list[tuple[str, str]]) -> None:
    core = PortCore()
    for name in ("a", "b"):
        core.attach(name, f"{name}.")
        core.declare(name, f"S{name}")
    for source, text in texts:
        if source == "channel":
            out = core.from_channel(text)
        elif source == "acp":
            out = core.from_acp(text)
        else:
            out = core.from_sandbox(source, text)
        for to, sent in out:
            assert to in ("channel", "acp", "sandbox:a", "sandbox:b")
            # What the port writes itself is JSON; what it passes on from the ACP client is not its to judge.
            if to != "acp" and source != "acp":
                assert isinstance(json.loads(sent), dict)
            if to == "channel" and source in ("a", "b"):
                message = json.loads(sent)
                assert message.get("method", "mcp/message") in ("mcp/message", "_mcp/message")
    core.close()
    assert core.open_requests == 0
