"""An ACP agent as a child process: one JSON-RPC message per line on stdin and stdout.

Invariant: a process that `open_agent` started has ended, with its whole process group, when the context is left,
whatever the reason. The order is: close stdin, SIGTERM to the group, SIGKILL to the group.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import Process

from sandport_native.lines import MAX_LINE_BYTES, Line, LineSplitter, Oversize
from sandport_native.log import RateLimiter, redactor

log = logging.getLogger("sandport.agent")

EOF_GRACE = 3.0
"""Seconds an agent gets after its stdin was closed. Most stock agents leave within 2 s."""

TERM_GRACE = 2.0
"""Seconds its process group gets after SIGTERM, before SIGKILL."""

EXIT_WAIT = 2.0
"""Seconds to wait for the exit status once stdout has ended by itself."""

STDERR_LINE_BYTES = 4096
"""Longer stderr lines are cut: stderr is for people."""

STDERR_BURST, STDERR_PER_SECOND = 100, 10.0
"""How many stderr lines of one agent reach the log at once and in the long run; the rest is counted."""

_READ_BYTES = 256 * 1024


class AgentStartError(Exception):
    """The agent's command could not be started; the text names the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """How to start an agent.

    Args:
        name: what people call it.
        command: program and arguments; no shell is involved.
        env: variables added to the gateway's own environment.
        cwd: working directory, None for the gateway's.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


class AgentProcess:
    """A running agent. Made by `open_agent`."""

    def __init__(self, spec: AgentSpec, process: Process, limit: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.spec = spec
        self.pid = process.pid
        self.last_stderr = ""
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._splitter = LineSplitter(limit)

    async def send(self, text: str) -> None:
        """Write one message. Waits while the agent does not read (back-pressure).

        A raw newline can only be white space between JSON tokens, so it becomes a space: the message stays one line.

        Raises:
            anyio.BrokenResourceError, anyio.ClosedResourceError: the agent no longer reads.
        """
        line = text.strip()
        if "\n" in line or "\r" in line:
            line = line.replace("\r", " ").replace("\n", " ")
        await self._stdin.send(line.encode("utf-8") + b"\n")

    async def receive(self) -> AsyncIterator[Line | Oversize]:
        """The agent's lines until its stdout ends. Nothing is read while the consumer is busy (back-pressure)."""
        while True:
            try:
                data = await self._stdout.receive(_READ_BYTES)
            except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                break
            for event in self._splitter.feed(data):
                yield event
        last = self._splitter.end()
        if last is not None:
            yield last

    async def exit_text(self) -> str:
        """Why it ended, in one line for a person: exit status or signal, and its last words on stderr."""
        with anyio.move_on_after(EXIT_WAIT):
            await self._process.wait()
        code = self._process.returncode
        if code is None:
            text = "The agent closed its output"
        elif code < 0:
            with contextlib.suppress(ValueError):
                return f"The agent was ended by {signal.Signals(-code).name}"
            text = f"The agent was ended by signal {-code}"
        else:
            text = f"The agent ended (exit status {code})"
        return f"{text}: {self.last_stderr}" if self.last_stderr and code != 0 else text

    async def _watch_stderr(self) -> None:
        splitter = LineSplitter(STDERR_LINE_BYTES)
        limiter = RateLimiter(STDERR_BURST, STDERR_PER_SECOND)
        with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                for event in splitter.feed(await self._stderr.receive(_READ_BYTES)):
                    raw = event.data if isinstance(event, Line) else event.prefix + b" (cut)"
                    text = redactor.clean(raw.decode("utf-8", "replace").rstrip())
                    self.last_stderr = text[:200]
                    if limiter.allow(anyio.current_time()):
                        missed = limiter.take_dropped()
                        if missed:
                            log.warning("%s[%d]: %d stderr lines left out", self.spec.name, self.pid, missed)
                        log.info("%s[%d]: %s", self.spec.name, self.pid, text)

    async def _drain(self) -> None:
        # A process that blocks on a full pipe cannot end by itself.
        with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                await self._stdout.receive(_READ_BYTES)

    async def _end(self, eof_grace: float, term_grace: float) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain)
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                # Closing waits for the pipe to drain; an agent that reads nothing must not hold us up.
                with anyio.move_on_after(eof_grace):
                    await self._stdin.aclose()
            if not await self._ended_within(eof_grace):
                self._signal(signal.SIGTERM)
                await self._ended_within(term_grace)
            # Also when the leader is gone: its own children may live on in the group.
            self._signal(signal.SIGKILL)
            await self._process.wait()
            tasks.cancel_scope.cancel()

    async def _ended_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._process.wait()
            return True
        return False

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


@asynccontextmanager
async def open_agent(
    spec: AgentSpec,
    *,
    limit: int = MAX_LINE_BYTES,
    eof_grace: float = EOF_GRACE,
    term_grace: float = TERM_GRACE,
) -> AsyncIterator[AgentProcess]:
    """Start an agent in its own session and process group; end all of it on leaving.

    Args:
        spec: what to start.
        limit: the largest line it may send, bytes.
        eof_grace, term_grace: seconds between the three steps of ending it.

    Raises:
        AgentStartError: the command does not exist or may not be run.
    """
    try:
        process = await anyio.open_process(
            list(spec.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=spec.cwd,
            env={**os.environ, **spec.env},
            start_new_session=True,
        )
    except FileNotFoundError as exc:
        missing = spec.cwd if spec.cwd is not None and not spec.cwd.is_dir() else spec.command[0]
        raise AgentStartError(f"The agent could not be started: {missing} does not exist") from exc
    except OSError as exc:
        raise AgentStartError(f"The agent could not be started: {spec.command[0]}: {exc.strerror}") from exc

    agent = AgentProcess(spec, process, limit)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent._watch_stderr)
        try:
            yield agent
        finally:
            with anyio.CancelScope(shield=True):
                await agent._end(eof_grace, term_grace)
                await process.aclose()
            tasks.cancel_scope.cancel()
