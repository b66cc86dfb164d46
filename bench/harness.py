"""What every row needs: interleaved rounds, medians with spread, and the processes to measure.

Invariant: ours and the peer take turns in one run, A B A B; a figure is a ratio of medians over those rounds, and its
spread comes from the ratios of the single rounds, so that a busy moment of the machine, which hits both, cancels out.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "bench"
CACHE = ROOT / ".cache" / "bench"

Json = dict[str, Any]


def say(text: str) -> None:
    """Progress, on stderr: long commands show where they are."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    """ours / peer."""
    target: str | None
    """`"<= x"` or `">= x"`, for the ratio (for `ours` where there is no peer); None where it is only reported."""
    met: bool | None
    spread: Json
    """Quartiles (25 %, 75 %) of `ours`, `peer` and `ratio` over the rounds."""

    def json(self) -> Json:
        return asdict(self)


def quartiles(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]] if values else []
    cut = statistics.quantiles(values, n=4, method="inclusive")
    return [cut[0], cut[2]]


def holds(value: float, target: str) -> bool:
    sign, _, bound = target.partition(" ")
    return value <= float(bound) if sign == "<=" else value >= float(bound)


def compare(name: str, unit: str, target: str | None, ours: Sequence[float], peer: Sequence[float]) -> Row:
    """A row from the figures of interleaved rounds: `ours[n]` and `peer[n]` were measured right after one another."""
    ratio = statistics.median(ours) / statistics.median(peer)
    spread = {
        "ours": quartiles(ours),
        "peer": quartiles(peer),
        "ratio": quartiles([a / b for a, b in zip(ours, peer, strict=True)]),
    }
    met = holds(ratio, target) if target is not None else None
    return Row(name, statistics.median(ours), statistics.median(peer), unit, ratio, target, met, spread)


def report(name: str, unit: str, target: str | None, ours: Sequence[float]) -> Row:
    """A row without a peer; a target is for the figure itself."""
    value = statistics.median(ours)
    met = holds(value, target) if target is not None else None
    return Row(name, value, None, unit, None, target, met, {"ours": quartiles(ours)})


def interleave(rounds: int, *sides: Callable[[], float], warm_up: int = 1) -> list[list[float]]:
    """Let the sides take turns; the first `warm_up` rounds do not count. Every other round goes backwards."""
    figures: list[list[float]] = [[] for _ in sides]
    for number in range(-warm_up, rounds):
        turn = list(enumerate(sides))
        for index, side in turn if number % 2 == 0 else reversed(turn):
            value = side()
            if number >= 0:
                figures[index].append(value)
    return figures


@contextlib.contextmanager
def no_gc() -> Iterator[None]:
    """Collect before, not while."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Failed(Exception):
    """A measured process said that it could not do it."""


class LineProcess:
    """A child that answers each JSON line with one JSON line.

    Args:
        command: program and arguments.
        env: variables added to ours.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout
        self._name = " ".join(command[:3])

    def line(self) -> str:
        """The next line of its output."""
        line = self._out.readline()
        if not line:
            raise Failed(f"{self._name} ended with status {self._process.wait(10)}")
        return line.rstrip("\n")

    def ask(self, **order: Any) -> Any:
        """Send an order; returns the value of the answer."""
        self._in.write(json.dumps(order) + "\n")
        self._in.flush()
        return self.answer()

    def answer(self) -> Any:
        answer = json.loads(self.line())
        if not answer["ok"]:
            raise Failed(f"{self._name}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Browser(LineProcess):
    """One browser; see bench/browser/drive.mjs."""

    def __init__(self, engine: str) -> None:
        super().__init__(["node", str(HERE / "browser" / "drive.mjs"), engine])
        self.engine = engine
        self.version: str = self.answer()

    def open(self, url: str) -> None:
        self.ask(op="open", url=url)

    def run(self, code: str) -> Any:
        return self.ask(op="run", code=code)


class HttpServer(LineProcess):
    """bench/http_server.py in a process of its own."""

    def __init__(self) -> None:
        super().__init__([sys.executable, str(HERE / "http_server.py")])
        self.port = int(self.line())


class Gateway:
    """`sandport serve` with the benchmarks' folder.

    Args:
        agent: command line of the agent that each socket gets.
        env: what the agent needs to know.
    """

    def __init__(self, agent: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "sandport_native", "serve", "--dist", str(CACHE / "dist"), "--agent", agent]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **(env or {})}, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "/#token=" not in line:
            raise Failed(f"sandport serve said {line!r}")
        self.origin, _, self.token = line.rpartition("http://")[2].strip().partition("/#token=")
        self.origin = f"http://{self.origin}"

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Agent:
    """The other end of the socket by which an agent process takes orders."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sandport-bench-")
        self.path = f"{self._folder.name}/control"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(1)
        self._listener.settimeout(60)
        self._connection: socket.socket | None = None
        self._lines: IO[bytes] | None = None

    def expect(self) -> None:
        """Wait until the agent has a session and is connected to the page's server."""
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(300)
        self._lines = self._connection.makefile("rb")
        self._lines.readline()

    def ask(self, **order: Any) -> Json:
        assert self._connection is not None
        assert self._lines is not None
        self._connection.sendall(json.dumps(order).encode() + b"\n")
        line = self._lines.readline()
        answer: Json = json.loads(line) if line else {"error": "the agent is gone"}
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        self._folder.cleanup()
