"""`connect-acpId`: a declaration with `id`, `mcp/connect {acpId}` (the RFD; agentpool and its fork).

The fork also sends a `server` object; the id is read from it when `acpId` is missing. Everything else odd about the
fork (notifications sent as requests, errors without `data` lost) is met above the wire: see docs/dialects.md.
"""

from __future__ import annotations

from typing import Final

from sandport.wire._connect import ConnectDialect, text_member
from sandport.wire.events import Params

__all__ = ["CONNECT_ACP_ID"]


def _server_id(params: Params) -> str | None:
    direct = text_member(params, "acpId")
    server = params.get("server")
    if direct is None and isinstance(server, dict):
        return text_member(server, "id", "serverId")
    return direct


def _declared(entry: Params) -> str | None:
    return text_member(entry, "id") if entry.get("type") == "acp" and "serverId" not in entry else None


CONNECT_ACP_ID: Final = ConnectDialect(
    name="connect-acpId",
    server_id=_server_id,
    connect_params=lambda server_id: {"acpId": server_id},
    declare=lambda name, server_id: {"type": "acp", "name": name, "id": server_id},
    declared=_declared,
)
