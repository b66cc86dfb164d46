"""An ordinary MCP server of the kind in argv[1]: stdio, http or sse. Prints its URL when it listens."""

import socket
import sys

import uvicorn
from fastmcp import FastMCP

kind = sys.argv[1]
server: FastMCP = FastMCP(kind)


@server.tool(name=f"from_{kind}")
def tell(text: str) -> str:
    """Say where it ran."""
    return f"{kind} {text}"


if kind == "stdio":
    server.run(show_banner=False)
else:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = server.http_app(transport="sse" if kind == "sse" else "http")
        path = "/sse" if kind == "sse" else "/mcp"
        print(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
