"""`sandport doctor`: what is installed, what would work, what to do.

Invariant: it looks and never changes anything, needs no network, and each finding that is not fine names its remedy.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandport_native.agents import AgentConfigError, agentpool_command, default_dist

State = Literal["ok", "missing", "problem"]

AGENTPOOL_VERSION = "2.9.18"
PROBE_TIMEOUT = 60
"""Seconds for the other environment to answer; its first import of agentpool is slow."""

_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "OPENROUTER_API_KEY")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `needed` findings decide the exit status."""

    state: State
    what: str
    detail: str
    remedy: str = ""
    needed: bool = False

    def __str__(self) -> str:
        mark = {"ok": "ok     ", "missing": "missing", "problem": "PROBLEM"}[self.state]
        text = f"{mark}  {self.what}: {self.detail}"
        return f"{text}\n         -> {self.remedy}" if self.remedy else text


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def examine() -> Iterator[Finding]:
    """Look at everything, cheapest first."""
    yield Finding("ok", "Python", platform.python_version(), needed=True)
    for name in ("sandport", "fastmcp", "mcp", "starlette", "uvicorn", "websockets"):
        version = _version(name)
        if version is None:
            yield Finding("missing", name, "not installed", "install sandport[native]", needed=True)
        else:
            yield Finding("ok", name, version, needed=True)
    yield _bundle(default_dist())
    yield from _agentpool()
    version = _version("agent-client-protocol")
    if version is not None:
        yield Finding("ok", "ACP SDK", f"agent-client-protocol {version}")
    else:
        yield Finding("missing", "ACP SDK", "only needed for ACP clients without a page", "install sandport[acp]")
    yield _browser()
    keys = [name for name in _KEYS if os.environ.get(name)]
    if keys:
        yield Finding("ok", "model keys", f"{', '.join(keys)} (use --model, e.g. openai:gpt-5)")
    else:
        yield Finding(
            "missing",
            "model keys",
            "none set; the demo agent needs none",
            f"for a real model set one of {', '.join(_KEYS)}",
        )


def _bundle(dist: Path) -> Finding:
    if (dist / "index.html").is_file():
        size = sum(file.stat().st_size for file in dist.rglob("*") if file.is_file())
        return Finding("ok", "bundle", f"{dist} ({size / 1e6:.0f} MB)")
    return Finding("missing", "bundle", f"no index.html in {dist}", "./build.sh build, or set SANDPORT_DIST")


def _agentpool() -> Iterator[Finding]:
    try:
        command = agentpool_command()
    except AgentConfigError as exc:
        yield Finding("missing", "agentpool", "not found", str(exc))
        return
    try:
        done = subprocess.run(
            [*command, "agentpool", "check"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        yield Finding("problem", "agentpool", f"{command[0]}: {exc}", "rebuild that environment")
        return
    text = (done.stdout.strip() or done.stderr.strip()).splitlines()
    line = text[-1] if text else f"exit status {done.returncode}"
    if done.returncode == 0:
        yield Finding("ok", "agentpool", f"{line}, run as {command[0]}")
    else:
        yield Finding("problem", "agentpool", line, f"install agentpool=={AGENTPOOL_VERSION} with pydantic-ai-slim<2")


def _browser() -> Finding:
    for name in ("chromium", "chromium-browser", "google-chrome", "firefox", "firefox-esr"):
        if path := shutil.which(name):
            return Finding("ok", "browser", path)
    return Finding("missing", "browser", "none on PATH", "open the printed address in any current browser")
