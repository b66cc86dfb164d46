"""The bridge with a real agent that has no MCP-over-ACP: stock agentpool, over http and over the stdio shim."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import Context, FastMCP

from sandport import Port, ToolHost, memory_channel_pair
from sandport.codec import encode
from sandport.rpc import Peer
from sandport_native.bridge.conductor import open_bridge
from sandport_native.process import AgentSpec, open_agent

from .acp_client import AGENTPOOL, ROOT, START, Client, StdioChannel, agentpool_env

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


class Recorder:
    """Both sides of a bridge, without any process."""

    def __init__(self) -> None:
        self.client: list[dict[str, Any]] = []
        self.agent: list[str] = []

    async def to_client(self, text: str) -> None:
        self.client.append(json.loads(text))

    async def to_agent(self, text: str) -> None:
        self.agent.append(text)


def hello(**mcp: Any) -> str:
    return encode({"jsonrpc": "2.0", "id": 0, "result": {"agentCapabilities": {"mcpCapabilities": mcp}}})


def opener(request_id: int, method: str = "session/new", **params: Any) -> str:
    entry = {"type": "acp", "name": "page", "id": "X", "serverId": "X"}
    other = {"name": "local", "command": "x", "args": [], "env": []}
    return encode(
        {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"mcpServers": [entry, other], **params}}
    )


@asynccontextmanager
async def bridged(folder: str | None = None, **mcp: Any) -> AsyncIterator[tuple[Any, Recorder]]:
    sides = Recorder()
    async with open_bridge(sides.to_client, sides.to_agent, folder=folder) as bridge:
        await bridge.from_client('{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}')
        await bridge.from_agent(hello(**mcp))
        yield bridge, sides


async def test_an_agent_that_has_it_is_left_alone() -> None:
    async with bridged(acp=True) as (bridge, sides):
        text = opener(1).replace(" ", "  ")
        await bridge.from_client(text)
        assert sides.agent[-1] == text
        await bridge.from_agent('{"jsonrpc":"2.0","id":9,  "method":"mcp/connect","params":{"acpId":"X"}}')
        assert sides.client[-1]["method"] == "mcp/connect"


@pytest.mark.parametrize("mcp", [{}, {"acp": False}, {"acp": None}, {"http": True}])
async def test_capability_is_lent(mcp: dict[str, Any]) -> None:
    async with bridged(**mcp) as (_, sides):
        assert sides.client[-1]["result"]["agentCapabilities"]["mcpCapabilities"]["acp"] is True


async def test_acp_entries_become_http_with_a_secret_each() -> None:
    async with bridged(http=True) as (bridge, sides):
        await bridge.from_client(opener(1))
        await bridge.from_client(opener(2))
        first, second = (json.loads(text)["params"]["mcpServers"] for text in sides.agent[-2:])
        assert [entry.get("type") for entry in first] == ["http", None]
        assert first[0]["url"].startswith("http://127.0.0.1:")
        assert first[0]["headers"] != second[0]["headers"]
        assert first[0]["url"] != second[0]["url"]


async def test_acp_entries_become_stdio_where_there_is_no_http() -> None:
    async with bridged() as (bridge, sides):
        await bridge.from_client(opener(1))
        entry = json.loads(sides.agent[-1])["params"]["mcpServers"][0]
        assert entry["command"] == sys.executable
        assert {variable["name"] for variable in entry["env"]} == {"SANDPORT_BRIDGE_PORT", "SANDPORT_BRIDGE_SECRET"}


@pytest.mark.parametrize("mcp", [{"http": True}, {"acp": True}], ids=["bridged", "native"])
@pytest.mark.parametrize(("given", "seen"), [("/", "/home/work"), ("/home/other", "/home/other")])
async def test_a_client_without_a_folder_gets_the_agent_s(mcp: dict[str, Any], given: str, seen: str) -> None:
    async with bridged(folder="/home/work", **mcp) as (bridge, sides):
        for method in ("session/new", "session/load", "session/resume", "session/fork"):
            await bridge.from_client(opener(1, method, cwd=given, sessionId="s"))
            assert json.loads(sides.agent[-1])["params"]["cwd"] == seen


async def test_only_the_folder_of_a_session_is_changed_for_an_agent_that_has_it() -> None:
    async with bridged(folder="/home/work", acp=True) as (bridge, sides):
        new = '{"jsonrpc":"2.0","id":%s,  "method":"%s","params":{"cwd":%s,"big":9007199254740993,"\\ud800":[]}}'
        for text in (
            new % (1, "session/new", '"/srv"'),
            new % (2, "session/list", '"/"'),
            new % (3, "mcp/message", '"/"'),
            new % (4, "session/new", "null"),
            '{"id":5,"method":"session/new","params":["cwd",{"cwd":"/"}]}',
            '{"id":6,"result":{"cwd":"/"}}',
            '{"cwd":"/"',
        ):
            await bridge.from_client(text)
            assert sides.agent[-1] == text
        await bridge.from_client(new % (7, "session/new", '"/"'))
        assert json.loads(sides.agent[-1]) == json.loads(new % (7, "session/new", '"/home/work"'))
        assert "9007199254740993" in sides.agent[-1]


async def test_bad_declarations_are_answered_here() -> None:
    async with bridged(http=True) as (bridge, sides):
        before = len(sides.agent)
        await bridge.from_client(
            '{"jsonrpc":"2.0","id":5,"method":"session/new","params":{"mcpServers":[{"type":"acp","name":"x"}]}}'
        )
        assert len(sides.agent) == before
        assert sides.client[-1]["error"]["code"] == -32602


async def test_nothing_is_lent_to_an_agent_that_has_not_said_what_it_takes() -> None:
    """P09: a client that does not wait is told so; its other messages pass."""
    sides = Recorder()
    async with open_bridge(sides.to_client, sides.to_agent) as bridge:
        await bridge.from_client(opener(1))
        assert (sides.agent, sides.client[-1]["id"], sides.client[-1]["error"]["code"]) == ([], 1, -32600)
        for text in ('{"jsonrpc":"2.0","id":2,"method":"session/new","params":{}}', '{"id":3,"method":"initialize"}'):
            await bridge.from_client(text)
            assert sides.agent[-1] == text
        await bridge.from_agent('{"jsonrpc":"2.0","id":3,"error":{"code":-32000,"message":"no"}}')
        await bridge.from_client(opener(4))
        assert (len(sides.agent), sides.client[-1]["id"]) == (2, 4)


async def test_nobody_gets_in_without_the_secret() -> None:
    async with bridged(http=True) as (bridge, sides):
        await bridge.from_client(opener(1))
        entry = json.loads(sides.agent[-1])["params"]["mcpServers"][0]
        host, _, path = entry["url"].removeprefix("http://").partition("/")
        address, _, port = host.partition(":")

        async def get(target: str, authorization: str) -> bytes:
            async with await anyio.connect_tcp(address, int(port)) as stream:
                lines = [
                    f"GET {target} HTTP/1.1",
                    f"Host: {host}",
                    f"Authorization: {authorization}",
                    "Connection: close",
                ]
                head = "\r\n".join(lines) + "\r\n\r\n"
                await stream.send(head.encode())
                return (await stream.receive()).partition(b"\r\n")[0]

        assert b" 403 " in await get(f"/{path}", "Bearer wrong")
        assert b" 404 " in await get("/.well-known/oauth-authorization-server/mcp", "x")
        assert b" 404 " in await get("/nobody/mcp", entry["headers"][0]["value"])
        await bridge.from_agent('{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no session"}}')
        assert b" 404 " in await get(f"/{path}", entry["headers"][0]["value"])  # it ended with its session


async def test_messages_of_no_concern_pass_as_text() -> None:
    async with bridged(http=True) as (bridge, sides):
        for text in [
            '{"id": 9007199254740993, "method": "x",  "params": {"\\ud800": 1}}',
            "no json",
            '{"id":"q","result":{}}',
        ]:
            await bridge.from_client(text)
            assert sides.agent[-1] == text


@pytest.fixture(params=["http", "stdio"])
async def page(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str) -> AsyncIterator[Client]:
    """A page whose agent is stock agentpool behind the bridge; `stdio` hides its http from the bridge."""
    server: FastMCP = FastMCP("page")
    started, ended = anyio.Event(), anyio.Event()

    @server.tool
    def echo(value: str) -> str:
        """Give back the value."""
        return value

    @server.tool
    def boom() -> str:
        raise ValueError("kaputt")

    @server.tool
    async def steps(ctx: Context) -> str:
        await ctx.report_progress(1, 2, "half")
        return "stepped"

    @server.tool
    async def hang() -> str:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return "never"

    agent_bin = AGENTPOOL.with_name("agentpool")
    config = ROOT / "native" / "sandport_native" / "demo" / "agents.yml"
    command = [str(agent_bin), "serve-acp", str(config), "--agent", "demo"]
    spec = AgentSpec("stock", command, agentpool_env(tmp_path), tmp_path)
    async with ToolHost() as host, open_agent(spec) as process, anyio.create_task_group() as tasks:
        host.mount(server, "page")
        outer, inner = memory_channel_pair()
        agent_side = StdioChannel(process)

        async with open_bridge(inner.send, agent_side.send) as bridge:

            async def up() -> None:
                while True:
                    await bridge.from_client(await inner.receive())

            async def down() -> None:
                while True:
                    text = await agent_side.receive()
                    if request.param == "stdio":
                        text = text.replace('"http":true', '"http":false')
                    await bridge.from_agent(text)

            tasks.start_soon(up)
            tasks.start_soon(down)
            port = Port(outer)
            await tasks.start(port.run)
            lane_outer, lane_inner = memory_channel_pair()
            port.attach("host", lane_outer, "sp0.")
            tasks.start_soon(host.serve, lane_inner, "sp0.")
            client: Client
            peer = Peer(
                port.acp, lambda inbound: client._on_request(inbound), lambda m, p: client._on_notification(m, p)
            )
            client = Client(process, agent_side, host, port, peer)
            client.started, client.ended = started, ended  # type: ignore[attr-defined]
            tasks.start_soon(peer.run)
            with anyio.fail_after(START):
                assert (await client.initialize())["agentCapabilities"]["mcpCapabilities"]["acp"] is True
            yield client
            tasks.cancel_scope.cancel()


async def test_stock_agentpool_uses_the_page(page: Client) -> None:
    session = await page.open("page")
    assert "`echo` returned:\n\n```\nhi\n```" in (await page.prompt(session, 'Call echo with {"value": "hi"}')).text
    turn = await page.prompt(session, "Call steps")
    assert "`steps` returned:\n\n```\nstepped\n```" in turn.text
    assert any(str(update.get("title")).startswith("half") for update in turn.tool_updates())

    turns = []

    async def run() -> None:
        turns.append(await page.prompt(session, "Call hang"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(20):
            await page.started.wait()  # type: ignore[attr-defined]
        await page.peer.notify("session/cancel", {"sessionId": session})
        with anyio.fail_after(5):
            await page.ended.wait()  # type: ignore[attr-defined]
        tasks.cancel_scope.cancel()  # stock agentpool may never answer a cancelled prompt
    await page.request("session/close", {"sessionId": session})
    assert page.port.core.connections("host") == []
