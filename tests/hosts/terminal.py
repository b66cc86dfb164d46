"""A terminal, for a program that is to be tried as a person has it: what it prints, and keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

CTRL_C: Final = "\x03"
CTRL_D: Final = "\x04"
UP: Final = "\x1b[A"
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\r(?!\n)")
SIZE: Final = struct.pack("HHHH", 30, 100, 0, 0)
"""Rows and columns."""


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._pid, self._end = pty.fork()
        if self._pid == 0:
            os.environ.update({"TERM": "xterm-256color", **(env or {})})
            os.execvp(command[0], list(command))
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, SIZE)
        self.raw = ""
        self._seen = 0
        self._status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is None:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
        os.close(self._end)

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Wait for a pattern in what is printed from here on, without colours; what came up to its end."""
        until = time.monotonic() + seconds
        while True:
            text = _CONTROL.sub("", self.raw)[self._seen :]
            found = re.search(pattern, text)
            if found:
                self._seen += found.end()
                return text[: found.end()]
            ready, _, _ = select.select([self._end], [], [], max(0, until - time.monotonic()))
            if not ready or not self._read():
                raise AssertionError(f"no {pattern!r} in:\n{text}")

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self._end, keys.encode())

    def say(self, line: str) -> None:
        """Type a line."""
        self.send(f"{line}\r")

    def wait(self) -> int:
        """Read on until the program ends; its exit status."""
        while self._read():
            pass
        _, status = os.waitpid(self._pid, 0)
        self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def _read(self) -> bool:
        try:
            chunk = os.read(self._end, 65536)
        except OSError:
            # Linux says so when the program's end is closed.
            return False
        self.raw += chunk.decode(errors="replace")
        return bool(chunk)
