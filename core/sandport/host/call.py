"""What a running tool can know about the call it serves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

import anyio

__all__ = ["CALL", "CLOCK", "TIME_LIMIT", "CallInfo", "Clock", "current_call"]


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


@dataclass(eq=False, slots=True)
class Clock:
    """The time limit of a running call, as a cancel scope that can stand still."""

    limit: float | None
    scope: anyio.CancelScope = field(init=False)
    _stops: int = 0
    _left: float = math.inf

    def __post_init__(self) -> None:
        self.scope = anyio.CancelScope(deadline=math.inf if self.limit is None else anyio.current_time() + self.limit)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """While the tool waits for a person or a model on the agent's side, its time does not run."""
        if self._stops == 0:
            self._left = self.scope.deadline - anyio.current_time()
            self.scope.deadline = math.inf
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if self._stops == 0:
                self.scope.deadline = anyio.current_time() + self._left


CLOCK: Final[ContextVar[Clock | None]] = ContextVar("sandport_clock", default=None)
