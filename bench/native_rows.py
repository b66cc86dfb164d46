"""Rows that need no browser: the channel in native CPython, and the size of Sandport's own files."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastmcp import Client
from harness import CACHE, ROOT, Row, compare, no_gc, report
from tools import mcp

from sandport import ToolHost, memory_channel_pair
from sandport.agent import AcpMCPServerConfig, AcpMcpTransport, manager_on_channel

TEXT = "hello"


async def timed_calls(client: Client[Any], count: int) -> float:
    """Median microseconds of sequential `echo` calls."""
    times = []
    with no_gc():
        for _ in range(count):
            start = time.perf_counter()
            await client.call_tool("echo", {"text": TEXT})
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


async def _channel(quick: bool) -> list[Row]:
    rounds, calls = (10, 60) if quick else (40, 100)
    ours: list[float] = []
    peer: list[float] = []
    host_end, agent_end = memory_channel_pair()
    host = ToolHost()
    host.mount(mcp, "bench")
    async with host, asyncio.TaskGroup() as tasks:
        server_id = host.declare("bench")["serverId"]
        tasks.create_task(host.serve(host_end))
        async with manager_on_channel(agent_end) as manager:
            config = AcpMCPServerConfig(name="bench", acp_id=server_id)
            async with Client(AcpMcpTransport(manager, config)) as over_channel, Client(mcp, mode="legacy") as memory:
                for client in (over_channel, memory):
                    await timed_calls(client, 300)
                for number in range(rounds):
                    sides = [(over_channel, ours), (memory, peer)]
                    for client, figures in sides if number % 2 == 0 else reversed(sides):
                        figures.append(await timed_calls(client, calls))
    name = "one call over the channel, native CPython (peer: FastMCP's in-memory transport)"
    return [compare(name, "µs", "<= 1.25", ours, peer)]


def channel(quick: bool) -> list[Row]:
    """One call by FastMCP's client: agent side, channel, host, against FastMCP's own in-memory transport."""
    return asyncio.run(_channel(quick))


def own_files() -> dict[str, Path]:
    """What of dist/ Sandport adds to Pyodide and the wheels, and to the page's own interface."""
    manifest = json.loads((ROOT / "dist/runtime/manifest.json").read_text())
    return {
        "core (Python)": ROOT / "dist/runtime" / manifest["files"]["core"]["name"],
        "sandbox.html (frame and worker)": ROOT / "dist/sandbox.html",
        "library (port, channels, sandbox)": CACHE / "dist/bench.mjs",
    }


def brotli_size(path: Path) -> int:
    """Bytes after brotli at the quality that the build uses."""
    packed = path.with_name(path.name + ".br")
    if packed.is_file():
        return packed.stat().st_size
    script = "console.log(require('zlib').brotliCompressSync(require('fs').readFileSync(process.argv[1])).length)"
    return int(subprocess.run(["node", "-e", script, str(path)], capture_output=True, check=True, text=True).stdout)


def size(quick: bool) -> list[Row]:
    """Sandport's own bytes, compressed."""
    parts = {name: brotli_size(path) / 1000 for name, path in own_files().items()}
    rows = [report("own bytes, brotli", "kB", "<= 300", [sum(parts.values())])]
    page = sum(brotli_size(path) for path in (ROOT / "dist/assets").iterdir() if path.suffix in (".js", ".css"))
    rows.append(report("the page's interface with the library, brotli", "kB", None, [page / 1000]))
    manifest = json.loads((ROOT / "dist/runtime/manifest.json").read_text())
    image = manifest["files"].get("image")
    if image is not None:
        rows.append(
            report("memory image, brotli", "kB", None, [brotli_size(ROOT / "dist/runtime" / image["name"]) / 1000])
        )
    return rows


ROWS: dict[str, Callable[[bool], list[Row]]] = {"channel": channel, "size": size}
