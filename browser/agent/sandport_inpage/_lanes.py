"""The agent's end of the one channel: its two lanes, apart by message as in the port at the other end.

Invariant: a message goes to the mcp lane when it is an `mcp/*` request or notification, or answers a request that the
mcp lane sent (its ids begin with `PREFIX`, and the SDK's are numbers); a cancellation concerns both; all else goes to
the acp lane. Each text reaches its lane unchanged and in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import anyio

from sandport.channel import Channel
from sandport.codec import Message, decode, encode, id_key, is_id
from sandport.errors import ChannelClosed
from sandport.wire import CANCEL_METHODS, LANE_METHODS, read_declaration
from sandport.wire.errors import PeerError

__all__ = ["DECLARED", "PREFIX", "AcpTransport", "Lane", "Lanes"]

PREFIX: Final = "mcp-"
"""What the ids of the mcp lane's own requests begin with."""
DECLARED: Final = "sandport.declared"
"""Member of `_meta` that carries a session's `acp` servers past the SDK, whose models know one release's members."""
OPENERS: Final = frozenset({"session/new", "session/load", "session/resume", "session/fork"})
UNROUTED: Final = frozenset({"session/delete"})
"""Stable methods that the SDK's router does not know; it hands extensions on, so they pass as such."""


class Lane:
    """One lane, as a channel of its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._feed, self._texts = anyio.create_memory_object_stream[str](math.inf)

    def feed(self, text: str) -> None:
        """A text of this lane arrived."""
        try:
            self._feed.send_nowait(text)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            # Nobody reads any more; the other lane goes on.
            return

    async def send(self, text: str) -> None:
        """See `sandport.Channel.send`."""
        await self._channel.send(text)

    async def receive(self) -> str:
        """See `sandport.Channel.receive`."""
        try:
            return await self._texts.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise ChannelClosed("the channel is closed") from None

    async def aclose(self) -> None:
        """End this lane; the channel stays open for the other."""
        self._feed.close()


class Lanes:
    """Splits a channel. `run` reads it until it ends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.acp = Lane(channel)
        self.mcp = Lane(channel)

    async def run(self) -> None:
        """Read until the channel ends; then both lanes end."""
        try:
            while True:
                text = await self._channel.receive()
                try:
                    message = decode(text)
                except PeerError:
                    # The peer on the mcp lane answers what is no message, once.
                    self.mcp.feed(text)
                    continue
                method = message.get("method")
                if method in CANCEL_METHODS and "id" not in message:
                    self.acp.feed(text)
                    self.mcp.feed(text)
                elif self._is_mcp(message):
                    self.mcp.feed(text)
                else:
                    self.acp.feed(text)
        except ChannelClosed:
            return
        finally:
            await self.acp.aclose()
            await self.mcp.aclose()

    def _is_mcp(self, message: Message) -> bool:
        if (method := message.get("method")) is not None:
            return method in LANE_METHODS or method in CANCEL_METHODS
        request_id = message.get("id")
        return isinstance(request_id, str) and request_id.startswith(PREFIX)


class AcpTransport:
    """The SDK's message transport over the acp lane.

    Args:
        lane: the lane.
        on_cancel: told the session whose `session/prompt` the client cancelled by its request id.
    """

    def __init__(self, lane: Channel, on_cancel: Callable[[str], None]) -> None:
        self._lane = lane
        self._on_cancel = on_cancel
        self._prompts: dict[Any, str] = {}

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        if "method" not in message and is_id(message.get("id")):
            self._prompts.pop(id_key(message["id"]), None)
        if "error" in message:
            # Some peers lose an error without the member.
            message["error"].setdefault("data", None)
        try:
            await self._lane.send(encode(message))
        except ChannelClosed as error:
            raise ConnectionError(str(error)) from None

    async def receive(self) -> dict[str, Any] | None:
        """The next message that the SDK is to handle, or `None` at the end."""
        while True:
            try:
                message = decode(await self._lane.receive())
            except ChannelClosed:
                return None
            method, params = message.get("method"), message.get("params")
            if not isinstance(params, dict):
                return message
            if method in CANCEL_METHODS:
                self._cancel(params.get("requestId"))
                continue
            if method == "session/prompt" and is_id(message.get("id")):
                self._prompts[id_key(message["id"])] = str(params.get("sessionId"))
            if method in OPENERS:
                message["params"] = _set_aside(params)
            if method in UNROUTED:
                message["method"] = f"_{method}"
            return message

    async def close(self) -> None:
        """End the lane."""
        await self._lane.aclose()

    def _cancel(self, request_id: Any) -> None:
        session_id = self._prompts.get(id_key(request_id)) if is_id(request_id) else None
        if session_id is not None:
            self._on_cancel(session_id)


def _set_aside(params: dict[str, Any]) -> dict[str, Any]:
    """Take the servers that are carried over ACP out of `mcpServers` and into `_meta`, as they came."""
    servers = params.get("mcpServers")
    if not isinstance(servers, list):
        servers = []
    declared = [entry for entry in servers if _over_acp(entry)]
    others = [entry for entry in servers if not _over_acp(entry)]
    meta = params.get("_meta")
    return {
        **params,
        "mcpServers": others,
        "_meta": {**(meta if isinstance(meta, dict) else {}), DECLARED: declared},
    }


def _over_acp(entry: Any) -> bool:
    try:
        return read_declaration(entry) is not None
    except PeerError:
        # Of type `acp` and wrong: refused by the agent, with the reason.
        return True
