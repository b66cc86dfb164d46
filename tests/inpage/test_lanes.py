"""The agent's end of the channel: which lane a message goes to, and what the SDK gets to see of it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandport.channel import MemoryChannel, memory_channel_pair
from sandport.errors import ChannelClosed

sys.path.insert(0, str(Path(__file__).parents[2] / "browser" / "agent"))

from sandport_inpage._lanes import DECLARED, AcpTransport, Lanes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def lanes() -> AsyncIterator[tuple[MemoryChannel, Lanes]]:
    outer, inner = memory_channel_pair(math.inf)
    split = Lanes(inner)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(split.run)
        yield outer, split
        await outer.aclose()


ACP = [
    {"id": 1, "method": "initialize", "params": {}},
    {"id": "mcp-1", "method": "session/prompt", "params": {}},
    {"method": "session/cancel", "params": {"sessionId": "s"}},
    {"id": 0, "result": {}},
    {"id": "1", "result": {}},
    {"id": 7, "error": {"code": 1, "message": "x"}},
    {"id": None, "error": {"code": 1, "message": "x"}},
]
MCP = [
    {"id": "sp1.0", "method": "mcp/message", "params": {}},
    {"method": "mcp/message", "params": {}},
    {"id": 3, "method": "_mcp/message", "params": {}},
    {"id": "mcp-0", "result": {}},
    {"id": "mcp-0", "error": {"code": 1, "message": "x"}},
    {"id": 9, "method": "$/cancel_request", "params": {"requestId": 1}},
]


@pytest.mark.parametrize("message", ACP)
async def test_acp_lane(message: dict[str, Any]) -> None:
    await goes_to(message, "acp")


@pytest.mark.parametrize("message", MCP)
async def test_mcp_lane(message: dict[str, Any]) -> None:
    await goes_to(message, "mcp")


async def goes_to(message: dict[str, Any], wanted: str) -> None:
    text = json.dumps({"jsonrpc": "2.0", **message})
    async with lanes() as (outer, split):
        await outer.send(text)
        # The last message of either lane: what came before it has been sorted.
        await outer.send('{"jsonrpc":"2.0","method":"session/end"}')
        await outer.send('{"jsonrpc":"2.0","method":"mcp/message"}')
        got = {"acp": await split.acp.receive(), "mcp": await split.mcp.receive()}
    assert got[wanted] == text
    assert [lane for lane, received in got.items() if received == text] == [wanted]


async def test_a_cancellation_concerns_both_lanes() -> None:
    text = '{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":4}}'
    async with lanes() as (outer, split):
        await outer.send(text)
        assert await split.acp.receive() == text
        assert await split.mcp.receive() == text


async def test_no_message_is_answered_by_one_lane_only() -> None:
    async with lanes() as (outer, split):
        await outer.send("not json")
        assert await split.mcp.receive() == "not json"
        await outer.send('{"jsonrpc":"2.0","method":"session/end"}')
        assert "session/end" in await split.acp.receive()


async def test_both_lanes_end_with_the_channel() -> None:
    outer, inner = memory_channel_pair(math.inf)
    split = Lanes(inner)
    await outer.aclose()
    await split.run()
    for lane in (split.acp, split.mcp):
        with pytest.raises(ChannelClosed):
            await lane.receive()


async def received(*messages: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """What the SDK sees of messages, and the sessions whose prompt was cancelled."""
    outer, inner = memory_channel_pair(math.inf)
    cancelled: list[str] = []
    transport = AcpTransport(inner, cancelled.append)
    for message in messages:
        await outer.send(json.dumps({"jsonrpc": "2.0", **message}))
    await outer.aclose()
    seen = []
    while (message_seen := await transport.receive()) is not None:
        seen.append(message_seen)
    return seen, cancelled


async def test_lent_servers_pass_the_sdk_as_they_came() -> None:
    servers = [
        {"type": "acp", "name": "one", "id": "a"},
        {"type": "acp", "name": "two", "serverId": "b"},
        {"type": "http", "name": "three", "url": "acp:c", "headers": []},
        {"type": "acp", "name": "wrong"},
        {"name": "native", "command": "x", "args": [], "env": []},
    ]
    params = {"cwd": "/", "mcpServers": servers, "_meta": {DECLARED: "forged", "x": 1}}
    (seen,), _ = await received({"id": 1, "method": "session/new", "params": params})
    assert seen["params"]["_meta"] == {"x": 1, DECLARED: servers[:4]}
    assert seen["params"]["mcpServers"] == servers[4:]


@pytest.mark.parametrize("servers", [None, {}, "x", []])
async def test_no_servers(servers: Any) -> None:
    params = {"cwd": "/", "mcpServers": servers}
    (seen,), _ = await received({"id": 1, "method": "session/load", "params": params})
    assert seen["params"]["mcpServers"] == []
    assert seen["params"]["_meta"] == {DECLARED: []}


async def test_a_prompt_is_cancelled_by_its_request_id() -> None:
    prompt = {"id": 4, "method": "session/prompt", "params": {"sessionId": "s"}}
    cancel = {"method": "$/cancel_request", "params": {"requestId": 4}}
    other = {"method": "$/cancel_request", "params": {"requestId": "4"}}
    seen, cancelled = await received(prompt, other, cancel)
    assert [message["method"] for message in seen] == ["session/prompt"]
    assert cancelled == ["s"]


async def test_delete_passes_as_an_extension() -> None:
    (seen,), _ = await received({"id": 1, "method": "session/delete", "params": {"sessionId": "s"}})
    assert seen["method"] == "_session/delete"


async def test_errors_leave_with_data() -> None:
    outer, inner = memory_channel_pair(math.inf)
    transport = AcpTransport(inner, lambda _: None)
    await transport.send({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no"}})
    assert json.loads(await outer.receive())["error"]["data"] is None
    await inner.aclose()
    with pytest.raises(ConnectionError):
        await transport.send({"jsonrpc": "2.0", "method": "x", "params": {}})
