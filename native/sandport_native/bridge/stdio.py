"""`sandport bridge -- COMMAND`: the bridge between this process's stdin and stdout and an agent process."""

from __future__ import annotations

import logging

import anyio

from sandport_native.bridge.conductor import open_bridge
from sandport_native.lines import Line, LineSplitter
from sandport_native.process import AgentProcess, AgentSpec, open_agent
from sandport_native.stdio import StdinStream, StdoutStream

log = logging.getLogger("sandport.bridge")


async def run(spec: AgentSpec, stdout: StdoutStream) -> int:
    """Bridge until either side ends. Returns the exit status: 1 if the agent ended by itself.

    Raises:
        AgentStartError: the command cannot be started.
    """
    writing = anyio.Lock()
    status = 0

    async def to_client(text: str) -> None:
        async with writing:
            await stdout.send(text.encode() + b"\n")

    async with (
        open_agent(spec) as agent,
        open_bridge(to_client, agent.send) as bridge,
        anyio.create_task_group() as tasks,
    ):

        async def from_client() -> None:
            stdin, splitter = StdinStream(), LineSplitter()
            try:
                while True:
                    for event in splitter.feed(await stdin.receive()):
                        if isinstance(event, Line):
                            await bridge.from_client(event.data.decode("utf-8", "replace"))
                        else:
                            log.error("%s", event)
            except anyio.EndOfStream:
                tasks.cancel_scope.cancel()

        async def from_agent() -> None:
            nonlocal status
            await _forward(agent, bridge.from_agent)
            status = 1
            log.error("%s", await agent.exit_text())
            tasks.cancel_scope.cancel()

        tasks.start_soon(from_client)
        tasks.start_soon(from_agent)
    return status


async def _forward(agent: AgentProcess, take: object) -> None:
    async for event in agent.receive():
        if isinstance(event, Line):
            await take(event.data.decode("utf-8", "replace"))  # type: ignore[operator]
        else:
            log.error("%s", event)
