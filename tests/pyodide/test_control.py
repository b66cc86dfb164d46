"""The control of a sandbox, inside Pyodide: every request is answered once, whatever it says and whatever tools do."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from sandport_runtime._control import Control

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _Loop:
    """What the control uses of the sandbox's loop."""

    def run_after(self, step: Callable[..., object], *args: Any) -> None:
        step(*args)

    def create_task(self, coro: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(coro)


class Page:
    """The other end: asks, and keeps what is said."""

    def __init__(self, servers: dict[str, FastMCP[Any]]) -> None:
        self.events: list[dict[str, Any]] = []
        self.texts: list[str] = []
        self.logged: list[str] = []
        self.control = Control(
            self._posted,
            self._heard,
            time_limit=None,
            servers=servers,
            failures={"broken": "it is broken"},
            raw_log=lambda stream, text: self.logged.append(text),
            loop=_Loop(),  # type: ignore[arg-type]
        )
        self._seq = 0
        self._more = asyncio.Event()

    def _posted(self, text: str) -> None:
        self.texts.append(text)
        self._more.set()

    def _heard(self, event: dict[str, Any]) -> None:
        # As it crosses to JavaScript: JSON, and bytes beside it.
        data = {"data": event.pop("data")} if "data" in event else {}
        self.events.append(json.loads(json.dumps(event, allow_nan=False)) | data)
        self._more.set()

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            for event in self.events:
                if wanted(event):
                    return event
            self._more.clear()
            await self._more.wait()

    async def text(self) -> str:
        while not self.texts:
            self._more.clear()
            await self._more.wait()
        return self.texts[0]

    async def ask(self, op: Any, data: Any = None, **members: Any) -> dict[str, Any]:
        self._seq += 1
        seq = self._seq
        self.control.control(json.dumps({"op": op, "seq": seq, **members}), data)
        answer = await self.until(lambda event: event.get("seq") == seq)
        assert [event.get("seq") for event in self.events].count(seq) == 1
        return answer


@asynccontextmanager
async def started(**servers: FastMCP[Any]) -> AsyncIterator[Page]:
    page = Page(servers)
    task = asyncio.create_task(page.control.run({"mode": "cold", "ms": {}}))
    try:
        await page.until(lambda event: event.get("event") == "ready")
        yield page
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def zipped(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


ONE = "from fastmcp import FastMCP\nmcp = FastMCP('m')\n@mcp.tool\ndef one() -> int:\n    return 1\n"


@pytest.mark.parametrize(
    "request_",
    [
        {"op": None},
        {"op": 7},
        {"op": "no such"},
        {"op": "__class__"},
        {"op": "lane"},
        {"op": "lane", "prefix": None, "more": 1},
        {"op": "declare"},
        {"op": "declare", "servers": 5},
        {"op": "declare", "servers": [{}]},
        {"op": "declare", "servers": [{"name": "user", "id": ""}]},
        {"op": "declare", "servers": [{"name": "broken", "id": "x"}]},
        {"op": "withdraw", "ids": 5},
        {"op": "adopt", "connections": [{}]},
        {"op": "adopt", "connections": [{"connectionId": "c", "serverId": "s"}]},
        {"op": "mountZip", "path": "/workspace"},
        {"op": "mountZip", "path": 5, "data": "", "replace": True},
        {"op": "zipFolder"},
        {"op": "zipFolder", "path": 5},
        {"op": "loadTools", "name": "x"},
        {"op": "loadTools", "name": "x", "source": 5},
        {"op": "loadTools", "name": "x", "source": "\0"},
        {"op": "loadTools", "name": ["x"], "source": ""},
        {"op": "loadPackage", "name": "x"},
        {"op": "loadPackage", "name": "x", "data": "text"},
        {"op": "loadPackage", "name": "x", "data": None, "server": 5},
        {"op": "unloadTools", "name": ["x"]},
        {"op": "listTools", "more": 1},
    ],
)
async def test_a_malformed_request_is_answered_with_an_error_and_harms_nothing(request_: dict[str, Any]) -> None:
    async with started() as page:
        answer = await page.ask(**request_)
        assert answer["ok"] is False
        assert answer["error"]["message"]
        assert (await page.ask("loadTools", name="good", source=ONE))["value"] == {"tools": ["one"]}
        assert [tool["name"] for tool in (await page.ask("listTools"))["value"]] == ["one"]


async def test_a_folder_leaves_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "made.txt").write_text("made")
    async with started() as page:
        answer = await page.ask("zipFolder", path=str(tmp_path))
        assert answer["ok"] is True
        with zipfile.ZipFile(io.BytesIO(answer["data"])) as archive:
            assert archive.read("made.txt") == b"made"


async def test_packages_and_folders_arrive_as_bytes() -> None:
    async with started() as page:
        answer = await page.ask("loadPackage", zipped(**{"acme_control.py": ONE}), name="acme")
        assert answer["value"] == {"tools": ["one"]}
        assert sum(event.get("event") == "tools" for event in page.events) == 1
        assert (await page.ask("unloadTools", name="acme"))["ok"]
        assert (await page.ask("unloadTools", name="acme"))["ok"]
        assert sum(event.get("event") == "tools" for event in page.events) == 2


class _Unlisted(FastMCP[Any]):
    async def list_tools(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("no list today")


async def test_a_server_that_cannot_be_listed_is_reported_and_the_others_serve() -> None:
    good: FastMCP[Any] = FastMCP("good")
    good.tool(lambda: 1, name="fine")
    async with started(bad=_Unlisted("bad"), good=good) as page:
        ready = next(event for event in page.events if event.get("event") == "ready")
        errors = {server["name"]: server.get("error") for server in ready["servers"]}
        assert errors["good"] is None
        assert "no list today" in errors["bad"]
        assert [tool["name"] for tool in (await page.ask("listTools"))["value"]] == ["fine"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_tool_that_cannot_be_described_is_listed_all_the_same(value: float) -> None:
    server: FastMCP[Any] = FastMCP("odd")

    def odd(x: float = value) -> float:
        return x

    server.tool(odd)
    server.tool(lambda: 1, name="fine")
    async with started(odd=server) as page:
        tools = (await page.ask("listTools"))["value"]
        assert [tool["name"] for tool in tools] == ["odd", "fine"]


@pytest.mark.parametrize("how", ["raise KeyboardInterrupt", "raise SystemExit(1)", "import sys; sys.exit()"])
async def test_what_stops_a_load_is_answered(how: str) -> None:
    async with started() as page:
        answer = await page.ask("loadTools", name="x", source=how)
        assert answer["error"]["type"] == "LoadError"


async def test_two_lanes_at_once_leave_the_later_one() -> None:
    async with started() as page:
        # Both are here before either is served.
        first, second = [asyncio.create_task(page.ask("lane", prefix=prefix)) for prefix in ("sp1.1.", "sp1.2.")]
        assert (await first)["ok"]
        assert (await second)["ok"]
        await page.ask("declare", servers=[{"name": "user", "id": "s"}])
        page.control.receive(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "mcp/connect", "params": {"serverId": "s"}})
        )
        await page.text()
        assert len(page.texts) == 1
        assert "connectionId" in page.texts[0]
        assert not [text for text in page.logged if "failed" in text]
