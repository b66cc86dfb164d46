"""All of MCP through the bridge: an agent on the official MCP SDK, over http and stdio, in both eras of MCP."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from fastmcp import Context, FastMCP
from mcp.shared.exceptions import MCPError
from mcp_types import SamplingMessage, TextContent

from sandport import HostLimits, Port, ToolHost, ask, memory_channel_pair
from sandport.rpc import Peer
from sandport_native.bridge.conductor import Bridge, open_bridge
from sandport_native.process import AgentSpec, open_agent

from .acp_client import START, Client, StdioChannel
from .conftest import HERE, alive, gone

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    # Sampling and roots are of the older revisions, which agents still speak.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

AGENT = [sys.executable, str(HERE / "agents" / "mcp_agent.py")]
WAYS = {
    "http, handshake": [],
    "http, stateless": ["--era", "auto"],
    "stdio, handshake": ["--no-http"],
    "stdio, stateless": ["--no-http", "--era", "auto"],
}
"""How the agent reaches the bridge."""

HANDSHAKE = [way for way in WAYS if "handshake" in way]
STATELESS = [way for way in WAYS if "stateless" in way]


class PageTools:
    """What the page lends, and what a test sees of it."""

    def __init__(self) -> None:
        self.running = 0
        self.changed = anyio.Event()
        self.server: FastMCP = FastMCP("page", instructions="Handle with care.")
        self._mount()

    def _count(self, step: int) -> None:
        self.running += step
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, running: int) -> None:
        """Wait until so many calls of `hang` run."""
        with anyio.fail_after(10):
            while self.running != running:
                await self.changed.wait()

    def _mount(self) -> None:
        server = self.server

        @server.tool
        def echo(value: Any) -> Any:
            return value

        @server.tool
        def wrap(value: Any) -> dict[str, Any]:
            return {"value": value}

        @server.tool
        def fail() -> str:
            raise ValueError("kaputt")

        @server.tool
        async def steps(count: int, name: str, ctx: Context) -> str:
            for step in range(1, count + 1):
                await ctx.report_progress(step, count, f"{name} {step}")
                await anyio.lowlevel.checkpoint()
            return name

        @server.tool
        async def hang(ctx: Context) -> str:
            self._count(+1)
            try:
                await ctx.report_progress(1)
                await anyio.sleep_forever()
            finally:
                self._count(-1)
            return "never"

        @server.tool
        async def question(ctx: Context) -> str:
            answer = await ask(ctx, "May I?", str)
            return f"{answer.action} {getattr(answer, 'data', None)}"

        @server.tool
        async def tell(ctx: Context) -> str:
            for number in range(20):
                await ctx.info(f"news {number}")
            return "told"

        @server.tool
        async def sample(tokens: int, ctx: Context) -> str:
            message = SamplingMessage(role="user", content=TextContent(type="text", text="say"))
            try:
                result = await ctx.session.create_message([message], max_tokens=tokens)
            except MCPError as error:
                return json.dumps([error.code, error.message, error.data])
            assert isinstance(result.content, TextContent)
            return result.content.text

        @server.tool
        async def roots(ctx: Context) -> list[str]:
            return [str(root.uri) for root in (await ctx.session.list_roots()).roots]

        @server.resource("data://thing", description="A thing")
        def thing() -> str:
            return "a thing"

        @server.resource("data://bytes", mime_type="application/octet-stream")
        def data() -> bytes:
            return bytes(range(256))

        @server.resource("data://of/{name}")
        def of(name: str) -> str:
            return f"of {name}"

        @server.resource("bad://thing")
        def bad() -> str:
            raise MCPError(-32077, "no such thing", {"hint": [1, None]})

        @server.prompt
        def greet(name: str) -> str:
            return f"Greet {name}"

    def add_tool(self) -> None:
        """One more tool."""

        @self.server.tool
        def added() -> str:
            return "added"


@dataclass
class Bench:
    """An agent behind the bridge, and the page before it."""

    client: Client
    bridge: Bridge
    tools: PageTools
    session: str = ""
    servers: list[dict[str, Any]] = field(default_factory=list)
    """What the agent saw in place of the page's servers, in the newest session."""

    async def open(self, *names: str, **params: Any) -> str:
        self.session = await self.client.open(*names or ("page",), **params)
        return self.session

    async def do(self, verb: str, session: str | None = None, **order: Any) -> Any:
        """What came of an order to the agent."""
        turn = await self.client.prompt(session or self.session, json.dumps({"do": verb, **order}), 30)
        return json.loads(turn.text) if turn.text else turn.stop_reason

    @property
    def connections(self) -> int:
        """How many the page has given out."""
        return len(self.client.port.core.connections("host"))


@asynccontextmanager
async def bench(*options: str, limits: HostLimits | None = None) -> AsyncIterator[Bench]:
    """A running agent with these options, initialized."""
    tools = PageTools()
    async with (
        ToolHost(limits=limits or HostLimits()) as host,
        open_agent(AgentSpec("agent", [*AGENT, *options])) as process,
        anyio.create_task_group() as tasks,
    ):
        host.mount(tools.server, "page")
        host.mount(FastMCP("other"), "other")
        outer, inner = memory_channel_pair()
        channel = StdioChannel(process)
        async with open_bridge(inner.send, channel.send) as bridge:
            tasks.start_soon(_pump, inner.receive, bridge.from_client)
            tasks.start_soon(_pump, channel.receive, bridge.from_agent)
            port = Port(outer)
            await tasks.start(port.run)
            lane_outer, lane_inner = memory_channel_pair()
            port.attach("host", lane_outer, "sp0.")
            tasks.start_soon(host.serve, lane_inner, "sp0.")
            client: Client
            peer = Peer(
                port.acp, lambda inbound: client._on_request(inbound), lambda m, p: client._on_notification(m, p)
            )
            client = Client(process, channel, host, port, peer)
            tasks.start_soon(peer.run)
            with anyio.fail_after(START):
                assert (await client.initialize())["agentCapabilities"]["mcpCapabilities"]["acp"] is True
            yield Bench(client, bridge, tools)
            tasks.cancel_scope.cancel()


async def _pump(receive: Any, take: Any) -> None:
    while True:
        await take(await receive())


@pytest.fixture(scope="module", params=WAYS)
async def shared(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Bench]:
    """One agent for each way, with a session; for tests that leave it as they found it."""
    async with bench(*WAYS[request.param]) as found:
        await found.open()
        yield found


ways = pytest.mark.parametrize("way", WAYS)


def text_of(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


async def test_tools_are_listed_as_they_are(shared: Bench) -> None:
    tools = (await shared.do("tools"))["tools"]
    own = {tool.name: tool.parameters for tool in await shared.tools.server.list_tools()}
    assert {tool["name"] for tool in tools} == set(own)
    assert next(tool["inputSchema"] for tool in tools if tool["name"] == "steps") == own["steps"]


@pytest.mark.parametrize(
    "value",
    ["\u00fc \U0001f600", 2**53 + 1, {"error": 1, "result": [None]}, [], "x" * 200_000],
    ids=lambda value: str(value)[:12],
)
async def test_values_come_unharmed(shared: Bench, value: Any) -> None:
    result = await shared.do("call", tool="wrap", arguments={"value": value})
    assert result["structuredContent"] == {"value": value}
    assert not result.get("isError")


async def test_a_tool_that_raises_is_a_tool_error(shared: Bench) -> None:
    result = await shared.do("call", tool="fail")
    assert result["isError"]
    assert "kaputt" in text_of(result)


async def test_errors_keep_code_message_and_data(shared: Bench) -> None:
    assert await shared.do("read", uri="bad://thing") == {
        "error": {"code": -32077, "message": "no such thing", "data": {"hint": [1, None]}}
    }
    assert (await shared.do("call", tool="nobody"))["error"]["code"] == -32602


async def test_resources_and_prompts(shared: Bench) -> None:
    resources, templates, prompts = await shared.do("lists")
    assert {item["uri"] for item in resources["resources"]} == {"data://thing", "data://bytes", "bad://thing"}
    assert [item["uriTemplate"] for item in templates["resourceTemplates"]] == ["data://of/{name}"]
    assert [item["name"] for item in prompts["prompts"]] == ["greet"]
    assert (await shared.do("read", uri="data://thing"))["contents"][0]["text"] == "a thing"
    assert (await shared.do("read", uri="data://of/x"))["contents"][0]["text"] == "of x"
    assert "AAECAw" in (await shared.do("read", uri="data://bytes"))["contents"][0]["blob"]
    greeting = await shared.do("prompt", name="greet", arguments={"name": "Ada"})
    assert greeting["messages"][0]["content"]["text"] == "Greet Ada"


async def test_what_the_server_says_of_itself(shared: Bench) -> None:
    assert (await shared.do("about"))["instructions"] == "Handle with care."


async def test_progress_reaches_the_call_that_it_is_of(shared: Bench) -> None:
    """Calls side by side: each hears its own steps, all of them, in order, before its result."""
    parts = [
        {"do": "call", "tool": "steps", "arguments": {"count": count, "name": name}}
        for count, name in [(3, "a"), (7, "b"), (1, "c"), (20, "d")]
    ]
    for part, result in zip(parts, await shared.do("together", of=parts), strict=True):
        count, name = part["arguments"]["count"], part["arguments"]["name"]
        assert text_of(result) == name
        assert result["steps"] == [[step, count, f"{name} {step}"] for step in range(1, count + 1)]


async def test_questions_reach_the_agent(shared: Bench) -> None:
    assert text_of(await shared.do("call", tool="question")) == "accept by all means"


async def test_log_messages_reach_the_agent_in_order(shared: Bench) -> None:
    before = [entry for entry in await shared.do("seen", count=0) if "log" in entry]
    assert text_of(await shared.do("call", tool="tell")) == "told"
    news = [entry["log"] for entry in await shared.do("seen", count=0) if "log" in entry][len(before) :]
    assert [item["msg"] for item in news] == [f"news {number}" for number in range(20)]


async def test_a_call_that_the_agent_takes_back_stops_in_the_page(shared: Bench) -> None:
    assert await shared.do("give up", tool="hang") == {"given up": True}
    await shared.tools.until(running=0)
    assert text_of(await shared.do("call", tool="echo", arguments={"value": "on"})) == "on"


async def test_a_late_cancel_is_ignored(shared: Bench) -> None:
    assert text_of(await shared.do("late")) == "still here"


@pytest.mark.parametrize("way", HANDSHAKE)
async def test_the_page_asks_the_agent(way: str) -> None:
    """Sampling and roots, which the era without a handshake does not have; errors come back whole."""
    async with bench(*WAYS[way]) as found:
        await found.open()
        assert text_of(await found.do("call", tool="sample", arguments={"tokens": 7})) == "sampled 7"
        refused = json.loads(text_of(await found.do("call", tool="sample", arguments={"tokens": 13})))
        assert refused == [-32013, "no model", {"tokens": 13}]
        assert (await found.do("call", tool="roots"))["structuredContent"]["result"] == ["file:///home/page"]
        assert await found.do("ping") == {}

        found.tools.add_tool()
        await found.client.host.list_changed("page")
        assert {"changed": "notifications/tools/list_changed"} in await found.do("seen", count=1)
        assert text_of(await found.do("call", tool="added")) == "added"


@pytest.mark.parametrize("way", STATELESS)
async def test_list_changes_without_a_handshake(way: str) -> None:
    async with bench(*WAYS[way]) as found:
        await found.open()

        @found.tools.server.tool
        async def grow() -> str:
            found.tools.add_tool()
            await found.client.host.list_changed("page")
            return "grown"

        assert await found.do("listen", tool="grow") == "ToolsListChanged"
        assert (await found.do("about"))["version"] == "2026-07-28"


@ways
async def test_session_cancel_stops_what_the_agent_leaves_running(way: str) -> None:
    async with bench(*WAYS[way], "--deaf") as found:
        session = await found.open()
        turns: list[Any] = []

        async def run() -> None:
            turns.append(await found.do("call", tool="hang"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await found.tools.until(running=1)
            await found.client.peer.notify("session/cancel", {"sessionId": session})
            await found.tools.until(running=0)
        # The notice and the call's end reach the agent by two pipes: it ends the turn for the one it reads first.
        assert turns == ["cancelled"] or turns[0]["isError"]
        assert text_of(await found.do("call", tool="echo", arguments={"value": "on"})) == "on"


@ways
async def test_servers_live_as_long_as_their_session(way: str) -> None:
    handshake = "handshake" in way
    async with bench(*WAYS[way]) as found:
        first = await found.open("page", "other")
        await found.do("tools")
        assert found.connections == 2 * handshake
        second = await found.open("page", "other")  # the same names
        result = await found.do("call", first, tool="echo", arguments={"value": "first"})
        assert text_of(result) == "first"
        assert found.connections == 4 * handshake

        await found.client.request("session/close", {"sessionId": first})
        assert found.connections == 2 * handshake
        assert text_of(await found.do("call", second, tool="echo", arguments={"value": "second"})) == "second"

        await found.open("page", method="session/load", sessionId=second)  # its servers are replaced
        assert found.connections == 1 * handshake
        assert text_of(await found.do("call", second, tool="echo", arguments={"value": "third"})) == "third"
        assert len(found.bridge.servers) == 1


@pytest.mark.parametrize("way", ["http, handshake", "stdio, stateless"])
async def test_a_session_that_fails_leaves_no_server(way: str) -> None:
    async with bench(*WAYS[way]) as found:
        entries = found.client.declare("page")
        with pytest.raises(Exception, match="no such folder"):
            await found.client.request("session/new", {"cwd": "/nowhere", "mcpServers": entries})
        assert len(found.bridge.servers) == 0
        assert found.connections == 0
        await found.open()
        assert (await found.do("tools"))["tools"]


async def test_the_shim_ends_with_its_session() -> None:
    async with bench("--no-http") as found:
        await found.open()
        shims = _children(found.client.process.pid)
        assert shims
        await found.client.request("session/close", {"sessionId": found.session})
        for pid in shims:
            await gone(pid)


async def test_the_loopback_server_answers_probes_as_agents_expect() -> None:
    """OAuth metadata is not found, a bare GET is refused and so is HEAD; nobody is let in without the secret."""
    async with bench() as found, httpx2.AsyncClient() as http:
        await found.open()
        sent = [json.loads(text) for text in found.client.channel.sent]
        entry = next(item for item in sent if item.get("method") == "session/new")["params"]["mcpServers"][0]
        headers = {header["name"]: header["value"] for header in entry["headers"]}
        origin, key, _ = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/([\w-]+)(/mcp)", entry["url"]).groups()  # type: ignore[union-attr]
        well_known = "/.well-known/oauth-authorization-server"
        for path in (well_known, f"{well_known}/{key}/mcp", f"/{key}/mcp{well_known}", f"/{key}", "/"):
            assert (await http.get(origin + path, headers=headers)).status_code == 404, path
        for method in ("GET", "HEAD"):
            # A stream needs an MCP session; neither starts one.
            assert (await http.request(method, entry["url"], headers=headers)).status_code in (400, 405, 406), method
        for wrong in ({}, {"Authorization": "Bearer wrong"}):
            assert (await http.post(entry["url"], headers=wrong, json={})).status_code == 403
        foreign = await http.post(entry["url"], headers={**headers, "Host": "evil.example"}, json={})
        assert foreign.status_code in (403, 421)


@ways
async def test_a_page_serves_agents_of_the_era_that_it_lacks(way: str) -> None:
    family = "connect" if way in STATELESS else "stateless"
    async with bench(*WAYS[way]) as found:
        declared = found.client.declare("page")
        for entry in declared:
            del entry["serverId" if family == "connect" else "id"]
        result = await found.client.request("session/new", {"cwd": "/tmp", "mcpServers": declared})
        found.session = result["sessionId"]
        assert {tool["name"] for tool in (await found.do("tools"))["tools"]} >= {"echo", "steps"}
        result = await found.do("call", tool="steps", arguments={"count": 2, "name": "x"})
        assert text_of(result) == "x"
        if family == "connect":
            assert result["steps"] == [[1, 2, "x 1"], [2, 2, "x 2"]]


async def test_a_server_that_the_page_does_not_have_is_an_error_for_the_agent() -> None:
    async with bench() as found:
        entry = {"type": "acp", "name": "page", "id": "nobody", "serverId": "nobody"}
        with pytest.raises(Exception, match="nobody"):
            await found.client.request("session/new", {"cwd": "/tmp", "mcpServers": [entry]})


async def test_an_agent_that_stays_is_ended_with_its_children(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sandport.agent")
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(bench("--no-http", "--linger"))
        await found.open()
        pid = found.client.process.pid
        family = _children(pid)
        assert len(family) >= 2  # the shim, and its own
        assert any("child" in record.getMessage() for record in caplog.records)
    for each in (pid, *family):
        assert not alive(each) or await gone(each) is None


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found
