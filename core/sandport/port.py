"""The port: one channel, two lanes.

`mcp/*` and its aliases, cancellations of requests of that lane and answers to requests of that lane travel the *mcp
lane*, between the channel and the sandboxes; everything else travels the *acp lane*, between the channel and an ACP
client. The port is the trust boundary: what a sandbox sends goes out only if it is

1. the one answer to a request that was handed to this sandbox,
2. an `mcp/message` for a connection id that this sandbox gave out in its answer to `mcp/connect`,
3. a notification for a `stateless` request that is still active with it, or
4. a `$/cancel_request` for a request of its own that is open: a question to a person may have become pointless.

Everything else is dropped and counted by reason. Text is forwarded as it came; a parsed copy is only looked at.

`PortCore` is sans-I/O: texts in, deliveries out. `Port` moves the texts. `browser/src/port.ts` is the same machine,
and both are held to `tests/vectors/port`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import anyio
import anyio.abc

from sandport.channel import Channel, memory_channel_pair
from sandport.codec import Message, decode, encode, error_message, id_key, is_id
from sandport.errors import ChannelClosed, LocalError
from sandport.wire import CANCEL_METHODS, LANE_METHODS, Call, Close, Dialect, Event, Open, is_notification, read
from sandport.wire import Message as WireMessage
from sandport.wire.errors import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, REQUEST_CANCELLED, PeerError

__all__ = ["ACP", "CHANNEL", "Delivery", "DropReason", "LiveConnection", "Port", "PortCore", "PortLimits"]

CHANNEL: Final = "channel"
ACP: Final = "acp"
_DRAIN_TIMEOUT: Final = 1.0
"""Seconds a lane has, when the channel ended, to read what came before the end."""
_MAX_ACP_QUEUED: Final = 1024
"""Messages that wait for a slow ACP client before the channel does; nothing of this lane is ever dropped."""
_SANDBOX: Final = "sandbox:"
_BAD_ID: Final = "Invalid request: the id must be a string or an integer"

DropReason = Literal[
    "malformed",
    "too-large",
    "too-fast",
    "not-open",
    "not-allowed",
    "unknown-connection",
    "bad-id",
    "duplicate-id",
    "unknown-sandbox",
    "overflow",
]
"""Why a text was dropped.

From the channel: `malformed`; `unknown-connection` a notification for nobody; `not-open` an answer to a request of a
sandbox that is no more; `overflow` a notification for a sandbox that holds too much already.

From a sandbox: `malformed` no JSON-RPC message, or one with two members of a name; `too-large`, `too-fast` over a
limit; `not-open` an answer nobody waits for; `not-allowed` a method that a sandbox may not send; `unknown-connection` a
connection or request that is not live with it; `bad-id` a request id without its prefix; `duplicate-id` an id in use;
`unknown-sandbox` it is gone.
"""


class Delivery(NamedTuple):
    """A text and where it goes: `"channel"`, `"acp"` or `"sandbox:<key>"`."""

    to: str
    text: str


@dataclass(frozen=True, slots=True)
class PortLimits:
    """What the port accepts; each has a name that its error says."""

    max_message_chars: int = 64 * 1024 * 1024
    """A message, in characters. Twice what a host sends by default, so that its own, better error comes first."""
    max_held: int = 256
    """Messages kept for a sandbox that is restarting: its running and waiting requests, with room for notifications."""
    max_open_requests: int = 1024
    """Requests a sandbox may have open towards the agent, or the agent with one sandbox."""
    messages_per_second: float = 2000.0
    """Sustained rate of requests and notifications from one sandbox; answers are never refused."""
    burst: int = 4000
    """Messages a sandbox may send at once before the rate counts: a long progress bar's worth."""
    max_queued: int = 2048
    """Messages that wait for a sandbox which does not read: twice what may be open with it. `Port` alone has queues."""
    max_queued_chars: int = 128 * 1024 * 1024
    """Characters that wait so: two messages of the greatest size."""


class LiveConnection(NamedTuple):
    """A connection the agent believes is open: what a restarted sandbox needs to take it up again."""

    connection_id: str
    server_id: str
    initialize: Message | None
    """The `params` of the MCP `initialize` request that was answered with a result on it."""


@dataclass(slots=True)
class _Request:
    """A request from the channel that a sandbox has to answer."""

    id: Any
    sandbox: str
    dialect: Dialect
    server_id: str
    opens: bool = False
    closes: bool = False
    given_up: bool = False
    """Of one that opens: the agent cancelled it."""
    method: str | None = None
    """The MCP method inside, if there is one."""
    call: tuple[str, str] | None = None
    """`(server id, request id)` of a stateless request."""
    handshake: tuple[_Connection, Message | None] | None = None
    """Of an MCP `initialize`: its connection, and its params."""


@dataclass(slots=True)
class _Connection:
    sandbox: str
    server_id: str
    dialect: Dialect
    initialize: Message | None = None


@dataclass(slots=True)
class _Sandbox:
    prefix: str
    suspended: bool = False
    held: deque[Delivery] = field(default_factory=deque)
    tokens: float = 0.0
    filled_at: float = 0.0
    open: int = 0


class PortCore:
    """The port's state and rules, without I/O. One per channel; see the module docstring for the rules.

    Args:
        limits: what is accepted.
    """

    def __init__(self, limits: PortLimits | None = None) -> None:
        self.limits = limits or PortLimits()
        self.dropped: dict[DropReason, int] = {}
        self._sandboxes: dict[str, _Sandbox] = {}
        self._servers: dict[str, str | None] = {}
        self._requests: dict[tuple[str, Any], _Request] = {}
        self._reverse: dict[str, str] = {}
        self._prefixes: list[str] = []
        self._calls: dict[tuple[str, str], str] = {}
        self._connections: dict[str, _Connection] = {}
        self._closed = False

    # -- sandboxes and servers ------------------------------------------------------------------------------

    def attach(self, sandbox: str, prefix: str) -> None:
        """Let a sandbox take part. Ids of its own requests must be strings that start with `prefix`.

        Raises:
            LocalError: the key is taken, or the prefix would admit ids of another sandbox, past ones included.
        """
        if sandbox in self._sandboxes:
            raise LocalError(f"sandbox {sandbox!r} is attached already")
        self._claim_prefix(prefix)
        self._sandboxes[sandbox] = _Sandbox(prefix, tokens=float(self.limits.burst))

    def _claim_prefix(self, prefix: str) -> None:
        # Never given twice on a channel: a late answer to a request of a dead sandbox must not meet a new request.
        if not prefix or any(prefix.startswith(other) or other.startswith(prefix) for other in self._prefixes):
            raise LocalError(f"request id prefix {prefix!r} is empty or overlaps one that was in use")
        self._prefixes.append(prefix)

    def declare(self, sandbox: str, server_id: str) -> None:
        """Say that a sandbox hosts a server id.

        Raises:
            LocalError: the id was declared before on this channel: ids are never used twice.
        """
        if sandbox not in self._sandboxes:
            raise LocalError(f"sandbox {sandbox!r} is not attached")
        if server_id in self._servers:
            raise LocalError(f"server id {server_id!r} was declared before on this channel")
        self._servers[server_id] = sandbox

    def withdraw(self, server_id: str) -> list[Delivery]:
        """A server is no longer offered: its connections end and its open requests are answered with an error."""
        if self._servers.get(server_id) is None:
            return []
        self._servers[server_id] = None
        self._connections = {key: value for key, value in self._connections.items() if value.server_id != server_id}
        return self._settle(lambda request: request.server_id == server_id, "The server was withdrawn")

    def stop(self, server_id: str) -> list[Delivery]:
        """The person stopped the agent's turn: ask a server's sandbox to cancel each tool call that is open with it.

        For agents that stop a turn and leave its call open: some of them send no next call before that one is answered.
        """
        out: list[Delivery] = []
        for request in list(self._requests.values()):
            if request.server_id == server_id and request.method == "tools/call":
                params = {"requestId": request.id}
                note = encode({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params})
                out += self._to_sandbox(request.sandbox, note)
        return out

    def suspend(self, sandbox: str, reason: str) -> list[Delivery]:
        """The sandbox died and is being restarted: what is open with it is answered at once, what comes is held."""
        state = self._sandboxes.get(sandbox)
        if state is None:
            return []
        state.suspended = True
        for request_id in [key for key, owner in self._reverse.items() if owner == sandbox]:
            del self._reverse[request_id]
        return self._settle(lambda request: request.sandbox == sandbox, reason)

    def resume(self, sandbox: str, prefix: str) -> list[Delivery]:
        """The sandbox is back, with the connections of `connections(sandbox)` taken up: hand over what was held.

        Raises:
            LocalError: `prefix` is not a new one.
        """
        state = self._sandboxes.get(sandbox)
        if state is None:
            return []
        self._claim_prefix(prefix)
        state.prefix = prefix
        state.suspended = False
        held, state.held = list(state.held), deque()
        return held

    def detach(self, sandbox: str, reason: str) -> list[Delivery]:
        """The sandbox is gone for good: everything open with it is answered, its servers are no longer offered."""
        if sandbox not in self._sandboxes:
            return []
        out = self.suspend(sandbox, reason)
        del self._sandboxes[sandbox]
        for server_id, owner in self._servers.items():
            if owner == sandbox:
                self._servers[server_id] = None
        self._connections = {key: value for key, value in self._connections.items() if value.sandbox != sandbox}
        return out

    def connections(self, sandbox: str) -> list[LiveConnection]:
        """The connections the agent holds with a sandbox, in the order in which they were opened."""
        return [
            LiveConnection(connection_id, connection.server_id, connection.initialize)
            for connection_id, connection in self._connections.items()
            if connection.sandbox == sandbox
        ]

    @property
    def open_requests(self) -> int:
        """Requests of the mcp lane that wait for an answer, both ways."""
        return len(self._requests) + len(self._reverse)

    def close(self) -> list[Delivery]:
        """The channel ended: requests that sandboxes have open are answered with an error; nothing else goes out."""
        self._closed = True
        closed = PeerError(INTERNAL_ERROR, "The channel closed")
        out = [
            Delivery(_SANDBOX + owner, _text(error_message(request_id, closed)))
            for request_id, owner in self._reverse.items()
            if owner in self._sandboxes and not self._sandboxes[owner].suspended
        ]
        self._requests.clear()
        self._reverse.clear()
        self._calls.clear()
        self._connections.clear()
        for state in self._sandboxes.values():
            state.held.clear()
            state.open = 0
        return out

    # -- from the channel -----------------------------------------------------------------------------------

    def from_channel(self, text: str) -> list[Delivery]:
        """A text the agent sent."""
        if self._closed:
            return []
        try:
            message = decode(text, limit=self.limits.max_message_chars)
        except PeerError as error:
            self._drop("malformed")
            return [Delivery(CHANNEL, _text(error_message(None, error)))]
        method = message.get("method")
        # A method of another type is no key of a set, and not ours to judge.
        if isinstance(method, str):
            if method in LANE_METHODS:
                return self._lane_message(text, message, method)
            if method in CANCEL_METHODS:
                return self._cancellation(text, message, method)
        if method is None and isinstance(request_id := message.get("id"), str):
            owner = self._reverse.pop(request_id, None)
            if owner is not None:
                return self._to_sandbox(owner, text)
            if any(request_id.startswith(prefix) for prefix in self._prefixes):
                return self._drop("not-open")
        return [Delivery(ACP, text)]

    def _lane_message(self, text: str, message: Message, method: str) -> list[Delivery]:
        request_id = message.get("id")
        is_request = "id" in message
        try:
            if is_request and not is_id(request_id):
                raise PeerError(INVALID_REQUEST, _BAD_ID)
            if is_request and id_key(request_id) in self._requests:
                raise PeerError(INVALID_REQUEST, "Invalid request: the id is open already")
            event = read(method, message.get("params", {}), self._connections.__contains__)
            request = self._address(event, request_id)
        except _AlreadySo:
            return [Delivery(CHANNEL, _text(_done(request_id)))] if is_request else []
        except PeerError as error:
            if not is_request:
                self._drop("unknown-connection")
                return []
            return [Delivery(CHANNEL, _text(error_message(request_id if is_id(request_id) else None, error)))]
        state = self._sandboxes[request.sandbox]
        if is_request:
            if state.open >= self.limits.max_open_requests:
                full = self._limit_error(request.dialect, "max_open_requests", self.limits.max_open_requests)
                return [Delivery(CHANNEL, _text(error_message(request_id, full)))]
            state.open += 1
            self._requests[id_key(request_id)] = request
            if request.call is not None:
                self._calls[request.call] = request.sandbox
        if isinstance(event, Close):
            self._connections.pop(event.connection_id, None)
        return self._to_sandbox(request.sandbox, text, request_id if is_request else None)

    def _address(self, event: Event, request_id: Any) -> _Request:
        """Who has to get this. Raises `PeerError` in the dialect's own code if nobody does."""
        if isinstance(event, Open):
            sandbox = self._owner_of(event.server_id, event.dialect)
            return _Request(request_id, sandbox, event.dialect, event.server_id, opens=True)
        if isinstance(event, Call):
            sandbox = self._owner_of(event.server_id, event.dialect)
            call = (event.server_id, event.request_id)
            if call in self._calls:
                raise PeerError(INVALID_PARAMS, "Invalid params: the requestId is active already")
            return _Request(request_id, sandbox, event.dialect, event.server_id, method=event.method, call=call)
        connection = self._connections.get(event.connection_id)
        if connection is None:
            if isinstance(event, Close):
                raise _AlreadySo
            raise PeerError(INVALID_PARAMS, f"Unknown connection {event.connection_id!r}")
        request = _Request(request_id, connection.sandbox, connection.dialect, connection.server_id)
        if isinstance(event, WireMessage):
            request.method = event.method
            request.handshake = (connection, event.params) if event.method == "initialize" else None
        else:
            request.closes = True
        return request

    def _owner_of(self, server_id: str, dialect: Dialect) -> str:
        sandbox = self._servers.get(server_id)
        if sandbox is None:
            raise PeerError(dialect.unknown_server, f"Unknown server {server_id!r}", {"serverId": server_id})
        return sandbox

    def _cancellation(self, text: str, message: Message, method: str) -> list[Delivery]:
        params = message.get("params")
        target = params.get("requestId") if isinstance(params, dict) else None
        request = self._requests.get(id_key(target)) if is_id(target) else None
        # A cancellation is a notification; one that comes as a request is answered here, whoever it concerns.
        if "id" in message:
            if not is_id(message["id"]):
                wrong = PeerError(INVALID_REQUEST, _BAD_ID)
                return [Delivery(CHANNEL, _text(error_message(None, wrong)))]
            out = [Delivery(CHANNEL, _text({"jsonrpc": "2.0", "id": message["id"], "result": {}}))]
            if request is None:
                return out
            request.given_up = request.opens
            return out + self._to_sandbox(
                request.sandbox, _text({"jsonrpc": "2.0", "method": method, "params": {"requestId": target}})
            )
        if request is not None:
            request.given_up = request.opens
            return self._to_sandbox(request.sandbox, text)
        return [Delivery(ACP, text)] if method == "$/cancel_request" else []

    # -- from the ACP client --------------------------------------------------------------------------------

    def from_acp(self, text: str) -> list[Delivery]:
        """A text of the ACP client. An error without `data` gets one, the rest passes as it is."""
        if self._closed:
            return []
        # The member is only ever missing where the text has an error: look inside no other.
        if '"error"' in text:
            try:
                message = decode(text, limit=self.limits.max_message_chars)
            except PeerError:
                return [Delivery(CHANNEL, text)]
            error = message.get("error")
            if "method" not in message and isinstance(error, dict) and "data" not in error:
                return [Delivery(CHANNEL, _with_data(message, error))]
        return [Delivery(CHANNEL, text)]

    # -- from a sandbox -------------------------------------------------------------------------------------

    def from_sandbox(self, sandbox: str, text: str, now: float = 0.0) -> list[Delivery]:
        """A text that came out of a sandbox.

        Args:
            sandbox: its key, as known from where the text came from, never from what it says.
            text: untrusted.
            now: a monotonic time in seconds, for the rate limit.
        """
        state = self._sandboxes.get(sandbox)
        if self._closed or state is None or state.suspended:
            return self._drop("unknown-sandbox")
        try:
            message = decode(text, limit=max(len(text), 1))
        except PeerError:
            return self._drop("malformed")
        if _is_ambiguous(text, message):
            return self._drop("malformed")
        if "method" not in message:
            return self._answer_from(sandbox, state, text, message)
        refused = self._refuse(sandbox, state, text, message, now)
        if refused is None:
            return [Delivery(CHANNEL, text)]
        self._drop(refused)
        if is_id(message.get("id")) and refused != "duplicate-id":
            error = PeerError(INVALID_REQUEST, f"The port refused the request: {refused}")
            return [Delivery(_SANDBOX + sandbox, _text(error_message(message["id"], error)))]
        return []

    def _answer_from(self, sandbox: str, state: _Sandbox, text: str, message: Message) -> list[Delivery]:
        request_id = message.get("id")
        key = id_key(request_id)
        request = self._requests.get(key) if is_id(request_id) else None
        if request is None or request.sandbox != sandbox:
            return self._drop("not-open")
        fault: DropReason | None = None
        error = message.get("error")
        if len(text) > self.limits.max_message_chars:
            fault = "too-large"
        elif (
            message.get("jsonrpc") != "2.0"
            or ("result" in message) == ("error" in message)
            or ("error" in message and not _is_error(error))
        ):
            fault = "malformed"
        elif request.given_up and "result" in message:
            self._finish(key, request)
            return self._opened_late(request, message["result"])
        elif request.opens and "result" in message:
            fault = self._opened(sandbox, request.server_id, request.dialect, message["result"])
        self._finish(key, request)
        if fault is not None:
            self._drop(fault)
            limit = f" (limit max_message_chars = {self.limits.max_message_chars})" if fault == "too-large" else ""
            refusal = PeerError(
                request.dialect.backend_failed, f"The answer of the sandbox was refused: {fault}{limit}"
            )
            return [Delivery(CHANNEL, _text(error_message(request.id, refusal)))]
        if request.handshake is not None and "result" in message:
            # Only one that succeeded may be repeated for a restarted sandbox.
            connection, params = request.handshake
            connection.initialize = params
        if isinstance(error, dict) and "data" not in error:
            return [Delivery(CHANNEL, _with_data(message, error))]
        return [Delivery(CHANNEL, text)]

    def _opened_late(self, request: _Request, result: Any) -> list[Delivery]:
        """The agent gave up and may never look at the answer: the connection ends before it began, or it would stay."""
        cancelled = PeerError(REQUEST_CANCELLED, "Request cancelled")
        out = [Delivery(CHANNEL, _text(error_message(request.id, cancelled)))]
        try:
            close = request.dialect.close(request.dialect.read_opened(result))
        except PeerError:
            return out
        assert close is not None
        note = _text({"jsonrpc": "2.0", "method": close.method, "params": close.params})
        return out + self._to_sandbox(request.sandbox, note)

    def _opened(self, sandbox: str, server_id: str, dialect: Dialect, result: Any) -> DropReason | None:
        try:
            connection_id = dialect.read_opened(result)
        except PeerError:
            return "malformed"
        # An id that is live already, this sandbox's own included, would let one connection speak for another.
        if connection_id in self._connections:
            return "duplicate-id"
        if self._servers.get(server_id) != sandbox:
            return "unknown-connection"
        self._connections[connection_id] = _Connection(sandbox, server_id, dialect)
        return None

    def _refuse(self, sandbox: str, state: _Sandbox, text: str, message: Message, now: float) -> DropReason | None:
        """Why a request or notification of a sandbox does not go out; `None` if it does."""
        if len(text) > self.limits.max_message_chars:
            return "too-large"
        if not self._take_token(state, now):
            return "too-fast"
        method, params = message["method"], message.get("params")
        if method == "$/cancel_request" and "id" not in message and message.get("jsonrpc") == "2.0":
            target = params.get("requestId") if isinstance(params, dict) else None
            return None if isinstance(target, str) and self._reverse.get(target) == sandbox else "not-allowed"
        if method not in ("mcp/message", "_mcp/message") or not isinstance(params, dict):
            return "not-allowed"
        if message.get("jsonrpc") != "2.0":
            return "malformed"
        is_request = "id" in message
        connection_id = params.get("connectionId")
        if isinstance(connection_id, str):
            connection = self._connections.get(connection_id)
            if connection is None or connection.sandbox != sandbox:
                return "unknown-connection"
        else:
            call = (params.get("serverId"), params.get("requestId"))
            if is_request or not all(isinstance(part, str) for part in call):
                return "not-allowed"
            if self._calls.get(call) != sandbox:  # type: ignore[arg-type]
                return "unknown-connection"
            if not is_notification(str(params.get("method", ""))):
                return "not-allowed"
        if not is_request:
            return None
        request_id = message["id"]
        if not isinstance(request_id, str) or not request_id.startswith(state.prefix):
            return "bad-id"
        if request_id in self._reverse:
            return "duplicate-id"
        if sum(owner == sandbox for owner in self._reverse.values()) >= self.limits.max_open_requests:
            return "too-fast"
        self._reverse[request_id] = sandbox
        return None

    def _take_token(self, state: _Sandbox, now: float) -> bool:
        limits = self.limits
        state.tokens = min(
            float(limits.burst), state.tokens + max(0.0, now - state.filled_at) * limits.messages_per_second
        )
        state.filled_at = max(now, state.filled_at)
        if state.tokens < 1:
            return False
        state.tokens -= 1
        return True

    def overflow(self, sandbox: str, text: str, limit: str, value: int) -> list[Delivery]:
        """A text handed out for a sandbox has no place in its queue: its request is answered, by the limit's name.

        Args:
            sandbox: the key of the sandbox that does not read.
            text: as it was handed out.
            limit: the name of the limit that was met.
            value: what it is.
        """
        message = decode(text, limit=len(text))
        request_id = message.get("id") if "method" in message else None
        request = self._requests.get(id_key(request_id)) if is_id(request_id) else None
        if request is None or request.sandbox != sandbox:
            return self._drop("overflow")
        self._finish(id_key(request_id), request)
        return [Delivery(CHANNEL, _text(error_message(request_id, self._limit_error(request.dialect, limit, value))))]

    # -- shared ---------------------------------------------------------------------------------------------

    def _to_sandbox(self, sandbox: str, text: str, request_id: Any = None) -> list[Delivery]:
        state = self._sandboxes.get(sandbox)
        if state is None:
            return self._drop("unknown-sandbox")
        delivery = Delivery(_SANDBOX + sandbox, text)
        if not state.suspended:
            return [delivery]
        if len(state.held) < self.limits.max_held:
            state.held.append(delivery)
            return []
        request = self._requests.get(id_key(request_id)) if request_id is not None else None
        if request is None:
            return self._drop("overflow")
        self._finish(id_key(request_id), request)
        error = self._limit_error(request.dialect, "max_held", self.limits.max_held)
        return [Delivery(CHANNEL, _text(error_message(request_id, error)))]

    @staticmethod
    def _limit_error(dialect: Dialect, limit: str, value: int) -> PeerError:
        text = f"Too much is open with the sandbox (limit {limit} = {value})"
        return PeerError(dialect.resource_limit, text, {"limit": limit})

    def _finish(self, key: tuple[str, Any], request: _Request) -> None:
        del self._requests[key]
        if request.call is not None:
            self._calls.pop(request.call, None)
        state = self._sandboxes.get(request.sandbox)
        if state is not None:
            state.open -= 1

    def _settle(self, chosen: Callable[[_Request], bool], reason: str) -> list[Delivery]:
        """Answer requests in a sandbox's stead. A disconnect has come true by then, so it succeeds."""
        out: list[Delivery] = []
        for key, request in [item for item in self._requests.items() if chosen(item[1])]:
            self._finish(key, request)
            if request.closes:
                answer = _done(request.id)
            else:
                answer = error_message(request.id, PeerError(request.dialect.backend_failed, reason))
            out.append(Delivery(CHANNEL, _text(answer)))
        return out

    def _drop(self, reason: DropReason) -> list[Delivery]:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        return []


_ANSWER: Final = re.compile(r'\{"jsonrpc":"2\.0","id":("[^"\\]*"|-?[0-9]+),"(?:result|error)":')
"""How the answers of our own hosts begin."""


class _Object(dict[str, Any]):
    """A JSON object that remembers whether it had two members of one name."""

    twins = False

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> _Object:
        found = cls(pairs)
        found.twins = len(found) < len(pairs)
        return found


def _is_ambiguous(text: str, message: Message) -> bool:
    """Whether an agent that takes the first of two members with one name would read the envelope otherwise than this
    port, which takes the last. The start of an answer says it at once; other messages are small."""
    start = None if "method" in message else _ANSWER.match(text)
    if start is not None:
        request_id = message.get("id")
        return not is_id(request_id) or id_key(json.loads(start[1])) != id_key(request_id)
    top = json.loads(text, object_pairs_hook=_Object.of)
    return any(isinstance(part, _Object) and part.twins for part in (top, top.get("params")))


class _AlreadySo(Exception):
    """The message asks for what is so already: answer `{}`."""


def _text(message: Message) -> str:
    """A message of the port's own; it has no cap, which could only turn an answer into none."""
    return encode(message, limit=None)


def _with_data(message: Message, error: Message) -> str:
    """The text of an error answer that had no `data`. An error may hold numbers that only the peer can write."""
    try:
        return _text({**message, "error": {**error, "data": None}})
    except ValueError:
        plain = PeerError(INTERNAL_ERROR, str(error.get("message", "")))
        return _text(error_message(message.get("id") if is_id(message.get("id")) else None, plain))


def _done(request_id: Any) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "result": {}}


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("code")) is int and isinstance(value.get("message"), str)


class _Outbox:
    """Texts on their way to one lane. A task of its own moves them, so that no lane waits for another."""

    def __init__(self, lane: Channel) -> None:
        self.lane = lane
        self.chars = 0
        self._texts: deque[str] = deque()
        self._changed = anyio.Event()
        self._closing = False

    def __len__(self) -> int:
        return len(self._texts)

    def put(self, text: str) -> None:
        """Queue a text; who calls minds the size."""
        if not self._closing:
            self._texts.append(text)
            self.chars += len(text)
            self._wake()

    async def has_place(self, size: int) -> None:
        """Wait until fewer than `size` texts are queued."""
        while len(self._texts) >= size and not self._closing:
            await self._changed.wait()

    def finish(self) -> None:
        """Nothing more is queued; `run` ends when all is written."""
        self._closing = True
        self._wake()

    async def run(self) -> None:
        """Write until `finish`, or until the lane is closed; its own pump notices that."""
        try:
            while True:
                while not self._texts:
                    if self._closing:
                        return
                    await self._changed.wait()
                await self.lane.send(self._texts[0])
                self.chars -= len(self._texts.popleft())
                self._wake()
        except ChannelClosed:
            self._texts.clear()
            self.chars = 0
            self.finish()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Port:
    """The port over a real channel: `run` moves texts until the channel ends.

    A slow agent slows whoever sends to it, and a slow ACP client slows the channel; a sandbox that does not read slows
    nobody: what it is asked beyond its queue is refused in its stead.

    Args:
        channel: the ACP connection to the agent.
        limits: what is accepted from either side.

    Attributes:
        acp: the lane for an ACP client; it behaves as the channel would without the mcp lane.
        core: the rules and counters.
    """

    def __init__(self, channel: Channel, limits: PortLimits | None = None) -> None:
        self.core = PortCore(limits)
        self.acp: Channel
        self.acp, acp_lane = memory_channel_pair()
        self._acp = _Outbox(acp_lane)
        self._channel = channel
        self._lanes: dict[str, _Outbox] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    def attach(self, sandbox: str, lane: Channel, prefix: str) -> None:
        """Let the sandbox behind `lane` take part; `run` must be running. See `PortCore.attach`."""
        if self._tasks is None:
            raise LocalError("attach needs a running port")
        self.core.attach(sandbox, prefix)
        outbox = self._lanes[_SANDBOX + sandbox] = _Outbox(lane)
        self._tasks.start_soon(outbox.run)
        self._tasks.start_soon(self._pump_sandbox, sandbox, lane)

    async def detach(self, sandbox: str, reason: str) -> None:
        """The sandbox is gone: settle what is open with it and close its lane. See `PortCore.detach`."""
        out = self.core.detach(sandbox, reason)
        outbox = self._lanes.pop(_SANDBOX + sandbox, None)
        if outbox is not None:
            outbox.finish()
            await outbox.lane.aclose()
        await self._deliver(out)

    async def withdraw(self, server_id: str) -> None:
        """A server is no longer offered. See `PortCore.withdraw`."""
        await self._deliver(self.core.withdraw(server_id))

    async def stop(self, server_id: str) -> None:
        """Cancel the calls that are open with a server. See `PortCore.stop`."""
        await self._deliver(self.core.stop(server_id))

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Move texts until the channel or the ACP lane ends; then close everything and settle what is open."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._acp.run)
                self._tasks.start_soon(self._pump_acp)
                task_status.started()
                await self._pump(self._channel, self.core.from_channel)
                await self._drain()
                self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            self.core.close()
            with anyio.CancelScope(shield=True):
                for outbox in (self._acp, *self._lanes.values()):
                    outbox.finish()
                    await outbox.lane.aclose()
                await self._channel.aclose()

    async def _drain(self) -> None:
        """Write what was queued before the channel ended; a lane that does not read is not waited for."""
        await self._deliver(self.core.close())
        with anyio.move_on_after(_DRAIN_TIMEOUT):
            async with anyio.create_task_group() as tasks:
                for outbox in (self._acp, *self._lanes.values()):
                    tasks.start_soon(outbox.has_place, 1)

    async def _pump_acp(self) -> None:
        await self._pump(self._acp.lane, self.core.from_acp)
        await self._channel.aclose()

    async def _pump_sandbox(self, sandbox: str, lane: Channel) -> None:
        await self._pump(lane, lambda text: self.core.from_sandbox(sandbox, text, anyio.current_time()))
        outbox = self._lanes.get(_SANDBOX + sandbox)
        if outbox is not None and outbox.lane is lane:
            await self.detach(sandbox, "The sandbox is gone")

    async def _pump(self, source: Channel, feed: Callable[[str], list[Delivery]]) -> None:
        while True:
            try:
                text = await source.receive()
            except ChannelClosed:
                return
            await self._deliver(feed(text))

    async def _deliver(self, out: list[Delivery]) -> None:
        for to, text in out:
            if to == CHANNEL:
                # A channel that closed under us is noticed by its own pump.
                with contextlib.suppress(ChannelClosed):
                    await self._channel.send(text)
            elif to == ACP:
                await self._acp.has_place(_MAX_ACP_QUEUED)
                self._acp.put(text)
            elif (outbox := self._lanes.get(to)) is not None:
                await self._queue(outbox, to.removeprefix(_SANDBOX), text)

    async def _queue(self, outbox: _Outbox, sandbox: str, text: str) -> None:
        limits = self.core.limits
        if len(outbox) >= limits.max_queued:
            await self._deliver(self.core.overflow(sandbox, text, "max_queued", limits.max_queued))
        elif outbox.chars and outbox.chars + len(text) > limits.max_queued_chars:
            await self._deliver(self.core.overflow(sandbox, text, "max_queued_chars", limits.max_queued_chars))
        else:
            outbox.put(text)
