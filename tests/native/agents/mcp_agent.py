"""An ACP agent that reaches its MCP servers with the official MCP SDK and does what prompts say, in JSON.

A prompt is `{"do": VERB, "server": NAME, ...}`, see `VERBS`; the outcome comes back as one agent message, in JSON.
Options: `--era legacy|auto` (MCP with or without the handshake), `--no-http` (it starts stdio servers alone), `--deaf`
(`session/cancel` ends the turn and tells the MCP server nothing), `--linger` (stays when its stdin ends, and so does a
child of its own).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.abc
import httpx2
import mcp_types as types
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("--era", default="legacy")
OPTIONS.add_argument("--no-http", action="store_true")
OPTIONS.add_argument("--deaf", action="store_true")
OPTIONS.add_argument("--linger", action="store_true")


def plain(value: Any) -> Any:
    """A result of the SDK as JSON."""
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


class Session:
    """An ACP session with its MCP clients."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.clients: dict[str, Client] = {}
        self.seen: list[Any] = []
        """Notifications of the servers, in order."""
        self.arrived = anyio.Event()
        self.closed = anyio.Event()
        self.turn: anyio.CancelScope | None = None

    async def run(self, entries: list[dict[str, Any]], *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with AsyncExitStack() as stack:
            for entry in entries:
                client = Client(
                    await self._transport(entry, stack),
                    mode=self.agent.options.era,
                    log_level="info",
                    cache=None,
                    elicitation_callback=self._elicit,
                    sampling_callback=self._sample,
                    list_roots_callback=self._roots,
                    logging_callback=self._log,
                    message_handler=self._message,
                )
                self.clients[entry["name"]] = await stack.enter_async_context(client)
            task_status.started()
            await self.closed.wait()

    async def _transport(self, entry: dict[str, Any], stack: AsyncExitStack) -> Any:
        if "command" in entry:
            env = {variable["name"]: variable["value"] for variable in entry["env"]}
            return StdioServerParameters(command=entry["command"], args=entry["args"], env=env)
        headers = {header["name"]: header["value"] for header in entry["headers"]}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(60)))
        return streamable_http_client(entry["url"], http_client=http)

    def note(self, value: Any) -> None:
        self.seen.append(value)
        self.arrived.set()
        self.arrived = anyio.Event()

    async def _elicit(self, _context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.note({"elicitation": params.message})
        return types.ElicitResult(action="accept", content={"value": "by all means"})

    async def _sample(self, _context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        if params.max_tokens == 13:
            raise MCPError(-32013, "no model", {"tokens": 13})
        content = types.TextContent(type="text", text=f"sampled {params.max_tokens}")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def _roots(self, _context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///home/page")])

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.note({"log": params.data, "level": params.level})

    async def _message(self, message: Any) -> None:
        if isinstance(message, Exception):
            return
        method = getattr(message, "method", "")
        if method.endswith("list_changed"):
            self.note({"changed": method})


class Agent:
    """The agent; one for the process."""

    def __init__(self, options: argparse.Namespace, tasks: anyio.abc.TaskGroup) -> None:
        self.options, self.tasks = options, tasks
        self.sessions: dict[str, Session] = {}

    def send(self, message: dict[str, Any]) -> None:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    async def take(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params") or {}
        if method == "session/cancel":
            turn = self.sessions[params["sessionId"]].turn
            if turn is not None:
                turn.cancel()
        elif "id" in message and method:
            self.tasks.start_soon(self._answer, message["id"], method, params)

    async def _answer(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        try:
            self.send({"id": request_id, "result": await self._result(method, params)})
        except Exception as error:
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            found = {"code": -32603, "message": repr(error), "data": None}
            self.send({"id": request_id, "error": found})

    async def _result(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "initialize":
                http = {} if self.options.no_http else {"http": True}
                capabilities = {"loadSession": True, "mcpCapabilities": http}
                return {"protocolVersion": 1, "agentCapabilities": capabilities, "authMethods": []}
            case "session/new" | "session/load":
                session = Session(self)
                session_id = params.get("sessionId") or f"s{len(self.sessions)}"
                if params["cwd"] == "/nowhere":
                    raise ValueError("no such folder")
                await self.tasks.start(session.run, params["mcpServers"])
                self.sessions[session_id] = session
                return {"sessionId": session_id}
            case "session/close":
                self.sessions.pop(params["sessionId"]).closed.set()
                return {}
            case "session/prompt":
                return await self._prompt(params["sessionId"], json.loads(params["prompt"][0]["text"]))
            case _:
                raise ValueError(f"no such method: {method}")

    async def _prompt(self, session_id: str, order: dict[str, Any]) -> Any:
        session = self.sessions[session_id]
        outcome: list[Any] = []

        async def work() -> None:
            outcome.append(await perform(session, order))
            turn.cancel()

        with anyio.CancelScope() as turn:
            session.turn = turn
            if self.options.deaf:
                # What was called goes on, whatever becomes of the turn.
                self.tasks.start_soon(work)
                await anyio.sleep_forever()
            await work()
        if not outcome:
            return {"stopReason": "cancelled"}
        text = {"type": "text", "text": json.dumps(outcome[0])}
        update = {"sessionUpdate": "agent_message_chunk", "content": text}
        self.send({"method": "session/update", "params": {"sessionId": session_id, "update": update}})
        return {"stopReason": "end_turn"}


async def perform(session: Session, order: dict[str, Any]) -> Any:
    """Do what an order says; an MCP error is an outcome like any other."""
    try:
        return await VERBS[order["do"]](session, session.clients.get(order.get("server", "page")), order)
    except MCPError as error:
        return {"error": {"code": error.code, "message": error.message, "data": error.data}}


async def _tools(_session: Session, client: Any, _order: dict[str, Any]) -> Any:
    return plain(await client.list_tools())


async def _call(_session: Session, client: Any, order: dict[str, Any]) -> Any:
    steps: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append([done, total, message])

    result = await client.call_tool(order["tool"], order.get("arguments", {}), progress_callback=progress)
    return {**plain(result), "steps": steps}


async def _read(_session: Session, client: Any, order: dict[str, Any]) -> Any:
    return plain(await client.read_resource(order["uri"]))


async def _lists(_session: Session, client: Any, _order: dict[str, Any]) -> Any:
    resources, templates = await client.list_resources(), await client.list_resource_templates()
    return [plain(resources), plain(templates), plain(await client.list_prompts())]


async def _prompt(_session: Session, client: Any, order: dict[str, Any]) -> Any:
    return plain(await client.get_prompt(order["name"], order["arguments"]))


async def _together(session: Session, _client: Any, order: dict[str, Any]) -> Any:
    outcomes: dict[int, Any] = {}

    async def one(number: int, part: dict[str, Any]) -> None:
        outcomes[number] = await perform(session, part)

    async with anyio.create_task_group() as tasks:
        for number, part in enumerate(order["of"]):
            tasks.start_soon(one, number, part)
    return [outcomes[number] for number in sorted(outcomes)]


async def _seen(session: Session, _client: Any, order: dict[str, Any]) -> Any:
    while len(session.seen) < order["count"]:
        await session.arrived.wait()
    return session.seen


async def _give_up(_session: Session, client: Any, order: dict[str, Any]) -> Any:
    """Call a tool and take it back once it has reported progress."""
    with anyio.CancelScope() as scope:

        async def progress(*_step: Any) -> None:
            scope.cancel()

        await client.call_tool(order["tool"], {}, progress_callback=progress)
    return {"given up": scope.cancelled_caught}


async def _late(_session: Session, client: Any, _order: dict[str, Any]) -> Any:
    """Call a tool, and take back each request there has been, all of them answered."""
    await client.call_tool("echo", {"value": "x"})
    for request_id in range(20):
        await client.session.send_notification(
            types.CancelledNotification(params=types.CancelledNotificationParams(request_id=request_id))
        )
    return plain(await client.call_tool("echo", {"value": "still here"}))


async def _listen(_session: Session, client: Any, order: dict[str, Any]) -> Any:
    """Let a tool change the list of tools and wait for the news of it, in the era without a handshake."""
    async with client.listen(tools_list_changed=True) as stream:
        await client.call_tool(order["tool"], {})
        async for event in stream:
            return type(event).__name__
    return None


async def _about(_session: Session, client: Any, _order: dict[str, Any]) -> Any:
    return {"version": client.protocol_version, "instructions": client.instructions}


async def _ping(_session: Session, client: Any, _order: dict[str, Any]) -> Any:
    return plain(await client.send_ping())


async def _level(_session: Session, client: Any, order: dict[str, Any]) -> Any:
    return plain(await client.set_logging_level(order["level"]))


VERBS = {
    "tools": _tools,
    "call": _call,
    "read": _read,
    "lists": _lists,
    "prompt": _prompt,
    "together": _together,
    "seen": _seen,
    "give up": _give_up,
    "late": _late,
    "listen": _listen,
    "about": _about,
    "ping": _ping,
    "level": _level,
}


async def main(options: argparse.Namespace) -> None:
    async with anyio.create_task_group() as tasks:
        agent = Agent(options, tasks)
        async for line in anyio.wrap_file(sys.stdin):
            await agent.take(json.loads(line))
        if options.linger:
            await anyio.sleep_forever()
        tasks.cancel_scope.cancel()


given = OPTIONS.parse_args()
if given.linger:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    print(f"child {subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.DEVNULL).pid}", file=sys.stderr)
anyio.run(main, given)
