"""The ACP client: the official Python SDK on the acp lane, at both ends, with tools on the mcp lane."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from fastmcp import Client as McpClient

pytest.importorskip("acp")

from acp import Agent, Client, RequestError, text_block, update_agent_message
from acp.agent.connection import AgentSideConnection
from acp.schema import (
    AgentCapabilities,
    InitializeResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptResponse,
)

from sandport import LocalError, MemoryChannel, PeerError, ToolHost, memory_channel_pair
from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig, AcpMcpTransport
from sandport.client import AcpClient, LaneTransport, acp_client

from .kit import Gate, make_server


class SdkOuter:
    """The SDK's connection as the agent side needs it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def request(self, method: str, params: Any, *, timeout: float | None = None, late: Any = None) -> Any:
        with anyio.fail_after(timeout):
            try:
                return await self.connection.send_request(method, params)
            except RequestError as error:
                raise PeerError(error.code, str(error), error.data) from None

    async def notify(self, method: str, params: Any) -> None:
        await self.connection.send_notification(method, params)


class AgentTransport(LaneTransport):
    """The SDK writes its answer to a prompt in a task of its own, which nobody asks how it ended."""

    async def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionError):
            await super().send(message)


class DemoAgent(Agent):
    """An agent on the SDK that calls what its prompt says with the tools that were declared to it."""

    def __init__(self, offers: Any = True, *, refuse: bool = False) -> None:
        self.offers, self.refuse = offers, refuse
        self.declared: dict[str, list[Any]] = {}
        self.closed: list[str] = []
        self.connection: Any = None

    def on_connect(self, conn: Any) -> None:
        self.connection = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        if self.offers == "legacy":
            meta = {"symposium": {"version": "1.0", "mcp_acp_transport": True}}
            capabilities = AgentCapabilities.model_validate({"_meta": meta})
        else:
            capabilities = AgentCapabilities(mcp_capabilities=McpCapabilities(acp=self.offers))
        return InitializeResponse(protocol_version=protocol_version, agent_capabilities=capabilities)

    async def new_session(self, cwd: str, mcp_servers: list[Any] | None = None, **_: Any) -> NewSessionResponse:
        if self.refuse:
            raise RequestError(-32000, "no more sessions")
        session_id = f"s{len(self.declared)}"
        self.declared[session_id] = list(mcp_servers or [])
        return NewSessionResponse(session_id=session_id)

    async def close_session(self, session_id: str, **_: Any) -> None:
        self.closed.append(session_id)

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        tool = prompt[0].text
        server = self.declared[session_id][0]
        config = AcpMCPServerConfig.from_declaration(server.model_dump(by_alias=True, exclude_none=True))
        assert config is not None
        manager = AcpMcpConnectionManager(SdkOuter(self.connection._conn))
        try:
            async with McpClient(AcpMcpTransport(manager, config)) as client:
                arguments = {"a": 1, "b": 2} if tool == "add" else {}
                result = await client.call_tool(tool, arguments, raise_on_error=False)
        except Exception as error:
            text = f"error: {error}"
        else:
            text = "".join(block.text for block in result.content)  # type: ignore[union-attr]
        await self.connection.session_update(session_id, update_agent_message(text_block(text)))
        return PromptResponse(stop_reason="end_turn")


class Program(Client):
    """A program that only listens."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.said.append(update.content.text)

    def on_connect(self, conn: Any) -> None:
        pass


@asynccontextmanager
async def connected(agent: DemoAgent, host: ToolHost | None) -> AsyncIterator[tuple[AcpClient, Program, MemoryChannel]]:
    ours, theirs = memory_channel_pair()
    program = Program()
    side = AgentSideConnection(agent, AgentTransport(theirs), use_unstable_protocol=True)
    try:
        async with acp_client(ours, program, host) as client:
            yield client, program, ours
    finally:
        await theirs.aclose()
        await side.close()


@pytest.mark.parametrize("offers", [True, "legacy"])
async def test_a_prompt_that_needs_a_tool(offers: Any) -> None:
    agent = DemoAgent(offers)
    async with ToolHost() as host:
        host.mount(make_server())
        async with connected(agent, host) as (client, program, _):
            await client.initialize()
            assert client.offers is True
            session = await client.new_session("/project")
            assert agent.declared["s0"][0].type == ("http" if offers == "legacy" else "acp")
            answer = await client.connection.prompt(session_id=session.session_id, prompt=[text_block("add")])
            assert answer.stop_reason == "end_turn"
            await client.connection.prompt(session_id=session.session_id, prompt=[text_block("fail")])
            await client.close_session(session.session_id)
            assert agent.closed == [session.session_id]
            assert host._ids == {}
            assert client.port.core.dropped == {}
        assert program.said[0] == "3"
        assert "no such luck" in program.said[1]


async def test_sessions_have_their_own_ids() -> None:
    agent = DemoAgent()
    async with ToolHost() as host:
        host.mount(make_server())
        async with connected(agent, host) as (client, _, _channel):
            await client.initialize()
            for _ in range(2):
                await client.new_session("/project")
            ids = [server.server_id for servers in agent.declared.values() for server in servers]
            assert len(set(ids)) == 2
            assert set(host._ids) == set(ids)
            await client.withdraw("s0")
            assert set(host._ids) == {ids[1]}
        assert host._ids == {}


@pytest.mark.parametrize("offers", [False, None])
async def test_p05_nothing_is_declared_to_an_agent_that_did_not_offer(
    offers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = DemoAgent(offers)
    async with ToolHost() as host:
        host.mount(make_server())
        async with connected(agent, host) as (client, _, _channel):
            await client.initialize()
            assert client.offers is False
            await client.new_session("/project")
            assert agent.declared == {"s0": []}
    assert any("mcpCapabilities.acp" in record.getMessage() for record in caplog.records)


async def test_p09_no_session_before_initialize() -> None:
    async with ToolHost() as host:
        host.mount(make_server())
        async with connected(DemoAgent(), host) as (client, _, _channel):
            with pytest.raises(LocalError, match="initialize"):
                await client.new_session("/project")


async def test_a_session_that_is_refused_leaves_no_offer() -> None:
    async with ToolHost() as host:
        host.mount(make_server())
        async with connected(DemoAgent(refuse=True), host) as (client, _, _channel):
            await client.initialize()
            with pytest.raises(RequestError):
                await client.new_session("/project")
            assert host._ids == {}


async def test_without_a_host_it_is_a_plain_client() -> None:
    agent = DemoAgent()
    async with connected(agent, None) as (client, _, _channel):
        await client.initialize()
        await client.new_session("/project")
        assert agent.declared == {"s0": []}


async def test_cancelling_a_turn_stops_its_tool() -> None:
    """The agent here does nothing on session/cancel: the client cancels the call that the turn left open."""
    gate = Gate()
    async with ToolHost() as host:
        host.mount(make_server(gate=gate))
        async with connected(DemoAgent(), host) as (client, program, _), anyio.create_task_group() as tasks:
            await client.initialize()
            session = await client.new_session("/project")

            async def prompt() -> None:
                with anyio.fail_after(3):
                    await client.connection.prompt(session_id=session.session_id, prompt=[text_block("wait")])

            tasks.start_soon(prompt)
            await gate.entered.wait()
            await client.cancel(session.session_id)
            with anyio.fail_after(2):
                await gate.finished.wait()
        assert "cancelled" in program.said[0]


async def test_r09_the_channel_closes_in_mid_call() -> None:
    gate = Gate()
    async with ToolHost() as host:
        host.mount(make_server(gate=gate))
        async with connected(DemoAgent(), host) as (client, _, channel), anyio.create_task_group() as tasks:
            await client.initialize()
            session = await client.new_session("/project")

            async def prompt() -> None:
                with anyio.fail_after(3), pytest.raises((ConnectionError, RequestError)):
                    await client.connection.prompt(session_id=session.session_id, prompt=[text_block("wait")])

            tasks.start_soon(prompt)
            await gate.entered.wait()
            await channel.aclose()
            with anyio.fail_after(2):
                await gate.finished.wait()


async def test_errors_of_the_body_are_not_wrapped() -> None:
    async def body() -> None:
        async with connected(DemoAgent(), None) as (client, _, _channel):
            await client.initialize()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
