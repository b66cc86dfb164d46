"""Tools of your own: change them, then press Load.

They run in the sandbox: /workspace is at hand,
the network is not.
"""

from collections import Counter
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("my_tools")


@mcp.tool
def file_types(folder: str = ".") -> dict[str, int]:
    """Count the files of a folder by their ending."""
    files = (Path("/workspace") / folder).rglob("*")
    endings = (file.suffix for file in files if file.is_file())
    return dict(Counter(endings).most_common())


@mcp.tool
async def shout(text: str, times: int = 1) -> str:
    """Say a text loudly. Tools may be async, too."""
    print("shouting", times, "times")  # goes to the Log
    return " ".join([text.upper() + "!"] * times)
