"""What is shipped for deployment holds together: options exist, files are where they are said to be, examples parse."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from sandport_native.agents import load_agents
from sandport_native.cli import main

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCS = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def serve_options(words: list[str], token: Path) -> dict[str, object]:
    """What `sandport serve` makes of these words; fails on an option that it does not have."""
    token.write_text("x" * 22, encoding="utf-8")
    words = [str(token) if word.endswith("/token") else word for word in words]
    assert Path(words[0]).name == "sandport"
    assert words[1] == "serve"
    return main.commands["serve"].make_context("serve", words[2:]).params


def shell_words(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", " "))


def test_systemd_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "sandport.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command is not None
    options = serve_options(command[1].split(), tmp_path / "token")
    assert (options["host"], options["log_format"]) == ("127.0.0.1", "json")
    assert options["token_file"]
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is missing: apt-get install systemd"
    # It also checks that the program is there; here is one that is.
    copy = tmp_path / "sandport.service"
    copy.write_text(unit.replace(command[1].split()[0], sys.executable), encoding="utf-8")
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_container_file(tmp_path: Path) -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    words = [word for name in ("ENTRYPOINT", "CMD") for word in re.findall(r'"([^"]*)"', _instruction(text, name))]
    options = serve_options(words, tmp_path / "token")
    assert options["host"] == "0.0.0.0"
    assert options["port"] == int(_instruction(text, "EXPOSE"))
    assert "USER sandport" in text
    for lock in re.findall(r"requirements/\S+\.txt", text):
        assert (ROOT / lock).is_file()
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").split()
    assert {".git", "**/node_modules", ".venv*", "**/dist"} <= set(ignored)


def _instruction(text: str, name: str) -> str:
    found = re.findall(rf"^{name} (.*)$", text, re.MULTILINE)
    assert len(found) == 1, name
    return str(found[0])


def test_config_file() -> None:
    agents = load_agents(DEPLOY / "sandport.toml")
    assert list(agents) == ["demo", "helper"]
    assert agents["helper"].env == {"HELPER_MODE": "page"}


def test_the_page_names_files_and_options_that_exist(tmp_path: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", DOCS):
        assert (ROOT / "docs" / link).is_file(), link
    for file in DEPLOY.iterdir():
        assert f"deploy/{file.name}" in DOCS
    commands = [line for block in re.findall(r"```sh\n(.*?)```", DOCS, re.DOTALL) for line in _lines(block)]
    served = [line for line in commands if line.startswith("sandport serve")]
    assert len(served) >= 6
    for line in served:
        serve_options(shell_words(line.split("  #")[0]), tmp_path / "token")
    known = {name for command in _commands(main) for option in command.params for name in option.opts}
    known |= {"--init", "--rm", "--help"}
    for name in re.findall(r"`[^`]*?(--[a-z][a-z-]+)", DOCS):
        assert name in known, name


def _lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def _commands(command: click.Command) -> list[click.Command]:
    children = command.commands.values() if isinstance(command, click.Group) else ()
    return [command, *(below for child in children for below in _commands(child))]
