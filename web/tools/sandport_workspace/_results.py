"""The shapes of the tools' results; FastMCP turns them into output schemas."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class FileEntry(TypedDict):
    """A file and its size in bytes."""

    path: str
    size: int


class FileList(TypedDict):
    """Result of ``list_files``; ``total`` counts all that match."""

    files: list[FileEntry]
    total: int
    truncated: bool


class FileText(TypedDict):
    """Result of ``read_file``; lines are counted from 1, ``end`` is included."""

    path: str
    text: str
    start: int
    end: int
    total_lines: int


class Match(TypedDict):
    """One line that matches."""

    path: str
    line: int
    text: str


class SearchResult(TypedDict):
    """Result of ``search``; ``total`` counts all lines that match."""

    matches: list[Match]
    total: int
    truncated: bool


class CsvColumn(TypedDict):
    """What one column holds. ``min``, ``max`` and ``mean`` belong to columns of numbers."""

    name: str
    type: str
    missing: int
    distinct: int
    distinct_is_at_least: NotRequired[bool]
    examples: list[str]
    min: NotRequired[int | float]
    max: NotRequired[int | float]
    mean: NotRequired[float]


class CsvSummary(TypedDict):
    """Result of ``summarise_csv``."""

    rows: int
    columns: list[CsvColumn]
    columns_left_out: NotRequired[int]


class SnippetResult(TypedDict):
    """Result of ``run_python``."""

    stdout: str
    result: str | None
