"""The shim for the stateless era: the TypeScript SDK's own caller and HTTP bridge (bridge.mjs)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.conformance.hosts import Lane, client
from tests.conformance.suite import HERE, NODE
from tests.peers.channels import Exchange, process

__all__ = ["shim"]


@asynccontextmanager
async def shim(lane: Lane) -> AsyncIterator[str]:
    """Serve the lane's server over HTTP, by way of the stateless dialect; yields the address."""
    async with (
        process([str(NODE), str(HERE / "bridge.mjs")], Exchange()) as channel,
        client(channel, lane) as acp,
    ):
        port = (await acp.request("_shim/port", {}))["port"]
        yield f"http://localhost:{port}/mcp"
