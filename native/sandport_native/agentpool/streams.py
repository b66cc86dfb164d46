"""The process's stdin and stdout as byte streams for agentpool's ACP connection.

Invariants: stdout carries protocol messages and nothing else, whatever a library prints; the end of stdin is seen at
once and told through an event; what passes inwards is repaired where stock agentpool would lose it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream

from sandport_native.lines import MAX_LINE_BYTES, Line, LineSplitter

READ_BYTES = 64 * 1024
READ_AHEAD = 64
"""Chunks the reading thread may be ahead; then it waits, and the pipe fills, and the client waits."""

REQUEST_ID_KEY = "_sandportRequestId"
"""Under this key `repair` hands a request's outer id to the handler, which agentpool calls without it."""


def repair(line: bytes) -> tuple[bytes, bool]:
    """One incoming message as stock agentpool needs it.

    - An error without `data` is taken by agentpool for success(None): it gets `data: null`.
    - A response whose result is no object would fail an assertion and hang its caller: it becomes an error.
    - The handler of a request is not told its id, but must know it to obey a cancellation: for `mcp/message` it is
      added to the params.

    Returns the message, and whether it is a notification of the mcp lane.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return line, False
    if not isinstance(message, dict):
        return line, False
    if "method" not in message:
        changed, notification = _repair_response(message), False
    else:
        lane = message["method"] in ("mcp/message", "_mcp/message")
        changed, notification = lane and _repair_request(message), lane and "id" not in message
    if not changed:
        return line, notification
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"), notification


def _repair_response(message: dict[str, Any]) -> bool:
    error = message.get("error")
    if isinstance(error, dict):
        if {"code", "message", "data"} <= error.keys() and error["data"] is not None:
            return False
        error.setdefault("code", -32603)
        error.setdefault("message", "Error")
        error.setdefault("data", None)
        return True
    if "result" in message and not isinstance(message["result"], dict):
        got = type(message.pop("result")).__name__
        message["error"] = {
            "code": -32603,
            "message": f"The client answered with {got} instead of an object",
            "data": None,
        }
        return True
    return False


def _repair_request(message: dict[str, Any]) -> bool:
    if "id" not in message:
        return False
    if not isinstance(message.get("params"), dict):
        message["params"] = {}
    message["params"][REQUEST_ID_KEY] = message["id"]
    return True


class LaneOrder:
    """Keeps answers behind the notifications that came before them.

    agentpool resolves an answer while it reads it, but gives each notification a task of its own, so a tool's last
    progress would be overtaken by the tool's result and lost.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._handled = 0

    def saw(self) -> None:
        """A notification of the lane was read."""
        self._seen += 1

    def handled(self) -> None:
        """A notification of the lane reached its connection."""
        self._handled += 1

    async def caught_up(self) -> None:
        """Wait until all that was read so far has been handled. Its tasks are scheduled: turns of the loop suffice."""
        seen = self._seen
        while self._handled < seen:
            await anyio.lowlevel.checkpoint()
        for _ in range(3):  # the callbacks that the last one started
            await anyio.lowlevel.checkpoint()


class StdinStream(ByteReceiveStream):
    """Reads stdin in a daemon thread, so that a blocked read never holds up the end of the process.

    Attributes:
        ended: set when stdin has ended.
        order: told of each notification of the lane.
    """

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.order = LaneOrder()
        self._chunks: deque[bytes] = deque()
        self._arrived = anyio.Event()
        self._slots = threading.Semaphore(READ_AHEAD)
        self._token = anyio.lowlevel.current_token()
        self._splitter = LineSplitter(MAX_LINE_BYTES)
        self._rest = b""
        threading.Thread(target=self._read, name="sandport-stdin", daemon=True).start()

    def _read(self) -> None:
        while True:
            self._slots.acquire()
            try:
                data = os.read(0, READ_BYTES)
            except OSError:
                data = b""
            try:
                anyio.from_thread.run_sync(self._take, data, token=self._token)
            except RuntimeError:  # the event loop is gone
                return
            if not data:
                return

    def _take(self, data: bytes) -> None:
        self._chunks.append(data)
        if not data:
            self.ended.set()
        self._arrived.set()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """The next bytes, whole lines, repaired."""
        while not self._rest:
            while not self._chunks:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            data = self._chunks[0]
            if not data:
                raise anyio.EndOfStream
            self._chunks.popleft()
            self._slots.release()
            for event in self._splitter.feed(data):
                if isinstance(event, Line):
                    line, notification = repair(event.data)
                    if notification:
                        self.order.saw()
                    self._rest += line + b"\n"
                else:
                    print(f"sandport: {event}", file=sys.stderr, flush=True)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def aclose(self) -> None:
        """Nothing to do: the thread is a daemon."""


class StdoutStream(ByteSendStream):
    """Writes to the real stdout, after moving everybody else's stdout to stderr."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    async def send(self, item: bytes) -> None:
        """Write all of it; waits in a thread while the client does not read."""
        await anyio.to_thread.run_sync(self._write, item, abandon_on_cancel=True)

    def _write(self, item: bytes) -> None:
        view = memoryview(item)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Left open: the process ends right after."""
