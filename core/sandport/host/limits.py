"""What a host takes on at once; each limit has the name that its error says."""

from __future__ import annotations

from dataclasses import dataclass

from sandport.codec import MAX_MESSAGE_CHARS

__all__ = ["HostLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """Limits of a `ToolHost`."""

    max_message_chars: int = MAX_MESSAGE_CHARS
    """A message, either way, in characters."""
    max_active_requests: int = 64
    """Requests a server works on at once: what the stateless binding allows (TypeScript SDK 2.4.0)."""
    max_waiting_requests: int = 256
    """Requests that wait for a server's free place, so that a burst is not refused; beyond, it is."""
    max_subscriptions: int = 64
    """`subscriptions/listen` streams a server holds. They last, so they take none of the places of calls."""
    max_connections: int = 64
    """Connections open to a server on one channel: a session needs one."""
    max_servers: int = 1024
    """Server ids that may be declared at once: every session declares its own."""
    reverse_timeout: float = 300.0
    """Seconds a request of a tool to the agent (elicitation, sampling) waits: a person may have to answer it."""
