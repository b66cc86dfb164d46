"""Channels to a peer: the stdin and stdout of a process, or a WebSocket; both keep what passed.

Invariant: a process that was started here has ended when its context is left.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from sandport import Channel, ChannelClosed
from sandport.codec import MAX_MESSAGE_CHARS

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
NODE_MODULES = HERE / "node_modules"
GRACE = 5.0
"""Seconds a peer has to end once its stdin is closed."""

__all__ = ["HERE", "NODE_MODULES", "ROOT", "Exchange", "dial", "lines", "listen", "process", "recorded"]


class Exchange:
    """What passed on a channel since the last `clear`, as lines a person reads."""

    WIDTH = 2000

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        """What the peer wrote to stderr."""

    def clear(self) -> None:
        """A new case begins."""
        self.lines.clear()

    def note(self, arrow: str, text: str) -> None:
        """Remember a text; `arrow` says who sent it."""
        self.lines.append(f"{arrow} {text}")

    def messages(self, arrow: str) -> list[dict[str, Any]]:
        """The messages that went one way."""
        return [json.loads(line[len(arrow) + 1 :]) for line in self.lines if line.startswith(f"{arrow} ")]

    def __str__(self) -> str:
        shown = [line if len(line) <= self.WIDTH else line[: self.WIDTH] + " [...]" for line in self.lines]
        return "\n".join([*shown, *(f"!! {line}" for line in self.errors[-20:])])


class _Recorded:
    """A channel that tells an `Exchange` what passes: `->` sent here, `<-` received here."""

    def __init__(self, channel: Channel, exchange: Exchange) -> None:
        self._channel = channel
        self._exchange = exchange

    async def send(self, text: str) -> None:
        self._exchange.note("->", text)
        await self._channel.send(text)

    async def receive(self) -> str:
        text = await self._channel.receive()
        self._exchange.note("<-", text)
        return text

    async def aclose(self) -> None:
        await self._channel.aclose()


def recorded(channel: Channel, exchange: Exchange) -> Channel:
    """The channel, with what passes noted in `exchange`."""
    return _Recorded(channel, exchange)


class _Lines:
    """One JSON-RPC message a line, over byte streams."""

    def __init__(self, send: anyio.abc.ByteSendStream, receive: anyio.abc.ByteReceiveStream) -> None:
        self._send = send
        self._receive = BufferedByteReceiveStream(receive)
        self._lock = anyio.Lock()

    async def send(self, text: str) -> None:
        try:
            async with self._lock:
                await self._send.send(text.encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ChannelClosed("the peer's stdin is closed") from None

    async def receive(self) -> str:
        try:
            return (await self._receive.receive_until(b"\n", MAX_MESSAGE_CHARS)).decode()
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ChannelClosed("the peer's stdout has ended") from None

    async def aclose(self) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._send.aclose()


def lines(send: anyio.abc.ByteSendStream, receive: anyio.abc.ByteReceiveStream) -> Channel:
    """A channel over two byte streams, one message a line."""
    return _Lines(send, receive)


@asynccontextmanager
async def process(
    command: Sequence[str], exchange: Exchange, *, env: Mapping[str, str] | None = None
) -> AsyncIterator[Channel]:
    """Run a program and speak with it by lines; it is ended by EOF, then by signal."""
    started = await anyio.open_process(
        list(command), stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1", **(env or {})}, cwd=ROOT
    )
    assert started.stdin is not None
    assert started.stdout is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stderr, started, exchange)
        channel = lines(started.stdin, started.stdout)
        try:
            yield channel
        finally:
            with anyio.CancelScope(shield=True):
                await channel.aclose()
                with anyio.move_on_after(GRACE) as scope:
                    await started.wait()
                if scope.cancelled_caught:
                    exchange.errors.append(f"{command[0]} did not end at the end of its stdin")
                    started.kill()
                await started.aclose()
            tasks.cancel_scope.cancel()


async def _stderr(started: anyio.abc.Process, exchange: Exchange) -> None:
    assert started.stderr is not None
    stream = BufferedByteReceiveStream(started.stderr)
    with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            exchange.errors.append((await stream.receive_until(b"\n", 1 << 20)).decode(errors="replace"))


class _WebSocket:
    """One JSON-RPC message a text frame."""

    def __init__(self, socket: Connection) -> None:
        self._socket = socket

    async def send(self, text: str) -> None:
        try:
            await self._socket.send(text)
        except ConnectionClosed:
            raise ChannelClosed("the WebSocket is closed") from None

    async def receive(self) -> str:
        try:
            frame = await self._socket.recv()
        except ConnectionClosed:
            raise ChannelClosed("the WebSocket is closed") from None
        assert isinstance(frame, str), "ACP has no binary frames"
        return frame

    async def aclose(self) -> None:
        await self._socket.close()


@asynccontextmanager
async def dial(url: str) -> AsyncIterator[Channel]:
    """A WebSocket to a peer that listens."""
    async with connect(url, max_size=None, compression=None, proxy=None) as socket:
        yield _WebSocket(socket)


@asynccontextmanager
async def listen() -> AsyncIterator[tuple[str, anyio.abc.ObjectReceiveStream[Channel]]]:
    """A loopback WebSocket server: its address, and the channels of those who connect."""
    put, get = anyio.create_memory_object_stream[Channel](8)

    async def accept(socket: ServerConnection) -> None:
        await put.send(_WebSocket(socket))
        await socket.wait_closed()

    async with serve(accept, "127.0.0.1", 0, max_size=None, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with put, get:
            yield f"ws://127.0.0.1:{port}/acp", get
