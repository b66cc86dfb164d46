"""The channel: JSON-RPC texts, in order, both ways.

Invariant: after either end closed, `send` on both ends raises `ChannelClosed` at once, `receive` on the end that closed
too, and on the other once it has read what was already sent. Whoever waits in either is woken. A channel knows nothing
of what the texts say.
"""

from __future__ import annotations

import math
from typing import Final, Protocol, runtime_checkable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sandport.errors import ChannelClosed

__all__ = ["CHANNEL_BUFFER", "Channel", "MemoryChannel", "memory_channel_pair"]

CHANNEL_BUFFER: Final = 64
"""Texts an in-memory channel holds before a sender waits: enough to absorb a burst of one message per active request,
small enough that a slow reader soon slows the writer."""


@runtime_checkable
class Channel(Protocol):
    """A duplex channel of JSON-RPC texts, one message a text."""

    async def send(self, text: str) -> None:
        """Send one message; waits while the peer is slow.

        Raises:
            ChannelClosed: either end is closed.
        """
        ...

    async def receive(self) -> str:
        """The next message.

        Raises:
            ChannelClosed: either end is closed and all that was sent has been read.
        """
        ...

    async def aclose(self) -> None:
        """Close this end; idempotent. The peer reads what was sent, then `ChannelClosed`."""
        ...


class MemoryChannel:
    """One end of an in-memory channel; make pairs with `memory_channel_pair`."""

    def __init__(
        self,
        send: MemoryObjectSendStream[str],
        receive: MemoryObjectReceiveStream[str],
        peer_send: MemoryObjectSendStream[str],
    ) -> None:
        self._send = send
        self._receive = receive
        self._peer_send = peer_send
        self._blocked: set[anyio.CancelScope] = set()

    async def send(self, text: str) -> None:
        try:
            # The fast path saves a task switch a message; a full buffer waits.
            self._send.send_nowait(text)
        except anyio.WouldBlock:
            await self._send_slowly(text)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ChannelClosed("the channel is closed") from None

    async def _send_slowly(self, text: str) -> None:
        with anyio.CancelScope() as scope:
            self._blocked.add(scope)
            try:
                await self._send.send(text)
                return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            finally:
                self._blocked.discard(scope)
        raise ChannelClosed("the channel is closed")

    async def receive(self) -> str:
        try:
            return await self._receive.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise ChannelClosed("the channel is closed") from None

    async def aclose(self) -> None:
        # A closed stream does not wake the tasks that wait on it: the peer's sending half wakes a `receive` of ours,
        # a cancellation a `send` of ours that met a full buffer.
        self._send.close()
        self._receive.close()
        self._peer_send.close()
        for scope in list(self._blocked):
            scope.cancel()


def memory_channel_pair(buffer: float = CHANNEL_BUFFER) -> tuple[MemoryChannel, MemoryChannel]:
    """Two connected in-memory ends.

    Args:
        buffer: texts held a direction before `send` waits; `math.inf` never waits.
    """
    size = buffer if math.isinf(buffer) else int(buffer)
    left_send, right_receive = anyio.create_memory_object_stream[str](size)
    right_send, left_receive = anyio.create_memory_object_stream[str](size)
    left = MemoryChannel(left_send, left_receive, right_send)
    return left, MemoryChannel(right_send, right_receive, left_send)
