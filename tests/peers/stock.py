"""Stock agents behind the real gateway, the real page in Chromium in front: the page's tools through the bridge."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.native.conftest import RunningGateway, alive, run_gateway
from tests.peers import install
from tests.peers.channels import HERE, ROOT, Exchange
from tests.peers.recipes import RECIPES, Recipe
from tests.peers.scripted_model import scripted_model
from tests.peers.suite import Case, Suite, check, same

__all__ = ["suites"]

LIMIT = 150.0
"""Seconds for a case: an agent's first start on a busy machine takes most of them."""

AT_ONCE = 3000.0
"""Milliseconds from pressing Stop to the tool's `finally` in the page; it takes well under 100 on an idle machine."""

TOOLS = '''
import asyncio

from fastmcp import FastMCP

mcp = FastMCP("peer")
runs = 0


@mcp.tool
async def slow() -> str:
    """Take ten minutes."""
    global runs
    runs += 1
    try:
        await asyncio.sleep(600)
    finally:
        print(f"slow number {runs} has stopped")
    return "slow is done"


@mcp.tool
def echo(text: str) -> str:
    """Give the text back."""
    return f"the page heard {text}"
'''

GATE = 'read -r _ <"$0"; exec "$@"'
"""The agent waits until the page has the tools: not every agent looks at its tools a second time."""


class Person:
    """What a person does at the page; see `js/page.mjs`."""

    def __init__(self, process: Process, exchange: Exchange) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._lines = process.stdin, BufferedByteReceiveStream(process.stdout)
        self._exchange = exchange

    async def do(self, op: str, **options: Any) -> Any:
        """Do one thing and wait for its end."""
        order = json.dumps({"op": op, **options})
        self._exchange.note("person", order)
        await self._stdin.send(order.encode() + b"\n")
        answer = json.loads(await self._lines.receive_until(b"\n", 1 << 24))
        self._exchange.note("page", json.dumps(answer, ensure_ascii=False))
        check("error" not in answer, answer.get("error", ""))
        return answer["result"]

    async def leave(self) -> None:
        """Close the page."""
        await self._stdin.aclose()


@dataclass
class Bench:
    """A stock agent at work for a person at the page."""

    recipe: Recipe
    gateway: RunningGateway
    person: Person
    home: Path
    gate: int
    asked: list[Any] = field(default_factory=list)

    def order(self, server: str, tool: str, **arguments: Any) -> str:
        """The prompt that makes the agent call a tool."""
        return self.recipe.call(server, tool, arguments)

    async def ask(self, server: str, tool: str, **arguments: Any) -> str:
        """Let the agent call a tool; what stands in the chat then."""
        turn = await self.person.do("ask", text=self.order(server, tool, **arguments))
        self.asked = turn["asked"]
        said: str = turn["said"]
        return said

    def processes(self) -> list[int]:
        """Whatever runs with the agent's home."""
        mark = f"HOME={self.home}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes() + b"\0"
                except OSError:
                    continue
                if mark in environment and alive(int(entry.name)):
                    found.append(int(entry.name))
        return found


async def starts_with_the_page(bench: Bench) -> None:
    os.write(bench.gate, b"\n")
    agent = await bench.person.do("agent")
    check(agent["ready"], agent["text"])
    check(bench.gateway.log and any("has no MCP-over-ACP" in line for line in bench.gateway.log), "no bridge was used")


async def calls_a_tool_of_the_page(bench: Bench) -> None:
    said = await bench.ask("workspace", "run_python", code="'forty-two is %d' % (6 * 7)")
    check("forty-two is 42" in said, said)
    same(bool(bench.asked), bench.recipe.asks, "asked the person")


async def calls_a_second_server(bench: Bench) -> None:
    said = await bench.ask("user", "echo", text="hello-42")
    check("the page heard hello-42" in said, said)


async def cancel_stops_the_tool(bench: Bench) -> None:
    await bench.person.do("start", text=bench.order("user", "slow"), tool="slow")
    stopped = await bench.person.do("stop", printed="slow number 1 has stopped", tool="slow")
    check(stopped["stoppedIn"] < AT_ONCE, f"the tool stopped after {stopped['stoppedIn']:.0f} ms")
    check(stopped["withdrawn"], "the bridge did not take the call back")


async def goes_on_after_a_cancel(bench: Bench) -> None:
    """The next prompt works, or what the recipe says of this agent: what others do is not ours to mend."""
    wanted = "the page heard again"
    said = await bench.ask("user", "echo", text="again")
    if bench.recipe.after_cancel == "works":
        check(wanted in said, said)
        return
    check(wanted not in said, f"{bench.recipe.name} now goes on at once: its recipe is out of date")
    if bench.recipe.after_cancel == "second prompt":
        check(wanted in await bench.ask("user", "echo", text="again"), "nor at the second prompt")


async def ends_with_the_page(bench: Bench) -> None:
    check(bench.processes(), "no process of the agent was found")
    await bench.person.leave()
    # There is no event for the end of processes that are not ours.
    while bench.processes():  # noqa: ASYNC110
        await anyio.sleep(0.05)


CASES: list[Case] = [
    starts_with_the_page,
    calls_a_tool_of_the_page,
    calls_a_second_server,
    cancel_stops_the_tool,
    goes_on_after_a_cancel,
    ends_with_the_page,
]


def _config(recipe: Recipe, programs: Path, base: str, home: Path, work: Path, gate: Path) -> str:
    """The gateway's config file."""

    def fill(text: str) -> str:
        return text.replace("{base}", base).replace("{home}", str(home))

    for name, text in recipe.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text), encoding="utf-8")
    program, *arguments = recipe.command
    command = ["/bin/sh", "-c", GATE, str(gate), str(programs / program), *arguments]
    env = {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        # Nothing leaves the machine: whoever heeds these reaches loopback alone.
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
        **{name: fill(value) for name, value in recipe.env.items()},
    }
    table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in env.items())
    return (
        f"[agents.stock]\ncommand = {json.dumps(command)}\ncwd = {json.dumps(str(work))}\n[agents.stock.env]\n{table}"
    )


@asynccontextmanager
async def _person(exchange: Exchange) -> AsyncIterator[Person]:
    command = ["node", str(HERE / "js" / "page.mjs")]
    async with await anyio.open_process(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        person = Person(process, exchange)

        async def errors() -> None:
            async for data in process.stderr or ():
                exchange.errors += data.decode(errors="replace").splitlines()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(errors)
            try:
                yield person
            finally:
                with anyio.CancelScope(shield=True):
                    await person.leave()
                    with anyio.move_on_after(15) as late:
                        await process.wait()
                    if late.cancelled_caught:
                        process.kill()
                tasks.cancel_scope.cancel()


def _opener(recipe: Recipe) -> Any:
    @asynccontextmanager
    async def opened(exchange: Exchange) -> AsyncIterator[Bench]:
        programs = install.agent(HERE / "agents" / recipe.folder)
        with tempfile.TemporaryDirectory(prefix="sandport-peer-", ignore_cleanup_errors=True) as folder:
            home, work, gate, config = (Path(folder) / name for name in ("home", "work", "gate", "agents.toml"))
            home.mkdir()
            work.mkdir()
            os.mkfifo(gate)
            # Open for reading too: so opening waits for nobody, and what is written waits for the agent's shell.
            held = os.open(gate, os.O_RDWR)
            try:
                async with scripted_model(lambda line: exchange.note("model", line)) as model:
                    config.write_text(_config(recipe, programs, model.base, home, work, gate), encoding="utf-8")
                    options = ["--config", str(config), "--dist", str(ROOT / "dist")]
                    async with run_gateway(*options, agent=None) as gateway, _person(exchange) as person:
                        exchange.errors = gateway.log
                        url = f"{gateway.origin}/#token={gateway.token}"
                        loaded = await person.do("open", url=url, tools=TOOLS)
                        check("slow" in loaded, loaded)
                        bench = Bench(recipe, gateway, person, home, held)
                        yield bench
            finally:
                os.close(held)

    return opened


def suites() -> list[Suite]:
    """Each agent; the page must have been built."""
    built = (ROOT / "dist" / "index.html").exists()
    missing = None if built else "there is no page in dist/: ./build.sh peers builds it"
    return [
        Suite(
            recipe.name,
            recipe.version,
            f"bridge, {recipe.mcp}",
            "agent of a page",
            CASES,
            _opener(recipe),
            False,
            missing,
            LIMIT,
        )
        for recipe in RECIPES
    ]
