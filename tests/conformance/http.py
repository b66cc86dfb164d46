"""A loopback HTTP server that lives as long as its context."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn

__all__ = ["serve"]


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, listening: anyio.Event) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application; yields its address."""
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    listening = anyio.Event()
    server = _Server(config, listening)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [bound])
            await listening.wait()
            yield f"http://localhost:{port}/mcp"
            server.should_exit = True
