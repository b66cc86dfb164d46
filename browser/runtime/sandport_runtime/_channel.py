"""The lane to the page as a `sandport.Channel`.

Invariant: texts that arrive are received in order, whether or not somebody waits for them; a text that is sent is in
the page's queue when `send` returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sandport import ChannelClosed

__all__ = ["PortChannel"]


class PortChannel:
    """A channel over the worker's MessagePort.

    Args:
        post: puts one text on the port.
    """

    def __init__(self, post: Callable[[str], object]) -> None:
        self._post = post
        self._texts: deque[str] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def feed(self, text: str) -> None:
        """A text arrived from the page."""
        if self._closed:
            return
        self._texts.append(text)
        self._awake()

    async def send(self, text: str) -> None:
        """Send one message. The page bounds what it takes; a port has no back-pressure of its own.

        Raises:
            ChannelClosed: `aclose` was called.
        """
        if self._closed:
            raise ChannelClosed("the sandbox's channel is closed")
        self._post(text)

    async def receive(self) -> str:
        """The next message.

        Raises:
            ChannelClosed: `aclose` was called and all that had arrived has been read.
        """
        while not self._texts:
            if self._closed:
                raise ChannelClosed("the sandbox's channel is closed")
            if self._waiter is not None:
                raise RuntimeError("two readers on one channel")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._texts.popleft()

    async def aclose(self) -> None:
        """End the channel; idempotent."""
        self.close()

    def close(self) -> None:
        """As `aclose`, for callers outside a task."""
        self._closed = True
        self._awake()

    def _awake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
