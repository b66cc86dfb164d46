"""What a message of the lane means, whatever the dialect it was written in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

__all__ = ["Call", "Close", "Dialect", "Event", "Family", "Message", "Open", "Outgoing"]

Params = dict[str, Any]

Family = Literal["connect", "stateless"]
"""`connect`: an MCP handshake over a connection that `mcp/connect` opened. `stateless`: each request names its server,
and its answer is a carrier of result or error (MCP 2026-07-28)."""


@dataclass(frozen=True, slots=True)
class Open:
    """The agent opens a connection to a server."""

    server_id: str
    dialect: Dialect
    connection_id: str | None = None
    """Set only in the one legacy variant in which the agent mints the id."""


@dataclass(frozen=True, slots=True)
class Message:
    """An MCP message on an open connection, either way."""

    connection_id: str
    method: str
    params: Params | None


@dataclass(frozen=True, slots=True)
class Call:
    """A stateless MCP request, or a notification that belongs to one."""

    server_id: str
    request_id: str
    method: str
    params: Params | None
    dialect: Dialect
    session_id: str | None = None
    """The agent's word for the ACP session it acts in: an untrusted hint."""
    tool_call_id: str | None = None
    """The agent's word for the ACP tool call this serves: an untrusted hint."""


@dataclass(frozen=True, slots=True)
class Close:
    """The agent closes a connection."""

    connection_id: str


Event = Open | Message | Call | Close


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An outer message to send: a request unless `notification`."""

    method: str
    params: Params
    notification: bool = False


class Dialect(Protocol):
    """One way of writing MCP over ACP. Pure functions; no state, no clock, no task.

    Reading: `read` turns an outer method and its params into an event, `None` if the message is not this dialect's,
    and raises `PeerError` if it is but breaks it. Writing mirrors reading.
    """

    @property
    def name(self) -> str: ...

    @property
    def family(self) -> Family: ...

    # How a server is declared in `mcpServers`.
    def declaration(self, name: str, server_id: str) -> Params: ...

    def read_declaration(self, entry: Params) -> str | None:
        """The server id if this dialect declares a server so, else `None`."""
        ...

    # What an agent sends.
    def read(self, method: str, params: Params, owns: Callable[[str], bool]) -> Event | None:
        """`owns` says whether this side issued a connection id: it decides where a message carries both addresses."""
        ...

    def open(self, server_id: str) -> Outgoing: ...

    def message(self, address: str, request_id: str, method: str, params: Params | None) -> Outgoing:
        """An MCP message. `address` is the connection id (`connect`) or the server id (`stateless`)."""
        ...

    def close(self, connection_id: str) -> Outgoing | None: ...

    # What a provider answers.
    def opened(self, connection_id: str) -> Params: ...

    def read_opened(self, result: Any) -> str: ...

    def result(self, value: Params) -> Params: ...

    def error(self, code: int, message: str, data: Any) -> Params | None:
        """The outer *result* that carries an inner error, or `None` where inner errors travel as outer errors."""
        ...

    def read_result(self, result: Any) -> Params:
        """The MCP result inside an outer result; an inner error is raised as `PeerError`."""
        ...

    # Codes for what the binding itself refuses.
    @property
    def unknown_server(self) -> int: ...

    @property
    def resource_limit(self) -> int: ...

    @property
    def backend_failed(self) -> int: ...
