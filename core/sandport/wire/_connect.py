"""The connect family: `connect` gives a connection id, every message names it, inner messages are flattened into
`params`, answers are bare MCP results and outer errors. The dialects differ in names only.

Reference: schema v1.13 to v1.23 of the Agent Client Protocol; the RFD "MCP over ACP".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandport.wire.errors import INTERNAL_ERROR, INVALID_PARAMS, PeerError
from sandport.wire.events import Close, Event, Family, Message, Open, Outgoing, Params

__all__ = ["ConnectDialect", "text_member"]


def text_member(params: Params, *names: str) -> str | None:
    """The first of `names` that `params` has, if it is a non-empty string.

    Raises:
        PeerError: the member is there and is something else.
    """
    for name in names:
        if name in params:
            value = params[name]
            if not isinstance(value, str) or not value:
                raise PeerError(INVALID_PARAMS, f"Invalid params: {name} must be a non-empty string")
            return value
    return None


def inner_message(params: Params) -> tuple[str, Params | None]:
    """The flattened MCP message: its method and its params (`None` when absent or null).

    Raises:
        PeerError: no method, or params that are no object.
    """
    method = params.get("method")
    if not isinstance(method, str) or not method:
        raise PeerError(INVALID_PARAMS, "Invalid params: method must be a non-empty string")
    inner = params.get("params")
    if inner is not None and not isinstance(inner, dict):
        raise PeerError(INVALID_PARAMS, "Invalid params: the MCP params must be an object")
    return method, inner


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectDialect:
    """A member of the connect family, described by its names. See `events.Dialect` for the methods."""

    name: str
    family: Family = "connect"
    unknown_server: int = INVALID_PARAMS
    resource_limit: int = INTERNAL_ERROR
    backend_failed: int = INTERNAL_ERROR
    connect_method: str = "mcp/connect"
    message_methods: tuple[str, ...] = ("mcp/message",)
    """The first is written, all are read."""
    disconnect_method: str = "mcp/disconnect"
    disconnect_is_notification: bool = False
    server_id: Callable[[Params], str | None]
    """Reads the server id from the params of connect; `None` if this dialect's member is not there."""
    connect_params: Callable[[str], Params]
    declare: Callable[[str, str], Params]
    declared: Callable[[Params], str | None]
    connection_ids: tuple[str, ...] = ("connectionId",)
    """Names of the connection id in connect's answer, all of them written, any of them read."""
    disconnect_id: str = "connectionId"

    def declaration(self, name: str, server_id: str) -> Params:
        return self.declare(name, server_id)

    def read_declaration(self, entry: Params) -> str | None:
        return self.declared(entry)

    def read(self, method: str, params: Params, owns: Callable[[str], bool]) -> Event | None:
        if method == self.connect_method:
            server_id = self.server_id(params)
            return None if server_id is None else Open(server_id, self, text_member(params, "connectionId"))
        if method in self.message_methods:
            connection_id = params.get("connectionId", params.get("connection_id"))
            if not isinstance(connection_id, str) or not (owns(connection_id) or "serverId" not in params):
                return None
            return Message(connection_id, *inner_message(params))
        if method == self.disconnect_method:
            closing = text_member(params, "connectionId", "connection_id")
            return None if closing is None else Close(closing)
        return None

    def open(self, server_id: str) -> Outgoing:
        return Outgoing(self.connect_method, self.connect_params(server_id))

    def message(self, address: str, request_id: str, method: str, params: Params | None) -> Outgoing:
        flat: Params = {"connectionId": address, "method": method}
        if params is not None:
            flat["params"] = params
        return Outgoing(self.message_methods[0], flat)

    def close(self, connection_id: str) -> Outgoing | None:
        return Outgoing(self.disconnect_method, {self.disconnect_id: connection_id}, self.disconnect_is_notification)

    def opened(self, connection_id: str) -> Params:
        return dict.fromkeys(self.connection_ids, connection_id)

    def read_opened(self, result: Any) -> str:
        if isinstance(result, dict):
            for name in self.connection_ids:
                connection_id = result.get(name)
                if isinstance(connection_id, str) and connection_id:
                    return connection_id
        raise PeerError(INTERNAL_ERROR, f"{self.connect_method} was answered without a connection id")

    def result(self, value: Params) -> Params:
        return value

    def error(self, code: int, message: str, data: Any) -> Params | None:
        return None

    def read_result(self, result: Any) -> Params:
        if not isinstance(result, dict):
            raise PeerError(INTERNAL_ERROR, f"An MCP result must be an object, not {type(result).__name__}")
        return result
