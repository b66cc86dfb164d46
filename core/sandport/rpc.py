"""One JSON-RPC peer on a channel: ids, the receive loop, cancellation, and exactly one answer a request.

Invariants: every inbound request is answered once, or never if it was abandoned or the channel ended; an inbound
notification is never answered. When the channel ends, every outbound request fails with `ChannelClosed` and every
inbound one is cancelled; no task and no table entry stays. What a handler raises harms its own request only, be it an
exception, a stray cancellation, `KeyboardInterrupt` or `SystemExit`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio
import anyio.abc

from sandport.channel import Channel
from sandport.codec import MAX_MESSAGE_CHARS, Message, TooLarge, decode, encode, error_message, id_key, is_id
from sandport.errors import ChannelClosed
from sandport.wire import CANCEL_METHODS
from sandport.wire.errors import INTERNAL_ERROR, INVALID_REQUEST, REQUEST_CANCELLED, RESOURCE_LIMIT, PeerError

__all__ = ["MAX_INBOUND_REQUESTS", "MAX_LATE", "AcpOuter", "Inbound", "Late", "Peer"]

logger = logging.getLogger(__name__)

COURTESY_TIMEOUT: Final = 1.0
"""Seconds to write a cancellation nobody waits for; a wedged channel must not hold the one who gives up."""

MAX_INBOUND_REQUESTS: Final = 1024
"""Requests of the peer that are worked on or whose answers wait to be written: as many as a port lets through to one
sandbox. A peer that sends and never reads meets it, in place of eating the memory."""


MAX_LATE: Final = 64
"""Given-up requests whose late result somebody wants to hear of. A peer that never answers meets it."""

Late = Callable[[Any], Awaitable[None]]
"""Takes the result of a request that its caller gave up before the answer came: what was opened has to be closed."""


class AcpOuter(Protocol):
    """The sending half of an ACP connection, as the MCP layer needs it.

    `Peer` is one; the connection of any ACP library can be made one.
    """

    async def request(self, method: str, params: Any, *, timeout: float | None = None, late: Late | None = None) -> Any:
        """Send a request and wait for its result.

        A caller that is cancelled or times out has `$/cancel_request` sent for the outer id.

        Args:
            method: the outer method.
            params: the outer params.
            timeout: seconds to wait; `None` waits for ever.
            late: called, in a task of the connection's own, with a result that comes after the caller gave up: a peer
                may know no cancellation, or be quicker than it.

        Raises:
            PeerError: the peer answered with an error.
            TimeoutError: no answer within `timeout` seconds.
            ChannelClosed: the connection ended first.
        """
        ...

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification.

        Raises:
            ChannelClosed: the connection has ended.
        """
        ...


@dataclass(eq=False, slots=True)
class Inbound:
    """A request of the peer while it is being worked on."""

    id: Any
    method: str
    params: Any
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: bool = False
    """Answered, or never to be: nothing more may be sent on behalf of this request."""
    cancelled: bool = False
    """Whether the peer asked for it to stop."""
    unencodable: Callable[[Exception], Any] | None = None
    """Makes the result to send when the first cannot be written as JSON; may raise `PeerError`. It gets what `encode`
    raised."""

    def abandon(self) -> None:
        """Stop the work and never answer."""
        self.settled = True
        self.scope.cancel()


@dataclass(eq=False, slots=True)
class _Pending:
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: Exception | None = None


class Peer:
    """A JSON-RPC 2.0 peer.

    Args:
        channel: the texts.
        on_request: answers a request with its result; raises `PeerError` for an error. Runs in a task of its own that
            starts in the order of arrival.
        on_notification: takes a notification, in the order of arrival, in the receive loop: it must not wait.
        id_prefix: ids of own requests are `f"{id_prefix}{n}"`; without one they are the integers from 0.
        max_message_chars: cap on a message, either way.
        max_inbound_requests: cap on the peer's requests that are open here; beyond it they are refused by name.
    """

    def __init__(
        self,
        channel: Channel,
        on_request: Callable[[Inbound], Awaitable[Any]],
        on_notification: Callable[[str, Any], None],
        *,
        id_prefix: str | None = None,
        max_message_chars: int = MAX_MESSAGE_CHARS,
        max_inbound_requests: int = MAX_INBOUND_REQUESTS,
    ) -> None:
        self._channel = channel
        self._on_request = on_request
        self._on_notification = on_notification
        self._id_prefix = id_prefix
        self._limit = max_message_chars
        self._max_inbound = max_inbound_requests
        self._working = 0
        self._next_id = 0
        self._pending: dict[Any, _Pending] = {}
        self._late: dict[Any, Late] = {}
        self._inbound: dict[Any, Inbound] = {}
        self._closed = False
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def closed(self) -> bool:
        """Whether the channel has ended."""
        return self._closed

    @property
    def inbound(self) -> list[Inbound]:
        """The peer's requests that are being worked on."""
        return list(self._inbound.values())

    @property
    def pending(self) -> int:
        """Own requests that wait for an answer."""
        return len(self._pending)

    async def request(self, method: str, params: Any, *, timeout: float | None = None, late: Late | None = None) -> Any:
        """See `AcpOuter.request`."""
        request_id: Any = self._next_id if self._id_prefix is None else f"{self._id_prefix}{self._next_id}"
        self._next_id += 1
        message: Message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        text = self._encode(message)
        key = id_key(request_id)
        pending = self._pending[key] = _Pending()
        try:
            # The time counts from the first attempt to write: a wedged channel must not hold the caller longer.
            with anyio.fail_after(timeout):
                await self._send(text)
                await pending.done.wait()
        except TimeoutError:
            self._expect_late(key, pending, late)
            await self._give_up(request_id)
            raise
        except anyio.get_cancelled_exc_class():
            self._expect_late(key, pending, late)
            with anyio.CancelScope(shield=True):
                await self._give_up(request_id)
            raise
        finally:
            self._pending.pop(key, None)
        if pending.error is not None:
            raise pending.error
        return pending.result

    def _expect_late(self, key: Any, pending: _Pending, late: Late | None) -> None:
        """The caller gives up: from now on the answer is nobody's but `late`'s."""
        del self._pending[key]
        if late is None or self._closed:
            return
        if not pending.done.is_set():
            if len(self._late) < MAX_LATE:
                self._late[key] = late
        elif pending.error is None:
            self._tell_late(late, pending.result)

    def _tell_late(self, late: Late, result: Any) -> None:
        async def tell() -> None:
            try:
                await late(result)
            except Exception:
                logger.exception("dealing with a late answer failed")

        if self._tasks is not None:
            self._tasks.start_soon(tell)

    async def notify(self, method: str, params: Any) -> None:
        """See `AcpOuter.notify`."""
        await self._send(self._encode({"jsonrpc": "2.0", "method": method, "params": params}))

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until the channel ends, then settle everything and close this end too."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started()
                while True:
                    try:
                        text = await self._channel.receive()
                    except ChannelClosed:
                        break
                    await self._receive(text, tasks)
                # First, so that a handler which shields a request of its own to the peer is let go.
                self._close()
                tasks.cancel_scope.cancel()
        finally:
            self._close()
            self._tasks = None
            # The peer may wait in a `send` or `receive` that only this end's closing ends.
            with anyio.CancelScope(shield=True):
                await self._channel.aclose()

    async def aclose(self) -> None:
        """Close the channel; `run` then ends. Idempotent."""
        self._close()
        await self._channel.aclose()

    def _close(self) -> None:
        self._closed = True
        for pending in self._pending.values():
            if not pending.done.is_set():
                pending.error = ChannelClosed("the channel ended before the answer came")
                pending.done.set()
        self._late.clear()
        for inbound in self._inbound.values():
            inbound.abandon()

    # -- receiving ------------------------------------------------------------------------------------------

    async def _receive(self, text: str, tasks: anyio.abc.TaskGroup) -> None:
        try:
            message = decode(text, limit=self._limit)
        except PeerError as error:
            logger.warning("a text that is no message: %s", error)
            await self._answer(error_message(None, error))
            return
        method = message.get("method")
        if isinstance(method, str):
            if "id" in message:
                await self._start(message["id"], method, message.get("params"), tasks)
            elif method in CANCEL_METHODS:
                self._cancel(message.get("params"))
            else:
                self._notification(method, message.get("params"))
        elif "method" not in message and ("result" in message or "error" in message):
            self._settle(message)
        else:
            nothing = PeerError(INVALID_REQUEST, "Invalid request: neither a method nor an answer")
            await self._answer(error_message(message["id"] if is_id(message.get("id")) else None, nothing))

    async def _start(self, request_id: Any, method: str, params: Any, tasks: anyio.abc.TaskGroup) -> None:
        refusal: PeerError | None = None
        if not is_id(request_id):
            request_id, refusal = (
                None,
                PeerError(INVALID_REQUEST, "Invalid request: the id must be a string or an integer"),
            )
        elif id_key(request_id) in self._inbound:
            refusal = PeerError(INVALID_REQUEST, "Invalid request: the id is open already")
        elif method in CANCEL_METHODS:
            # A cancellation that wants an answer gets one, whether or not it hit anything.
            self._cancel(params)
            await self._answer({"jsonrpc": "2.0", "id": request_id, "result": {}})
            return
        elif self._working >= self._max_inbound:
            text = f"Too many requests are open (limit max_inbound_requests = {self._max_inbound})"
            refusal = PeerError(RESOURCE_LIMIT, text, {"limit": "max_inbound_requests"})
        if refusal is not None:
            await self._answer(error_message(request_id, refusal))
            return
        inbound = self._inbound[id_key(request_id)] = Inbound(request_id, method, params)
        self._working += 1
        tasks.start_soon(self._work, inbound)

    async def _work(self, inbound: Inbound) -> None:
        try:
            answer = await self._answer_of(inbound)
            if answer is not None and not inbound.settled:
                inbound.settled = True
                await self._write(self._text_of(answer, inbound))
        finally:
            self._working -= 1

    async def _answer_of(self, inbound: Inbound) -> Message | None:
        """What the handler makes of a request; `None` if it was stopped."""
        answer: Message | None = None
        try:
            # A request cancelled before its task ran must never start.
            if not inbound.scope.cancel_called:
                with inbound.scope:
                    answer = await self._outcome(inbound)
        finally:
            self._inbound.pop(id_key(inbound.id), None)
        return answer

    async def _outcome(self, inbound: Inbound) -> Message:
        try:
            return {"jsonrpc": "2.0", "id": inbound.id, "result": await self._on_request(inbound)}
        except PeerError as error:
            return error_message(inbound.id, error)
        except Exception:
            logger.exception("a handler of %s failed", inbound.method)
        except anyio.get_cancelled_exc_class():
            # One that comes from no scope around here was raised by the handler itself; its request still wants an
            # answer.
            if anyio.current_effective_deadline() == -math.inf:
                raise
            logger.error("a handler of %s was cancelled from within", inbound.method)
        except (KeyboardInterrupt, SystemExit, BaseExceptionGroup) as error:
            logger.error("a handler of %s was ended by %r", inbound.method, error)
        return error_message(inbound.id, PeerError(INTERNAL_ERROR, "Internal error"))

    def _text_of(self, answer: Message, inbound: Inbound) -> str:
        try:
            return self._encode(answer)
        except (ValueError, TypeError, PeerError) as error:
            replacement = self._replacement(answer, inbound, error)
        try:
            # Too long is better than no answer: this text is of our own making.
            return encode(replacement, limit=None)
        except (ValueError, TypeError) as error:
            return encode(error_message(inbound.id, PeerError(INTERNAL_ERROR, _unwritable(error))), limit=None)

    @staticmethod
    def _replacement(answer: Message, inbound: Inbound, error: Exception) -> Message:
        """The answer for one that cannot be written."""
        if "error" in answer:
            return {**answer, "error": {**answer["error"], "data": None}}
        if inbound.unencodable is not None:
            try:
                return {"jsonrpc": "2.0", "id": inbound.id, "result": inbound.unencodable(error)}
            except PeerError as refusal:
                return error_message(inbound.id, refusal)
        data = {"limit": "max_message_chars"} if isinstance(error, TooLarge) else None
        return error_message(inbound.id, PeerError(INTERNAL_ERROR, _unwritable(error), data))

    def _cancel(self, params: Any) -> None:
        """Settle a request the peer no longer wants. An unknown or finished id is silence."""
        target = params.get("requestId") if isinstance(params, dict) else None
        inbound = self._inbound.get(id_key(target)) if is_id(target) else None
        if inbound is not None:
            self.cancel(inbound)

    def cancel(self, inbound: Inbound) -> None:
        """Stop a request at the peer's wish and answer it with `REQUEST_CANCELLED`, unless it was answered before."""
        if inbound.settled or self._tasks is None:
            return
        inbound.settled = inbound.cancelled = True
        inbound.scope.cancel()
        # Answered at once: the work may take its time to unwind, its slot is freed when it has. Not in the receive
        # loop, where two peers that cancel each other's requests over full channels would wait for each other.
        answer = error_message(inbound.id, PeerError(REQUEST_CANCELLED, "Request cancelled"))
        self._tasks.start_soon(self._answer, answer)

    def _notification(self, method: str, params: Any) -> None:
        try:
            self._on_notification(method, params)
        except PeerError as error:
            logger.debug("dropped notification %s: %s", method, error)
        except Exception:
            logger.exception("the handler of notification %s failed", method)

    def _settle(self, message: Message) -> None:
        request_id = message.get("id")
        pending = self._pending.get(id_key(request_id)) if is_id(request_id) else None
        error = message.get("error")
        if pending is None or pending.done.is_set():
            late = self._late.pop(id_key(request_id), None) if is_id(request_id) else None
            if late is not None and "result" in message and error is None:
                self._tell_late(late, message["result"])
            else:
                logger.debug("an answer nobody waits for, id %r", request_id)
            return
        if "result" in message and error is None:
            pending.result = message["result"]
        elif isinstance(error, dict) and type(error.get("code")) is int:
            pending.error = PeerError(error["code"], str(error.get("message", "")), error.get("data"))
        else:
            pending.error = PeerError(INTERNAL_ERROR, "The peer answered with a malformed error", error)
        pending.done.set()

    # -- sending --------------------------------------------------------------------------------------------

    def _encode(self, message: Message) -> str:
        return encode(message, limit=self._limit)

    async def _send(self, text: str) -> None:
        if self._closed:
            raise ChannelClosed("the channel is closed")
        await self._channel.send(text)

    async def _write(self, text: str) -> None:
        """Send an answer; a channel that ended wants none."""
        try:
            await self._channel.send(text)
        except ChannelClosed:
            logger.debug("an answer came too late: the channel is closed")

    async def _answer(self, message: Message) -> None:
        # Small and of our own making: no cap, which could only turn an answer into none.
        await self._write(encode(message, limit=None))

    async def _give_up(self, request_id: Any) -> None:
        if self._closed:
            return
        with anyio.move_on_after(COURTESY_TIMEOUT):
            await self._answer({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": request_id}})


def _unwritable(error: Exception) -> str:
    if isinstance(error, PeerError):
        return error.message
    return f"The result cannot be written as JSON: {error}"
