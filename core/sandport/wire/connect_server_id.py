"""`connect-serverId`: a declaration with `serverId`, `mcp/connect {serverId}` (schema v1.18 to v1.23; Rust SDK 2)."""

from __future__ import annotations

from typing import Final

from sandport.wire._connect import ConnectDialect, text_member

__all__ = ["CONNECT_SERVER_ID"]

CONNECT_SERVER_ID: Final = ConnectDialect(
    name="connect-serverId",
    server_id=lambda params: text_member(params, "serverId"),
    # A provider of `connect-acpId` reads `acpId`; unknown members are ignored everywhere, so one request serves both.
    connect_params=lambda server_id: {"serverId": server_id, "acpId": server_id},
    declare=lambda name, server_id: {"type": "acp", "name": name, "serverId": server_id},
    declared=lambda entry: text_member(entry, "serverId") if entry.get("type") == "acp" else None,
)
