"""The errors of Sandport, gathered. See `sandport.wire.errors` for what tells them apart."""

from __future__ import annotations

from sandport.wire.errors import LocalError, PeerError, SandportError

__all__ = ["ChannelClosed", "LimitExceeded", "LocalError", "MountError", "PeerError", "SandportError"]


class ChannelClosed(SandportError):
    """The channel ended, from either side; what was pending on it is settled with this."""


class LimitExceeded(LocalError):
    """A named limit of this side was met.

    Args:
        limit: the limit's name, as in the options.
        value: its value in force.
        message: what met it, and what to do.
    """

    def __init__(self, limit: str, value: int | float, message: str) -> None:
        super().__init__(f"{message} (limit {limit} = {value})")
        self.limit = limit
        self.value = value


class MountError(LocalError):
    """A server cannot be mounted; the message names the server, the tool and the reason."""
