"""Sandport: MCP over ACP for sandboxes. This package needs no socket, no process and no thread."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sandport.channel import Channel, MemoryChannel, memory_channel_pair
from sandport.errors import ChannelClosed, LimitExceeded, LocalError, MountError, PeerError, SandportError
from sandport.port import Port, PortLimits
from sandport.sdk import DISPATCHER

if TYPE_CHECKING:
    from sandport.host import HostLimits, ToolHost, ask, current_call

__all__ = [
    "Channel",
    "ChannelClosed",
    "HostLimits",
    "LimitExceeded",
    "LocalError",
    "MemoryChannel",
    "MountError",
    "PeerError",
    "Port",
    "PortLimits",
    "SandportError",
    "ToolHost",
    "ask",
    "current_call",
    "memory_channel_pair",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # An agent's side neither needs what hosts tools nor has, with MCP SDK 1, what that is made of.
    if name not in ("HostLimits", "ToolHost", "ask", "current_call"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("sandport.host"), name)
    except ImportError as error:
        if DISPATCHER:
            raise
        raise ImportError("Hosting tools needs mcp>=2.3 and fastmcp>=4.2: pip install 'sandport[host]'") from error
