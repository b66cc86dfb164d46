"""`sandport serve`: one origin that serves the page and the WebSocket to an agent.

Invariant: nothing of the gateway answers a request whose Host it does not know, and no agent is started for a socket
whose Host, Origin or token is wrong.
"""

from sandport_native.gateway.access import Access, Refusal
from sandport_native.gateway.app import Gateway
from sandport_native.gateway.server import Settings, serve

__all__ = ["Access", "Gateway", "Refusal", "Settings", "serve"]
