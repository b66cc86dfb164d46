"""`sandport bridge -- COMMAND`: the bridge between this process's stdin and stdout and an agent process.

Invariants: stdout carries ACP messages alone; every request that the client has open when the agent ends is answered,
with the reason; the agent's whole process group has ended when `run` returns, whatever the reason.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
from typing import Any

import anyio

from sandport.codec import encode, error_message, id_key, is_id
from sandport.errors import PeerError
from sandport_native.bridge.conductor import Bridge, open_bridge
from sandport_native.lines import LineSplitter, Oversize, message_head
from sandport_native.process import AgentProcess, AgentSpec, open_agent
from sandport_native.stdio import StdinStream, StdoutStream

log = logging.getLogger("sandport.bridge")

SILENCE = 30.0
"""Seconds without an answer to `initialize` after which a person is told; agents on a busy machine take a third."""

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


async def run(spec: AgentSpec, stdout: StdoutStream) -> int:
    """Bridge until either side ends.

    Returns:
        The exit status: 0 if the client left; the agent's own (128 + n for signal n) if it ended by itself, and 1 if
        that was before it had answered `initialize` and its own was 0; 128 + n if signal n ended the bridge.

    Raises:
        AgentStartError: the command cannot be started.
    """
    async with open_agent(spec) as agent:
        session = _Session(agent, stdout)
        async with open_bridge(session.to_client, session.to_agent) as bridge, anyio.create_task_group() as tasks:

            async def until(side: Any) -> None:
                await side(bridge)
                tasks.cancel_scope.cancel()

            for side in (session.from_client, session.from_agent, session.watch_signals):
                tasks.start_soon(until, side)
            tasks.start_soon(session.watch_silence)
        return session.status


class _Session:
    """One client and one agent."""

    def __init__(self, agent: AgentProcess, stdout: StdoutStream) -> None:
        self.status = 0
        self._agent = agent
        self._stdout = stdout
        self._writing = anyio.Lock()
        self._open: dict[Any, Any] = {}
        """Requests that the client waits for, by key."""
        self._initialize: Any = None
        self._answered = anyio.Event()
        """The agent has answered `initialize`, with whatever."""

    async def to_client(self, text: str) -> None:
        """Write one message; a client that is gone is noticed by its stdin."""
        message = _read(text)
        if message is not None and "method" not in message and is_id(message.get("id")):
            key = id_key(message["id"])
            self._open.pop(key, None)
            if key == self._initialize:
                self._answered.set()
        with contextlib.suppress(*GONE):
            async with self._writing:
                await self._stdout.send(text.strip().encode() + b"\n")

    async def to_agent(self, text: str) -> None:
        """Write one message; an agent that is gone is noticed by its stdout."""
        with contextlib.suppress(*GONE):
            await self._agent.send(text)

    async def from_client(self, bridge: Bridge) -> None:
        """Take the client's messages until it leaves."""
        stdin, splitter = StdinStream(), LineSplitter()
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                for event in splitter.feed(await stdin.receive()):
                    if isinstance(event, Oversize):
                        await self._oversize(event, self.to_client)
                        continue
                    text = event.data.decode("utf-8", "replace")
                    self._note(text)
                    await bridge.from_client(text)

    async def from_agent(self, bridge: Bridge) -> None:
        """Take the agent's messages until it ends; then say so to the client and to the person."""
        async for event in self._agent.receive():
            if isinstance(event, Oversize):
                await self._oversize(event, self.to_agent)
                continue
            text = event.data.decode("utf-8", "replace")
            if text.lstrip().startswith("{"):
                await bridge.from_agent(text)
            else:
                log.warning("the agent wrote a line that is no message: %s", text[:200])
        why = await self._agent.exit_text()
        code = self._agent.status
        self.status = 1 if code is None else code if code >= 0 else 128 - code
        if not self._answered.is_set():
            why = f"{why}. It never answered `initialize`: is `{' '.join(self._agent.spec.command)}` an ACP agent?"
            self.status = self.status or 1
        log.error("%s", why)
        for request_id in list(self._open.values()):
            await self.to_client(encode(error_message(request_id, PeerError(-32603, why))))

    async def watch_signals(self, _bridge: Bridge) -> None:
        """End in order when told to."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                self.status = 128 + number
                return

    async def watch_silence(self) -> None:
        """Tell the person about an agent that says nothing."""
        with anyio.move_on_after(SILENCE):
            await self._answered.wait()
            return
        command = " ".join(self._agent.spec.command)
        log.warning("no answer to `initialize` for %g s: is `%s` an ACP agent on stdio?", SILENCE, command)

    def _note(self, text: str) -> None:
        message = _read(text)
        if message is not None and "method" in message and is_id(message.get("id")):
            key = id_key(message["id"])
            self._open[key] = message["id"]
            if message["method"] == "initialize":
                self._initialize = key

    async def _oversize(self, event: Oversize, back: Any) -> None:
        """A message was too long: who waits for it is told, the sender of a request or the reader of an answer."""
        log.error("%s", event)
        head = message_head(event.prefix)
        if head is not None:
            request_id, is_request = json.loads(head[0]), head[1]
            other = self.to_agent if back == self.to_client else self.to_client
            await (back if is_request else other)(encode(error_message(request_id, PeerError(-32600, str(event)))))


def _read(text: str) -> dict[str, Any] | None:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
