"""What MCP SDK 2 has and SDK 1 lacks, for `sandport.sdk`. Imported with SDK 1 only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.shared.exceptions import McpError
from mcp.types import INVALID_REQUEST, ErrorData

__all__ = ["MCPError", "NoBackChannelError", "TransportContext", "run_notify_intercept"]


class MCPError(McpError):
    """SDK 1's error, made and read as in SDK 2; who catches `McpError` catches it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(ErrorData(code=code, message=message, data=data))

    @property
    def code(self) -> int:
        return self.error.code

    @property
    def message(self) -> str:
        return self.error.message

    @property
    def data(self) -> Any:
        return self.error.data


class NoBackChannelError(MCPError):
    """A server has no way to ask back."""

    def __init__(self, method: str) -> None:
        super().__init__(INVALID_REQUEST, f"Cannot send {method!r}: there is no way back to the client")
        self.method = method


@dataclass(kw_only=True, frozen=True)
class TransportContext:
    """What a transport tells about an inbound message."""

    kind: str
    can_send_request: bool
    headers: Mapping[str, str] | None = None


def run_notify_intercept(
    intercept: Callable[[str, Mapping[str, Any] | None], bool] | None, method: str, params: Mapping[str, Any] | None
) -> bool:
    """Sessions of SDK 1 intercept nothing."""
    return intercept is not None and intercept(method, params)
