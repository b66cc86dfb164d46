"""The other parts of the sandbox's runtime, inside Pyodide."""

from __future__ import annotations

import asyncio
import io
import os
import random
import sys
import tempfile
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from sandport_runtime import _fresh, _standins
from sandport_runtime._channel import LONG_ASCII, LONG_OTHER, PortChannel, post_text
from sandport_runtime._files import ArchiveError, mount_zip, zip_folder
from sandport_runtime._streams import CALL_BYTES, CHUNK, Log, LogStream
from sandport_runtime._tools import LoadError, UserTools

from sandport import ChannelClosed

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# -- channel --------------------------------------------------------------------------------------------------


async def test_texts_are_received_in_order_and_then_the_end() -> None:
    sent: list[str] = []
    channel = PortChannel(sent.append)
    channel.feed("1")
    channel.feed("2")
    reader = asyncio.create_task(channel.receive())
    assert await reader == "1"
    await channel.send("out")
    await channel.aclose()
    assert await channel.receive() == "2"
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(ChannelClosed):
        await channel.send("late")
    channel.feed("after the end")
    with pytest.raises(ChannelClosed):
        await channel.receive()
    assert sent == ["out"]


async def test_a_waiting_reader_is_woken_by_a_text_and_by_the_end() -> None:
    channel = PortChannel(lambda text: None)
    reader = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    channel.feed("x")
    assert await reader == "x"
    reader = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    channel.close()
    with pytest.raises(ChannelClosed):
        await reader


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    channel = PortChannel(lambda text: None)
    reader = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    channel.feed("kept")
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert await channel.receive() == "kept"


@pytest.mark.parametrize(
    ("text", "as_bytes"),
    [
        ("x" * (LONG_ASCII - 1), False),
        ("x" * LONG_ASCII, True),
        ("é" * (LONG_OTHER - 1), False),
        ("é漢😀" * LONG_OTHER, True),
        ("x" * 3_000_000 + "é", True),
        ("\x00\ufeff" * LONG_OTHER, True),
    ],
)
def test_a_text_crosses_the_border_whole_in_either_form(text: str, as_bytes: bool) -> None:
    from pyodide.ffi import to_js

    class Host:
        def post(self, text: str) -> None:
            seen.append((False, text))

        def post_utf8(self, utf8: Any) -> None:
            # As the worker posts it: a buffer of its own, and the page's decoder.
            assert utf8.byteLength == utf8.buffer.byteLength
            seen.append((True, utf8.to_bytes().decode()))

    seen: list[tuple[bool, str]] = []
    post_text(Host(), text, to_js)
    assert seen == [(as_bytes, text)]


# -- streams --------------------------------------------------------------------------------------------------


def _stream() -> tuple[LogStream, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return LogStream(Log(events.append), "stdout", 1), events


async def test_a_print_is_one_event_and_a_prompt_is_not_lost() -> None:
    stream, events = _stream()
    print("a", "b", file=stream)
    await asyncio.sleep(0)
    print("prompt> ", end="", file=stream)
    await asyncio.sleep(0)
    assert [event["text"] for event in events] == ["a b\n", "prompt> "]


async def test_output_is_cut_after_its_allowance_and_says_so() -> None:
    stream, events = _stream()
    stream.write("x" * 10_000_000)
    stream.write("more")
    stream.flush()
    assert sum(len(event["text"]) for event in events[:-1]) == CALL_BYTES
    assert all(len(event["text"]) <= CHUNK for event in events)
    assert "left out" in events[-1]["text"]


async def test_bytes_closing_and_wrong_types() -> None:
    stream, events = _stream()
    stream.buffer.write("grün".encode() + b"\xff\n")
    stream.close()
    stream.write("still open\n")
    stream.flush()
    assert "".join(event["text"] for event in events) == "grün\ufffd\nstill open\n"
    with pytest.raises(TypeError):
        stream.write(b"bytes")  # type: ignore[arg-type]
    assert stream.writable()
    assert not stream.isatty()


# -- archives -------------------------------------------------------------------------------------------------


def _zip(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def test_an_archive_becomes_a_folder_and_replaces_one(tmp_path: Path) -> None:
    folder = str(tmp_path / "work")
    assert mount_zip(folder, _zip(**{"a/b.txt": "one", "c.txt": "two"}), replace=False) == (2, 6)
    assert mount_zip(folder, _zip(**{"d.txt": "three"}), replace=False) == (1, 5)
    assert sorted(path.name for path in Path(folder).rglob("*.txt")) == ["b.txt", "c.txt", "d.txt"]
    os.chdir(folder)
    try:
        mount_zip(folder, _zip(**{"e.txt": ""}), replace=True)
        assert os.listdir(".") == ["e.txt"]
    finally:
        os.chdir("/repo")


def test_a_folder_is_taken_out_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    content = {"a/b.bin": bytes(range(256)), "é/c d.txt": "ü".encode(), "empty": b""}
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    os.utime(folder / "empty", (0, 0))
    (folder / "a" / "__pycache__").mkdir()
    (folder / "a" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "outside" / "secret")
    (folder / "links").symlink_to(tmp_path / "outside")
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    with zipfile.ZipFile(io.BytesIO(zip_folder(str(folder)))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == content
    with zipfile.ZipFile(io.BytesIO(zip_folder(str(tmp_path / "nowhere")))) as archive:
        assert archive.namelist() == []
    for limit in ("MAX_TAKEN", "MAX_FILES"):
        with monkeypatch.context() as patch:
            patch.setattr(f"sandport_runtime._files.{limit}", 2)
            with pytest.raises(ArchiveError, match="at most"):
                zip_folder(str(folder))


@pytest.mark.parametrize("name", ["../up.txt", "/etc/x", "a/../../x", "a\\..\\x"])
def test_an_entry_that_leads_outside_is_refused_and_nothing_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArchiveError, match="leads outside"):
        mount_zip(str(tmp_path / "work"), _zip(**{"good.txt": "", name: ""}), replace=False)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("path", ["relative", "/", "/place/../etc"])
def test_a_folder_must_be_absolute_and_plain(path: str) -> None:
    with pytest.raises(ArchiveError, match="absolute path"):
        mount_zip(path, _zip(), replace=False)


def test_what_is_no_zip_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArchiveError, match="no zip"):
        mount_zip(str(tmp_path), b"hello", replace=False)
    monkeypatch.setattr("sandport_runtime._files.MAX_BYTES", 10)
    with pytest.raises(ArchiveError, match="at most 10"):
        mount_zip(str(tmp_path), _zip(x="12345678901"), replace=False)


def _broken(how: str) -> bytes:
    data = bytearray(_zip(**{"good.txt": "new", "bad.txt": "x" * 1000}))
    at = data.rindex(b"bad.txt", 0, data.rindex(b"PK\x01\x02"))
    central = data.rindex(b"PK\x01\x02")
    if how == "content":
        data[at + 7] ^= 0xFF
    elif how == "length":
        data[central + 24 : central + 28] = (5000).to_bytes(4, "little")
    elif how == "method":
        for field in (at - 22, central + 10):
            data[field : field + 2] = (77).to_bytes(2, "little")
    elif how == "encrypted":
        for field in (at - 24, central + 8):
            data[field] |= 1
    elif how == "name":
        data[central + 8 : central + 10] = (0x800).to_bytes(2, "little")
        data[central + 46] = 0xFF
    elif how == "cut":
        del data[20:40]
    return bytes(data)


@pytest.mark.parametrize("how", ["content", "length", "method", "encrypted", "name", "cut"])
def test_a_damaged_archive_is_refused_and_leaves_the_folder_as_it_was(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "work"
    mount_zip(str(folder), _zip(**{"a/old.txt": "old"}), replace=False)
    with pytest.raises(ArchiveError):
        mount_zip(str(folder), _broken(how), replace=True)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*.txt"))] == ["work/a/old.txt"]


@pytest.mark.parametrize(
    "names",
    [("a", "a/b"), ("a/b", "a"), ("a/b", "a/b/c"), ("x" * 300,), ("ü" * 200 + "/a",), (".",), ("a/.",)],
    ids=len,
)
@pytest.mark.parametrize("replace", [False, True])
def test_entries_that_are_no_files_are_refused(tmp_path: Path, names: tuple[str, ...], replace: bool) -> None:
    with pytest.raises(ArchiveError, match="cannot be written"):
        mount_zip(str(tmp_path / "work"), _zip(**dict.fromkeys(names, "x")), replace=replace)


# -- tools from text ------------------------------------------------------------------------------------------

ONE = "from fastmcp import FastMCP\nmcp = FastMCP('m')\n@mcp.tool\ndef {name}() -> int:\n    return {value}\n"


async def test_modules_come_change_and_go() -> None:
    tools = UserTools()
    assert await tools.load("a", ONE.format(name="one", value=1)) == ["one"]
    assert await tools.load("a", ONE.format(name="two", value=2)) == ["two"]
    assert [tool.name for tool in await tools.server.list_tools()] == ["two"]
    assert await tools.unload("a")
    assert not await tools.unload("a")
    assert await tools.server.list_tools() == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = (", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit"),
        ("x = 1", "defines no server"),
        ("from fastmcp import FastMCP\na = FastMCP('a')\nb = FastMCP('b')", "2 servers"),
        (ONE.format(name="kept", value=1), "already has a tool 'kept'"),
    ],
)
async def test_a_module_that_does_not_load_says_why_and_changes_nothing(source: str, words: str) -> None:
    tools = UserTools()
    await tools.load("first", ONE.format(name="kept", value=1))
    with pytest.raises(LoadError) as caught:
        await tools.load("second", source)
    assert words in str(caught.value)
    assert "sandport_runtime" not in str(caught.value)
    assert [tool.name for tool in await tools.server.list_tools()] == ["kept"]


KINDS = """
from contextlib import asynccontextmanager
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
@asynccontextmanager
async def life(server):
    yield {"made": "here"}
mcp = FastMCP("kinds", lifespan=life)
@mcp.tool
def plain(text: str, times: int = 1) -> str:
    return text * times
@mcp.tool
def structured() -> dict[str, list[float]]:
    return {"values": [1.5, 2.0]}
@mcp.tool
async def where(ctx: Context) -> list[str]:
    return [ctx.fastmcp.name, ctx.lifespan_context["made"]]
@mcp.tool
def broken() -> str:
    return {}["key"]
@mcp.tool
def refused() -> str:
    raise ToolError("not now")
@mcp.tool
def grow() -> str:
    mcp.tool(lambda: "grown", name="later")
    return "done"
"""


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("plain", {"text": "ab", "times": 2}),
        ("plain", {"text": "ab", "times": "many"}),
        ("plain", {}),
        ("structured", {}),
        ("where", {}),
        ("broken", {}),
        ("refused", {}),
        ("nothing", {}),
        ("later", {}),
    ],
)
async def test_a_call_that_goes_straight_to_its_module_answers_as_by_mounting(
    tool: str, arguments: dict[str, Any]
) -> None:
    straight, mounting = UserTools(), UserTools()
    for tools in (straight, mounting):
        await tools.load("kinds", KINDS)
    mounting._owners.clear()
    answers = []
    for tools in (straight, mounting):
        async with Client(tools.server, mode="legacy") as client:
            await client.call_tool("grow", {})
            answers.append(await client.call_tool_mcp(tool, arguments))
        await tools.unload("kinds")
    assert answers[0] == answers[1]
    assert answers[0].is_error == (
        tool in ("broken", "refused", "nothing")
        or arguments.get("times") == "many"
        or (tool == "plain" and not arguments)
    )


async def test_a_tool_that_moved_to_another_module_is_called_there() -> None:
    tools = UserTools()
    await tools.load("a", ONE.format(name="moving", value=1))
    await tools.unload("a")
    await tools.load("b", ONE.format(name="moving", value=2))
    async with Client(tools.server, mode="legacy") as client:
        assert (await client.call_tool("moving", {})).data == 2
    await tools.load("b", ONE.format(name="other", value=3))
    async with Client(tools.server, mode="legacy") as client:
        assert (await client.call_tool_mcp("moving", {})).is_error


async def test_a_traceback_shows_the_modules_own_line() -> None:
    with pytest.raises(LoadError) as caught:
        await UserTools().load("broken", "x = 1\ny = x / 0\n")
    assert 'File "<broken>", line 2' in str(caught.value)
    assert "y = x / 0" in str(caught.value)


async def test_lifespans_are_entered_and_left() -> None:
    source = """
from contextlib import asynccontextmanager
from fastmcp import FastMCP
seen = []
@asynccontextmanager
async def life(server):
    seen.append("in")
    yield {}
    seen.append("out")
mcp = FastMCP("m", lifespan=life)
@mcp.tool
def history() -> list[str]:
    return seen
"""
    tools = UserTools()
    await tools.load("living", source)
    seen = sys.modules["sandport_user.living"].seen
    assert seen == ["in"]
    await tools.unload("living")
    assert seen == ["in", "out"]


# -- stand-ins ------------------------------------------------------------------------------------------------


def test_names_of_missing_packages_import_and_their_use_says_what_is_missing() -> None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    assert issubclass(InvalidTag, Exception)
    with pytest.raises(_standins.Unavailable, match="'cryptography'"):
        AESGCM(b"k" * 32)


def test_request_state_is_sealed_without_cryptography() -> None:
    from mcp.server.request_state import InvalidRequestState, RequestStateSecurity

    first = RequestStateSecurity.ephemeral().codec
    second = RequestStateSecurity.ephemeral().codec
    token = first.seal(b"state")
    assert first.unseal(token) == b"state"
    for forged in ("", "sp1.", "sp1.AAAA", token[:-2] + "AA", token.replace("sp1.", "v1.")):
        with pytest.raises(InvalidRequestState):
            first.unseal(forged)
    with pytest.raises(InvalidRequestState):
        second.unseal(token)


# -- freshness ------------------------------------------------------------------------------------------------


def test_refresh_leaves_no_generator_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    own = random.Random(7)

    def draw() -> list[Any]:
        random.seed(1)
        own.seed(1)
        tempfile._name_sequence = None
        _fresh.refresh(dict(os.environ))
        return [random.random(), own.random(), uuid.getnode(), next(tempfile._get_candidate_names())]

    first, second = draw(), draw()
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_refresh_takes_the_environment_of_this_start(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    try:
        os.environ["OF_THE_IMAGE"] = "1"
        _fresh.refresh({**before, "OF_THE_START": "2"})
        assert "OF_THE_IMAGE" not in os.environ
        assert os.environ["OF_THE_START"] == "2"
    finally:
        _fresh.refresh(before)


# -- packages -------------------------------------------------------------------------------------------------


def test_the_bundles_packages_are_known_to_importlib_metadata() -> None:
    from importlib.metadata import version

    for name in ("fastmcp", "mcp", "pydantic", "pydantic-core", "anyio", "micropip"):
        assert version(name)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_wheel"):
        import no_such_wheel  # type: ignore[import-not-found]  # noqa: F401
