"""Summarise a CSV file column by column.

Invariant: one pass over the rows and a bounded amount of state for each column, however long the file is.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastmcp.exceptions import ToolError

from ._results import CsvColumn, CsvSummary

if TYPE_CHECKING:
    from pathlib import Path

MAX_COLUMNS = 200
"""More columns than anybody reads; the rest are left out and counted."""
MAX_DISTINCT = 1_000
"""Distinct values followed for each column; above it the count is a lower bound."""
EXAMPLES = 3
MAX_EXAMPLE = 80


def _number(value: str) -> int | float | None:
    """Read a number; integers stay exact however long they are. Infinities and NaN are words, not numbers."""
    for read in (int, float):
        try:
            number = read(value)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None


@dataclass
class _Column:
    name: str
    missing: int = 0
    numbers: int = 0
    integers: int = 0
    texts: int = 0
    low: int | float = math.inf
    high: int | float = -math.inf
    total: int | float = 0
    distinct: set[str] = field(default_factory=set)
    overflow: bool = False
    examples: list[str] = field(default_factory=list)

    def add(self, value: str) -> None:
        value = value.strip()
        if not value:
            self.missing += 1
            return
        if value not in self.distinct:
            if len(self.distinct) < MAX_DISTINCT:
                self.distinct.add(value)
            else:
                self.overflow = True
            if len(self.examples) < EXAMPLES:
                self.examples.append(value[:MAX_EXAMPLE])
        number = _number(value)
        if number is None:
            self.texts += 1
            return
        self.numbers += 1
        self.integers += isinstance(number, int)
        self.low = min(self.low, number)
        self.high = max(self.high, number)
        self.total += number

    def summary(self) -> CsvColumn:
        if self.texts or not self.numbers:
            kind = "text" if self.texts else "empty"
        else:
            kind = "integer" if self.integers == self.numbers else "number"
        summary: CsvColumn = {
            "name": self.name,
            "type": kind,
            "missing": self.missing,
            "distinct": len(self.distinct),
            "examples": self.examples,
        }
        if self.overflow:
            summary["distinct_is_at_least"] = True
        if kind in {"integer", "number"}:
            summary["min"] = self.low
            summary["max"] = self.high
            summary["mean"] = round(self.total / self.numbers, 6)
        return summary


def summarise(path: Path) -> CsvSummary:
    """Return ``{"rows": int, "columns": [...]}`` for the CSV at ``path``, whose first row holds the names.

    Raises:
        ToolError: the file is not text or no CSV.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as source:
            sample = source.read(8192)
            source.seek(0)
            try:
                dialect: Any = csv.Sniffer().sniff(sample, delimiters=",;\t|")
            except csv.Error:
                dialect = csv.excel
            reader = csv.reader(source, dialect)
            names = next(reader, None)
            if names is None:
                return {"rows": 0, "columns": []}
            columns = [_Column(name or f"column {at + 1}") for at, name in enumerate(names[:MAX_COLUMNS])]
            rows = 0
            for row in reader:
                if not row:
                    continue
                rows += 1
                for at, column in enumerate(columns):
                    column.add(row[at] if at < len(row) else "")
    except (UnicodeDecodeError, csv.Error) as error:
        raise ToolError(f"{path.name!r} cannot be read as CSV: {error}") from None
    result: CsvSummary = {"rows": rows, "columns": [column.summary() for column in columns]}
    if len(names) > MAX_COLUMNS:
        result["columns_left_out"] = len(names) - MAX_COLUMNS
    return result
