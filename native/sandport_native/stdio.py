"""The process's stdin and stdout as byte streams.

Invariants: stdout carries protocol messages and nothing else, whatever a library prints; the end of stdin is seen at
once and told through an event.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream

READ_BYTES = 64 * 1024
READ_AHEAD = 64
"""Chunks the reading thread may be ahead; then it waits, and the pipe fills, and the client waits."""


class StdinStream(ByteReceiveStream):
    """Reads stdin in a daemon thread, so that a blocked read never holds up the end of the process.

    Attributes:
        ended: set when stdin has ended.
    """

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self._chunks: deque[bytes] = deque()
        self._arrived = anyio.Event()
        self._slots = threading.Semaphore(READ_AHEAD)
        self._token = anyio.lowlevel.current_token()
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

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """The next bytes; at most `READ_BYTES`, whatever is asked for."""
        while not self._chunks:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        data = self._chunks[0]
        if not data:
            raise anyio.EndOfStream
        self._chunks.popleft()
        self._slots.release()
        return data

    async def aclose(self) -> None:
        """Nothing to do: the thread is a daemon."""


class StdoutStream(ByteSendStream):
    """Writes to the real stdout, after moving everybody else's stdout to stderr. Several tasks may send at once."""

    def __init__(self) -> None:
        # In the thread, not around it: a write whose task was cancelled goes on, and nobody may come in between.
        self._turn = threading.Lock()
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    async def send(self, item: bytes) -> None:
        """Write all of it; waits in a thread while the client does not read."""
        await anyio.to_thread.run_sync(self._write, item, abandon_on_cancel=True)

    def _write(self, item: bytes) -> None:
        view = memoryview(item)
        with self._turn:
            while view:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BrokenPipeError:
                    raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Left open: the process ends right after."""
