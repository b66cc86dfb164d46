"""Recorded conversations: what real agents sent, replayed to a Sandport provider.

Invariant: a recorded agent gets, for each of its requests, one answer that it can use; where the recording's client was
the TypeScript SDK's own provider, the answer is of the same kind as the recorded one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from fastmcp import Context, FastMCP
from pydantic import BaseModel
from tests.peers.channels import ROOT, Exchange, recorded
from tests.peers.suite import Case, Suite, check, same

from sandport import Channel, Port, ToolHost, ask, memory_channel_pair
from sandport.codec import decode, encode
from sandport.wire import CANCEL_METHODS, LANE_METHODS

__all__ = ["suites"]

VECTORS = ROOT / "tests" / "vectors"
Message = dict[str, Any]
FROM_AGENT, TO_AGENT, NOTE = "agent->client", "client->agent", "note"

OUR_OWN = {
    "mcp/connect": "the recorded provider speaks one dialect, ours all: it connects",
    "_mcp/connect": "the same",
}
"""Where our answer is of another kind on purpose."""


@dataclass(frozen=True)
class Line:
    """One line of a recording."""

    direction: str
    message: Message


def _sockets(path: Path) -> Iterator[list[Line]]:
    """The lines of a recording, a list for each socket."""
    lines: list[Line] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(text)
        line = Line(entry["dir"], entry["msg"])
        if line.direction == NOTE and str(line.message.get("event", "")).startswith("socket ") and lines:
            yield lines
            lines = []
        lines.append(line)
    yield lines


class Answer(BaseModel):
    """What `ask` asks for."""

    ok: bool


def _odd(answer: Message | None) -> Callable[..., Any] | None:
    """A tool that does what the recorded one did, where that was no plain result."""
    if answer is None or (isinstance(answer["result"], dict) and "error" not in answer["result"]):
        return None
    result = answer["result"]

    def returns(text: str | None = None) -> Any:
        return result

    return returns


def _server(tools: dict[str, Message | None], page_size: int | None) -> FastMCP[Any]:
    """A server with the recorded tools, by name, each with its recorded answer if it was called."""
    server: FastMCP[Any] = FastMCP("page-tools", list_page_size=page_size)

    @server.tool(name="boom")
    def boom() -> str:
        raise ValueError("boom!")

    @server.tool(name="slow")
    async def slow(n: int, ctx: Context) -> str:
        for step in range(min(n, 3)):
            await ctx.report_progress(step, n)
        if n > 3:
            await anyio.sleep_forever()
        return "done"

    @server.tool(name="ask")
    async def question(ctx: Context) -> str:
        answer = await ask(ctx, "Sure?", Answer)
        return f"got {answer.action}"

    def echo(text: str | None = None) -> Any:
        return f"echo:{text}"

    # What was answered by an error is left out: FastMCP makes a result of every failure of a tool but this one.
    failing = {name for name, answer in tools.items() if answer is not None and "error" in answer}
    for name in set(tools) - failing - {"boom", "slow", "ask"}:
        server.tool(_odd(tools[name]) or echo, name=name)
    if "slow" in tools:
        # The recorded server of the TypeScript SDK calls its argument so.
        server.local_provider.remove_tool("echo")

        @server.tool(name="echo")
        def echo_message(message: str) -> str:
            return message

    return server


@dataclass
class Replay:
    """An agent that repeats what it once sent. Ids of the recording are changed to those of this run."""

    host: ToolHost
    port: Port
    channel: Channel
    exchange: Exchange
    servers: dict[str, str] = field(default_factory=dict)
    connections: dict[str, str] = field(default_factory=dict)
    cursor: str | None = None
    question: tuple[str, str | None] | None = None
    """Key and state of the last `input_required`."""
    answers: dict[Any, Message] = field(default_factory=dict)
    notes: list[Message] = field(default_factory=list)
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def read(self) -> None:
        """Take what comes from the provider."""
        while True:
            message = decode(await self.channel.receive())
            if "method" in message:
                self.notes.append(message)
            else:
                same(message["id"] in self.answers, False, f"a second answer to {message['id']}")
                self.answers[message["id"]] = message
            self.changed.set()
            self.changed = anyio.Event()

    async def until(self, condition: Any) -> None:
        """Wait for a condition on what came."""
        while not condition():
            await self.changed.wait()

    def server(self, recorded_id: str) -> str:
        """The id of this run for a recorded one; declared at its first use."""
        if recorded_id not in self.servers:
            ours = self.servers[recorded_id] = str(uuid4())
            self.host.declare("page-tools", ours)
            self.port.core.declare("host", ours)
        return self.servers[recorded_id]

    def translate(self, message: Message) -> Message:
        """A recorded message in the ids of this run."""
        message = json.loads(json.dumps(message))
        params = message.get("params") or {}
        for holder in (params, params.get("server") or {}):
            for key in ("acpId", "serverId", "id"):
                if isinstance(holder.get(key), str) and holder[key] != "nope":
                    holder[key] = self.server(holder[key])
        if "acp_url" in params:
            params["acp_url"] = "acp:" + self.server(params["acp_url"].removeprefix("acp:"))
        if params.get("connectionId") in self.connections:
            params["connectionId"] = self.connections[params["connectionId"]]
        inner = params.get("params") or {}
        if "cursor" in inner:
            inner["cursor"] = self.cursor
        if "inputResponses" in inner and self.question is not None:
            key, state = self.question
            inner["inputResponses"] = {key: next(iter(inner["inputResponses"].values()))}
            if state is not None:
                inner["requestState"] = state
        return message

    def learn(self, sent: Message, recorded_answer: Message, answer: Message) -> None:
        """Remember what later messages refer to."""
        result = answer.get("result")
        if not isinstance(result, dict):
            return
        if sent["method"] == "mcp/connect" and isinstance(recorded_answer.get("result"), dict):
            self.connections[str(recorded_answer["result"].get("connectionId"))] = result["connectionId"]
        self.cursor = result.get("nextCursor", self.cursor)
        inner = result.get("result")
        if isinstance(inner, dict) and inner.get("resultType") == "input_required":
            self.question = (next(iter(inner["inputRequests"])), inner.get("requestState"))


def kind(answer: Message) -> tuple[Any, ...]:
    """What an answer is, without what it says."""
    if "error" in answer:
        return ("outer error", answer["error"]["code"])
    result = answer["result"]
    inner = result.get("error")
    if isinstance(inner, dict) and "result" not in result:
        return ("inner error", inner["code"])
    inner = result.get("result", result)
    return ("result", bool(inner.get("isError")), inner.get("resultType"))


def usable(sent: Message, answer: Message) -> None:
    """What the agentpool fork needs of an answer (the last column of the recordings' index)."""
    if "error" in answer:
        check("data" in answer["error"], f"an error without data, which the fork drops: {answer}")
        return
    result = answer["result"]
    check(isinstance(result, dict), f"a result that is no object hangs the fork: {answer}")
    check("error" not in result, f"a member 'error' is taken for an error: {answer}")
    if sent["method"] == "mcp/connect":
        connection_id = result["connectionId"]
        check(isinstance(connection_id, str) and connection_id, f"no connection id: {answer}")
    if sent.get("params", {}).get("method", "").startswith("notifications/"):
        same(result, {}, "the answer to a notification that came as a request")


@asynccontextmanager
async def _replay(tools: dict[str, Message | None], exchange: Exchange, page_size: int | None) -> AsyncIterator[Replay]:
    async with ToolHost() as host, anyio.create_task_group() as tasks:
        host.mount(_server(tools, page_size), "page-tools")
        ours, theirs = memory_channel_pair()
        port = Port(ours)
        await tasks.start(port.run)
        outer, inner = memory_channel_pair()
        port.attach("host", outer, "host.")
        tasks.start_soon(host.serve, inner, "host.")
        replay = Replay(host, port, recorded(theirs, exchange), exchange)
        tasks.start_soon(replay.read)
        yield replay
        tasks.cancel_scope.cancel()


async def _play(lines: list[Line], exchange: Exchange, *, exact: bool, page_size: int | None) -> int:
    """Replay one socket; the number of answers that were judged."""
    answers = {
        line.message["id"]: (index, line.message)
        for index, line in enumerate(lines)
        if line.direction == TO_AGENT and "method" not in line.message
    }
    tools: dict[str, Message | None] = {"echo": None}
    tools.update((tool["name"], None) for _, answer in answers.values() for tool in _tools(answer))
    for line in lines:
        call = line.message.get("params", {}) if line.direction == FROM_AGENT else {}
        name = call["params"]["name"] if call.get("method") == "tools/call" else None
        if name in tools and line.message.get("id") in answers:
            tools[name] = answers[line.message["id"]][1]
    judged = 0
    async with _replay(tools, exchange, page_size) as replay:
        open_requests: dict[Any, tuple[Message, Message | None]] = {}
        for index, line in enumerate(lines):
            message = line.message
            if line.direction != FROM_AGENT or "method" not in message:
                continue
            method = message["method"]
            if method in CANCEL_METHODS:
                # The recorded call had begun when it was cancelled.
                call = open_requests[message["params"]["requestId"]][0]["params"]
                request_id = call.get("requestId")
                await replay.until(
                    lambda wanted=request_id: any(n["params"]["requestId"] == wanted for n in replay.notes)
                )
            elif method not in LANE_METHODS:
                continue
            sent = replay.translate(message)
            await replay.channel.send(encode(sent))
            if "id" in message:
                open_requests[message["id"]] = (sent, answers.get(message["id"], (0, None))[1])
            upto = _next_from_agent(lines, index)
            for request_id in [key for key in open_requests if answers.get(key, (len(lines),))[0] < upto]:
                sent, recorded_answer = open_requests.pop(request_id)
                await replay.until(lambda wanted=request_id: wanted in replay.answers)
                _judge(replay, sent, recorded_answer or {}, replay.answers[request_id], exact=exact)
                judged += 1
        # What the recording's client left unanswered, ours answers.
        for request_id, (sent, _) in open_requests.items():
            await replay.until(lambda wanted=request_id: wanted in replay.answers)
            usable(sent, replay.answers[request_id])
            judged += 1
    return judged


def _judge(replay: Replay, sent: Message, recorded_answer: Message, answer: Message, *, exact: bool) -> None:
    if not exact:
        usable(sent, answer)
    elif sent["method"] in OUR_OWN:
        check("result" in answer, f"not connected: {answer}")
    else:
        same(kind(answer), kind(recorded_answer), f"answer to {sent['params'].get('method')}")
    replay.learn(sent, recorded_answer, answer)


def _next_from_agent(lines: list[Line], index: int) -> int:
    for later in range(index + 1, len(lines)):
        message = lines[later].message
        if lines[later].direction == FROM_AGENT and message.get("method") in LANE_METHODS | CANCEL_METHODS:
            return later
    return len(lines)


def _tools(answer: Message) -> list[Message]:
    result = answer.get("result")
    inner = result.get("result", result) if isinstance(result, dict) else None
    found = inner.get("tools") if isinstance(inner, dict) else None
    return found if isinstance(found, list) else []


def _case(path: Path) -> Case:
    exact = path.name.startswith("ts-sdk")

    async def case(exchange: Exchange) -> None:
        page_size = 1 if "pagination" in path.name else None
        judged = 0
        for lines in _sockets(path):
            judged += await _play(lines, exchange, exact=exact, page_size=page_size)
        check(judged > 0, "nothing was replayed")

    case.__name__ = path.stem
    return case


@asynccontextmanager
async def _opened(exchange: Exchange) -> AsyncIterator[Exchange]:
    yield exchange


def suites() -> list[Suite]:
    """One suite a recorded peer, one case a recording."""
    rows = [
        ("agentpool fork (recorded)", "4.0.0", "agentpool", "agentpool-*.jsonl"),
        ("agentpool + add-on (recorded)", "2.9.18", "connect-acpId", "stock-addon-*.jsonl"),
        ("TypeScript SDK (recorded)", "2.4.0", "stateless", "ts-sdk-*.jsonl"),
    ]
    found = [(row, sorted(VECTORS.glob(row[3]))) for row in rows]
    return [
        Suite(
            peer,
            version,
            dialect,
            "agent, replayed",
            [_case(path) for path in paths],
            _opened,
            True,
            None if paths else f"no recordings {pattern} in tests/vectors",
        )
        for (peer, version, dialect, pattern), paths in found
    ]
