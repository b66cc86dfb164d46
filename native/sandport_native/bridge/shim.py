"""A stdio MCP server that passes everything on to a bridge's loopback server, for agents that know no HTTP servers.

The bridge starts it through the agent, with the address and the secret in the environment.
"""

from __future__ import annotations

import os

from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.server.providers.proxy import FastMCPProxy, StatefulProxyClient


def main() -> None:
    """Serve until stdin ends."""
    transport = StreamableHttpTransport(
        os.environ["SANDPORT_URL"], headers={"Authorization": os.environ["SANDPORT_AUTHORIZATION"]}
    )
    backend: StatefulProxyClient[StreamableHttpTransport] = StatefulProxyClient(transport, mode="auto")
    FastMCPProxy(client_factory=backend.new_stateful, name="sandport").run(transport="stdio", show_banner=False)


if __name__ == "__main__":
    main()
