"""Sandport: MCP over ACP for sandboxes. This package needs no socket, no process and no thread."""

from __future__ import annotations

from sandport.channel import Channel, MemoryChannel, memory_channel_pair
from sandport.errors import ChannelClosed, LimitExceeded, LocalError, MountError, PeerError, SandportError
from sandport.host import HostLimits, ToolHost, ask, current_call
from sandport.port import Port, PortLimits

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
