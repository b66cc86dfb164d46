"""The peer of the whole path: the same FastMCP tools over Streamable HTTP, on loopback, as FastMCP serves by default.

Prints the port, and ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

import uvicorn
from tools import mcp


async def main() -> None:
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts. Without it each answer would wait 40 ms for
    # an acknowledgement, and the peer would lose for a reason that is not its own.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    config = uvicorn.Config(mcp.http_app(), log_level="error", access_log=False, lifespan="on", timeout_keep_alive=600)
    server = uvicorn.Server(config)
    print(listener.getsockname()[1], flush=True)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    with contextlib.suppress(OSError):
        await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


asyncio.run(main())
