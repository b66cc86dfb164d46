"""Errors of the protocol layers; the type says whose fault it is.

`PeerError` is the other side's illegal move and always knows how it is put on the wire. `LocalError` is ours: a
caller used this library wrongly, and nothing was sent.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "BACKEND_FAILED",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "REQUEST_CANCELLED",
    "RESOURCE_LIMIT",
    "UNKNOWN_SERVER",
    "LocalError",
    "PeerError",
    "SandportError",
]

# JSON-RPC 2.0, section 5.1.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# ACP: the answer to a request that `$/cancel_request` ended.
REQUEST_CANCELLED: Final = -32800
# The stateless binding's own outer errors (TypeScript SDK 2.4.0, `mcp/core`).
RESOURCE_LIMIT: Final = -33000
UNKNOWN_SERVER: Final = -33001
BACKEND_FAILED: Final = -33002


class SandportError(Exception):
    """Base of every error this package raises on its own account."""


class LocalError(SandportError):
    """This side misused the library or was not in a state to do what was asked; nothing was sent."""


class PeerError(SandportError):
    """The peer broke the protocol, or answered with an error.

    Args:
        code: JSON-RPC error code.
        message: one line for a person.
        data: any JSON value; `None` is written as `null`, because some peers lose errors without the member.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"
