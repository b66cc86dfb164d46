"""The client side that provides tools."""

from __future__ import annotations

from sandport.host.ask import ask
from sandport.host.call import TIME_LIMIT, CallInfo, current_call
from sandport.host.host import DEFAULT_TIME_LIMIT, ToolHost
from sandport.host.limits import HostLimits
from sandport.host.mounted import guard_tools, named_failure

__all__ = [
    "DEFAULT_TIME_LIMIT",
    "TIME_LIMIT",
    "CallInfo",
    "HostLimits",
    "ToolHost",
    "ask",
    "current_call",
    "guard_tools",
    "named_failure",
]
