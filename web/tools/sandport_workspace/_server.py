"""The tools themselves.

Invariant: every result is bounded, and says so when something was left out; nothing outside the root is read.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Annotated, Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from . import _csv, _snippet
from ._paths import Workspace
from ._results import CsvSummary, FileList, FileText, Match, SearchResult, SnippetResult

if TYPE_CHECKING:
    from pathlib import Path

MAX_TEXT = 100_000
"""Characters of a file in one result: about 25 000 tokens; the rest is one more call away."""
MAX_LINE = 400
"""Characters of a matching line in a search result: minified files have lines of a megabyte."""
MAX_SEARCHED_FILE = 2_000_000
"""Bytes; larger files are data, and searching them would use up the time limit."""
MAX_ITEMS = 1_000
"""Upper end for every ``limit``."""

_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)

_INSTRUCTIONS = """\
Tools over the files of one workspace. Paths are relative to its root. Find with search, look with read_file,
compute with run_python (working folder = the root; standard library; no network)."""

PathArg = Annotated[str, Field(description="File or folder, relative to the workspace root; '.' is the root.")]
GlobArg = Annotated[str, Field(description="Glob below the path; '**/*.py' = Python files at any depth.")]


def _text(file: Path, name: str) -> str:
    data = file.read_bytes()
    if b"\0" in data[:8192]:
        raise ToolError(f"{name!r} is a binary file ({len(data)} bytes); run_python can open it")
    return data.decode("utf-8", "replace")


def _lines(text: str) -> list[str]:
    # Not str.splitlines, which also splits at form feeds and the like: editors and agents count newlines.
    return io.StringIO(text, newline="").readlines()


def create_server(root: str | Path, name: str = "workspace") -> FastMCP[Any]:
    """Make a FastMCP server with the five workspace tools over the folder ``root``.

    The folder need not exist yet and may be replaced while the server runs.
    """
    workspace = Workspace(root)
    mcp: FastMCP[Any] = FastMCP(name, instructions=_INSTRUCTIONS)

    @mcp.tool(annotations=_READS)
    def list_files(
        path: PathArg = ".",
        pattern: GlobArg = "**/*",
        limit: Annotated[int, Field(ge=1, le=MAX_ITEMS, description="Most files to return.")] = 200,
    ) -> FileList:
        """List the files below a folder, with their sizes in bytes.

        Returns {files: [{path, size}], total, truncated}. Machine-made folders (.git, node_modules, ...) are left out.
        """
        found = list(workspace.files(path, pattern))
        return {
            "files": [{"path": workspace.name(file), "size": file.stat().st_size} for file in found[:limit]],
            "total": len(found),
            "truncated": len(found) > limit,
        }

    @mcp.tool(annotations=_READS)
    def read_file(
        path: Annotated[str, Field(description="Text file, relative to the workspace root.")],
        start: Annotated[int, Field(ge=1, description="First line, counted from 1.")] = 1,
        end: Annotated[int | None, Field(ge=1, description="Last line, included; leave out for all.")] = None,
    ) -> FileText:
        """Read a text file, or some of its lines.

        Returns {path, text, start, end, total_lines}. `end` is the last line that `text` holds: when it is smaller
        than asked, the text was cut at a size limit and the next call goes on at end + 1.
        """
        file = workspace.file(path)
        lines = _lines(_text(file, path))
        if start > max(len(lines), 1):
            raise ToolError(f"{path!r} has {len(lines)} lines; there is no line {start}")
        if end is not None and end < start:
            raise ToolError(f"end ({end}) is before start ({start})")
        chosen: list[str] = []
        room = MAX_TEXT
        for line in lines[start - 1 : end]:
            room -= len(line)
            if room < 0 and chosen:
                break
            chosen.append(line[:MAX_TEXT])
        return {
            "path": workspace.name(file),
            "text": "".join(chosen),
            "start": start,
            "end": start - 1 + len(chosen),
            "total_lines": len(lines),
        }

    @mcp.tool(annotations=_READS)
    def search(
        pattern: Annotated[str, Field(description="Python regular expression, matched within single lines.")],
        path: PathArg = ".",
        glob: GlobArg = "**/*",
        limit: Annotated[int, Field(ge=1, le=MAX_ITEMS, description="Most matching lines to return.")] = 50,
    ) -> SearchResult:
        """Search the text files for lines that match a regular expression.

        Returns {matches: [{path, line, text}], total, truncated}; `total` counts all matching lines, also those
        over the limit. Binary and very large files are skipped.
        """
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise ToolError(f"{pattern!r} is no regular expression: {error}") from None
        matches: list[Match] = []
        total = 0
        for file in workspace.files(path, glob):
            if file.stat().st_size > MAX_SEARCHED_FILE:
                continue
            data = file.read_bytes()
            if b"\0" in data[:8192]:
                continue
            for number, line in enumerate(_lines(data.decode("utf-8", "replace")), 1):
                line = line.rstrip("\r\n")
                if expression.search(line):
                    total += 1
                    if len(matches) < limit:
                        matches.append({"path": workspace.name(file), "line": number, "text": line[:MAX_LINE]})
        return {"matches": matches, "total": total, "truncated": total > len(matches)}

    @mcp.tool(annotations=_READS)
    def summarise_csv(
        path: Annotated[str, Field(description="CSV file whose first row holds the column names.")],
    ) -> CsvSummary:
        """Summarise a CSV file: its number of rows and, for each column, type, missing, distinct, min, max, mean.

        Returns {rows, columns: [{name, type, missing, distinct, examples, min?, max?, mean?}]}. The delimiter
        (comma, semicolon, tab or bar) is found by itself.
        """
        return _csv.summarise(workspace.file(path))

    @mcp.tool(annotations=_RUNS)
    def run_python(
        code: Annotated[str, Field(description="Python source; the value of a last expression is returned.")],
    ) -> SnippetResult:
        """Run a Python snippet in the sandbox, with the workspace root as working folder.

        Returns {stdout, result}: what it printed, and the repr of its last expression (null when there is none).
        Standard library, no network, no processes. Each call starts with fresh names; files it writes stay.
        """
        try:
            stdout, result = _snippet.run(code, workspace.root)
        except _snippet.SnippetError as error:
            raise ToolError(str(error)) from None
        return {"stdout": stdout, "result": result}

    return mcp
