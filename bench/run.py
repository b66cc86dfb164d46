"""`./build.sh bench`: measures each row against its peer and writes bench/results.json, a table and plots.

Invariant: a row that fails is said to have failed and the rest still runs; no figure comes from an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import browser_rows
import native_rows
import plots
from harness import CACHE, HERE, ROOT, Row, say

ROWS: dict[str, Callable[[bool], list[Row]]] = {**native_rows.ROWS, **browser_rows.ROWS}


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | ours | peer | unit | ratio (quartiles) | target | met |", "|---|---:|---:|---|---:|---|---|"]
    for row in rows:
        ratio = "-"
        if row.ratio is not None:
            low, high = row.spread["ratio"]
            ratio = f"{row.ratio:.2f} ({low:.2f} to {high:.2f})"
        met = {True: "yes", False: "**no**", None: "reported"}[row.met]
        cells = [row.name, number(row.ours), number(row.peer), row.unit, ratio, row.target or "-", met]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> str:
    """What was measured on; the figures mean little without it."""
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}, Node {node}, load {load}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./build.sh bench", description="Benchmarks, each against a peer in the same run."
    )
    parser.add_argument("--only", action="append", choices=list(ROWS), help="measure this row alone (repeatable)")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it works, not to quote")
    parser.add_argument("--svg", action="store_true", help="write docs/benchmarks/*.svg anew from this run")
    options = parser.parse_args()
    began = time.monotonic()
    say("preparing the folder to serve")
    subprocess.run(["node", str(HERE / "browser/prepare.mjs"), str(CACHE / "dist")], check=True, cwd=ROOT)
    rows: list[Row] = []
    failed = []
    for name in options.only or ROWS:
        say(f"{name} ...")
        start = time.monotonic()
        try:
            rows += ROWS[name](options.quick)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        say(f"{name}: {time.monotonic() - start:.0f} s")
    (HERE / "results.json").write_text(
        json.dumps({"rows": [row.json() for row in rows]}, indent=1, ensure_ascii=False) + "\n"
    )
    if options.svg:
        plots.write(rows, ROOT / "docs" / "benchmarks")
    print(table(rows))
    print(f"\n{machine()}")
    say(f"done in {time.monotonic() - began:.0f} s; the figures are in bench/results.json")
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
