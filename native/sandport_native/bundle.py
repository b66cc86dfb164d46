"""Whether the built bundle is there, and newer than what it was built from.

Invariant: looks at names and times alone, so that it costs a start of the gateway nothing to notice. Standard library
only: `sandport doctor` asks here although nothing else may be installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sandport_native.agents import project_root

BUILT = Path(".cache/stamps/built")
"""Touched by `./build.sh build` when it is done, also when nothing had to be built."""

_SOURCES = (
    "core/sandport",
    "core/sandport_demo",
    "browser/src",
    "browser/runtime",
    "browser/agent",
    "browser/build",
    "web",
)
_SUFFIXES = {".py", ".ts", ".tsx", ".js", ".mjs", ".css", ".html", ".json", ".svg"}
_FILES = ("package-lock.json", "requirements/pyodide.txt", "requirements/pyodide-agent.txt")
_SKIPPED = {"node_modules", "__pycache__", "dist"}


def bundle_problem(dist: Path) -> str | None:
    """What is wrong with the bundle and how to mend it, or None.

    Only the bundle of a checkout can be old: elsewhere there are no sources to compare it with.
    """
    if not (dist / "index.html").is_file():
        return f"no bundle in {dist}: run ./build.sh build in a checkout, or name another with --dist or SANDPORT_DIST"
    if not (dist / "runtime" / "manifest.json").is_file():
        return f"the bundle in {dist} has no runtime/manifest.json, so its sandbox cannot start: run ./build.sh build"
    root = project_root()
    if root is None or dist.resolve() != root / "dist":
        return None
    try:
        built = (root / BUILT).stat().st_mtime
    except OSError:
        return None
    newer = next((file for file in _sources(root) if file.stat().st_mtime > built), None)
    if newer is None:
        return None
    return f"the bundle in {dist} is older than {newer.relative_to(root)}: run ./build.sh build"


def _sources(root: Path) -> Iterator[Path]:
    yield from (file for name in _FILES if (file := root / name).is_file())
    for folder in _SOURCES:
        for place, folders, files in os.walk(root / folder):
            folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
            yield from (Path(place, name) for name in files if Path(name).suffix in _SUFFIXES)
