from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandport_native import agents
from sandport_native.agents import AgentConfigError, agentpool_command, demo_agent, load_agents, parse_command
from sandport_native.cli import main
from sandport_native.gateway.app import Agents
from sandport_native.gateway.server import Settings, SettingsError, is_loopback
from sandport_native.process import AgentSpec


def test_commands_are_split_without_a_shell() -> None:
    assert parse_command("agent --flag 'a b' \"$HOME\"") == ["agent", "--flag", "a b", "$HOME"]


@pytest.mark.parametrize("text", ["", "   ", "agent 'open"])
def test_bad_commands(text: str) -> None:
    with pytest.raises(AgentConfigError):
        parse_command(text)


def test_config_file(tmp_path: Path) -> None:
    file = tmp_path / "sandport.toml"
    file.write_text(
        '[agents.a]\ncommand = "one two"\n[agents.b]\ncommand = ["x", "y z"]\ncwd = "work"\nenv = { K = "v" }\n',
        encoding="utf-8",
    )
    assert load_agents(file) == {
        "a": AgentSpec("a", ["one", "two"]),
        "b": AgentSpec("b", ["x", "y z"], {"K": "v"}, tmp_path / "work"),
    }


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no [agents.NAME]"),
        ("agents = 3", "no [agents.NAME]"),
        ("[agents]\na = 3", "must be a table"),
        ("[agents.a]", "command"),
        ("[agents.a]\ncommand = []", "command"),
        ('[agents.a]\ncommand = "x"\nenv = { A = 1 }', "env"),
        ('[agents.a]\ncommand = "x"\ncwd = 1', "cwd"),
        ('[agents.a]\ncommand = "x"\ncomand = "y"', "comand"),
        ("[agents.a", "sandport.toml"),
    ],
)
def test_bad_config_names_the_place(tmp_path: Path, text: str, hint: str) -> None:
    file = tmp_path / "sandport.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(AgentConfigError, match=r"sandport\.toml") as info:
        load_agents(file)
    assert hint in str(info.value)


class TestDemoAgent:
    @pytest.fixture(autouse=True)
    def elsewhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(agents, "project_root", lambda: None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        monkeypatch.delenv(agents.AGENTPOOL_ENV, raising=False)
        monkeypatch.chdir(tmp_path)

    def test_this_interpreter_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
        assert agentpool_command() == [sys.executable, "-m", "sandport_native"]

    def test_then_the_environment_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(agents.AGENTPOOL_ENV, sys.executable)
        assert demo_agent("openai:gpt-5").command == [
            sys.executable, "agentpool", "serve-acp", "--demo", "--model", "openai:gpt-5",
        ]  # fmt: skip

    def test_a_wrong_variable_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(agents.AGENTPOOL_ENV, "/no/such/file")
        with pytest.raises(AgentConfigError, match=r"/no/such/file"):
            agentpool_command()

    def test_then_the_environment_beside_the_project(self, tmp_path: Path) -> None:
        script = tmp_path / agents.AGENTPOOL_VENV / "bin" / "sandport"
        script.parent.mkdir(parents=True)
        script.touch(mode=0o755)
        assert agentpool_command() == [str(script)]

    def test_else_a_remedy(self) -> None:
        with pytest.raises(AgentConfigError, match="uv venv"):
            agentpool_command()


class TestSettings:
    agents = Agents({"a": AgentSpec("a", ["x"])})

    @pytest.mark.parametrize(
        ("options", "hint"),
        [
            ({"host": "0.0.0.0"}, "--allow-remote"),
            ({"host": "0.0.0.0", "allow_remote": True}, "--public-url"),
            ({"public_urls": ["sandport.example"]}, "--public-url"),
            ({"public_urls": ["https://sandport.example/page"]}, "without path"),
            ({"token": "short"}, "128"),
        ],
    )
    def test_unsafe(self, tmp_path: Path, options: dict[str, object], hint: str) -> None:
        with pytest.raises(SettingsError, match=hint):
            Settings(self.agents, tmp_path, **options).validate()  # type: ignore[arg-type]

    def test_safe(self, tmp_path: Path) -> None:
        Settings(self.agents, tmp_path).validate()
        Settings(self.agents, tmp_path, host="0.0.0.0", allow_remote=True, public_urls=["https://a.example"]).validate()

    @pytest.mark.parametrize(
        ("host", "loopback"),
        [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True),
         ("0.0.0.0", False), ("::", False), ("example.com", False), ("192.168.1.2", False)],
    )  # fmt: skip
    def test_loopback(self, host: str, loopback: bool) -> None:
        assert is_loopback(host) is loopback


class TestCommandLine:
    @pytest.mark.parametrize(
        "arguments",
        [[], ["serve"], ["doctor"], ["agentpool"], ["agentpool", "serve-acp"], ["agentpool", "check"]],
    )
    def test_help(self, arguments: list[str]) -> None:
        result = CliRunner().invoke(main, [*arguments, "--help"])
        assert result.exit_code == 0
        assert len(result.output) > 100

    def test_version(self) -> None:
        assert CliRunner().invoke(main, ["--version"]).output.startswith("sandport")

    def test_choices_exclude_each_other(self) -> None:
        result = CliRunner().invoke(main, ["serve", "--agent", "x", "--model", "y"])
        assert result.exit_code == 2
        assert "exclude" in result.output

    def test_agentpool_needs_its_environment(self) -> None:
        result = CliRunner().invoke(main, ["agentpool", "check"])
        assert result.exit_code == 1
        assert "agentpool==2.9.18" in result.output

    def test_doctor(self, tmp_path: Path) -> None:
        environment = {
            "SANDPORT_DIST": str(tmp_path),
            agents.AGENTPOOL_ENV: "/no/such/file",
            "OPENAI_API_KEY": "sk-secret",
        }
        result = CliRunner().invoke(main, ["doctor"], env={**os.environ, **environment})
        assert result.exit_code == 0
        assert "build.sh build" in result.output
        assert "/no/such/file" in result.output
        assert "OPENAI_API_KEY" in result.output
        assert "sk-secret" not in result.output
