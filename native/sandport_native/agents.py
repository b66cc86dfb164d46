"""Which agents there are: from the command line, from a config file, or the demo agent.

Invariant: a returned command can be run as it stands, without a shell; if none can be found the error says what to
install.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandport_native.process import AgentSpec

AGENTPOOL_ENV = "SANDPORT_AGENTPOOL"
"""Environment variable: path of the `sandport` console script of the environment that has agentpool."""

AGENTPOOL_VENV = ".venv-agentpool"
"""The environment build.sh makes beside the project: agentpool and the ACP SDK both ship a package `acp`."""

_ALLOWED_KEYS = {"command", "env", "cwd"}


class AgentConfigError(ValueError):
    """No agent, or a config that cannot be understood; the text names the remedy."""


def project_root() -> Path | None:
    """The checkout this package is installed from in editable form, or None."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "core" / "sandport").is_dir() else None


def default_dist() -> Path:
    """Where the bundle is looked for: `$SANDPORT_DIST`, the checkout's `dist/`, `./dist`."""
    if path := os.environ.get("SANDPORT_DIST"):
        return Path(path)
    root = project_root()
    return (root if root is not None else Path.cwd()) / "dist"


def agentpool_command() -> list[str]:
    """How to run a `sandport` that can import agentpool.

    Raises:
        AgentConfigError: there is none.
    """
    if importlib.util.find_spec("agentpool") is not None:
        return [sys.executable, "-m", "sandport_native"]
    if path := os.environ.get(AGENTPOOL_ENV):
        if not os.access(path, os.X_OK):
            raise AgentConfigError(
                f"{AGENTPOOL_ENV}={path} cannot be run; set it to the `sandport` script beside agentpool"
            )
        return [path]
    places = [root for root in (project_root(), Path.cwd()) if root is not None]
    for place in places:
        script = place / AGENTPOOL_VENV / "bin" / "sandport"
        if os.access(script, os.X_OK):
            return [str(script)]
    raise AgentConfigError(
        "agentpool is not installed here. Make an environment for it: "
        f"`uv venv --python 3.13 {AGENTPOOL_VENV} && uv pip install --python {AGENTPOOL_VENV}/bin/python "
        f"'sandport[native,agentpool]'`, then run here again or set {AGENTPOOL_ENV} to its `sandport` script. "
        "Any other ACP agent works too: --agent 'COMMAND'."
    )


def demo_agent(model: str | None = None) -> AgentSpec:
    """The demo agent, optionally with a real model such as `openai:gpt-5`."""
    command = [*agentpool_command(), "agentpool", "serve-acp", "--demo"]
    if model is not None:
        command += ["--model", model]
    return AgentSpec("demo", command)


def parse_command(text: str) -> list[str]:
    """Split a command line as a shell would, without running one.

    Raises:
        AgentConfigError: empty, or quotes do not match.
    """
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise AgentConfigError(f"cannot split the command {text!r}: {exc}") from exc
    if not words:
        raise AgentConfigError("the agent's command is empty")
    return words


def load_agents(file: Path) -> dict[str, AgentSpec]:
    """Read agents from a TOML file; the first one is the default.

    Each `[agents.NAME]` has `command` (text or list), optional `env` (table of text) and `cwd` (relative to the file).

    Raises:
        AgentConfigError: unreadable, or a wrong shape; the text names the place and what belongs there.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise AgentConfigError(f"{file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise AgentConfigError(f"{file}: not UTF-8 (byte {exc.start})") from exc
    except tomllib.TOMLDecodeError as exc:
        raise AgentConfigError(f"{file}: this is not TOML: {exc}") from exc
    _only(str(file), data, {"agents"})
    tables = data.get("agents")
    if not isinstance(tables, dict) or not tables:
        raise AgentConfigError(f"{file}: no [agents.NAME] table. Write one: {_EXAMPLE}")
    return {name: _agent(file, name, table) for name, table in tables.items()}


_EXAMPLE = "[agents.helper] and below it: command = 'helper --acp'"


def _only(where: str, entries: Mapping[str, object], allowed: set[str]) -> None:
    for key in sorted(set(entries) - allowed):
        near = difflib.get_close_matches(key, allowed, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(allowed))}"
        raise AgentConfigError(f"{where}: unknown key {key!r}; {hint}")


def _agent(file: Path, name: str, table: object) -> AgentSpec:
    where = f"{file}: agents.{name}"
    if not isinstance(table, Mapping):
        raise AgentConfigError(f"{where} must be a table: {_EXAMPLE}")
    if not name.strip() or not name.isprintable():
        raise AgentConfigError(f"{file}: an agent's name must be visible text, not {name!r}")
    entries: Mapping[str, Any] = table
    _only(where, entries, _ALLOWED_KEYS)
    command = entries.get("command")
    if command is None:
        raise AgentConfigError(f"{where}: command is missing; it says how to start the agent")
    if isinstance(command, str):
        try:
            words = parse_command(command)
        except AgentConfigError as exc:
            raise AgentConfigError(f"{where}: {exc}") from exc
    elif isinstance(command, list) and command and all(isinstance(word, str) for word in command) and command[0]:
        words = list(command)
    else:
        raise AgentConfigError(f"{where}: command must be text or a list of texts, the program first")
    env = entries.get("env", {})
    if not isinstance(env, Mapping):
        raise AgentConfigError(f"{where}: env must be a table of texts")
    for key, value in env.items():
        if not isinstance(value, str):
            raise AgentConfigError(f"{where}: env.{key} must be text, in quotes")
        if not key or "=" in key or "\0" in key + value:
            raise AgentConfigError(f"{where}: env has a name or value that no process can be given: {key!r}")
    cwd = entries.get("cwd")
    if cwd is None:
        return AgentSpec(name, words, dict(env))
    if not isinstance(cwd, str):
        raise AgentConfigError(f"{where}: cwd must be text")
    folder = (file.parent / cwd).resolve()
    if not folder.is_dir():
        raise AgentConfigError(f"{where}: cwd {folder} is no folder")
    return AgentSpec(name, words, dict(env), folder)


def command_problem(spec: AgentSpec) -> str | None:
    """Why the agent could not be started now, or None. It may be installed later, so this is no error by itself."""
    program = spec.command[0]
    if "/" in program:
        found = os.access((spec.cwd or Path.cwd()) / program, os.X_OK)
    else:
        found = shutil.which(program, path=spec.env.get("PATH")) is not None
    if found:
        return None
    where = "does not exist or cannot be run" if "/" in program else "is not on PATH"
    return f"agent {spec.name}: {program} {where}; install it, or give its whole path"
