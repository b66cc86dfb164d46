"""What agentpool's ACP connection reads: the client's messages, repaired where stock agentpool would lose them.

Invariant: a message that needs no repair passes byte for byte; one that is too long is dropped, and whoever waits for
it is told; no other is added or dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.lowlevel

from sandport_native.lines import MAX_LINE_BYTES, Line, LineSplitter, Oversize, message_head
from sandport_native.stdio import READ_BYTES, StdinStream

log = logging.getLogger("sandport.agentpool")

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


def too_long(event: Oversize) -> tuple[bytes | None, bytes | None]:
    """What takes the place of a message that is too long, as one for agentpool and one for the client.

    A request is answered to the client, an answer becomes an error for agentpool, which would wait for it otherwise.
    Of a message whose id is not near its start nobody can be told.
    """
    head = message_head(event.prefix)
    if head is None:
        return None, None
    request_id, is_request = head
    error = json.dumps({"code": -32600 if is_request else -32603, "message": str(event), "data": None})
    message = f'{{"jsonrpc":"2.0","id":{request_id},"error":{error}}}'.encode()
    return (None, message) if is_request else (message, None)


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


class RepairedStdin(StdinStream):
    """stdin as agentpool's connection needs it.

    Args:
        answer: writes to the client.
        limit: the largest message, bytes.

    Attributes:
        order: told of each notification of the lane.
    """

    def __init__(self, answer: Callable[[bytes], Awaitable[None]], limit: int = MAX_LINE_BYTES) -> None:
        super().__init__()
        self.order = LaneOrder()
        self._answer = answer
        self._splitter = LineSplitter(limit)
        self._ready = b""

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """The next bytes: whole lines, cut where the reader's buffer ends."""
        while not self._ready:
            for event in self._splitter.feed(await super().receive()):
                if isinstance(event, Line):
                    line, notification = repair(event.data)
                    if notification:
                        self.order.saw()
                    self._ready += line + b"\n"
                    continue
                log.error("%s", event)
                inwards, back = too_long(event)
                if inwards is not None:
                    self._ready += inwards + b"\n"
                if back is not None:
                    await self._answer(back + b"\n")
        data, self._ready = self._ready[:max_bytes], self._ready[max_bytes:]
        return data
