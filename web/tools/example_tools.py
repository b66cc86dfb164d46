"""A tool of your own. Change it, press "Load", and ask the agent to use it.

Everything here runs in the sandbox: /workspace is at hand, the network is not.
"""

from collections import Counter
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("my_tools")


@mcp.tool
def file_types(path: str = ".") -> dict[str, int]:
    """Count the files of the workspace by their ending."""
    root = Path("/workspace") / path
    return dict(Counter(file.suffix or "(none)" for file in root.rglob("*") if file.is_file()).most_common())


@mcp.tool
async def shout(text: str, times: int = 1) -> str:
    """Say a text loudly. Async tools work as well as plain ones."""
    print("shouting", times, "times")  # goes to the Log panel, never into the protocol
    return " ".join([text.upper() + "!"] * times)
