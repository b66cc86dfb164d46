"""The lane to the page as a `sandport.Channel`.

Invariant: texts that arrive are received in order, whether or not somebody waits for them; a text that is sent is in
the page's queue when `send` returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from sandport import ChannelClosed

__all__ = ["LONG_ASCII", "LONG_OTHER", "PortChannel", "post_text"]

LONG_ASCII: Final = 16 * 1024
LONG_OTHER: Final = 512
"""Characters from which on a text leaves as its UTF-8: one copy of memory. As a string of JavaScript's it would take as
long as writing it, or, where it is not ASCII, a hundred times as long."""


class Poster(Protocol):
    """What puts texts on the worker's port; see `boot.Host`."""

    def post(self, text: str) -> object: ...

    def post_utf8(self, utf8: Any) -> object: ...


def post_text(host: Poster, text: str, to_js: Callable[[bytes], Any]) -> None:
    """Put a text on the port, in the form that costs least.

    Args:
        host: the worker's side.
        text: what to send.
        to_js: `pyodide.ffi.to_js`, which a memory image had better not hold.
    """
    if len(text) < (LONG_ASCII if text.isascii() else LONG_OTHER):
        host.post(text)
    else:
        host.post_utf8(to_js(text.encode()))


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
