from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from hypothesis import given
from hypothesis import strategies as st

from sandport_demo import HELP, NOTE, Answer, Call, Done, Tool, plan

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "web" / "tools"))

from sandport_workspace import create_server

NAMES = ["list_files", "read_file", "search", "summarise_csv", "run_python", "my_tool"]
TOOLS = [Tool(name, f"Does {name}.") for name in NAMES]


def first(request: str, tools: list[Tool] = TOOLS) -> Any:
    return plan(request, tools, [])


@pytest.mark.parametrize(
    ("request_text", "call"),
    [
        ("Search for def \\w+_tool", Call("search", {"pattern": "def \\w+_tool"})),
        ("search `a in b` in **/*.py", Call("search", {"pattern": "a in b", "glob": "**/*.py"})),
        ("Read core/x.py", Call("read_file", {"path": "core/x.py"})),
        (
            "please read the file `a b.txt`, lines 3 to 7.",
            Call("read_file", {"path": "a b.txt", "start": 3, "end": 7}),
        ),
        ("List files", Call("list_files", {"path": "."})),
        ("list the files in docs", Call("list_files", {"path": "docs"})),
        ("Summarise data/sales.csv", Call("summarise_csv", {"path": "data/sales.csv"})),
        ("Summarize sales.csv.", Call("summarise_csv", {"path": "sales.csv"})),
        ("Run 1 + 1", Call("run_python", {"code": "1 + 1"})),
        ("Run this code:\n```python\nprint(1)\n```", Call("run_python", {"code": "print(1)\n"})),
        ('Call my_tool with {"a": {"b": 1}}', Call("my_tool", {"a": {"b": 1}})),
        ("call `my_tool`", Call("my_tool", {})),
    ],
)
def test_requests(request_text: str, call: Call) -> None:
    assert first(request_text) == [call]


def test_several_calls_at_once() -> None:
    assert first('Call my_tool with {"x": 1} and call search with {"pattern": "and"} and my_tool') == [
        Call("my_tool", {"x": 1}),
        Call("search", {"pattern": "and"}),
        Call("my_tool", {}),
    ]


def test_renamed_tools_are_found() -> None:
    assert first("List files", [Tool("page_list_files")]) == [Call("page_list_files", {"path": "."})]


@pytest.mark.parametrize("request_text", ["hello", "", "tell me a joke", "Call", "\n\n"])
def test_everything_else_gets_help(request_text: str) -> None:
    assert first(request_text) == Answer(HELP)


def test_bad_json_and_missing_tools_are_explained() -> None:
    assert "no JSON object" in first("Call my_tool with {a}").text
    assert "no tool `nope`" in first("Call nope").text
    assert "No page tools" in first("Call my_tool", []).text


def test_failure_is_told() -> None:
    done = [Done(Call("run_python", {"code": "1/0"}), None, "ZeroDivisionError")]
    assert "`run_python` failed" in plan("Run 1/0", TOOLS, done).text  # type: ignore[union-attr]


def test_strange_results_do_not_raise() -> None:
    answer = plan("List files", TOOLS, [Done(Call("list_files", {}), 3)])
    assert isinstance(answer, Answer)
    assert "not what I expected" in answer.text


@given(st.text(max_size=200))
def test_any_text_gives_a_step(text: str) -> None:
    step = first(text)
    assert isinstance(step, Answer) or (step and all(call.tool in NAMES for call in step))


@given(
    st.sampled_from(["Run x", "Search for x", "Read x", "List files", "Summarise x.csv", "Call my_tool"]),
    st.text(max_size=50),
)
def test_any_text_result_gives_an_answer(request_text: str, result: str) -> None:
    assert isinstance(plan(request_text, TOOLS, [Done(first(request_text)[0], result)]), Answer)


@pytest.mark.anyio
async def test_the_tour_with_the_real_workspace_tools(tmp_path: Path) -> None:
    """Find, read, count: the request of `build.sh check`, with the tools it will meet."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text(
        "import x\n\n\nclass Widget:\n    def a(self): ...\n\n    async def b(self): ...\n\n\n"
        "def c():\n    return Widget()\n",
        encoding="utf-8",
    )
    (tmp_path / "test_mod.py").write_text("class Widget: pass\n", encoding="utf-8")
    server: FastMCP = create_server(tmp_path)
    request = "Find where Widget is defined, read that file and count its lines and functions"
    done: list[Done] = []
    async with Client(server) as client:
        tools = [Tool(tool.name, tool.description or "") for tool in await client.list_tools()]
        while isinstance(step := plan(request, tools, done), list):
            for call in step:
                result = await client.call_tool(call.tool, dict(call.arguments))
                done.append(Done(call, result.structured_content))
    assert [item.call.tool for item in done] == ["search", "read_file", "run_python"]
    assert "`pkg/mod.py`, line 4 (1 more match)" in step.text
    assert "**11 lines**" in step.text
    assert "**3 functions**" in step.text
    assert NOTE in step.text


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("List files", "`data.csv`"),
        ("Summarise data.csv", "2 rows and 2 columns"),
        ("Search for al", "`data.csv:2` alice,1"),
        ("Read data.csv, lines 1-1", "lines 1 to 1 of 3"),
        ("Run print('hi'); 6 * 7", "The result is `42`"),
        ("Run raise ValueError('no')", "failed"),
    ],
)
async def test_answers_with_the_real_workspace_tools(tmp_path: Path, request_text: str, expected: str) -> None:
    (tmp_path / "data.csv").write_text("name,n\nalice,1\nbob,2\n", encoding="utf-8")
    async with Client(create_server(tmp_path)) as client:
        tools = [Tool(tool.name) for tool in await client.list_tools()]
        (call,) = plan(request_text, tools, [])  # type: ignore[misc]
        result = await client.call_tool(call.tool, dict(call.arguments), raise_on_error=False)
        error = result.content[0].text if result.is_error else None
        answer = plan(request_text, tools, [Done(call, result.structured_content, error)])
    assert isinstance(answer, Answer)
    assert expected in answer.text
