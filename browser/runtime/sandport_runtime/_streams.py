"""What tools print, to the page's log: whole, attributed, bounded, and never on the channel.

Invariant: nothing written to stdout or stderr, by print, by the file descriptor or after a tool replaced a stream,
reaches the lane; per call at most `CALL_BYTES` are passed on, then one line says how much was left out.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from fastmcp.server.dependencies import fastmcp_request_ctx

from sandport import current_call
from sandport.host import CallInfo

__all__ = ["CALL_BYTES", "CHUNK", "Log", "LogStream"]

CHUNK: Final = 16_384
"""Characters in one log event: the page shows it at once and drops nothing of it."""
CALL_BYTES: Final = 262_144
"""Characters that one call may print into the log; more than anybody reads, little enough for a page to hold."""
LINE_PAUSE: Final = 0.05
"""Seconds between two events of code that prints without returning to the loop: as live as an eye can see."""
WINDOW: Final = 1.0
"""Seconds after which output that belongs to no call gets a fresh allowance."""
Origin = tuple[CallInfo | None, str | None]
"""The call, and its request's id in FastMCP as far as it is known."""
_NOBODY: Final[Origin] = (None, None)
MAX_CALLS: Final = 256
"""Calls whose allowance is remembered; the oldest is forgotten first."""


def _origin() -> Origin:
    """Where the running code was called from; costs nothing until a tool prints."""
    call = current_call()
    if call is None:
        return _NOBODY
    request = fastmcp_request_ctx.get()
    return call, None if request is None or request.request_id is None else str(request.request_id)


class Log:
    """Bounds and labels output, and hands it to `emit` as the members of a log event."""

    def __init__(self, emit: Callable[[dict[str, Any]], object]) -> None:
        self._emit = emit
        self._spent: dict[int, tuple[CallInfo | None, int]] = {}
        self._window_end = 0.0

    def write(self, stream: str, text: str, origin: Origin | None = None) -> None:
        """Pass `text` on, as far as the allowance of its call goes."""
        call, request = origin if origin is not None else _origin()
        # One object a call; held here, so that its id is nobody else's.
        key = id(call)
        if call is None and time.monotonic() >= self._window_end:
            self._window_end = time.monotonic() + WINDOW
            self._spent.pop(key, None)
        _, spent = self._spent.get(key, (call, 0))
        if spent > CALL_BYTES:
            return
        if key not in self._spent and len(self._spent) >= MAX_CALLS:
            self._spent.pop(next(iter(self._spent)))
        self._spent[key] = (call, spent + len(text))
        room = CALL_BYTES - spent
        shown = text[:room]
        label: dict[str, Any] = {}
        if call is not None:
            label = {"server": call.server, "tool": call.tool, "call": call.tool_call_id or request}
            label = {name: value for name, value in label.items() if value is not None}
        for start in range(0, len(shown), CHUNK):
            self._emit({**label, "stream": stream, "text": shown[start : start + CHUNK]})
        if len(text) > room:
            where = "this call" if call is not None else "this second"
            self._emit(
                {
                    **label,
                    "stream": stream,
                    "text": f"\n[more than {CALL_BYTES} characters: the rest of {where} is left out]\n",
                }
            )


class LogStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of the sandbox.

    Text is gathered until the stream is flushed, `CHUNK` is full, the loop goes on, or a line is complete and the last
    one is `LINE_PAUSE` old; so a loop that prints is seen while it runs, and does not send an event for each line.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, log: Log, stream: str, fd: int) -> None:
        super().__init__()
        self._log = log
        self._stream = stream
        self._fd = fd
        self._held: list[str] = []
        self._held_size = 0
        self._held_origin: Origin | None = None
        self._flush_pending = False
        self._next_line_at = 0.0
        self._buffer = _Bytes(self)

    @property
    def name(self) -> str:
        return f"<{self._stream}>"

    @property
    def buffer(self) -> _Bytes:
        """For programs that write bytes; they are read as UTF-8, with replacement characters for what is not."""
        return self._buffer

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Flush. A tool that closes stdout must not silence the next one."""
        self.flush()

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not text:
            return 0
        origin = _origin()
        if self._held and origin != self._held_origin:
            self.flush()
        if not self._held:
            self._held_origin = origin
            self._flush_soon()
        self._held.append(text)
        self._held_size += len(text)
        if self._held_size >= CHUNK or ("\n" in text and time.monotonic() >= self._next_line_at):
            self.flush()
        return len(text)

    def flush(self) -> None:
        if not self._held:
            return
        text = "".join(self._held)
        self._held.clear()
        self._held_size = 0
        self._next_line_at = time.monotonic() + LINE_PAUSE
        self._log.write(self._stream, text, self._held_origin)

    def _flush_soon(self) -> None:
        if self._flush_pending:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._flush_pending = True
        # An empty context: the flush is nobody's call, and must not be armed with a call's time limit.
        loop.call_soon(self._flush_pended, context=Context())

    def _flush_pended(self) -> None:
        self._flush_pending = False
        self.flush()


class _Bytes(io.RawIOBase):
    """The `buffer` of a `LogStream`."""

    def __init__(self, text: LogStream) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._text.write(raw.decode("utf-8", "replace"))
        return len(raw)

    def flush(self) -> None:
        self._text.flush()
