"""Peers on the TypeScript SDK: agents (js/agent.mjs) and providers (js/provider.mjs), release by release."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from anyio import open_process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.peers import agent_cases, provider_cases
from tests.peers.channels import HERE, ROOT, Exchange, dial, listen, process
from tests.peers.driver import AgentPeer, drive, drive_raw
from tests.peers.provider_driver import ProviderPeer, lend
from tests.peers.suite import Case, Suite

from sandport import HostLimits

__all__ = ["agents", "legacy", "providers"]

HELLO = {
    "1": {"protocolVersion": 1, "clientCapabilities": {}},
    "2": {"protocolVersion": 2, "info": {"name": "sandport", "version": "1"}, "capabilities": {}},
}
"""The params of `initialize` by version of ACP."""


def _command(script: str, **options: str) -> list[str]:
    pairs = [part for key, value in options.items() for part in (f"--{key}", value)]
    return ["node", str(HERE / "js" / script), *pairs]


@asynccontextmanager
async def _websocket_agent(command: list[str], exchange: Exchange) -> AsyncIterator[Any]:
    """An agent behind the SDK's own WebSocket server."""
    async with await open_process([*command, "--transport", "ws"], cwd=ROOT, stderr=None) as started:
        assert started.stdout is not None
        assert started.stdin is not None
        port = int(await BufferedByteReceiveStream(started.stdout).receive_until(b"\n", 100))
        try:
            async with dial(f"ws://127.0.0.1:{port}/acp") as channel:
                yield channel
        finally:
            await started.stdin.aclose()


Opener = Callable[[Exchange], AbstractAsyncContextManager[AgentPeer]]


def _agent(
    entry: str, dialect: str, *flags: str, socket: bool, acp: str = "1", limits: HostLimits | None = None
) -> Opener:
    spoken = "stateless" if dialect == "stateless+" else dialect
    command = [*_command("agent.mjs", sdk=entry, dialect=spoken, acp=acp), *flags]

    @asynccontextmanager
    async def opened(exchange: Exchange) -> AsyncIterator[AgentPeer]:
        reach = _websocket_agent if socket else process
        async with reach(command, exchange) as channel:
            if acp == "2" or dialect.startswith("legacy"):
                async with drive_raw(channel, exchange, dialect, hello=HELLO[acp]) as peer:
                    yield peer
            else:
                async with drive(channel, exchange, dialect, limits=limits) as peer:
                    yield peer

    return opened


def agents() -> list[Suite]:
    """Agents of every release in turn."""
    connect: list[Case] = [*agent_cases.CONNECT, *agent_cases.LAST]
    stateless: list[Case] = [*agent_cases.STATELESS, *agent_cases.LAST]
    plus: list[Case] = [*agent_cases.STATELESS, *agent_cases.EXTRAS, *agent_cases.LAST]
    rows: list[tuple[str, str, str, str, list[Case], bool, bool]] = [
        # version, entry, dialect, ACP, cases, over a WebSocket, newest of its family
        ("0.29.0", "sdk-0.29", "connect-acpId", "1", connect, True, True),
        ("1.2.1", "sdk-1.2", "connect-serverId", "1", connect, False, False),
        ("1.5.1", "sdk-1.5", "connect-serverId", "1", connect, True, True),
        ("1.5.1 (ACP v2)", "sdk-1.5/experimental/v2", "connect-serverId", "2", connect, False, False),
        ("1.6.0", "sdk-1.6", "stateless", "1", plus, False, False),
        ("1.6.0 (ACP v2)", "sdk-1.6/experimental/v2", "stateless", "2", stateless, False, False),
        ("1.9.0", "sdk-1.9", "stateless", "1", plus, True, False),
        ("1.9.0 (ACP v2)", "sdk-1.9/experimental/v2", "stateless", "2", stateless, False, False),
        ("2.4.0", "sdk-2.4/unstable", "stateless", "1", plus, True, True),
        ("2.4.0 (ACP v2)", "sdk-2.4/experimental/v2/unstable", "stateless", "2", stateless, False, True),
    ]
    suites = [
        Suite(
            "TypeScript SDK",
            version,
            dialect,
            "agent, WebSocket" if socket else "agent, stdio",
            cases,
            _agent(entry, dialect, socket=socket, acp=acp),
            quick,
        )
        for version, entry, dialect, acp, cases, socket, quick in rows
    ]
    limits = HostLimits(max_waiting_requests=0)
    suites.append(
        Suite(
            "TypeScript SDK",
            "2.4.0 (no queue)",
            "stateless",
            "agent, stdio",
            agent_cases.FULL_STATELESS,
            _agent("sdk-2.4/unstable", "stateless", socket=False, limits=limits),
            True,
        )
    )
    silent = _agent("sdk-2.4", "none", "--silent", socket=False)
    title = "2.4.0 (stable entry)"
    suites.append(Suite("TypeScript SDK", title, "none", "agent, stdio", agent_cases.SILENT, silent, True))
    return suites


def _provider(entry: str, dialect: str, *, socket: bool, acp: str = "1") -> Callable[[Exchange], Any]:
    command = _command("provider.mjs", sdk=entry, dialect=dialect, acp=acp)

    @asynccontextmanager
    async def opened(exchange: Exchange) -> AsyncIterator[ProviderPeer]:
        if not socket:
            async with (
                process(command, exchange) as channel,
                lend(channel, exchange, dialect, version=int(acp)) as peer,
            ):
                yield peer
            return
        async with listen() as (url, channels):
            dialled = [*command, "--transport", "ws", "--url", url]
            async with process(dialled, exchange):
                channel = await channels.receive()
                async with lend(channel, exchange, dialect, version=int(acp)) as peer:
                    yield peer

    return opened


def providers() -> list[Suite]:
    """Providers of every release in turn."""
    connect, stateless = provider_cases.CONNECT, provider_cases.STATELESS
    by_hand = [case for case in stateless if case is not provider_cases.sixty_fifth_active_request_is_33000]
    rows: list[tuple[str, str, str, str, list[Case], bool, bool]] = [
        ("0.29.0", "sdk-0.29", "connect-acpId", "1", connect, True, True),
        ("1.2.1", "sdk-1.2", "connect-serverId", "1", connect, False, False),
        ("1.5.1", "sdk-1.5", "connect-serverId", "1", connect, True, True),
        ("1.6.0", "sdk-1.6", "stateless", "1", by_hand, False, False),
        ("1.9.0", "sdk-1.9", "stateless", "1", by_hand, True, False),
        ("2.4.0", "sdk-2.4/unstable", "stateless", "1", stateless, True, True),
        ("2.4.0 (ACP v2)", "sdk-2.4/experimental/v2/unstable", "stateless", "2", stateless, False, True),
    ]
    return [
        Suite(
            "TypeScript SDK",
            version,
            dialect,
            "provider, WebSocket" if socket else "provider, stdio",
            cases,
            _provider(entry, dialect, socket=socket, acp=acp),
            quick,
        )
        for version, entry, dialect, acp, cases, socket, quick in rows
    ]


def legacy() -> list[Suite]:
    """`legacy` has no release left to install: its messages, from the reference's facts, on an SDK that is neutral."""
    suites = [
        Suite(
            "written from facts",
            "-",
            dialect,
            "agent, stdio",
            [*agent_cases.CONNECT, *agent_cases.LAST],
            _agent("sdk-1.9", dialect, socket=False),
            True,
        )
        for dialect in ("legacy", "legacy (2025)", "legacy (minted id)")
    ]
    lent = _provider("sdk-1.9", "legacy", socket=False)
    suites.append(Suite("written from facts", "-", "legacy", "provider, stdio", provider_cases.CONNECT, lent, True))
    return suites
