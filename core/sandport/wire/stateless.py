"""`stateless`: no connection; each `mcp/message` names server and request, its answer carries `result` or `error`
(schema from v1.24, TypeScript SDK from 1.6, Rust SDK 3). MCP revision 2026-07-28 only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sandport.wire._connect import inner_message
from sandport.wire.errors import (
    BACKEND_FAILED,
    INTERNAL_ERROR,
    RESOURCE_LIMIT,
    UNKNOWN_SERVER,
    LocalError,
    PeerError,
)
from sandport.wire.events import Call, Event, Family, Outgoing, Params

__all__ = ["STATELESS", "StatelessDialect"]


def _hint(params: Params, name: str) -> str | None:
    value = params.get(name)
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessDialect:
    """A member of the stateless family. See `events.Dialect` for the methods."""

    name: str
    hints: bool
    """Whether requests may say the ACP session and tool call they serve."""
    family: Family = "stateless"
    unknown_server: int = UNKNOWN_SERVER
    resource_limit: int = RESOURCE_LIMIT
    backend_failed: int = BACKEND_FAILED

    def declaration(self, name: str, server_id: str) -> Params:
        return {"type": "acp", "name": name, "serverId": server_id}

    def read_declaration(self, entry: Params) -> str | None:
        server_id = entry.get("serverId")
        return server_id if entry.get("type") == "acp" and isinstance(server_id, str) and server_id else None

    def read(self, method: str, params: Params, owns: Callable[[str], bool]) -> Event | None:
        if method != "mcp/message" or ("sessionId" in params or "toolCallId" in params) != self.hints:
            return None
        server_id, request_id = params.get("serverId"), params.get("requestId")
        if not isinstance(server_id, str) or not isinstance(request_id, str) or not request_id:
            return None
        session_id, tool_call_id = _hint(params, "sessionId"), _hint(params, "toolCallId")
        return Call(server_id, request_id, *inner_message(params), self, session_id, tool_call_id)

    def open(self, server_id: str) -> Outgoing:
        raise LocalError(f"{self.name} opens no connection")

    def message(self, address: str, request_id: str, method: str, params: Params | None) -> Outgoing:
        flat: Params = {"serverId": address, "requestId": request_id, "method": method}
        if params is not None:
            flat["params"] = params
        return Outgoing("mcp/message", flat)

    def close(self, connection_id: str) -> Outgoing | None:
        return None

    def opened(self, connection_id: str) -> Params:
        raise LocalError(f"{self.name} opens no connection")

    def read_opened(self, result: Any) -> str:
        raise LocalError(f"{self.name} opens no connection")

    def result(self, value: Params) -> Params:
        return {"result": value}

    def error(self, code: int, message: str, data: Any) -> Params | None:
        error: Params = {"code": code, "message": message}
        if data is not None:
            error["data"] = data
        return {"error": error}

    def read_result(self, result: Any) -> Params:
        if isinstance(result, dict):
            value = result.get("result")
            # Both present: the result counts (TypeScript SDK 2.4.0).
            if isinstance(value, dict):
                return value
            error = result.get("error")
            if isinstance(error, dict) and type(error.get("code")) is int:
                raise PeerError(error["code"], str(error.get("message", "")), error.get("data"))
        raise PeerError(INTERNAL_ERROR, "The answer carries neither an MCP result nor an MCP error")


STATELESS: Final = StatelessDialect(name="stateless", hints=False)
