"""`sandport doctor`: what is installed, what would work, what to do.

Invariant: it looks and never changes anything, needs no network, shows no secret, and each finding that is not fine
names its remedy.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandport_native.agents import AgentConfigError, agentpool_command, command_problem, default_dist, load_agents
from sandport_native.bundle import bundle_problem

State = Literal["ok", "missing", "problem"]

AGENTPOOL_VERSION = "2.9.18"
PROBE_TIMEOUT = 60
"""Seconds for the other environment to answer; its first import of agentpool is slow."""

RENEW_DAYS = 14
"""Days before its end at which a certificate is worth a word: those of ACME authorities are renewed a month before."""

_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "OPENROUTER_API_KEY")
_SYSTEM_PLACES = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `needed` findings decide the exit status."""

    state: State
    what: str
    detail: str
    remedy: str = ""
    needed: bool = False

    @property
    def failed(self) -> bool:
        """Whether this alone makes the command fail."""
        return self.needed and self.state != "ok"

    def __str__(self) -> str:
        mark = {"ok": "ok     ", "missing": "missing", "problem": "PROBLEM"}[self.state]
        text = f"{mark}  {self.what}: {self.detail}"
        return f"{text}\n         -> {self.remedy}" if self.remedy else text


def report(findings: Iterable[Finding]) -> str:
    """The findings as JSON: `{"ok": bool, "findings": [{"state", "what", "detail", "remedy", "needed"}]}`."""
    entries = list(findings)
    value = {"ok": not any(entry.failed for entry in entries), "findings": [dataclasses.asdict(e) for e in entries]}
    return json.dumps(value, indent=2, ensure_ascii=False)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def examine(
    *, config: Path | None = None, dist: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> Iterator[Finding]:
    """Look at everything, cheapest first.

    Args:
        config: agents to look at, as of `serve --config`.
        dist: the bundle, None for the usual place.
        cert, key: a certificate to look at, as of `serve --tls-cert` and `--tls-key`.
    """
    yield Finding("ok", "Python", platform.python_version(), needed=True)
    for name in ("sandport", "fastmcp", "mcp", "starlette", "uvicorn", "websockets"):
        version = _version(name)
        if version is None:
            yield Finding("missing", name, "not installed", "pip install 'sandport[native]'", needed=True)
        else:
            yield Finding("ok", name, version, needed=True)
    yield _bundle(dist if dist is not None else default_dist(), named=dist is not None)
    if config is not None:
        yield from _agents(config)
    yield from _agentpool(needed=False)
    version = _version("agent-client-protocol")
    if version is not None:
        yield Finding("ok", "ACP SDK", f"agent-client-protocol {version}")
    else:
        yield Finding("missing", "ACP SDK", "only needed for ACP clients without a page", "pip install 'sandport[acp]'")
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
    yield _tls(cert, key)
    yield _proxy()


def _bundle(dist: Path, named: bool) -> Finding:
    problem = bundle_problem(dist)
    if problem is None:
        size = sum(file.stat().st_size for file in dist.rglob("*") if file.is_file())
        built = time.strftime("%Y-%m-%d %H:%M", time.localtime((dist / "index.html").stat().st_mtime))
        return Finding("ok", "bundle", f"{dist} ({size / 1e6:.0f} MB, built {built})", needed=named)
    what, _, remedy = problem.partition(": ")
    state: State = "problem" if (dist / "index.html").is_file() else "missing"
    # An old bundle still works; without any the page cannot be served, which a client without a page does not mind.
    return Finding(state, "bundle", what, remedy, needed=named)


def _agents(config: Path) -> Iterator[Finding]:
    try:
        specs = load_agents(config)
    except AgentConfigError as exc:
        yield Finding("problem", "config", str(exc), "mend the file; docs/deploy.md shows one", needed=True)
        return
    for spec in specs.values():
        problem = command_problem(spec)
        if problem is None:
            yield Finding("ok", f"agent {spec.name}", spec.command[0], needed=True)
        else:
            what, _, remedy = problem.removeprefix(f"agent {spec.name}: ").partition("; ")
            yield Finding("missing", f"agent {spec.name}", what, remedy, needed=True)


def _agentpool(needed: bool) -> Iterator[Finding]:
    try:
        command = agentpool_command()
    except AgentConfigError as exc:
        yield Finding("missing", "agentpool", "not found, and so no demo agent", str(exc), needed)
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
        yield Finding("problem", "agentpool", f"{command[0]}: {exc}", "rebuild that environment", needed)
        return
    text = (done.stdout.strip() or done.stderr.strip()).splitlines()
    line = text[-1] if text else f"exit status {done.returncode}"
    if done.returncode == 0:
        yield Finding("ok", "agentpool", f"{line}, run as {command[0]}", needed=needed)
    else:
        remedy = f"install agentpool=={AGENTPOOL_VERSION} with pydantic-ai-slim<2"
        yield Finding("problem", "agentpool", line, remedy, needed)


def _browser() -> Finding:
    for name in ("chromium", "chromium-browser", "google-chrome", "firefox", "firefox-esr"):
        if path := shutil.which(name):
            return Finding("ok", "browser", path)
    return Finding("missing", "browser", "none on PATH", "open the printed address in any current browser")


def _tls(cert: Path | None, key: Path | None) -> Finding:
    if cert is None:
        return Finding("ok", "TLS", f"{ssl.OPENSSL_VERSION}; not needed on loopback, else --tls-cert and --tls-key")
    # Imported here: without its packages doctor must still run.
    from sandport_native.gateway.tls import Certificate, CertificateError

    certificate = Certificate(cert, key)
    try:
        certificate.check()
        end = certificate.end()
    except CertificateError as exc:
        return Finding("problem", "TLS", str(exc), "see `openssl x509 -in FILE -text`", needed=True)
    days = (end - time.time()) / 86400
    until = f"{cert}, valid until {time.strftime('%Y-%m-%d', time.gmtime(end))}"
    if days < 0:
        return Finding("problem", "TLS", f"{until}: it has expired", "renew it, then send SIGHUP", needed=True)
    if days < RENEW_DAYS:
        return Finding("problem", "TLS", f"{until}: {days:.0f} days", "renew it, then send SIGHUP")
    return Finding("ok", "TLS", until, needed=True)


def _proxy() -> Finding:
    nginx = shutil.which("nginx") or shutil.which("nginx", path=_SYSTEM_PLACES)
    if nginx is None:
        return Finding(
            "missing",
            "reverse proxy",
            "no nginx here; only needed for several gateways, or when something else has the port for https",
            "apt-get install nginx-light, then see docs/deploy.md",
        )
    done = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=False)
    return Finding("ok", "reverse proxy", f"{done.stderr.strip().removeprefix('nginx version: ')}, see docs/deploy.md")
