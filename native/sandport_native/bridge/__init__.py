"""`sandport bridge`: page tools for ACP agents that know nothing of MCP-over-ACP.

Invariant: an agent that advertises `acp` itself sees every message exactly as the client sent it; the gateway
has it name the agent's folder where a page names none.
"""

from sandport_native.bridge.conductor import Bridge

__all__ = ["Bridge"]
