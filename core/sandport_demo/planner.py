"""From a plain request to tool calls, and from their results to an answer. Pure functions, no I/O, no clock.

Invariant: `plan` depends on its arguments alone, so a turn can be replayed; it never calls a tool that was not
offered, and each of its turns ends after at most three rounds of calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTE = "_I am Sandport's demo agent: a script, not a language model._"

HELP = f"""{NOTE}

I understand these requests; the work is done by the Python tools in your page:

- Find where NAME is defined, read that file and count its lines and functions
- Search for REGEX (optionally: in GLOB)
- Read PATH (optionally: lines 10-20)
- List files (optionally: in DIR)
- Summarise FILE.csv
- Run CODE
- Call TOOL with {{"json": "arguments"}}, also several: Call A with {{}} and B with {{}}
- Which tools are there?

For free conversation choose a model: in the settings of the agent in the page, or with
`sandport serve --model openai:gpt-5` and a key in the environment."""

MAX_SHOWN = 20
"""Lists in answers are cut here; the page shows the whole result."""

MAX_TEXT = 4000
"""Characters of a file or output that are repeated in an answer."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool the model was offered."""

    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call the script wants to make; calls of one round run in parallel."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """A call that was made. `error` holds the text if it failed, else `result` is what came back."""

    call: Call
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of the turn: Markdown for the person."""

    text: str


Step = Answer | list[Call]
_Plan = Callable[["_Turn"], Step]


class _MissingTool(Exception):
    pass


class _FailedCall(Exception):
    def __init__(self, done: Done) -> None:
        super().__init__(done.error)
        self.done = done


@dataclass(frozen=True, slots=True)
class _Turn:
    match: re.Match[str]
    tools: Sequence[Tool]
    done: Sequence[Done]

    def call(self, name: str, **arguments: Any) -> list[Call]:
        return [Call(_find_tool(self.tools, name), arguments)]

    def result(self, index: int) -> Any:
        """The result of the call made at that place of the turn."""
        return _value(self.done[index].result)


def plan(request: str, tools: Sequence[Tool], done: Sequence[Done]) -> Step:
    """The next step of a turn.

    Args:
        request: the person's words.
        tools: what can be called.
        done: the calls already made for this request, in order.
    """
    for failed in done:
        if failed.error is not None:
            return Answer(f"The tool `{failed.call.tool}` failed:\n\n{_block(failed.error)}\n\n{NOTE}")
    text = request.strip()
    for pattern, make in _PLANS:
        if match := pattern.match(text):
            try:
                return make(_Turn(match, tools, done))
            except _MissingTool as exc:
                return Answer(f"{exc}\n\n{_tool_list(tools)}\n\n{NOTE}")
            except (KeyError, TypeError, IndexError, AttributeError) as exc:
                shown = _block(_json(done[-1].result)) if done else ""
                return Answer(f"The tool's result was not what I expected ({exc!r}):\n\n{shown}\n\n{NOTE}")
    return Answer(HELP)


# ---------------------------------------------------------------- the requests


def _definition_pattern(name: str) -> str:
    """A regular expression for a line that defines the name, in Python, JavaScript or TypeScript."""
    word = re.escape(name.rpartition(".")[2])
    return (
        rf"^\s*(?:export\s+)?(?:default\s+)?(?:abstract\s+)?(?:async\s+)?"
        rf"(?:def|class|function\*?|interface|type|enum|const|let|var)\s+{word}\b|^{word}\s*(?::[^=]+)?=[^=]"
    )


_COUNT = """\
import ast, pathlib, re
text = pathlib.Path({path!r}).read_text(encoding="utf-8", errors="replace")
if {path!r}.endswith(".py"):
    functions = sum(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in ast.walk(ast.parse(text)))
else:
    functions = len(re.findall(r"\\bfunction\\b|=>", text))
{{"lines": len(text.splitlines()), "functions": functions}}
"""


def _find_and_count(turn: _Turn) -> Step:
    name = turn.match["name"]
    if not turn.done:
        return turn.call("search", pattern=_definition_pattern(name))
    matches = turn.result(0)["matches"]
    if not matches:
        return Answer(f"I found no definition of `{name}` in the workspace.\n\n{NOTE}")
    # Sources before tests and stubs; then as the tool listed them.
    best = min(matches, key=lambda match: ("test" in match["path"].lower(), match["path"].endswith(".d.ts")))
    path, line = best["path"], best["line"]
    if len(turn.done) == 1:
        return turn.call("read_file", path=path)
    if len(turn.done) == 2:
        return turn.call("run_python", code=_COUNT.format(path=path))
    counted = _literal(turn.result(2)["result"])
    others = len(matches) - 1
    more = f" ({others} more {'match' if others == 1 else 'matches'})" if others else ""
    total = turn.result(1)["total_lines"]
    return Answer(
        f"`{name}` is defined in `{path}`, line {line}{more}:\n\n{_block(best['text'])}\n\n"
        f"I read the file ({total} lines) and counted with Python: **{counted['lines']} lines** and "
        f"**{counted['functions']} functions**.\n\n{NOTE}"
    )


def _search(turn: _Turn) -> Step:
    pattern, glob = _unquote(turn.match["pattern"]), turn.match["glob"]
    if not turn.done:
        return turn.call("search", pattern=pattern, **({"glob": _unquote(glob)} if glob else {}))
    found = turn.result(0)
    if not found["matches"]:
        return Answer(f"No line matches `{pattern}`.\n\n{NOTE}")
    shown = [f"- `{m['path']}:{m['line']}` {_inline(m['text'].strip())}" for m in found["matches"][:MAX_SHOWN]]
    more = "" if found["total"] <= len(shown) else f"\n- … and {found['total'] - len(shown)} more"
    return Answer(f"{found['total']} lines match `{pattern}`:\n\n" + "\n".join(shown) + f"{more}\n\n{NOTE}")


def _read(turn: _Turn) -> Step:
    path, start, end = _unquote(turn.match["path"]), turn.match["start"], turn.match["end"]
    if not turn.done:
        span = {"start": int(start), "end": int(end)} if start else {}
        return turn.call("read_file", path=path, **span)
    file = turn.result(0)
    return Answer(
        f"`{file['path']}`, lines {file['start']} to {file['end']} of {file['total_lines']}:\n\n"
        f"{_block(file['text'])}\n\n{NOTE}"
    )


def _list(turn: _Turn) -> Step:
    folder = _unquote(turn.match["dir"]) if turn.match["dir"] else "."
    if not turn.done:
        return turn.call("list_files", path=folder)
    result = turn.result(0)
    files = result.get("files", result.get("paths", [])) if isinstance(result, Mapping) else result
    names = [file if isinstance(file, str) else file.get("path", file.get("name")) for file in files]
    total = result.get("total", len(names)) if isinstance(result, Mapping) else len(names)
    shown = "\n".join(f"- `{name}`" for name in names[:MAX_SHOWN])
    more = f"\n- … and {total - MAX_SHOWN} more" if total > MAX_SHOWN else ""
    return Answer(f"{total} files in `{folder}`:\n\n{shown}{more}\n\n{NOTE}")


def _summarise(turn: _Turn) -> Step:
    path = _unquote(turn.match["path"])
    if not turn.done:
        return turn.call("summarise_csv", path=path)
    summary = turn.result(0)
    rows = "\n".join(f"- {_column(column)}" for column in summary["columns"])
    return Answer(f"`{path}` has {summary['rows']} rows and {len(summary['columns'])} columns:\n\n{rows}\n\n{NOTE}")


def _column(column: Mapping[str, Any]) -> str:
    """One column of a table in words; whatever else a tool says of it stays in the tool's result."""
    facts = [str(column["type"])] if "type" in column else []
    if "min" in column and "max" in column:
        facts.append(f"{column['min']} to {column['max']}")
    facts += [f"{name} {column[name]}" for name in ("mean", "distinct", "missing") if name in column]
    return f"**{_inline(str(column.get('name', '?')))}**: {_inline(', '.join(facts))}"


def _run(turn: _Turn) -> Step:
    code = turn.match["code"].strip()
    if fenced := re.fullmatch(r"```\w*\n?(.*?)```", code, re.DOTALL):
        code = fenced[1]
    elif len(code) > 1 and code.startswith("`") and code.endswith("`"):
        code = code.strip("`")
    if not turn.done:
        return turn.call("run_python", code=code)
    result = turn.result(0)
    parts = [f"It printed:\n\n{_block(result['stdout'])}"] if result["stdout"] else []
    if result["result"] is not None:
        parts.append(f"The result is `{_inline(str(result['result']))}`.")
    return Answer("\n\n".join(parts or ["It ran, printed nothing and has no result."]) + f"\n\n{NOTE}")


def _call(turn: _Turn) -> Step:
    rest = turn.match["calls"]
    calls: list[Call] = []
    decoder = json.JSONDecoder()
    while rest:
        match = re.match(r"`?(?P<tool>[\w.:/-]+)`?\s*(?:with\s*(?=\{)|(?=\s+and\s)|$)", rest)
        if match is None:
            return Answer(f"I expected `Call TOOL with {{json}}` at: {_inline(rest[:80])}\n\n{NOTE}")
        rest = rest[match.end() :]
        arguments: dict[str, Any] = {}
        if rest.startswith("{"):
            try:
                arguments, end = decoder.raw_decode(rest)
            except ValueError as exc:
                return Answer(f"The arguments of `{match['tool']}` are no JSON object: {exc}\n\n{NOTE}")
            rest = rest[end:]
        calls.append(Call(_find_tool(turn.tools, match["tool"]), arguments))
        rest = re.sub(r"^\s*(?:and\s+(?:call\s+)?|\.?$)", "", rest, flags=re.IGNORECASE)
    if not turn.done:
        return calls
    shown = [f"`{done.call.tool}` returned:\n\n{_block(_json(done.result))}" for done in turn.done]
    return Answer("\n\n".join(shown) + f"\n\n{NOTE}")


def _tools(turn: _Turn) -> Step:
    return Answer(f"{_tool_list(turn.tools)}\n\n{NOTE}")


def _rule(pattern: str, make: _Plan) -> tuple[re.Pattern[str], _Plan]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL), make


_PLANS: Sequence[tuple[re.Pattern[str], _Plan]] = [
    _rule(
        r"(?:please\s+)?(?:find|look up|show)\s+where\s+[`'\"]?(?P<name>[\w.$]+)[`'\"]?\s+is\s+defined\b",
        _find_and_count,
    ),
    _rule(
        r"(?:please\s+)?(?:search|grep)\s+(?:for\s+)?(?P<pattern>`[^`]+`|\"[^\"]+\"|'[^']+'|.+?)(?:\s+in\s+(?P<glob>\S+))?\s*$",
        _search,
    ),
    _rule(
        r"(?:please\s+)?(?:read|show|open)\s+(?:the\s+)?(?:file\s+)?(?P<path>`[^`]+`|\"[^\"]+\"|\S+?)"
        r"(?:,?\s+lines?\s+(?P<start>\d+)\s*(?:-|to)\s*(?P<end>\d+))?\.?\s*$",
        _read,
    ),
    _rule(r"(?:please\s+)?list\s+(?:the\s+|all\s+)?files(?:\s+in\s+(?P<dir>`[^`]+`|\S+?))?\.?\s*$", _list),
    _rule(
        r"(?:please\s+)?summari[sz]e\s+(?:the\s+)?(?:file\s+)?(?P<path>`[^`]+`|\"[^\"]+\"|\S+\.csv)\.?\s*$",
        _summarise,
    ),
    _rule(r"(?:please\s+)?(?:run|execute|compute)(?:\s+this)?(?:\s+(?:code|python))?:?\s+(?P<code>.+)$", _run),
    _rule(r"(?:please\s+)?call\s+(?P<calls>.+)$", _call),
    _rule(r".*\b(?:which|what|list)\b.*\btools\b", _tools),
]


# ---------------------------------------------------------------- helpers


def _find_tool(tools: Sequence[Tool], name: str) -> str:
    """The offered name for a tool; the same tool name on two servers makes agentpool see `server_name`."""
    names = [tool.name for tool in tools]
    if name in names:
        return name
    for offered in names:
        if offered.endswith((f"_{name}", f".{name}", f"/{name}")):
            return offered
    raise _MissingTool(f"There is no tool `{name}` in the page.")


def _value(result: Any) -> Any:
    """A tool's result as JSON values: models may be handed it as text."""
    if isinstance(result, str):
        try:
            return json.loads(result)
        except ValueError:
            return result
    return result


def _literal(result: Any) -> Any:
    """The value of a `repr` made of plain literals."""
    import ast

    return ast.literal_eval(result) if isinstance(result, str) else result


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "`'\"" else text


def _inline(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")[:200]


def _block(text: str) -> str:
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + f"\n… ({len(text) - MAX_TEXT} more characters)"
    fence = "```"
    while fence in cut:
        fence += "`"
    return f"{fence}\n{cut}\n{fence}"


def _tool_list(tools: Sequence[Tool]) -> str:
    if not tools:
        return "No page tools are connected."
    lines = [f"- `{tool.name}` {_inline(tool.description.strip().partition(chr(10))[0])}".rstrip() for tool in tools]
    return "These tools are there:\n\n" + "\n".join(lines)
