"""`sandport agentpool serve-acp`: one agentpool over stdin and stdout, with MCP-over-ACP.

Invariant: the process ends when stdin ends or on SIGTERM, after telling the client's servers good-bye within a bound;
nothing but protocol messages is written to stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

SHUTDOWN_TIMEOUT = 8.0
"""Seconds for a clean end: 5 s for disconnects and some for agentpool's own; then the process ends hard."""

LOCK_TIMEOUT = 20.0
"""Seconds to wait for another agentpool that starts; one takes less than a second for what must not be done twice."""

DEMO_CONFIG = Path(__file__).resolve().parent.parent / "demo" / "agents.yml"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the command.

    Args:
        config: agentpool configuration; None for the demo agent.
        agent: name of the agent in it; None for the pool's main agent.
        model: replaces the agent's model.
        mcp_over_acp: advertise and accept `acp` servers.
        private: see `SandportAgent.private`.
        log_file: None for `acp.log` in agentpool's own log folder.
        mcp_timeout: seconds for one MCP request to the page.
    """

    config: Path | None
    agent: str | None = None
    model: str | None = None
    mcp_over_acp: bool = False
    log_file: Path | None = None
    mcp_timeout: float = 300.0
    private: bool = False


def run(options: ServeOptions) -> int:
    """Serve until the client is gone. Returns the exit status."""
    from sandport_native.stdio import StdoutStream

    stdout = StdoutStream()  # before any import can print
    os.environ.setdefault("LOGFIRE_IGNORE_NO_CONFIG", "1")
    warnings.simplefilter("ignore")
    _configure_logging(options.log_file)
    try:
        return asyncio.run(_serve(options, stdout))
    finally:
        # agentpool's libraries leave threads behind that would hold the process up.
        _end_hard_after(1.0)


def _configure_logging(log_file: Path | None) -> None:
    from agentpool.log import configure_logging
    from platformdirs import user_log_path

    if log_file is None:
        log_file = user_log_path("agentpool", appauthor=False) / "acp.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    # To a file: agentpool's console format renders tracebacks so richly that each blocks the loop for seconds.
    configure_logging(force=True, log_file=str(log_file))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    ours = logging.getLogger("sandport")
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)


async def _serve(options: ServeOptions, stdout: Any) -> int:
    from acp.agent.connection import AgentSideConnection
    from agentpool_server.acp_server import ACPServer
    from platformdirs import user_data_path

    from sandport_native.agentpool.agent import SandportAgent
    from sandport_native.agentpool.manifest import load_manifest
    from sandport_native.agentpool.streams import RepairedStdin

    stdin = RepairedStdin(stdout.send)
    manifest = load_manifest(options.config or DEMO_CONFIG)
    server = ACPServer.from_config(manifest, agent=options.agent)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        async with one_at_a_time(user_data_path("agentpool", appauthor=False) / "sandport.lock"):
            await stack.enter_async_context(server.pool)
        default_agent = server._resolve_default_agent()
        if options.model is not None:
            await default_agent.set_model(options.model)
        agents: list[SandportAgent] = []

        def make(connection: AgentSideConnection) -> SandportAgent:
            agent = SandportAgent(connection, default_agent, server=server)
            agent.mcp_over_acp, agent.mcp_timeout = options.mcp_over_acp, options.mcp_timeout
            agent.private = options.private
            agents.append(agent)
            return agent

        connection = AgentSideConnection(make, stdout, stdin)
        (agent,) = agents
        agent.bind(connection, stdin.order)
        ended = asyncio.create_task(stdin.ended.wait())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait([ended, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        _end_hard_after(SHUTDOWN_TIMEOUT)
        if ended.done():
            # The other direction may still be open (a client can half-close), so the good-byes are sent all the same,
            # but nobody will answer them.
            agent.mcp.disconnect_timeout = 0.2
        with anyio.move_on_after(SHUTDOWN_TIMEOUT / 2):
            await agent.shut_down()
        agent.connection_lost()
        with anyio.move_on_after(SHUTDOWN_TIMEOUT / 4):
            await connection.close()
    ended.cancel()
    return 0


@asynccontextmanager
async def one_at_a_time(file: Path) -> AsyncIterator[None]:
    """Keep others out, in this process and in other ones, while the context is open; wait for them `LOCK_TIMEOUT`.

    agentpool makes its history's tables when it starts. Of two that do so at once, one would end with an error. Where
    no lock can be had, that is a lesser evil than not to start.
    """
    descriptor = -1
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with anyio.move_on_after(LOCK_TIMEOUT):
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # a wait in a thread could not be given up
                    await anyio.sleep(0.05)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _end_hard_after(seconds: float) -> None:
    timer = threading.Timer(seconds, functools.partial(os._exit, 0))
    timer.daemon = True
    timer.start()
