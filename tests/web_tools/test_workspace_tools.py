"""The workspace tools, natively, through a FastMCP client: the same code that the sandbox runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError
from sandport_workspace import create_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "app.py").write_text("def start():\n    return 1\n\n\ndef stop():\n    return 2\n")
    (folder / "notes.md").write_text("# Notes\n\nstart here\n")
    (folder / "blob.bin").write_bytes(b"start\0\1\2")
    (folder / "node_modules" / "x").mkdir(parents=True)
    (folder / "node_modules" / "x" / "index.js").write_text("start\n")
    (tmp_path / "secret.txt").write_text("start of a secret\n")
    return folder


@pytest.fixture
async def client(root: Path) -> AsyncIterator[Client[Any]]:
    async with Client(create_server(root)) as opened:
        yield opened


async def call(client: Client[Any], tool: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refused(client: Client[Any], tool: str, **arguments: object) -> str:
    with pytest.raises(ToolError) as caught:
        await client.call_tool(tool, arguments)
    return str(caught.value)


async def test_every_tool_is_described_and_annotated(client: Client[Any]) -> None:
    tools = {tool.name: tool for tool in await client.list_tools()}
    assert set(tools) == {"list_files", "read_file", "search", "summarise_csv", "run_python"}
    for tool in tools.values():
        assert tool.description
        assert tool.output_schema
        assert all("description" in field for field in tool.input_schema["properties"].values())
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (tool.name != "run_python")


class TestListFiles:
    async def test_lists_files_with_sizes_and_leaves_out_machine_made_folders(self, client: Client[Any]) -> None:
        listed = await call(client, "list_files")
        assert [entry["path"] for entry in listed["files"]] == ["blob.bin", "notes.md", "src/app.py"]
        assert listed["files"][0]["size"] == 8
        assert (listed["total"], listed["truncated"]) == (3, False)

    async def test_limit_truncates_and_says_so(self, client: Client[Any]) -> None:
        listed = await call(client, "list_files", limit=2)
        assert (len(listed["files"]), listed["total"], listed["truncated"]) == (2, 3, True)

    async def test_pattern_and_path(self, client: Client[Any]) -> None:
        listed = await call(client, "list_files", path="src", pattern="*.py")
        assert [entry["path"] for entry in listed["files"]] == ["src/app.py"]


class TestPaths:
    @pytest.mark.parametrize("path", ["../secret.txt", "src/../../secret.txt", "/etc/passwd"])
    async def test_no_way_out(self, client: Client[Any], path: str) -> None:
        assert "outside the workspace" in await refused(client, "read_file", path=path)

    @pytest.mark.parametrize("pattern", ["../*", "src/../../*", "/etc/*", ""])
    async def test_no_way_out_through_patterns(self, client: Client[Any], pattern: str) -> None:
        assert "no pattern" in await refused(client, "list_files", pattern=pattern)

    async def test_links_that_point_outside_are_not_followed(self, client: Client[Any], root: Path) -> None:
        (root / "link.txt").symlink_to(root.parent / "secret.txt")
        assert "outside" in await refused(client, "read_file", path="link.txt")
        found = await call(client, "search", pattern="secret")
        assert found["total"] == 0

    async def test_absolute_spelling_of_a_file_inside(self, client: Client[Any], root: Path) -> None:
        assert (await call(client, "read_file", path=str(root / "notes.md")))["path"] == "notes.md"

    async def test_unknown_path_names_a_remedy(self, client: Client[Any]) -> None:
        assert "list_files" in await refused(client, "read_file", path="nope.py")
        assert "folder" in await refused(client, "read_file", path="src")
        assert "null" in await refused(client, "read_file", path="a\0b")


class TestReadFile:
    async def test_whole_file(self, client: Client[Any]) -> None:
        read = await call(client, "read_file", path="notes.md")
        assert read == {
            "path": "notes.md",
            "text": "# Notes\n\nstart here\n",
            "start": 1,
            "end": 3,
            "total_lines": 3,
        }

    async def test_range(self, client: Client[Any]) -> None:
        read = await call(client, "read_file", path="src/app.py", start=5, end=99)
        assert (read["text"], read["start"], read["end"]) == ("def stop():\n    return 2\n", 5, 6)

    async def test_a_form_feed_is_no_line_end(self, client: Client[Any], root: Path) -> None:
        (root / "ff.txt").write_text("a\x0cb\u2028c\n")
        assert (await call(client, "read_file", path="ff.txt"))["total_lines"] == 1

    async def test_empty_file(self, client: Client[Any], root: Path) -> None:
        (root / "empty").touch()
        read = await call(client, "read_file", path="empty")
        assert (read["text"], read["start"], read["end"], read["total_lines"]) == ("", 1, 0, 0)

    async def test_large_file_is_cut_at_a_line_and_can_be_continued(self, client: Client[Any], root: Path) -> None:
        (root / "big.txt").write_text("".join(f"{n:09d}\n" for n in range(30_000)))
        first = await call(client, "read_file", path="big.txt")
        assert first["end"] == 10_000
        second = await call(client, "read_file", path="big.txt", start=first["end"] + 1)
        assert second["text"].startswith("000010000\n")

    async def test_refusals(self, client: Client[Any]) -> None:
        assert "binary" in await refused(client, "read_file", path="blob.bin")
        assert "no line 9" in await refused(client, "read_file", path="notes.md", start=9)
        assert "before" in await refused(client, "read_file", path="notes.md", start=2, end=1)


class TestSearch:
    async def test_finds_lines_in_text_files_only(self, client: Client[Any]) -> None:
        found = await call(client, "search", pattern=r"\bstart\b")
        assert found == {
            "matches": [
                {"path": "notes.md", "line": 3, "text": "start here"},
                {"path": "src/app.py", "line": 1, "text": "def start():"},
            ],
            "total": 2,
            "truncated": False,
        }

    async def test_anchors_see_the_line_without_its_end(self, client: Client[Any], root: Path) -> None:
        (root / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
        assert (await call(client, "search", pattern="^two$", glob="*.txt"))["total"] == 1

    async def test_limit_keeps_counting(self, client: Client[Any]) -> None:
        found = await call(client, "search", pattern="return", limit=1)
        assert (len(found["matches"]), found["total"], found["truncated"]) == (1, 2, True)

    async def test_bad_expression_is_the_callers_fault(self, client: Client[Any]) -> None:
        assert "no regular expression" in await refused(client, "search", pattern="(")


class TestSummariseCsv:
    async def test_types_and_numbers(self, client: Client[Any], root: Path) -> None:
        (root / "t.csv").write_text("city;people;rate\nUlm;126000;0.5\nBonn;;1.5\nUlm;9007199254740993;\n")
        summary = await call(client, "summarise_csv", path="t.csv")
        assert summary["rows"] == 3
        city, people, rate = summary["columns"]
        assert (city["type"], city["distinct"], city["missing"]) == ("text", 2, 0)
        assert (people["type"], people["missing"], people["max"]) == ("integer", 1, 9007199254740993)
        assert (rate["type"], rate["min"], rate["mean"]) == ("number", 0.5, 1.0)
        assert "min" not in city

    async def test_short_rows_and_blank_lines(self, client: Client[Any], root: Path) -> None:
        (root / "t.csv").write_text("a,b\n1\n\n2,3\n")
        summary = await call(client, "summarise_csv", path="t.csv")
        assert (summary["rows"], summary["columns"][1]["missing"]) == (2, 1)

    async def test_empty_and_undecodable(self, client: Client[Any], root: Path) -> None:
        (root / "e.csv").touch()
        assert await call(client, "summarise_csv", path="e.csv") == {"rows": 0, "columns": []}
        (root / "x.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
        assert "cannot be read" in await refused(client, "summarise_csv", path="x.csv")


class TestRunPython:
    async def test_output_and_last_expression(self, client: Client[Any]) -> None:
        ran = await call(client, "run_python", code="print('héllo')\nx = 20\nx + 1")
        assert ran == {"stdout": "héllo\n", "result": "21"}

    async def test_working_folder_is_the_workspace(self, client: Client[Any]) -> None:
        before = os.getcwd()
        ran = await call(client, "run_python", code="open('notes.md').read().count('\\n')")
        assert ran["result"] == "3"
        assert os.getcwd() == before

    async def test_no_expression_no_result(self, client: Client[Any]) -> None:
        assert await call(client, "run_python", code="x = 1") == {"stdout": "", "result": None}
        assert await call(client, "run_python", code="") == {"stdout": "", "result": None}

    async def test_names_do_not_leak_between_calls(self, client: Client[Any]) -> None:
        await call(client, "run_python", code="kept = 1")
        assert "NameError" in await refused(client, "run_python", code="kept")

    async def test_error_shows_the_snippets_own_frames_and_what_it_printed(self, client: Client[Any]) -> None:
        text = await refused(client, "run_python", code="def f():\n    1 / 0\nprint('before')\nf()")
        assert 'File "<snippet>", line 2, in f' in text
        assert text.count("File ") == 2
        assert "ZeroDivisionError" in text
        assert "before" in text
        assert "_snippet.py" not in text

    async def test_syntax_error_and_exit_are_tool_errors(self, client: Client[Any]) -> None:
        assert "SyntaxError" in await refused(client, "run_python", code="def")
        assert "SystemExit" in await refused(client, "run_python", code="import sys; sys.exit(3)")

    async def test_output_is_bounded(self, client: Client[Any]) -> None:
        ran = await call(client, "run_python", code="for _ in range(100): print('x' * 10_000)\n'y' * 50_000")
        assert len(ran["stdout"]) < 70_000
        assert "more characters were not kept" in ran["stdout"]
        assert len(ran["result"]) < 17_000

    async def test_streams_and_path_are_restored(self, client: Client[Any]) -> None:
        stdout, path = sys.stdout, list(sys.path)
        await refused(client, "run_python", code="import sys; sys.stdout = None; raise ValueError")
        assert sys.stdout is stdout
        assert sys.path == path

    async def test_a_time_limit_is_never_swallowed(self, root: Path) -> None:
        from sandport_workspace import _snippet

        with pytest.raises(KeyboardInterrupt):
            _snippet.run("raise KeyboardInterrupt", root)
