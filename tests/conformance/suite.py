"""Runs the suite and counts what it says."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import anyio
import yaml
from tests.peers.channels import ROOT

__all__ = ["HERE", "NODE", "NODE_MODULES", "REVISIONS", "Score", "run"]

HERE = Path(__file__).resolve().parent
NODE_MODULES = HERE / "node_modules"
NODE = NODE_MODULES / "node" / "bin" / "node"
"""The suite needs Node 22, which a machine need not have; it comes as a package."""
SUITE = NODE_MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
OUT = ROOT / ".cache" / "conformance"
REVISIONS = ("2025-11-25", "2026-07-28")
LIMIT = 300.0
"""Seconds a run of the suite may take."""


@dataclass
class Score:
    """What came of one set of requirements: its checks, without those of scenarios that are expected to fail."""

    revision: str
    host: str
    passed: int = 0
    total: int = 0
    faults: list[str] = field(default_factory=list)
    """What is not as it should be."""

    def __str__(self) -> str:
        return f"{self.revision} {self.passed}/{self.total}"


async def run(revision: str, url: str, host: str) -> Score:
    """Run what a revision of MCP requires of a server against an address.

    Args:
        revision: one of `REVISIONS`.
        url: of the shim.
        host: `"native"` or `"pyodide"`, for the names of what is kept in .cache.
    """
    out = OUT / f"{host}-{revision}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = [str(NODE), str(SUITE), "server", "--url", url, "--requirements", revision, "-o", str(out)]
    with anyio.fail_after(LIMIT):
        done = await anyio.run_process(command, check=False, stdout=PIPE, stderr=STDOUT)
    (out / "output.txt").write_bytes(done.stdout)
    return _score(Score(revision, host), out)


def _score(score: Score, out: Path) -> Score:
    expected = yaml.safe_load((HERE / "expected-failures.yml").read_text(encoding="utf-8"))[score.revision]
    required, ran = _required(score.revision), set()
    for path in sorted(out.glob("server-*/checks.json")):
        scenario = re.sub(r"^server-(.*)-\d{4}-\d\d-\d\dT[\d-]+Z$", r"\1", path.parent.name)
        ran.add(scenario)
        checks = [item for item in json.loads(path.read_text(encoding="utf-8")) if item["status"] in _JUDGED]
        passed = sum(item["status"] == "SUCCESS" for item in checks)
        if scenario in expected:
            # A scenario that says nothing at all is as good as one that fails.
            if checks and passed == len(checks):
                score.faults.append(f"{scenario}: expected to fail, and passes: take it off the list")
            continue
        score.passed += passed
        score.total += len(checks)
        score.faults += [f"{scenario}: {_said(item)}" for item in checks if item["status"] != "SUCCESS"]
    score.faults += [f"{name}: did not run" for name in sorted((required | set(expected)) - ran)]
    return score


_JUDGED = ("SUCCESS", "FAILURE", "WARNING")


def _required(revision: str) -> set[str]:
    """Scenarios that the suite scores for a server."""
    folder = NODE_MODULES / "@modelcontextprotocol" / "conformance" / "requirements"
    return set(yaml.safe_load((folder / f"{revision}.yaml").read_text(encoding="utf-8"))["server"])


def _said(item: dict[str, Any]) -> str:
    return f"{item['id']} {item['status']}: {item.get('errorMessage') or item.get('description')}"
