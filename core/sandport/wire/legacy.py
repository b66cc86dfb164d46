"""`legacy`: `_mcp/*` methods, an `acp:` address inside an http declaration (Rust SDK before 2, sacp; Nov 2025 on).

Mixed case is real: connect and disconnect are written in snake case, messages in camel case. The oldest form has
`_mcp/request` and `_mcp/notification` in place of `_mcp/message`; one variant lets the agent mint the connection id.
"""

from __future__ import annotations

from typing import Final

from sandport.wire._connect import ConnectDialect, text_member
from sandport.wire.events import Params

__all__ = ["LEGACY"]

_SCHEME: Final = "acp:"


def _server_id(params: Params) -> str | None:
    found = text_member(params, "acp_id", "acp_url", "url")
    return None if found is None else found.removeprefix(_SCHEME)


def _declared(entry: Params) -> str | None:
    url = entry.get("url")
    if entry.get("type") == "http" and isinstance(url, str) and url.startswith(_SCHEME):
        return url.removeprefix(_SCHEME) or None
    return None


LEGACY: Final = ConnectDialect(
    name="legacy",
    connect_method="_mcp/connect",
    message_methods=("_mcp/message", "_mcp/request", "_mcp/notification"),
    disconnect_method="_mcp/disconnect",
    disconnect_is_notification=True,
    server_id=_server_id,
    connect_params=lambda server_id: {"acp_id": server_id, "acp_url": f"{_SCHEME}{server_id}"},
    declare=lambda name, server_id: {"type": "http", "name": name, "url": f"{_SCHEME}{server_id}", "headers": []},
    declared=_declared,
    connection_ids=("connection_id", "connectionId"),
    disconnect_id="connection_id",
)
