"""The add-on's own tests against each dependency set of agentpool: newest of all, MCP SDK 1, and that of its own time.

The newest is what `tests/native` runs with. Each set is one case: `tests/native/test_agentpool*.py`, whole, with that
set's interpreter; and the code that only SDK 1 reaches is checked for types with SDK 1 at hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from tests.peers.channels import ROOT, Exchange
from tests.peers.suite import Case, Suite, check

__all__ = ["suites"]

SETS = {"mcp1": "2.9.18, fastmcp 3.4, mcp 1.30", "2026-05": "2.9.18, fastmcp 3.2, mcp 1.27"}
"""Names of the environments `.venv-agentpool-NAME`, and what is in them."""

LIMIT = 1500.0
"""Seconds for all tests of a set; they take three minutes on an idle machine."""


@dataclass(frozen=True)
class Set:
    """One dependency set, installed."""

    folder: Path
    exchange: Exchange


async def _run(installed: Set, command: list[str], **env: str) -> None:
    done = await anyio.run_process(
        command, check=False, cwd=ROOT, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1", **env}
    )
    text = done.stdout.decode(errors="replace")
    installed.exchange.errors += text.splitlines()
    check(done.returncode == 0, text.strip().rpartition("\n")[2])


async def the_tests_of_the_add_on_pass(installed: Set) -> None:
    """Every promise of docs/agentpool.md."""
    program = str(installed.folder / "bin" / "sandport")
    files = sorted(str(file) for file in (ROOT / "tests" / "native").glob("test_agentpool*.py"))
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    await _run(installed, tests, SANDPORT_AGENTPOOL=program)


async def the_session_of_sdk_1_has_its_types(installed: Set) -> None:
    """mypy runs with SDK 2 else, and leaves these modules out."""
    options = ["--config-file", "", "--strict", "--explicit-package-bases", "--follow-imports", "silent"]
    python = ["--python-version", "3.13", "--python-executable", str(installed.folder / "bin" / "python")]
    modules = ["-m", "sandport._sdk1", "-m", "sandport.agent._session1"]
    await _run(installed, [sys.executable, "-m", "mypy", *options, *python, *modules], MYPYPATH="core:native")


CASES: list[Case] = [the_session_of_sdk_1_has_its_types, the_tests_of_the_add_on_pass]


def _suite(name: str, versions: str) -> Suite:
    folder = ROOT / f".venv-agentpool-{name}"

    @asynccontextmanager
    async def opened(exchange: Exchange) -> AsyncIterator[Set]:
        yield Set(folder, exchange)

    missing = None if folder.is_dir() else f"{folder.name} is missing: ./build.sh peers sets it up"
    return Suite(
        "agentpool set", versions, "connect-acpId", "agent, stdio", CASES, opened, missing=missing, limit=LIMIT
    )


def suites() -> list[Suite]:
    """One for each set but the newest."""
    return [_suite(name, versions) for name, versions in SETS.items()]
