"""The add-on: a real agentpool process on stdio, a real port and a real ToolHost on the other end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from fastmcp import Context, FastMCP
from fastmcp.server.elicitation import AcceptedElicitation
from fastmcp.server.middleware import Middleware
from mcp.shared.exceptions import MCPError
from mcp.types import SamplingMessage, TextContent

from sandport import memory_channel_pair
from sandport.errors import ChannelClosed, PeerError
from sandport_native.lines import MAX_LINE_BYTES

from .acp_client import AGENTPOOL, START, Client, Turn, agentpool_env, run_client
from .conftest import AcpSocket, run_gateway

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(180),
]

BIG = 1915883588174806058


class Refusing(Middleware):
    """Answers a call of `refuse` with an error of the protocol; what a tool raises would be a result."""

    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        if context.message.name == "refuse":
            raise MCPError(-32042, "not now", {"wait": [1, "day"]})
        return await call_next(context)


@dataclass
class Page:
    """The servers in the page, with what tests steer them by."""

    server: FastMCP
    other: FastMCP
    started: anyio.Event
    ended: anyio.Event
    meeting: list[str]
    met: anyio.Event
    words: list[str]
    """What `picky` was called with."""


def make_page() -> Page:
    server: FastMCP = FastMCP("page")
    other: FastMCP = FastMCP("other")
    page = Page(server, other, anyio.Event(), anyio.Event(), [], anyio.Event(), [])

    @server.tool
    def echo(value: Any) -> Any:
        """Give back the value."""
        return value

    @server.tool
    def union(x: int | str, flag: bool | None = None) -> str:
        return f"{type(x).__name__} {x} {flag}"

    @server.tool
    async def meet(name: str) -> str:
        """Waits until two are here: calls one after another would never end."""
        page.meeting.append(name)
        if len(page.meeting) == 2:
            page.met.set()
        with anyio.fail_after(10):
            await page.met.wait()
        return name

    @server.tool
    async def steps(ctx: Context) -> str:
        for number in range(3):
            await ctx.report_progress(number, 3, f"step {number}")
        return "stepped"

    @server.tool
    async def hang() -> str:
        page.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            page.ended.set()
        return "never"

    @server.tool
    def boom() -> str:
        """Raises."""
        raise ValueError("kaputt")

    @server.tool
    def picky(word: str) -> str:
        """Takes one word only."""
        page.words.append(word)
        if word != "right":
            raise ValueError("say right")
        return "at last"

    @server.tool
    def refuse() -> str:
        """Is not reached: see `Refusing`."""
        raise AssertionError

    server.add_middleware(Refusing())

    @server.resource("page://notes")
    def notes() -> str:
        """What was noted."""
        return "remember the milk"

    @server.tool
    async def back(ctx: Context, what: str) -> str:
        """Ask the agent something."""
        session = ctx.session
        if what == "ping":
            await session.send_ping()
            return "pong"
        if what == "roots":
            return json.dumps([str(root.uri) for root in (await session.list_roots()).roots])
        if what == "sample":
            text = "Say something" + " of this" * 100 + " to the end"
            question = SamplingMessage(role="user", content=TextContent(type="text", text=text))
            content = (await session.create_message([question], max_tokens=50, system_prompt="Be brief")).content
            return content.text if isinstance(content, TextContent) else ""
        kinds: dict[str, Any] = {"bool": bool, "choice": ["red", "green"], "text": str}
        answer = await ctx.elicit(f"Question about {what}", response_type=kinds[what])
        return f"{answer.action} {answer.data}" if isinstance(answer, AcceptedElicitation) else answer.action

    @server.prompt
    def greet(name: str) -> str:
        """A greeting."""
        return f"Hello {name}"

    @other.tool(name="echo")
    def other_echo(value: str) -> str:
        return f"other {value}"

    return page


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def page() -> Page:
    return make_page()


@pytest.fixture(scope="module")
async def client(anyio_backend: str, page: Page, home: Path) -> AsyncIterator[Client]:
    async with run_client({"page": page.server, "other": page.other}, home=home) as running:
        running.hello = await running.initialize()  # type: ignore[attr-defined]
        yield running


def permission(choose: Callable[[dict[str, Any]], str | None]) -> Callable[[str, dict[str, Any]], Any]:
    """Answer session/request_permission with the option `choose` names, or cancel."""

    def answer(method: str, params: dict[str, Any]) -> Any:
        option = choose(params)
        if option is None:
            return {"outcome": {"outcome": "cancelled"}}
        by_name = {item["name"]: item["optionId"] for item in params["options"]}
        return {"outcome": {"outcome": "selected", "optionId": by_name[option]}}

    return answer


def shown(text: str) -> str:
    """What a tool returned, from the demo agent's answer."""
    assert "```\n" in text, text
    return text.split("```\n", 1)[1].rsplit("\n```", 1)[0]


def seen(turn: Turn) -> list[str]:
    """The prompts in the model's history. agentpool itself repeats the earlier ones; only their set matters here."""
    return list(dict.fromkeys(turn.text.rpartition("I see: ")[2].split(" | ")))


async def exit_status(client: Client, how: Literal["eof", "sigterm"]) -> int:
    """End the process in one of the two ways a client has, and wait for it."""
    if how == "eof":
        await client.process._stdin.aclose()
    else:
        os.kill(client.process.pid, signal.SIGTERM)
    with anyio.fail_after(12):
        return await client.process._process.wait()


class TestStart:
    async def test_capability(self, client: Client) -> None:
        capabilities = client.hello["agentCapabilities"]  # type: ignore[attr-defined]
        assert capabilities["mcpCapabilities"] == {"http": True, "sse": True, "acp": True}
        assert {"fork", "resume", "close"} <= capabilities["sessionCapabilities"].keys()

    async def test_connects_before_the_session_is_answered(self, client: Client) -> None:
        mark = len(client.channel.received)
        result = await client.request("session/new", {"cwd": "/tmp", "mcpServers": client.declare("page")})
        assert result["_meta"]["sandport"] == {"mcpServers": [{"name": "page", "status": "connected"}]}
        since = client.channel.messages()[mark:]
        methods = [
            m["params"]["method"] if m["method"] == "mcp/message" else m["method"]
            for m in since
            if "mcp/" in m.get("method", "")
        ]
        assert methods[:4] == ["mcp/connect", "initialize", "notifications/initialized", "tools/list"]
        # An inner notification travels as a notification, and every request's answer came before session/new's.
        assert all("id" not in m for m in client.lane("notifications/initialized"))
        assert "result" in since[-1] or any(m.get("result", {}).get("sessionId") for m in since)

    @pytest.mark.parametrize(
        "entry",
        [
            {"type": "acp", "name": "x"},
            {"type": "acp", "id": "1", "serverId": "1"},
            {"type": "acp", "name": "x", "id": "", "serverId": ""},
        ],
    )
    async def test_bad_declarations(self, client: Client, entry: dict[str, Any]) -> None:
        with pytest.raises(PeerError) as info:
            await client.request("session/new", {"cwd": "/tmp", "mcpServers": [entry]})
        assert info.value.code == -32602

    async def test_same_server_twice(self, client: Client) -> None:
        (entry,) = client.declare("page")
        with pytest.raises(PeerError) as info:
            await client.request("session/new", {"cwd": "/tmp", "mcpServers": [entry, entry]})
        assert info.value.code == -32602
        assert "share" in json.dumps(info.value.data)


class TestTools:
    @pytest.mark.parametrize("value", [BIG, "text", "é\u2028", True, 1.5, [1, "a"], {"error": {"code": 1}}, {}, ""])
    async def test_values_pass_untouched(self, client: Client, value: Any) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, f"Call echo with {json.dumps({'value': value})}")
        got = shown(turn.text)
        assert got == value if isinstance(value, str) else json.loads(got) == value

    async def test_unions_keep_their_type_and_null_is_left_out(self, client: Client) -> None:
        session = await client.open("page")
        assert shown((await client.prompt(session, 'Call union with {"x": "1"}')).text) == "str 1 None"
        assert shown((await client.prompt(session, 'Call union with {"x": 1, "flag": null}')).text) == "int 1 None"

    @pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 132_000])
    async def test_sizes(self, client: Client, size: int) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, f"Call echo with {json.dumps({'value': 'x' * size})}")
        done = next(update for update in turn.tool_updates() if update.get("status") == "completed")
        assert done["rawOutput"] == "x" * size

    async def test_a_message_over_the_limit_is_answered_and_the_next_works(self, client: Client) -> None:
        """L06, for clients that send what our own port would not."""
        session = await client.open("page")
        params = {"sessionId": session, "prompt": [{"type": "text", "text": "x" * MAX_LINE_BYTES}]}
        message = {"jsonrpc": "2.0", "id": "long", "method": "session/prompt", "params": params}
        await client.process.send(json.dumps(message))
        await client.channel.wait_received(lambda: any(m.get("id") == "long" for m in client.channel.messages()))
        (answer,) = [m for m in client.channel.messages() if m.get("id") == "long"]
        assert f"exceeds the limit of {MAX_LINE_BYTES} bytes" in answer["error"]["message"]
        assert shown((await client.prompt(session, 'Call echo with {"value": "next"}')).text) == "next"

    async def test_answer_streams(self, client: Client) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, "help")
        assert turn.chunks > 20
        assert "not a language model" in turn.text

    async def test_parallel_calls(self, client: Client, page: Page) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, 'Call meet with {"name": "a"} and meet with {"name": "b"}')
        assert turn.stop_reason == "end_turn"
        assert sorted(page.meeting) == ["a", "b"]

    async def test_progress(self, client: Client) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, "Call steps")
        call = next(update["toolCallId"] for update in turn.updates if update["sessionUpdate"] == "tool_call")
        titles = [
            u.get("title") for u in turn.tool_updates() if u["toolCallId"] == call and u.get("status") == "in_progress"
        ]
        assert [str(title).partition(" (")[0] for title in titles] == ["step 0", "step 1", "step 2"]

    async def test_tool_error_reaches_the_model_and_the_turn_goes_on(self, client: Client) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, "Call boom")
        assert turn.stop_reason == "end_turn"
        assert "kaputt" in turn.text
        assert "failed" in turn.text
        assert any(update.get("status") == "failed" for update in turn.tool_updates())
        assert shown((await client.prompt(session, 'Call echo with {"value": "after"}')).text) == "after"

    async def test_protocol_errors_keep_code_message_and_data(self, client: Client, page: Page) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, "Call refuse")
        assert turn.stop_reason == "end_turn"
        assert "not now (code -32042)" in turn.text
        assert '{"wait": [1, "day"]}' in turn.text

        @page.server.tool
        def passing() -> str:
            return "here"

        other = await client.open("page")
        page.server.local_provider.remove_tool("passing")  # and nobody is told
        turn = await client.prompt(other, "Call passing")
        assert turn.stop_reason == "end_turn"
        assert "(code -32602)" in turn.text

    async def test_bad_arguments_reach_the_model(self, client: Client) -> None:
        session = await client.open("page")
        turn = await client.prompt(session, 'Call echo with {"nope": 1}')
        assert turn.stop_reason == "end_turn"
        assert "failed" in turn.text
        assert "nope" in turn.text

    async def test_same_name_on_two_servers(self, client: Client) -> None:
        session = await client.open("page", "other")
        assert "`other_echo`" in (await client.prompt(session, "Which tools are there?")).text
        assert shown((await client.prompt(session, 'Call echo with {"value": "v"}')).text) == "v"
        assert shown((await client.prompt(session, 'Call other_echo with {"value": "v"}')).text) == "other v"

    async def test_added_and_removed_tools_are_seen(self, client: Client, page: Page) -> None:
        session = await client.open("page")
        connection = client.lane("tools/list")[-1]["params"]["connectionId"]
        assert "`fresh`" not in (await client.prompt(session, "Which tools are there?")).text

        def lists() -> int:
            return sum(m["params"]["connectionId"] == connection for m in client.lane("tools/list"))

        async def tell() -> None:
            before = lists()
            await client.host.list_changed("page")
            await client.channel.wait_received(lambda: lists() > before)

        @page.server.tool
        def fresh() -> str:
            return "new"

        await tell()
        assert shown((await client.prompt(session, "Call fresh")).text) == "new"
        page.server.local_provider.remove_tool("fresh")
        await tell()
        assert "no tool" in (await client.prompt(session, "Call fresh")).text

    async def test_a_burst_of_changes_ends_with_the_last_list(self, client: Client, page: Page) -> None:
        """N01: twenty changes in a row; and what a vendor sends beside them does no harm (P17)."""
        session = await client.open("page")
        connection = client.lane("tools/list")[-1]["params"]["connectionId"]
        before = len(client.lane("tools/list"))
        for number in range(20):
            page.server.tool(lambda: "new", name=f"burst_{number}")
            if number > 0:
                page.server.local_provider.remove_tool(f"burst_{number - 1}")
            await client.host.list_changed("page")
            vendor = {"connectionId": connection, "method": "vendor/x", "params": {"number": number}}
            await client.peer.notify("mcp/message", vendor)
        await client.channel.wait_received(lambda: len(client.lane("tools/list")) > before)
        listed = (await client.prompt(session, "Which tools are there?")).text
        assert "`burst_19`" in listed
        assert "`burst_18`" not in listed
        assert shown((await client.prompt(session, "Call burst_19")).text) == "new"
        page.server.local_provider.remove_tool("burst_19")
        await client.host.list_changed("page")

    async def test_tools_are_listed_once(self, client: Client) -> None:
        session = await client.open("page")
        connection = client.lane("tools/list")[-1]["params"]["connectionId"]
        for _ in range(2):
            assert "`echo`" in (await client.prompt(session, "Which tools are there?")).text
        assert [m["params"]["connectionId"] for m in client.lane("tools/list")].count(connection) == 1

    async def test_a_disabled_tool_stays_so_until_it_is_enabled(self, client: Client) -> None:
        """By agentpool's own commands; a list that changes forgets nothing, and other sessions see nothing of it."""
        session, other = await client.open("page"), await client.open("page")
        connection = client.lane("tools/list")[-2]["params"]["connectionId"]

        async def shows_echo(where: str) -> bool:
            return "`echo`" in (await client.prompt(where, "Which tools are there?")).text

        def lists() -> int:
            return sum(m["params"]["connectionId"] == connection for m in client.lane("tools/list"))

        await client.prompt(session, "/disable-tool echo")
        assert not await shows_echo(session)
        before = lists()
        await client.host.list_changed("page")
        await client.channel.wait_received(lambda: lists() > before)
        assert not await shows_echo(session)
        assert await shows_echo(other)
        await client.prompt(session, "/enable-tool echo")
        assert await shows_echo(session)

    async def test_the_list_changes_during_a_turn(self, client: Client, page: Page) -> None:
        """It is listed again while the turn runs, the turn is not disturbed, and the next prompt has the tool."""
        session = await client.open("page")
        connection = client.lane("tools/list")[-1]["params"]["connectionId"]
        go = anyio.Event()

        @page.server.tool
        async def wait_for_it() -> str:
            page.started.set()
            await go.wait()
            return "waited"

        def lists() -> int:
            return sum(m["params"]["connectionId"] == connection for m in client.lane("tools/list"))

        async def tell() -> None:
            before = lists()
            await client.host.list_changed("page")
            await client.channel.wait_received(lambda: lists() > before)

        await tell()
        page.started = anyio.Event()
        turns: list[Turn] = []

        async def run() -> None:
            turns.append(await client.prompt(session, "Call wait_for_it"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await page.started.wait()

            @page.server.tool
            def late() -> str:
                return "here too"

            await tell()
            assert not turns
            go.set()
        assert shown(turns[0].text) == "waited"
        assert shown((await client.prompt(session, "Call late")).text) == "here too"
        for name in ("late", "wait_for_it"):
            page.server.local_provider.remove_tool(name)

    async def test_prompts_become_commands(self, client: Client) -> None:
        session = await client.open("page")
        update = await client.wait_update(
            session,
            lambda u: any(command["name"] == "greet" for command in u.get("availableCommands", ())),
        )
        assert "A greeting" in json.dumps(update)
        await client.prompt(session, "/greet Ada")
        (got,) = client.lane("prompts/get")
        assert got["params"]["params"] == {"name": "greet", "arguments": {"name": "Ada"}}
        # What it gave is put aside for the next prompt of this session, and of no other.
        other = await client.open("page")
        assert "Ada" not in (await client.prompt(other, "Which tools are there?")).text
        assert "Hello Ada" in (await client.prompt(session, "Call this")).text


class TestQuestions:
    """What the page asks back."""

    @pytest.fixture(autouse=True)
    def reset(self, client: Client) -> None:
        client.answers.clear()

    async def ask(self, client: Client, what: str, choose: Callable[[dict[str, Any]], str | None]) -> str:
        client.answers["session/request_permission"] = permission(choose)
        session = await client.open("page")
        return shown((await client.prompt(session, f'Call back with {{"what": "{what}"}}')).text)

    async def test_ping(self, client: Client) -> None:
        assert await self.ask(client, "ping", lambda params: None) == "pong"

    async def test_roots(self, client: Client) -> None:
        assert await self.ask(client, "roots", lambda params: None) == '["file:///tmp"]'

    @pytest.mark.parametrize(
        ("what", "choice", "result"),
        [
            ("bool", "Yes", "accept True"),
            ("bool", "No", "accept False"),
            ("bool", "Decline", "decline"),
            ("bool", None, "cancel"),
            ("choice", "green", "accept green"),
            ("text", None, "decline"),  # buttons cannot fill in a text; nobody is asked
        ],
    )
    async def test_elicitation(self, client: Client, what: str, choice: str | None, result: str) -> None:
        asked: list[dict[str, Any]] = []

        def choose(params: dict[str, Any]) -> str | None:
            asked.append(params)
            return choice

        assert await self.ask(client, what, choose) == result
        if what != "text":
            (question,) = asked
            assert question["toolCall"]["title"] == f"page asks: Question about {what}"

    async def test_sampling_asks_the_person_then_the_model(self, client: Client) -> None:
        shown: list[str] = []

        def choose(params: dict[str, Any]) -> str:
            shown.append(params["toolCall"]["title"])
            return "Allow"

        assert "demo agent" in await self.ask(client, "sample", choose)
        assert "System prompt: Be brief\nSay something" in shown[0]
        assert shown[0].endswith("to the end")  # nothing of it is hidden

    async def test_sampling_refused(self, client: Client) -> None:
        client.answers["session/request_permission"] = permission(lambda params: "Decline")
        session = await client.open("page")
        turn = await client.prompt(session, 'Call back with {"what": "sample"}')
        assert turn.stop_reason == "end_turn"
        assert "failed" in turn.text


class TestCancel:
    async def test_cancel_stops_the_tool_and_the_next_prompt_works(self, client: Client, page: Page) -> None:
        session = await client.open("page")
        page.started, page.ended = anyio.Event(), anyio.Event()
        turns = []

        async def run() -> None:
            turns.append(await client.prompt(session, "Call hang"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            with anyio.fail_after(10):
                await page.started.wait()
            await client.peer.notify("session/cancel", {"sessionId": session})
            with anyio.fail_after(2):
                await page.ended.wait()
        assert turns[0].stop_reason == "cancelled"
        (call,) = [m for m in client.lane("tools/call") if m["params"]["params"]["name"] == "hang"][-1:]
        cancels = [m["params"]["requestId"] for m in client.channel.messages() if m.get("method") == "$/cancel_request"]
        assert call["id"] in cancels
        assert shown((await client.prompt(session, 'Call echo with {"value": "next"}')).text) == "next"

    async def test_cancel_is_only_for_its_own_session(self, client: Client, page: Page) -> None:
        one, two = await client.open("page"), await client.open("page")
        page.started, page.ended = anyio.Event(), anyio.Event()
        turns: dict[str, Any] = {}
        two_ended = anyio.Event()

        async def run(session: str, text: str) -> None:
            turns[session] = await client.prompt(session, text)
            if session == two:
                two_ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, one, "Call hang")
            await page.started.wait()
            tasks.start_soon(run, two, "Which tools are there?")  # waits: the agent object is one
            await anyio.wait_all_tasks_blocked()
            await client.peer.notify("session/cancel", {"sessionId": two})
            with anyio.fail_after(10):
                await two_ended.wait()
            assert turns[two].stop_reason == "cancelled"
            assert not page.ended.is_set()
            await client.peer.notify("session/cancel", {"sessionId": one})
        assert turns[one].stop_reason == "cancelled"
        assert page.ended.is_set()


class TestSessions:
    async def test_tools_are_isolated(self, client: Client) -> None:
        one, two, bare = await client.open("page"), await client.open("other"), await client.open()
        assert shown((await client.prompt(one, 'Call echo with {"value": "x"}')).text) == "x"
        assert shown((await client.prompt(two, 'Call echo with {"value": "x"}')).text) == "other x"
        assert "no tool" in (await client.prompt(bare, 'Call echo with {"value": "x"}')).text
        assert "No page tools" in (await client.prompt(bare, "Which tools are there?")).text

    async def test_close_disconnects(self, client: Client) -> None:
        session = await client.open("page")
        connection = client.lane("tools/list")[-1]["params"]["connectionId"]
        await client.request("session/close", {"sessionId": session})
        gone = [m["params"]["connectionId"] for m in client.channel.messages() if m.get("method") == "mcp/disconnect"]
        assert connection in gone

    @pytest.mark.parametrize("method", ["session/load", "session/resume"])
    async def test_coming_back_replaces_the_servers(self, client: Client, method: str) -> None:
        session = await client.open("page")
        old = client.lane("tools/list")[-1]["params"]["connectionId"]
        await client.open("other", method=method, sessionId=session)
        gone = [m["params"]["connectionId"] for m in client.channel.messages() if m.get("method") == "mcp/disconnect"]
        assert old in gone
        assert shown((await client.prompt(session, 'Call echo with {"value": "x"}')).text) == "other x"

    async def test_coming_back_while_a_call_hangs(self, client: Client, page: Page) -> None:
        session = await client.open("page")
        page.started, page.ended = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.prompt, session, "Call hang")
            await page.started.wait()
            await client.open("page", method="session/resume", sessionId=session)
            assert page.ended.is_set()
        assert shown((await client.prompt(session, 'Call echo with {"value": "again"}')).text) == "again"

    @pytest.mark.parametrize("method", ["session/load", "session/resume"])
    async def test_unknown_session(self, client: Client, method: str) -> None:
        with pytest.raises(PeerError, match="history has no session ses_gone") as info:
            await client.open("page", method=method, sessionId="ses_gone")
        assert info.value.code == -32002

    async def test_fork(self, client: Client) -> None:
        session = await client.open("page")
        fork = await client.request(
            "session/fork", {"sessionId": session, "cwd": "/tmp", "mcpServers": client.declare("other")}
        )
        assert fork["sessionId"] != session
        assert shown((await client.prompt(fork["sessionId"], 'Call echo with {"value": "x"}')).text) == "other x"
        assert shown((await client.prompt(session, 'Call echo with {"value": "x"}')).text) == "x"

    async def test_unknown_connection(self, client: Client) -> None:
        with pytest.raises(PeerError) as info:
            await client.request("mcp/message", {"connectionId": "nope", "method": "ping"})
        assert info.value.code == -32602

    async def test_dead_page_does_not_hold_the_session_up(self, client: Client) -> None:
        dead, sleeper = memory_channel_pair()
        client.port.attach("dead", dead, "sp9.")
        entries = []
        for name in ("ghost", "spook"):
            client.port.core.declare("dead", f"{name}-id")
            entries.append({"type": "acp", "name": name, "id": f"{name}-id", "serverId": f"{name}-id"})
        with anyio.fail_after(10):
            result = await client.request("session/new", {"cwd": "/tmp", "mcpServers": entries})
        for report in result["_meta"]["sandport"]["mcpServers"]:
            assert report["status"] == "failed"
            assert "time" in report["reason"]
        turn = await client.prompt(result["sessionId"], "help")
        assert "**ghost**" in turn.text  # the person is told as well
        assert "**ghost**" not in (await client.prompt(result["sessionId"], "help")).text
        # It wakes up: a connection that nobody waits for any more is closed again, by the port, which saw the
        # cancellation, and by the agent, if the answer reaches it all the same.
        came = [json.loads(await sleeper.receive()) for _ in range(4)]
        first, second = [message["id"] for message in came if message["method"] == "mcp/connect"]
        assert {m["params"]["requestId"] for m in came if m["method"] == "$/cancel_request"} == {first, second}
        await sleeper.send(json.dumps({"jsonrpc": "2.0", "id": first, "result": {"connectionId": "late"}}))
        bye = json.loads(await sleeper.receive())
        assert (bye["method"], bye["params"]) == ("mcp/disconnect", {"connectionId": "late"})
        await client.channel.send(json.dumps({"jsonrpc": "2.0", "id": second, "result": {"connectionId": "later"}}))
        await client.channel.wait_received(
            lambda: any(
                m.get("method") == "mcp/disconnect" and m["params"]["connectionId"] == "later"
                for m in client.channel.messages()
            )
        )
        await client.port.detach("dead", "the test is over")

    async def test_many_rounds_leave_no_server_behind(self, client: Client) -> None:
        for _ in range(int(os.environ.get("SANDPORT_ROUNDS", "10"))):
            session = await client.open("page", "other")
            await client.request("session/close", {"sessionId": session})
        opened = [m for m in client.channel.messages() if m.get("method") == "mcp/connect"]
        assert len(opened) >= 20
        assert client.port.core.open_requests == 0


class TestProcesses:
    """Each in a process of its own, because it is configured otherwise or ends."""

    async def test_switched_off(self, home: Path, page: Page) -> None:
        async with run_client({"page": page.server}, ["--demo", "--no-mcp-over-acp"], home=home) as client:
            hello = await client.initialize()
            assert "acp" not in hello["agentCapabilities"]["mcpCapabilities"]
            session = await client.open("page")
            turn = await client.prompt(session, "Which tools are there?")
            assert "No page tools" in turn.text
            assert "switched off" in turn.text
            assert not any("mcp/" in m.get("method", "") for m in client.channel.messages())
            with pytest.raises(PeerError) as info:
                await client.request("mcp/message", {"connectionId": "x", "method": "ping"})
            assert info.value.code == -32601

    async def test_eof_in_the_middle_of_a_call(self, home: Path, page: Page) -> None:
        page.started = anyio.Event()
        async with run_client({"page": page.server}, home=home) as client:
            await client.initialize()
            session = await client.open("page")
            await client.peer.notify("session/prompt", {})  # ignored: a prompt must be a request

            async def prompt() -> None:
                # Answered with `cancelled`, or cut off with the channel: both are an end.
                with contextlib.suppress(ChannelClosed):
                    assert (await client.prompt(session, "Call hang")).stop_reason == "cancelled"

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prompt)
                await page.started.wait()
                assert await exit_status(client, "eof") == 0

    async def test_a_client_that_hangs_is_not_waited_for(self, home: Path, page: Page) -> None:
        """The good-bye of each server waits 5 s for its answer; then the process ends all the same."""
        async with run_client({"page": page.server}, home=home) as client:
            await client.initialize()
            await client.open("page")
            client.channel.mute = True
            start = anyio.current_time()
            assert await exit_status(client, "sigterm") == 0
            assert 3 < anyio.current_time() - start < 12
            assert [m.get("method") for m in client.channel.messages()].count("mcp/disconnect") == 1

    async def test_retries_resources_and_a_file_with_an_acp_server(self, tmp_path: Path) -> None:
        config = tmp_path / "agents.yml"
        config.write_text(
            "mcp_servers:\n  - {type: acp, name: stored, acp_id: x}\n"
            "agents:\n  memory:\n    type: native\n    model: {type: import, model: memory_model.MODEL}\n"
            "    mcp_servers: [{type: acp, name: another, acp_id: y}]\n"
            "    tools: [{type: import, import_path: memory_model.peek}]\n",
            encoding="utf-8",
        )
        page = make_page()
        env = {"PYTHONPATH": str(Path(__file__).parent / "agents")}
        arguments = [str(config), "--agent", "memory", "--private", "--log-file", str(tmp_path / "log")]
        async with run_client({"page": page.server}, arguments, home=tmp_path, env=env) as client:
            await client.initialize()
            session, bare = await client.open("page"), await client.open()
            turn = await client.prompt(session, "picky")
            assert page.words == ["wrong", "right"]
            assert "say right" in turn.text
            assert "picky gave at last" in turn.text
            assert "remember the milk" in (await client.prompt(session, "peek")).text
            assert "milk" not in (await client.prompt(bare, "peek")).text
            listed = (await client.request("session/list", {}))["sessions"]
            assert {item["sessionId"] for item in listed} == {session, bare}
            log = (tmp_path / "log").read_text(encoding="utf-8")
            assert "stored" in log
            assert "another" in log
            assert await exit_status(client, "eof") == 0

        async with run_client({}, arguments, home=tmp_path, env=env) as client:
            await client.initialize()
            assert (await client.request("session/list", {}))["sessions"] == []
            with pytest.raises(PeerError, match="load or resume"):
                await client.prompt(session, "peek")
            await client.open(method="session/load", sessionId=session)
            assert "picky gave at last" in (await client.prompt(session, "peek")).text

    async def test_sockets_have_a_pool_each(self, home: Path) -> None:
        """Two pages at one gateway: neither reaches a session of the other that is live."""
        command = f"{AGENTPOOL} agentpool serve-acp --demo"
        async with (
            run_gateway(agent=command, env=agentpool_env(home)) as gateway,
            gateway.socket() as one,
            gateway.socket() as two,
        ):
            hello = {"protocolVersion": 1, "clientCapabilities": {}}

            async def begin(socket: AcpSocket) -> None:
                await answer_of(socket, "initialize", hello)
                answer = await answer_of(socket, "session/new", {"cwd": "/", "mcpServers": []})
                sessions[id(socket)] = answer["result"]["sessionId"]

            sessions: dict[int, str] = {}
            with anyio.fail_after(START):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(begin, one)
                    tasks.start_soon(begin, two)
            # A page has no folder to name; the agent's own is meant, not the root of the machine.
            listed = (await answer_of(one, "session/list", {}))["result"]["sessions"]
            ours = {item["cwd"] for item in listed if item["sessionId"] in sessions.values()}
            assert ours == {str(Path.cwd())}
            theirs = {"sessionId": sessions[id(one)], "prompt": [{"type": "text", "text": "help"}]}
            assert "result" in await answer_of(one, "session/prompt", theirs)
            assert (await answer_of(two, "session/prompt", theirs))["error"]["code"] == -32002
            await two.connection.close()
            assert "result" in await answer_of(one, "session/prompt", theirs)

    async def test_conversations_are_apart_and_survive_a_restart(self, tmp_path: Path) -> None:
        config = tmp_path / "agents.yml"
        config.write_text(
            "agents:\n  memory:\n    type: native\n    model: {type: import, model: memory_model.MODEL}\n",
            encoding="utf-8",
        )
        page = make_page()

        def start() -> contextlib.AbstractAsyncContextManager[Client]:
            models = {"PYTHONPATH": str(Path(__file__).parent / "agents")}
            servers = {"page": page.server, "other": page.other}
            return run_client(servers, [str(config), "--agent", "memory"], home=tmp_path, env=models)

        async with start() as client:
            await client.initialize()
            one, two, bad = await client.open("page"), await client.open("page"), await client.open()
            assert seen(await client.prompt(one, "echo apple")) == ["echo apple", "echo gave apple"]
            assert seen(await client.prompt(two, "pear")) == ["pear"]
            assert seen(await client.prompt(one, "plum")) == ["echo apple", "echo gave apple", "plum"]
            assert seen(await client.prompt(bad, "quince")) == ["quince"]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.prompt, two, "hang")
                await page.started.wait()
                await client.peer.notify("session/cancel", {"sessionId": two})
            assert await exit_status(client, "eof") == 0

        with contextlib.closing(sqlite3.connect(tmp_path / "data" / "agentpool" / "history.db")) as history, history:
            spoilt = history.execute("UPDATE message SET messages = '[{}]' WHERE session_id = ?", [bad])
            assert spoilt.rowcount == 1

        async with start() as client:
            await client.initialize()
            await client.open("other", method="session/load", sessionId=one)
            replayed = [
                (u["sessionUpdate"], u["content"]["text"])
                for u in client.updates[one]
                if u["sessionUpdate"] in ("user_message_chunk", "agent_message_chunk")
            ]
            assert ("user_message_chunk", "echo apple") in replayed
            assert ("agent_message_chunk", "I see: echo apple | echo gave apple") in replayed
            assert ("user_message_chunk", "plum") in replayed
            await client.open("page", method="session/resume", sessionId=two)
            assert seen(await client.prompt(one, "echo fig")) == [
                "echo apple", "echo gave apple", "plum", "echo fig", "echo gave other fig",
            ]  # fmt: skip
            assert seen(await client.prompt(two, "echo nut")) == ["pear", "echo nut", "echo gave nut"]  # not `hang`
            with pytest.raises(PeerError, match="could not load session"):
                await client.open("page", method="session/load", sessionId=bad)
            assert await exit_status(client, "sigterm") == 0
            await client.channel.wait_received(
                lambda: sum(m.get("method") == "mcp/disconnect" for m in client.channel.messages()) == 2
            )

    async def test_other_servers_work_beside(self, home: Path, page: Page, tmp_path: Path) -> None:
        async with (
            other_server("http") as http,
            other_server("sse") as sse,
            run_client({"page": page.server}, home=home) as client,
        ):
            await client.initialize()
            script = str(Path(__file__).parent / "agents" / "mcp_server.py")
            servers = [
                {"name": "local", "command": sys.executable, "args": [script, "stdio"], "env": []},
                {"type": "http", "name": "web", "url": http, "headers": []},
                {"type": "sse", "name": "stream", "url": sse, "headers": []},
                *client.declare("page"),
            ]
            session = (await client.request("session/new", {"cwd": "/tmp", "mcpServers": servers}))["sessionId"]
            for kind in ("stdio", "http", "sse"):
                turn = await client.prompt(session, f'Call from_{kind} with {{"text": "x"}}')
                assert shown(turn.text) == f"{kind} x", turn.text
            assert shown((await client.prompt(session, 'Call echo with {"value": "page"}')).text) == "page"


class TestGuard:
    """An agentpool that the add-on was not written for is refused before anything starts."""

    async def test_each_place_is_missed(self, home: Path) -> None:
        """In agentpool's own environment: every place is broken in turn, and the message names it and the remedy."""
        script = str(Path(__file__).parent / "agents" / "guard_probe.py")
        env = {**os.environ, **agentpool_env(home)}
        done = await anyio.run_process([str(AGENTPOOL.with_name("python")), script], env=env, stderr=None)
        counted = json.loads(done.stdout.splitlines()[-1])
        assert counted["missed"] == counted["places"] > 25
        assert counted["versions"].startswith("agentpool 2.9.18, pydantic-ai-slim 1.")
        for line in counted["refusals"]:
            assert "install agentpool==2.9.18 with 'pydantic-ai-slim<2'" in line
        assert counted["library"] == {"agent": False, "options": False}
        assert counted["hosts"] == "ToolHost" or "sandport[host]" in counted["hosts"]

    async def test_without_agentpool(self) -> None:
        command = [sys.executable, "-m", "sandport_native", "agentpool", "check"]
        done = await anyio.run_process(command, check=False)
        assert done.returncode == 1
        assert b"agentpool is not installed here" in done.stderr


async def answer_of(socket: AcpSocket, method: str, params: Any) -> Any:
    """The answer to a request; what the agent sends in between is refused or passed over."""
    socket.last_id += 1
    request_id = socket.last_id
    await socket.connection.send(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
    while True:
        message = await socket.receive()
        if "method" not in message and message["id"] == request_id:
            return message
        if "method" in message and "id" in message:
            error = {"code": -32601, "message": "no", "data": None}
            await socket.connection.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}))


@contextlib.asynccontextmanager
async def other_server(kind: str) -> AsyncIterator[str]:
    """An MCP server over HTTP in a process of its own; its URL."""
    script = str(Path(__file__).parent / "agents" / "mcp_server.py")
    async with await anyio.open_process([sys.executable, script, kind], stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(60):
            url = (await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 200)).decode()
        try:
            yield url
        finally:
            process.terminate()
