"""MCP over ACP, sans I/O: every dialect in use, told apart by what is sent.

Invariant: nothing here awaits, keeps a clock or touches bytes. A message goes in, an event comes out, or `PeerError`
says why the peer's message is illegal. A new dialect is one new file and one line in `DIALECTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sandport.wire.connect_acp_id import CONNECT_ACP_ID
from sandport.wire.connect_server_id import CONNECT_SERVER_ID
from sandport.wire.errors import INVALID_PARAMS, LocalError, PeerError, SandportError
from sandport.wire.events import Call, Close, Dialect, Event, Family, Message, Open, Outgoing, Params
from sandport.wire.legacy import LEGACY
from sandport.wire.stateless import STATELESS
from sandport.wire.stateless_plus import STATELESS_PLUS

__all__ = [
    "CANCEL_METHODS",
    "CONNECT_ACP_ID",
    "CONNECT_SERVER_ID",
    "DIALECTS",
    "LANE_METHODS",
    "LEGACY",
    "STATELESS",
    "STATELESS_PLUS",
    "Call",
    "Close",
    "Dialect",
    "Event",
    "Family",
    "LocalError",
    "Message",
    "Open",
    "Outgoing",
    "Params",
    "PeerError",
    "SandportError",
    "advertises_acp",
    "advertises_legacy",
    "declaration",
    "is_notification",
    "read",
    "read_declaration",
]

DIALECTS: Final[tuple[Dialect, ...]] = (CONNECT_SERVER_ID, CONNECT_ACP_ID, LEGACY, STATELESS, STATELESS_PLUS)
"""In the order in which they are tried; the first that knows a message has it. `connect-serverId` stands before
`connect-acpId` so that a request with both ids is read by the newer name."""

LANE_METHODS: Final = frozenset(
    {
        "mcp/connect",
        "mcp/message",
        "mcp/disconnect",
        "_mcp/connect",
        "_mcp/message",
        "_mcp/request",
        "_mcp/notification",
        "_mcp/disconnect",
    }
)
"""Every outer method that belongs to MCP over ACP."""

CANCEL_METHODS: Final = frozenset({"$/cancel_request", "mcp/cancel"})
"""Outer cancellations, `params.requestId` being the outer id. `mcp/cancel` is openab's."""


def read(method: str, params: Any, owns: Callable[[str], bool]) -> Event:
    """What an outer message of `LANE_METHODS` means.

    Args:
        method: the outer method.
        params: the outer params as parsed.
        owns: whether this side issued a connection id.

    Raises:
        PeerError: `-32602`, no dialect reads the message.
    """
    if not isinstance(params, dict):
        raise PeerError(INVALID_PARAMS, f"Invalid params: {method} needs an object")
    for dialect in DIALECTS:
        event = dialect.read(method, params, owns)
        if event is not None:
            return event
    raise PeerError(INVALID_PARAMS, f"Invalid params: {method} names neither a server nor a connection")


def is_notification(method: str) -> bool:
    """Whether an MCP method is a notification. Some agents send these as outer requests; they are answered `{}`."""
    return method.startswith("notifications/")


def declaration(name: str, server_id: str) -> Params:
    """The `mcpServers` entry that every reader of `type: "acp"` understands: both id members, the same value.

    Source: the decoder matrix in docs/dialects.md; an entry with only one of the two is dropped or refused by some.
    """
    return {"type": "acp", "name": name, "id": server_id, "serverId": server_id}


def read_declaration(entry: Any) -> tuple[str, tuple[Dialect, ...]] | None:
    """The server id an `mcpServers` entry declares over ACP and the dialects its provider may speak, or `None`.

    Only `id`: `connect-acpId`. Only `serverId`: `connect-serverId` or the stateless family. Both: a provider of all.

    Raises:
        PeerError: `-32602`, the entry is of type `acp` and has no usable id.
    """
    if not isinstance(entry, dict):
        return None
    server_ids = {dialect: found for dialect in DIALECTS if (found := dialect.read_declaration(entry)) is not None}
    if not server_ids:
        if entry.get("type") == "acp":
            raise PeerError(INVALID_PARAMS, f"MCP server {entry.get('name')!r} of type acp has neither id nor serverId")
        return None
    return next(iter(server_ids.values())), tuple(server_ids)


def advertises_acp(initialize_result: Any) -> bool:
    """Whether an ACP agent's answer to `initialize` offers MCP over ACP.

    ACP v1 says `agentCapabilities.mcpCapabilities.acp: true`, the v2 draft `capabilities.session.mcp.acp: {}`; a
    tolerant reader takes either value at either place. `false`, `null` and absence are off.
    """
    return any(
        value is True or isinstance(value, dict)
        for value in (
            _at(initialize_result, "agentCapabilities", "mcpCapabilities", "acp"),
            _at(initialize_result, "capabilities", "session", "mcp", "acp"),
        )
    )


def advertises_legacy(initialize_result: Any) -> bool:
    """Whether an agent offers MCP over ACP in the first way alone: declare servers to it with `LEGACY.declaration`.

    Rust SDK 0.11 and before, and sacp, put a `symposium.mcp_acp_transport` into the `_meta` of their capabilities; its
    presence counts, and `false` and `null` are taken as absence.
    """
    if advertises_acp(initialize_result):
        return False
    return any(
        _at(initialize_result, *place, "_meta", "symposium", "mcp_acp_transport") not in (None, False)
        for place in (("agentCapabilities",), ())
    )


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
