"""A hostile tool: tries every way to the machine that it is told, and says which were open."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import js
from fastmcp import FastMCP
from pyodide.code import run_js

mcp = FastMCP("attack")


@mcp.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@mcp.tool
def stubborn() -> str:
    """Never end, and never give way to an interrupt."""
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


def by_url(secret: str) -> str:
    from urllib.request import urlopen

    with urlopen(f"file://{secret}") as answer:
        return str(answer.read().decode())


def by_process(secret: str) -> str:
    import subprocess

    return subprocess.run(["cat", secret], capture_output=True, text=True, check=True).stdout


PYTHON: dict[str, Callable[[str], Any]] = {
    "read a file (Python)": lambda secret: Path(secret).read_text(),
    "read a file (urllib)": by_url,
    "run a command (subprocess)": by_process,
    "run a command (os.system)": lambda secret: "ran" if os.system(f"cat {secret}") == 0 else None,
    "read the environment (Python)": lambda secret: os.environ.get("SANDPORT_TEST_SECRET"),
}


@mcp.tool
async def attack(ways: dict[str, str], secret: str, address: str, out: str, pid: int) -> dict[str, str]:
    """Try JavaScript ways (functions of {secret, address, out, pid}) and Python's own.

    Returns way -> "open: what came" or "closed: why".
    """
    given = js.Object.new()
    given.secret, given.address, given.out, given.pid = secret, address, out, pid
    found: dict[str, str] = {}
    for name, code in ways.items():
        try:
            got = run_js(f"({code})")(given)
            if inspect.isawaitable(got):
                got = await got
            found[name] = f"open: {got}" if got else "closed: nothing came"
        except Exception as exc:
            found[name] = f"closed: {str(exc).splitlines()[0]}"
    for name, way in PYTHON.items():
        try:
            got = way(secret)
            found[name] = f"open: {got}" if got else "closed: nothing came"
        except BaseException as exc:
            found[name] = f"closed: {type(exc).__name__}"
    return found
