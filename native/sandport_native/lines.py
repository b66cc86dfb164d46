"""Newline-delimited messages out of a byte stream, without I/O.

Invariant: every byte that is fed either becomes part of exactly one event or waits in the buffer, and the buffer
never holds more than `limit` bytes. A line that is too long costs its own message only: it is dropped up to its
newline, reported once, and the next line is read as usual.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Largest message by default. Results of tools travel as one line, so this is also the largest tool result; 64 MiB
is what the ACP SDKs buffer per connection, and far above asyncio's 64 KiB `readline`
limit, which plays no part here."""

PREFIX_BYTES = 512
"""How much of a dropped line is kept, enough to find the JSON-RPC id that usually stands near its start."""

_HEAD = re.compile(
    rb'^\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(-?\d{1,18}|"[^"\\\x00-\x1f]{0,200}")\s*,\s*"(result|error|method)"\s*:'
)


@dataclass(frozen=True, slots=True)
class Line:
    """One complete line without its newline. Empty lines are not reported."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Oversize:
    """A line longer than the limit ended; `size` bytes were dropped, `prefix` is how it began."""

    prefix: bytes
    size: int
    limit: int

    def __str__(self) -> str:
        return f"a message of {self.size} bytes exceeds the limit of {self.limit} bytes and was dropped"


def message_head(prefix: bytes) -> tuple[str, bool] | None:
    """Find the id in the first bytes of a JSON-RPC message.

    Returns (the id as JSON text, True if the message is a request), or None when the id is not at the usual place
    or the message has none. Only the top level is looked at: the pattern is anchored at the opening brace.
    """
    match = _HEAD.match(prefix)
    if match is None:
        return None
    return match[1].decode("ascii", "replace"), match[2] == b"method"


class LineSplitter:
    """Feed bytes, get lines.

    Args:
        limit: the largest line in bytes, newline not counted.
    """

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1 byte")
        self.limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._prefix: bytes | None = None  # not None: inside a line that is too long

    @property
    def buffered(self) -> int:
        """Bytes of the unfinished line that are held in memory."""
        return sum(map(len, self._parts))

    def feed(self, data: bytes) -> Iterator[Line | Oversize]:
        """Take the next bytes; yield the lines they complete, in order."""
        start = 0
        while (end := data.find(b"\n", start)) != -1:
            self._add(data[start:end])
            start = end + 1
            event = self._finish()
            if event is not None:
                yield event
        self._add(data[start:])

    def end(self) -> Line | Oversize | None:
        """The stream ended: the unfinished line, if there is one."""
        return self._finish()

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._prefix is not None:
            return
        self._parts.append(piece)
        if self._size > self.limit:
            head = bytearray()
            for part in self._parts:
                head += part[: PREFIX_BYTES - len(head)]
                if len(head) >= PREFIX_BYTES:
                    break
            self._prefix = bytes(head)
            self._parts = []

    def _finish(self) -> Line | Oversize | None:
        parts, size, prefix = self._parts, self._size, self._prefix
        self._parts, self._size, self._prefix = [], 0, None
        if prefix is not None:
            return Oversize(prefix, size, self.limit)
        data = (parts[0] if len(parts) == 1 else b"".join(parts)).removesuffix(b"\r")
        return Line(data) if data.strip() else None
