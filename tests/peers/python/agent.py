"""An ACP agent on the Python SDK that uses tools of its client. The SDK has types for it and no methods, so the
messages are written by hand and sent through the SDK's own connection. It understands the ops of js/agent.mjs.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import Any

from acp import PROTOCOL_VERSION, RequestError
from acp.agent.connection import AgentSideConnection
from acp.schema import (
    AgentCapabilities,
    AgentMessageChunk,
    InitializeResponse,
    McpCapabilities,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    TextContentBlock,
    ToolCallUpdate,
)
from acp.stdio import stdio_streams


class Agent:
    """The SDK's `Agent`."""

    def __init__(self) -> None:
        self.link: Any = None
        self.servers: dict[str, dict[str, Any]] = {}
        self.calls: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self.ids: dict[str, Any] = {}
        self.notes: list[dict[str, Any]] = []
        self.noted = asyncio.Condition()

    def on_connect(self, conn: AgentSideConnection) -> None:
        """Keep the way to the client."""
        self.link = conn

    async def initialize(self, **_: Any) -> InitializeResponse:
        """Offer MCP over ACP."""
        capabilities = AgentCapabilities(mcp_capabilities=McpCapabilities.model_validate({"acp": True}))
        return InitializeResponse(protocol_version=PROTOCOL_VERSION, agent_capabilities=capabilities)

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> NewSessionResponse:
        """Keep what the SDK's decoder lets through."""
        for server in mcp_servers or ():
            entry = server.model_dump(by_alias=True, mode="json", exclude_none=True)
            self.servers[entry["name"]] = entry
        return NewSessionResponse(session_id="s1")

    async def prompt(self, prompt: Any, session_id: str, **_: Any) -> PromptResponse:
        """Run the op in the text; the outcome is an agent message."""
        outcome = await self._run(json.loads(prompt[0].text))
        content = TextContentBlock(type="text", text=json.dumps(outcome))
        update = AgentMessageChunk(session_update="agent_message_chunk", content=content)
        await self.link.session_update(session_id, update)
        return PromptResponse(stop_reason="end_turn")

    async def ext_method(self, method: str, params: dict[str, Any]) -> Any:
        """`_test/do`."""
        return await self._run(params)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Nothing is asked for."""

    async def note(self, message: dict[str, Any]) -> None:
        """The SDK has no route for `mcp/message`: what the client sends is seen here."""
        if message.get("method") != "mcp/message" or "id" in message:
            return
        async with self.noted:
            self.notes.append(message["params"])
            self.noted.notify_all()

    # -- ops: see js/agent.mjs --------------------------------------------------------------------------------

    async def _run(self, command: dict[str, Any]) -> Any:
        op = command.pop("op")
        return await getattr(self, f"op_{op}")(**command)

    async def _send(self, method: str, params: Any, key: str | None = None) -> dict[str, Any]:
        connection = self.link._conn
        if key is not None:
            self.ids[key] = connection._next_request_id
        try:
            return {"result": await connection.send_request(method, params)}
        except RequestError as error:
            return {"outer": {"code": error.code, "message": str(error), "data": error.data}}

    async def op_servers(self) -> Any:
        return list(self.servers.values())

    async def op_connect(self, server: str) -> Any:
        outcome = await self._send("mcp/connect", {"serverId": self.servers[server]["serverId"]})
        return outcome["result"]

    async def op_call(self, connection: str, method: str, params: Any, server: str, key: str | None = None) -> Any:
        return await self._send("mcp/message", {"connectionId": connection, "method": method, "params": params}, key)

    async def op_start(self, key: str, **call: Any) -> Any:
        self.calls[key] = asyncio.create_task(self.op_call(key=key, **call))
        return {}

    async def op_outcome(self, key: str) -> Any:
        return await self.calls[key]

    async def op_cancel(self, key: str) -> Any:
        await self.link._conn.send_notification("$/cancel_request", {"requestId": self.ids[key]})
        return {}

    async def op_note(self, method: str, progress: float | None = None) -> Any:
        def found() -> dict[str, Any] | None:
            for note in self.notes:
                if note["method"] == method and progress in (None, note.get("params", {}).get("progress")):
                    return note
            return None

        async with self.noted:
            await self.noted.wait_for(found)
            return found()

    async def op_notify(self, connection: str, method: str, params: Any = None) -> Any:
        flat = {"connectionId": connection, "method": method, "params": params}
        await self.link._conn.send_notification("mcp/message", flat)
        return {}

    async def op_disconnect(self, connection: str) -> Any:
        return (await self._send("mcp/disconnect", {"connectionId": connection}))["result"]

    async def op_outer(self, method: str, params: Any) -> Any:
        return await self._send(method, params)

    async def op_leave(self) -> Any:
        os._exit(0)

    async def op_permission(self) -> Any:
        options = [PermissionOption(option_id="yes", name="Yes", kind="allow_once")]
        answer = await self.link.request_permission(
            session_id="s1", tool_call=ToolCallUpdate(tool_call_id="t1", title="May I?"), options=options
        )
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def op_legacy(self, server: str) -> Any:
        """All that the SDK's public way of extension can say: its methods begin with `_`."""
        address = self.servers[server]["serverId"]
        opened = await self.link.ext_method("mcp/connect", {"acp_id": address})
        calls = [
            (
                "initialize",
                {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "p", "version": "1"}},
            ),
            ("tools/call", {"name": "who", "arguments": {}}),
        ]
        result: Any = None
        for method, params in calls:
            flat = {"connectionId": opened["connection_id"], "method": method, "params": params}
            result = await self.link.ext_method("mcp/message", flat)
        await self.link.ext_notification("mcp/disconnect", {"connection_id": opened["connection_id"]})
        return result


async def main() -> None:
    """Serve on stdin and stdout."""
    agent: Any = Agent()
    reader, writer = await stdio_streams(limit=64 * 1024 * 1024)
    tasks: set[asyncio.Task[None]] = set()

    def observe(event: Any) -> None:
        if event.direction.value == "incoming":
            task = asyncio.create_task(agent.note(event.message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    connection = AgentSideConnection(agent, writer, reader, listening=False, observers=[observe])
    agent.link = connection
    with suppress(asyncio.CancelledError):
        await connection.listen()


if __name__ == "__main__":
    asyncio.run(main())
