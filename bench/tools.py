"""The tools that every row measures: a server in native CPython and, loaded as text, in the sandbox."""

import time
from typing import Annotated, Any

from fastmcp import Client, FastMCP

mcp: FastMCP[Any] = FastMCP("bench")


@mcp.tool
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@mcp.tool(output_schema=None)
async def text(chars: Annotated[int, "length of the text"]) -> str:
    """A text of lines of 80 characters. Without an output schema it travels once, not twice."""
    line = "The quick brown fox jumps over the lazy dog; 0123456789 and some more words here\n"
    return (line * (chars // len(line) + 1))[:chars]


@mcp.tool(output_schema=None)
async def in_memory(calls: int, warm_up: int = 0) -> list[float]:
    """Seconds for each sequential `echo` call by FastMCP's own client over its in-memory transport, right here."""
    server: FastMCP[Any] = FastMCP("in memory")
    server.tool(echo)
    times = []
    async with Client(server, mode="legacy") as client:
        for _ in range(warm_up):
            await client.call_tool("echo", {"text": "hello"})
        for _ in range(calls):
            start = time.perf_counter()
            await client.call_tool("echo", {"text": "hello"})
            times.append(time.perf_counter() - start)
    return times
