"""Rows that need a browser: the start, the call through the whole path, and what the sandbox weighs."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import tools
from harness import (
    HERE,
    Agent,
    Browser,
    Gateway,
    HttpServer,
    Json,
    LineProcess,
    Row,
    compare,
    interleave,
    no_gc,
    report,
    say,
)

TOOLS_SOURCE = Path(tools.__file__).read_text()
MB = 1_000_000
STARTED = "while (!globalThis.started) await new Promise((go) => setTimeout(go, 5)); return await globalThis.started"
ENGINES = {"chromium": "Chromium", "firefox": "Firefox", "webkit": "WebKitGTK"}


# -- start ------------------------------------------------------------------------------------------------------


def start(quick: bool, engine: str = "chromium") -> list[Row]:
    """From the navigation to the first answered tools/list, against a bare loadPyodide and our own cold path."""
    rounds, warm_up = (6, 2) if engine == "chromium" and not quick else (3, 1)
    stages: list[Json] = []
    with closing(Gateway("false")) as gateway, closing(Browser(engine)) as browser:

        def ours(kind: str) -> float:
            browser.open(f"{gateway.origin}/bench.html?start={kind}")
            answer = browser.run(STARTED)
            if len(stages) == 0:
                # A first visit that ends at once leaves the next one nothing but the browser's cache.
                browser.run("await bench.kept()")
            if answer["mode"] != kind:
                raise RuntimeError(f"asked for a {kind} start, got {answer['mode']}: {answer}")
            if kind == "snapshot":
                stages.append({**answer["ms"], "ready": answer["ready"], "total": answer["total"]})
            return float(answer["total"])

        def bare() -> float:
            browser.open(f"{gateway.origin}/bare/index.html")
            return float(browser.run(STARTED)["total"])

        # The rounds before fill the HTTP cache and the engine's code cache.
        snapshot, peer, cold = interleave(rounds, lambda: ours("snapshot"), bare, lambda: ours("cold"), warm_up=warm_up)
    label = ENGINES[engine]
    targets: tuple[str | None, str | None] = ("<= 0.3", "<= 0.15") if engine == "chromium" else (None, None)
    say(f"stages of the start from the image, medians: {medians(stages)}")
    return [
        compare(f"start to tools/list, {label} (peer: bare loadPyodide)", "ms", targets[0], snapshot, peer),
        compare(f"start to tools/list, {label} (peer: own cold path)", "ms", targets[1], snapshot, cold),
    ]


def median(times: list[float]) -> float:
    return statistics.median(times)


def medians(records: list[Json]) -> Json:
    names = records[-1].keys()
    return {name: round(statistics.median(record.get(name, 0) for record in records)) for name in names}


# -- calls ------------------------------------------------------------------------------------------------------


@contextmanager
def whole_path(engine: str = "chromium", script: str = "raw.py") -> Iterator[Agent]:
    """Agent process, gateway, page, port, sandbox, and the HTTP server that is the peer; the agent takes orders."""
    with closing(HttpServer()) as http, closing(Agent()) as agent:
        env = {"SANDPORT_BENCH_CONTROL": agent.path, "SANDPORT_BENCH_HTTP": str(http.port)}
        command = f"{sys.executable} {HERE / 'agents' / script}"
        with closing(Gateway(command, env)) as gateway, closing(Browser(engine)) as browser:
            browser.open(f"{gateway.origin}/bench.html")
            browser.run("await bench.boot(true)")
            browser.run(f"await bench.load({json.dumps(TOOLS_SOURCE)})")
            browser.run(f"await bench.session({json.dumps(gateway.token)})")
            agent.expect()
            yield agent


def call(quick: bool, engine: str = "chromium") -> list[Row]:
    """One echo call, sequential."""
    with whole_path(engine) as agent:
        order = {"tool": "echo", "arguments": {"text": "hello"}}

        def side(name: str, rounds: int = 25) -> float:
            return median(agent.ask(path=name, rounds=rounds, **order)["times"]) * 1e3

        for name in ("ours", "peer"):
            side(name, 600)
        ours, peer = interleave(8 if quick else 40, lambda: side("ours"), lambda: side("peer"))
    target = "<= 1.0" if engine == "chromium" else None
    name = f"one echo call, raw ACP agent to the page's tool, {ENGINES[engine]} (peer: Streamable HTTP native)"
    return [compare(name, "ms", target, ours, peer)]


def burst(quick: bool) -> list[Row]:
    """64 calls at once."""
    count = 64
    with whole_path() as agent:
        order = {"tool": "echo", "arguments": {"text": "hello"}, "count": count}

        def side(name: str, rounds: int = 2) -> float:
            return count / median(agent.ask(path=name, rounds=rounds, **order)["times"])

        for name in ("ours", "peer"):
            side(name, 10)
        ours, peer = interleave(6 if quick else 30, lambda: side("ours"), lambda: side("peer"))
    return [compare("64 calls at once, whole path (peer: Streamable HTTP native)", "calls/s", ">= 1.0", ours, peer)]


def texts(quick: bool) -> list[Row]:
    """Text results of 1 MB and 16 MB."""
    rows = []
    medians_ms = {}
    with whole_path() as agent:
        for megabytes in (1, 16):
            order: Json = {"tool": "text", "arguments": {"chars": megabytes * MB}}

            order["rounds"] = 5 if megabytes == 1 else 1

            def side(name: str, order: Json = order, size: int = megabytes * MB) -> float:
                answer = agent.ask(path=name, **order)
                if answer["text"] != size:
                    raise RuntimeError(f"{answer['text']} characters instead of {size}")
                return median(answer["times"]) * 1e3

            rounds = 4 if quick else 15 if megabytes == 1 else 9
            ours, peer = interleave(rounds, lambda: side("ours"), lambda: side("peer"), warm_up=2)
            name = f"{megabytes} MB text result, whole path (peer: Streamable HTTP native)"
            rows.append(compare(name, "ms", "<= 1.5", ours, peer))
            medians_ms[megabytes] = (ours, peer)
    large, small = medians_ms[16][0], [statistics.median(medians_ms[1][0])] * len(medians_ms[16][0])
    rows.append(compare("16 MB text result (peer: own 1 MB)", "ms", "<= 18", large, small))
    return rows


# -- the TypeScript SDK's agent -------------------------------------------------------------------------------------


def stateless(quick: bool) -> list[Row]:
    """An agent on the TypeScript SDK, lent tools by us and by the SDK's own provider: in programs, and in a page."""
    calls, rounds = (100, 5) if quick else (200, 20)
    rows = []
    name = "stateless: TypeScript SDK agent, {} (peer: the SDK's own provider with a JavaScript server)"

    def per_second(times: list[float]) -> float:
        return 1e3 / statistics.median(times)

    client_ours = LineProcess([sys.executable, str(HERE / "agents/sdk_client.py")])
    client_peer = LineProcess(["node", str(HERE / "agents/sdk-client.mjs")])
    with closing(client_ours), closing(client_peer):
        for client in (client_ours, client_peer):
            client.answer()
            client.ask(calls=600)
        ours, peer = interleave(
            rounds, lambda: per_second(client_ours.ask(calls=calls)), lambda: per_second(client_peer.ask(calls=calls))
        )
        rows.append(compare(name.format("host in native CPython"), "calls/s", ">= 0.5", ours, peer))

    with closing(Gateway(f"node {HERE / 'agents/sdk.mjs'}")) as gateway, closing(Browser("chromium")) as browser:
        browser.open(f"{gateway.origin}/bench.html")
        browser.run("await bench.boot(true)")
        browser.run(f"await bench.load({json.dumps(TOOLS_SOURCE)})")
        token = json.dumps(gateway.token)
        browser.run(f"await bench.session({token}); await bench.sdkSession({token})")

        def side(which: str, count: int = calls) -> float:
            return per_second(browser.run(f"return await bench.state.{which}Calls({count})"))

        for which in ("sandbox", "sdk"):
            side(which, 600)
        ours, peer = interleave(rounds, lambda: side("sandbox"), lambda: side("sdk"))
        rows.append(compare(name.format("whole path to the page"), "calls/s", ">= 0.5", ours, peer))
    return rows


# -- inside the sandbox -------------------------------------------------------------------------------------------


@contextmanager
def page_alone(engine: str = "chromium") -> Iterator[Browser]:
    """A page with a sandbox and no agent."""
    with closing(Gateway("false")) as gateway, closing(Browser(engine)) as browser:
        browser.open(f"{gateway.origin}/bench.html")
        browser.run("await bench.boot(true)")
        yield browser


def rate(quick: bool) -> list[Row]:
    """Sequential calls a second inside Chromium, against FastMCP in memory in native CPython."""
    calls = 100
    with page_alone() as browser:
        browser.run(f"await bench.load({json.dumps(TOOLS_SOURCE)}); await bench.open('user')")

        def native() -> float:
            with no_gc():
                return 1 / statistics.median(asyncio.run(tools.in_memory(calls, 20)))

        def lane() -> float:
            args = json.dumps({"text": "hello"})
            return calls / (float(browser.run(f"return await bench.batch({calls}, 'echo', {args})")) / 1e3)

        def inside() -> float:
            args = json.dumps({"calls": calls, "warm_up": 5})
            times = json.loads(browser.run(f"return await bench.call('in_memory', {args})"))
            return 1 / median(times)

        for _ in range(5):
            lane(), inside(), native()
        by_lane, by_client, peer = interleave(5 if quick else 20, lane, inside, native)
    return [
        compare(
            "sequential calls/s to FastMCP inside Chromium (peer: FastMCP in memory, native CPython)",
            "calls/s",
            ">= 0.5",
            by_lane,
            peer,
        ),
        compare(
            "the same with FastMCP's client inside Chromium too (peer: the same native)",
            "calls/s",
            None,
            by_client,
            peer,
        ),
    ]


HEAP = """
import gc
from fastmcp import FastMCP
from pyodide_js import _module
mcp = FastMCP("heap")

@mcp.tool(output_schema=None)
async def heap() -> str:
    gc.collect()
    return str(len(_module.HEAPU8))
"""


def heap(quick: bool) -> list[Row]:
    """Memory of a sandbox that does nothing: its WebAssembly heap, which holds all of Python."""
    with page_alone() as browser:
        browser.run(f"await bench.load({json.dumps(HEAP)}); await bench.open('user')")
        sizes = [float(browser.run("return await bench.call('heap', {})")) / MB for _ in range(1 if quick else 3)]
    return [report("WebAssembly heap of an idle sandbox", "MB", None, sizes)]


ROWS: dict[str, Callable[[bool], list[Row]]] = {
    "start": start,
    "call": call,
    "burst": burst,
    "texts": texts,
    "stateless": stateless,
    "rate": rate,
    "heap": heap,
    "start-firefox": lambda quick: start(True, "firefox"),
    "call-firefox": lambda quick: call(True, "firefox"),
    "start-webkit": lambda quick: start(True, "webkit"),
    "call-webkit": lambda quick: call(True, "webkit"),
}
