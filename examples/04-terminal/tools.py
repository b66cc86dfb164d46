"""Tools for the terminal example."""

from __future__ import annotations

import statistics

from fastmcp import FastMCP

mcp = FastMCP("numbers")


@mcp.tool
def summary(numbers: list[float]) -> dict[str, float]:
    """Mean and standard deviation of some numbers."""
    return {"mean": statistics.fmean(numbers), "deviation": statistics.pstdev(numbers)}
