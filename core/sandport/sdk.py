"""The MCP SDK's names that a connection needs, whichever major version is installed.

SDK 2 has a `Dispatcher` protocol, which `McpConnection` implements: sessions and servers run on the connection itself.
SDK 1 has none, and the names that came with it are stood in for; there the agent's side works
(`sandport.agent`, by a session class of its own), and hosting tools does not.

Invariant: what is imported from here means the same in both; nobody else asks for the version.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

__all__ = [
    "CONNECTION_CLOSED",
    "DISPATCHER",
    "REQUEST_TIMEOUT",
    "MCPError",
    "NoBackChannelError",
    "TransportContext",
    "run_notify_intercept",
]

DISPATCHER: Final = find_spec("mcp.shared.dispatcher") is not None
"""Whether the SDK runs its sessions on a dispatcher (2.x), and so knows the stateless MCP revisions."""

CONNECTION_CLOSED: Final = -32000
REQUEST_TIMEOUT: Final = -32001
"""Codes of the SDK's own errors (`mcp_types.jsonrpc`)."""

if TYPE_CHECKING or DISPATCHER:
    from mcp.shared.dispatcher import run_notify_intercept
    from mcp.shared.exceptions import MCPError, NoBackChannelError
    from mcp.shared.transport_context import TransportContext
else:
    from sandport._sdk1 import MCPError, NoBackChannelError, TransportContext, run_notify_intercept
