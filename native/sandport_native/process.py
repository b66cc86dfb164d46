"""An ACP agent as a child process: one JSON-RPC message per line on stdin and stdout.

Invariant: a process that `open_agent` started has ended, with all that it started, when the context is left, whatever
the reason. The order is: close stdin, SIGTERM, SIGKILL; both signals go to its process group and, on Linux, to each
process that descends from it or carries its mark: MCP clients start their servers in groups of their own, many with an
environment of a few names.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
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

READ_AHEAD = 4 * 1024 * 1024
"""Bytes that may wait for an agent that reads nothing before its page is read no further. Up to here the gateway still
sees that the page closes, and its pongs; beyond it both would be stuck behind the messages that nobody takes."""

INPUT_TIMEOUT = 45.0
"""Seconds an agent may take not one byte while more than `READ_AHEAD` waits for it. Shorter than the gateway's ping
timeout, whose pong would be stuck as well: so the page is told the true reason."""

MARK = "SANDPORT_PROCESS"
"""Environment variable by which the descendants of one agent are known, whoever their parent is by then."""

KILL_ROUNDS = 5
"""How often the process table is read for processes that were started while the others were killed."""

STDERR_LINE_BYTES = 4096
"""Longer stderr lines are cut: stderr is for people."""

STDERR_BURST, STDERR_PER_SECOND = 100, 10.0
"""How many stderr lines of one agent reach the log at once and in the long run; the rest is counted."""

_READ_BYTES = 256 * 1024

PIPE_BYTES = 1024 * 1024
"""What a pipe to or from an agent may hold: all that an unprivileged process may ask for on Linux."""


class AgentStartError(Exception):
    """The agent's command could not be started; the text names the cause and the remedy."""


class AgentStuckError(Exception):
    """The agent reads nothing; the text says for how long."""


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

    def __init__(self, spec: AgentSpec, process: Process, limit: int, mark: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.spec = spec
        self.pid = process.pid
        self.last_stderr = ""
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._splitter = LineSplitter(limit)
        self._mark = f"{MARK}={mark}".encode()
        own = _stat(process.pid)
        self._kin = {process.pid: own.start} if own is not None else {}
        # A pipe takes 64 KiB; asyncio keeps the rest, and says when it is too much.
        self._pipe: asyncio.WriteTransport = self._stdin._stream.transport  # type: ignore[attr-defined]
        self._pipe.set_write_buffer_limits(high=READ_AHEAD)
        for transport in (self._pipe, self._stdout._stream._transport):  # type: ignore[attr-defined]
            _widen(transport.get_extra_info("pipe"))

    async def send(self, text: str) -> None:
        """Write one message. Waits while `READ_AHEAD` bytes and more are not yet read (back-pressure).

        A raw newline can only be white space between JSON tokens, so it becomes a space: the message stays one line.

        Raises:
            anyio.BrokenResourceError, anyio.ClosedResourceError: the agent no longer reads.
            AgentStuckError: it lives, and has read nothing for `INPUT_TIMEOUT`.
        """
        line = text.strip()
        if "\n" in line or "\r" in line:
            line = line.replace("\r", " ").replace("\n", " ")
        data = line.encode("utf-8") + b"\n"
        if self._pipe.get_write_buffer_size() + len(data) <= READ_AHEAD:
            await self._stdin.send(data)
        else:
            await self._send_watched(data)

    async def _send_watched(self, data: bytes) -> None:
        """Send what has to wait, and see to it that the agent takes something meanwhile."""
        while True:
            waiting = self._pipe.get_write_buffer_size() + len(data)
            with anyio.move_on_after(INPUT_TIMEOUT) as late:
                await self._stdin.send(data)
            if not late.cancelled_caught:
                return
            if self._pipe.get_write_buffer_size() >= waiting:
                raise AgentStuckError(f"The agent lives but has read nothing for {INPUT_TIMEOUT:g} s")
            data = b""  # the rest is in the buffer

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

    @property
    def status(self) -> int | None:
        """Its exit status; minus the number of the signal that ended it; None while it runs."""
        return self._process.returncode

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
        fields = {"agent": self.spec.name, "pid": self.pid}
        with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                for event in splitter.feed(await self._stderr.receive(_READ_BYTES)):
                    raw = event.data if isinstance(event, Line) else event.prefix + b" (cut)"
                    text = redactor.clean(raw.decode("utf-8", "replace").rstrip())
                    self.last_stderr = text[:200]
                    if limiter.allow(anyio.current_time()):
                        missed = limiter.take_dropped()
                        if missed:
                            log.warning(
                                "%s[%d]: %d stderr lines left out", self.spec.name, self.pid, missed, extra=fields
                            )
                        log.info("%s[%d]: %s", self.spec.name, self.pid, text, extra=fields)

    async def _drain(self) -> None:
        # A process that blocks on a full pipe cannot end by itself.
        with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                await self._stdout.receive(_READ_BYTES)

    async def _end(self, eof_grace: float, term_grace: float) -> None:
        if self._process.returncode is None:
            # Now, for who has lost its parent is no longer found by it.
            await anyio.to_thread.run_sync(_find_kin, self._kin)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._drain)
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                # Closing waits for the pipe to drain; an agent that reads nothing must not hold us up.
                with anyio.move_on_after(eof_grace):
                    await self._stdin.aclose()
            if not await self._ended_within(eof_grace):
                await self._signal(signal.SIGTERM)
                await self._ended_within(term_grace)
            # Also when it is gone: what it started may live on.
            await self._signal(signal.SIGKILL)
            await self._process.wait()
            tasks.cancel_scope.cancel()

    async def _ended_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._process.wait()
            return True
        return False

    async def _signal(self, number: signal.Signals) -> None:
        await anyio.to_thread.run_sync(_signal_all, self.pid, self._mark, self._kin, number)


@dataclass(frozen=True, slots=True)
class _Stat:
    """What the process table says of one process."""

    group: int
    start: int
    """In ticks since the system's start: with it a number that was given out again is no mistake."""
    ended: bool


def _stat(pid: int) -> _Stat | None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        # The name in brackets may hold anything.
        state, _parent, group, *rest = file.read().rpartition(b")")[2].split()
        return _Stat(int(group), int(rest[16]), state in b"ZX")
    return None


def _find_kin(kin: dict[int, int]) -> None:
    """Add to `kin` (number and start of processes) all that descend from those of them that still are."""
    waiting = [pid for pid, start in kin.items() if (stat := _stat(pid)) is not None and stat.start == start]
    while waiting:
        for child in _children(waiting.pop()):
            stat = _stat(child)
            if stat is not None and kin.get(child) != stat.start:
                kin[child] = stat.start
                waiting.append(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    # Gone, or a system without these files.
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _signal_all(group: int, mark: bytes, kin: dict[int, int], number: signal.Signals) -> None:
    """Signal the group and, on Linux, all kin and whoever has the mark; for SIGKILL again until there is none."""
    _find_kin(kin)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    if not hasattr(os, "pidfd_open") or not os.path.isdir("/proc/self"):
        return
    for _ in range(KILL_ROUNDS if number == signal.SIGKILL else 1):
        targets = {**_marked(mark), **kin}
        if sum(_signal_one(pid, start, group, number) for pid, start in targets.items()) == 0:
            return
        _find_kin(kin)


def _marked(mark: bytes) -> dict[int, int]:
    """Number and start of the processes that have the mark in their environment."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        # Gone, or of another user.
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read() and (stat := _stat(pid)) is not None:
                    found[pid] = stat.start
    return found


def _signal_one(pid: int, start: int, group: int, number: signal.Signals) -> bool:
    # Gone, or more processes than descriptors.
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            # By now the number surely means the process that the descriptor is of. Those of the group have the signal
            # already, and to many a program the second one means more than the first.
            stat = _stat(pid)
            if stat is not None and stat.start == start and stat.group != group and not stat.ended:
                signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


def _widen(pipe: IO[bytes] | None) -> None:
    """Let a pipe hold a large message, where the system can: it then passes in one go, not in turns of 64 KiB."""
    command = getattr(fcntl, "F_SETPIPE_SZ", None)
    if pipe is not None and command is not None:
        # Refused where a user's pipes hold much already, and closed where the process has ended at once.
        with contextlib.suppress(OSError, ValueError):
            fcntl.fcntl(pipe.fileno(), command, PIPE_BYTES)


@asynccontextmanager
async def open_agent(
    spec: AgentSpec,
    *,
    limit: int = MAX_LINE_BYTES,
    eof_grace: float = EOF_GRACE,
    term_grace: float = TERM_GRACE,
) -> AsyncIterator[AgentProcess]:
    """Start an agent in its own session and process group; end it and all that it started on leaving.

    Args:
        spec: what to start.
        limit: the largest line it may send, bytes.
        eof_grace, term_grace: seconds between the three steps of ending it.

    Raises:
        AgentStartError: the command does not exist or may not be run.
    """
    # Begins with the mark of a gateway that this one runs below, so that one ends our agents too.
    mark = f"{os.environ.get(MARK, '')}.{secrets.token_hex(8)}"
    try:
        process = await anyio.open_process(
            list(spec.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=spec.cwd,
            env={**os.environ, **spec.env, MARK: mark},
            start_new_session=True,
        )
    except FileNotFoundError as exc:
        missing = spec.cwd if spec.cwd is not None and not spec.cwd.is_dir() else spec.command[0]
        raise AgentStartError(f"The agent could not be started: {missing} does not exist") from exc
    except OSError as exc:
        raise AgentStartError(f"The agent could not be started: {spec.command[0]}: {exc.strerror}") from exc

    agent = AgentProcess(spec, process, limit, mark)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent._watch_stderr)
        try:
            yield agent
        finally:
            with anyio.CancelScope(shield=True):
                await agent._end(eof_grace, term_grace)
                await process.aclose()
            tasks.cancel_scope.cancel()
