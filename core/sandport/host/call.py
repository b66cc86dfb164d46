"""What a running tool can know about the call it serves."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

__all__ = ["CALL", "TIME_LIMIT", "CallInfo", "current_call"]


@dataclass(frozen=True, slots=True)
class CallInfo:
    """Where a call came from."""

    server: str
    """The name under which the server is mounted."""
    server_id: str
    """The id it was declared with; a client that declares an id a session knows the session by it."""
    dialect: str
    session_id: str | None = None
    """The ACP session, in the agent's words: an untrusted hint (`stateless+` only)."""
    tool_call_id: str | None = None
    """The ACP tool call, in the agent's words: an untrusted hint (`stateless+` only)."""
    tool: str | None = None
    """The tool's name, if this is a `tools/call`."""


CALL: Final[ContextVar[CallInfo | None]] = ContextVar("sandport_call", default=None)

TIME_LIMIT: Final[ContextVar[float | None]] = ContextVar("sandport_time_limit", default=None)
"""Seconds the running `tools/call` may take without giving way. A sandbox's event loop reads it to arm its deadline."""


def current_call() -> CallInfo | None:
    """The call this code serves, or `None` outside one."""
    return CALL.get()
