"""One WebSocket and one agent: frames on the one side, lines on the other.

Invariant: a message is forwarded as the text that came in, in order, or answered with an error; it is never lost in
silence. For an agent without MCP-over-ACP the bridge in between rewrites what it must, and nothing else. The agent
lives exactly as long as the socket. Each side is read only as fast as the other takes.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandport_native.bridge.conductor import Bridge, open_bridge
from sandport_native.lines import Line, Oversize, message_head
from sandport_native.log import RateLimiter
from sandport_native.process import EXIT_WAIT, AgentProcess, AgentSpec, AgentStartError, AgentStuckError, open_agent

log = logging.getLogger("sandport.gateway")

CLOSE_NORMAL, CLOSE_SHUTDOWN, CLOSE_DATA, CLOSE_NOT_UTF8, CLOSE_AGENT = 1000, 1001, 1003, 1007, 1011

REASON_BYTES = 120
"""A close frame holds 125 bytes, two of them the code."""

PARSE_BYTES = 256 * 1024
"""Up to this size a frame is checked to be one JSON object before the agent sees it, because agents drop what they
cannot parse without an answer. Larger frames are only checked at their ends: parsing them would hold up every other
socket."""

BINARY_CHARS = 16 * 1024
"""From this size on a page that can take it gets a message as a binary frame."""

PING_METHOD = "_sandport/ping"
"""A request that the gateway answers itself, so that a page can tell a silent socket from a dead one: browsers show
it no WebSocket ping. The underscore is ACP's mark for methods outside the protocol."""

PING_BYTES = 256
"""No longer frame is looked at for being a ping."""

CLOSE_TIMEOUT = 5.0
"""Seconds to get the close frame out to a page that no longer reads."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    code: int
    reason: str


def close_reason(text: str) -> str:
    """Cut a reason to what a close frame holds, at a character border."""
    return text.encode("utf-8")[:REASON_BYTES].decode("utf-8", "ignore")


def error_text(code: int, message: str, request_id: str = "null") -> str:
    """A JSON-RPC error; `request_id` is JSON text."""
    return (
        f'{{"jsonrpc":"2.0","id":{request_id},"error":{{"code":{code},"message":{json.dumps(message)},"data":null}}}}'
    )


def check_frame(text: str, limit: int) -> str | None:
    """Check one frame from the page. Returns the JSON-RPC error to answer with, or None when it may pass."""
    size = len(text) if text.isascii() else len(text.encode("utf-8"))
    if size > limit:
        head = message_head(text[:512].encode("utf-8", "replace"))
        known = head[0] if head is not None and head[1] else "null"
        return error_text(-32600, f"A message of {size} bytes exceeds the gateway's limit of {limit} bytes", known)
    stripped = text.strip()
    if stripped.startswith("["):
        return error_text(-32600, "Invalid request: batches are not part of ACP")
    if size <= PARSE_BYTES:
        try:
            value = json.loads(stripped, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return error_text(-32700, "Parse error: each frame must hold exactly one JSON message")
        if not isinstance(value, dict):
            return error_text(-32600, "Invalid request: a message must be an object")
    elif not (stripped.startswith("{") and stripped.endswith("}")):
        return error_text(-32700, "Parse error: each frame must hold exactly one JSON message")
    return None


def ping_answer(text: str) -> str | None:
    """The answer if this frame is a ping, else None."""
    if len(text) > PING_BYTES or PING_METHOD not in text:
        return None
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("method") != PING_METHOD or "id" not in message:
        return None
    return f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"result":{{}}}}'


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


class Relay:
    """Carries one socket's conversation.

    Args:
        socket: an accepted WebSocket.
        spec: the agent to start for it.
        limit: the largest message in either direction, bytes.
        number: by which the logs name this socket.
        utf8: a large message may be a binary frame.
    """

    def __init__(self, socket: WebSocket, spec: AgentSpec, *, limit: int, number: int, utf8: bool = False) -> None:
        self._socket = socket
        self._utf8 = utf8
        self._spec = spec
        self._limit = limit
        self._label = f"socket {number}"
        self._fields: dict[str, object] = {"socket": number, "agent": spec.name}
        self._outcome: _Outcome | None = None
        self._scope = anyio.CancelScope()
        self._noise = RateLimiter(20, 1.0)
        self._sending = anyio.Lock()

    def stop(self, reason: str = "The gateway is shutting down") -> None:
        """End the conversation because the gateway ends."""
        self._finish(_Outcome(CLOSE_SHUTDOWN, reason))

    async def run(self) -> None:
        """Start the agent and relay until either side ends; then close the socket and end the agent."""
        start = anyio.current_time()
        try:
            with self._scope:
                async with open_agent(self._spec, limit=self._limit) as agent:
                    self._fields["pid"] = agent.pid
                    self._log(logging.INFO, "agent %s started (pid %d)", self._spec.name, agent.pid)
                    try:
                        folder = str(self._spec.cwd or Path.cwd())
                        async with (
                            open_bridge(self._send, agent.send, folder=folder) as bridge,
                            anyio.create_task_group() as tasks,
                        ):
                            tasks.start_soon(self._to_agent, bridge)
                            tasks.start_soon(self._to_page, agent, bridge)
                    except Exception:
                        self._outcome = _Outcome(CLOSE_AGENT, "The gateway made a mistake; its log says which")
                        raise
                    finally:
                        # The page is told first; ending a stubborn agent takes seconds.
                        with anyio.CancelScope(shield=True):
                            await self._close()
        except AgentStartError as exc:
            self._log(logging.ERROR, "%s", exc)
            self._outcome = _Outcome(CLOSE_AGENT, str(exc))
            await self._close()
        outcome = self._outcome or _Outcome(CLOSE_SHUTDOWN, "cancelled")
        self._fields |= {"code": outcome.code, "seconds": round(anyio.current_time() - start, 3)}
        crashed = outcome.code == CLOSE_AGENT
        self._log(logging.WARNING if crashed else logging.INFO, "ended (%s)", outcome.reason)

    def _log(self, level: int, text: str, *arguments: object) -> None:
        log.log(level, "%s: " + text, self._label, *arguments, extra=self._fields)

    def _finish(self, outcome: _Outcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
        self._scope.cancel()

    async def _to_agent(self, bridge: Bridge) -> None:
        try:
            while True:
                text = await self._receive()
                if (pong := ping_answer(text)) is not None:
                    await self._send(pong)
                    continue
                answer = check_frame(text, self._limit)
                if answer is not None:
                    self._log(logging.WARNING, "refused a frame of the page: %s", answer)
                    await self._send(answer)
                    continue
                await bridge.from_client(text)
        except WebSocketDisconnect as exc:
            self._finish(_Outcome(CLOSE_NORMAL, f"the page closed the socket, code {exc.code}"))
        except KeyError:
            self._finish(_Outcome(CLOSE_DATA, "ACP uses text frames; a binary frame was received"))
        except UnicodeDecodeError:
            self._finish(_Outcome(CLOSE_NOT_UTF8, "a binary frame was not UTF-8"))
        except AgentStuckError as exc:
            self._finish(_Outcome(CLOSE_AGENT, str(exc)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            # Usually the agent is gone: then `_to_page` sees its stdout end and says why.
            await anyio.sleep(EXIT_WAIT)
            self._finish(_Outcome(CLOSE_AGENT, "The agent no longer reads its input"))

    async def _receive(self) -> str:
        """The next frame's text.

        Raises:
            WebSocketDisconnect: the page is gone.
            KeyError: a binary frame that was not agreed on.
            UnicodeDecodeError: one that is no text.
        """
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"], message.get("reason"))
        text: str | None = message.get("text")
        if text is None:
            if not self._utf8:
                raise KeyError("text")
            text = str(message["bytes"], "utf-8")
        return text

    async def _to_page(self, agent: AgentProcess, bridge: Bridge) -> None:
        async for event in agent.receive():
            if isinstance(event, Oversize):
                await self._report(agent, event)
            elif (text := self._decode(event, agent)) is not None:
                await bridge.from_agent(text)
        self._finish(_Outcome(CLOSE_AGENT, await agent.exit_text()))

    def _decode(self, line: Line, agent: AgentProcess) -> str | None:
        try:
            text = line.data.decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        if not text.lstrip().startswith(("{", "[")):
            # Banners and warnings that libraries print to stdout; a client could only fail on them.
            if self._noise.allow(anyio.current_time()):
                self._log(logging.WARNING, "agent %s wrote %d bytes that are no message", agent.pid, len(line.data))
            return None
        return text

    async def _report(self, agent: AgentProcess, event: Oversize) -> None:
        """An over-long message was dropped: the one that waits for it gets an error that names the limit."""
        self._log(logging.ERROR, "agent %d: %s", agent.pid, event)
        head = message_head(event.prefix)
        if head is not None and head[1]:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                await agent.send(error_text(-32600, f"Gateway: {event}", head[0]))
        else:
            await self._send(error_text(-32603, f"Gateway: {event}", head[0] if head is not None else "null"))

    async def _send(self, text: str) -> None:
        async with self._sending:
            try:
                if self._utf8 and len(text) >= BINARY_CHARS:
                    await self._socket.send_bytes(text.encode())
                else:
                    await self._socket.send_text(text)
            except WebSocketDisconnect:
                self._finish(_Outcome(CLOSE_NORMAL, "the page closed the socket"))

    async def _close(self) -> None:
        outcome = self._outcome or _Outcome(CLOSE_SHUTDOWN, "The gateway is shutting down")
        with anyio.move_on_after(CLOSE_TIMEOUT), contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.close(outcome.code, close_reason(outcome.reason))
