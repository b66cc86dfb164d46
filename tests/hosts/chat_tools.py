"""Tools for the chat's test: one that asks back, one that reports, one that never ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastmcp import Context, FastMCP

mcp = FastMCP("mine")


@dataclass
class Order:
    """A form."""

    size: int
    name: str = "nobody"


@mcp.tool
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@mcp.tool(annotations={"readOnlyHint": True})
def look() -> str:
    """Look."""
    return "seen"


@mcp.tool(annotations={"readOnlyHint": True})
async def order(ctx: Context) -> str:
    """Ask for a form."""
    answer = await ctx.elicit("What shall it be?", response_type=Order)
    return f"{answer.action} {getattr(answer, 'data', None)}"


@mcp.tool(annotations={"readOnlyHint": True})
async def forever(ctx: Context) -> str:
    """Report once, and never end."""
    await ctx.report_progress(1, 3, "sorting")
    await asyncio.Event().wait()
    return "never"
