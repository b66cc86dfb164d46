"""Peers on the official Python SDK: an agent of its own, and a client whose tools are Sandport's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from tests.peers import agent_cases, install, provider_cases
from tests.peers.channels import Exchange, process
from tests.peers.driver import AgentPeer, drive
from tests.peers.provider_driver import ProviderPeer, lend
from tests.peers.suite import Case, Suite, same
from tests.peers.tools import NAME

__all__ = ["suites"]

RELEASES = ("0.12.1", "1.0.0rc3")
"""The release that is locked, and the newest one that is served."""


async def both_lanes_at_once(peer: AgentPeer) -> None:
    """A permission question on the acp lane while a call is open on the mcp lane; the SDK's ids start at 0 on both."""
    key = await peer.start("tools/call", {"name": "block", "arguments": {}})
    await peer.tools.until(running=1)
    same((await peer.do("permission"))["outcome"], {"outcome": "selected", "optionId": "yes"})
    peer.tools.release()
    same(agent_cases.text(await peer.outcome(key)), "released")


async def ext_method_speaks_legacy(peer: AgentPeer) -> None:
    """The SDK's public `ext_method` puts `_` before a method: what comes is `legacy`, and is served as such."""
    result = await peer.do("legacy", server=NAME)
    same(result["structuredContent"]["dialect"], "legacy")


_NO_ROUTE = (agent_cases.elicits_live, agent_cases.useless_answer_fails_the_tool_alone)
AGENT: list[Case] = [
    *(case for case in agent_cases.CONNECT[:-1] if case not in _NO_ROUTE),
    both_lanes_at_once,
    ext_method_speaks_legacy,
    agent_cases.CONNECT[-1],
    *agent_cases.LAST,
]
"""The SDK has no route for what the client's server asks of the agent, so nothing can be answered."""
_OF_ONE_DIALECT = (provider_cases.disconnect_is_told, provider_cases.wrong_dialect_is_unavailable)
CLIENT: list[Case] = [
    *(case for case in provider_cases.CONNECT[:-1] if case not in _OF_ONE_DIALECT),
    provider_cases.other_family_by_hand,
    provider_cases.CONNECT[-1],
]


def _suite(release: str, role: str, cases: list[Case], *, quick: bool) -> Suite:
    @asynccontextmanager
    async def opened(exchange: Exchange) -> AsyncIterator[AgentPeer | ProviderPeer]:
        pre = "rc" in release
        requirement = f"agent-client-protocol=={release}"
        python = await anyio.to_thread.run_sync(lambda: install.python(f"acp-{release}", requirement, prerelease=pre))
        command = [str(python), "-m", f"tests.peers.python.{role}"]
        async with process(command, exchange) as channel:
            if role == "agent":
                async with drive(channel, exchange, "connect-serverId") as agent:
                    yield agent
            else:
                async with lend(channel, exchange, "connect-serverId") as provider:
                    yield provider

    shown = "agent, stdio" if role == "agent" else "client (acp lane), stdio"
    return Suite("Python SDK", release, "connect-serverId", shown, cases, opened, quick)


def suites() -> list[Suite]:
    """Both releases in both roles."""
    return [
        _suite(release, role, cases, quick=release == RELEASES[-1])
        for release in RELEASES
        for role, cases in (("agent", AGENT), ("client", CLIENT))
    ]
