from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sandport_native import agents, bundle
from sandport_native.agents import (
    AgentConfigError,
    agentpool_command,
    command_problem,
    demo_agent,
    load_agents,
    parse_command,
)
from sandport_native.cli import main
from sandport_native.gateway.access import new_token, valid_token
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
    (tmp_path / "work").mkdir()
    assert load_agents(file) == {
        "a": AgentSpec("a", ["one", "two"]),
        "b": AgentSpec("b", ["x", "y z"], {"K": "v"}, tmp_path / "work"),
    }


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no [agents.NAME]"),
        ("agents = 3", "no [agents.NAME]"),
        ("[agents]\na = 3", "agents.a must be a table"),
        ("[agents.a]", "agents.a: command is missing"),
        ("[agents.a]\ncommand = []", "agents.a: command must be"),
        ("[agents.a]\ncommand = ['']", "agents.a: command must be"),
        ("[agents.a]\ncommand = ''", "agents.a: the agent's command is empty"),
        ('[agents.a]\ncommand = "x \'y"', "agents.a: cannot split"),
        ('[agents.a]\ncommand = "x"\nenv = "A=1"', "agents.a: env must be a table"),
        ('[agents.a]\ncommand = "x"\nenv = { A = 1 }', "env.A must be text"),
        ('[agents.a]\ncommand = "x"\nenv = { "A=B" = "1" }', "'A=B'"),
        ('[agents.a]\ncommand = "x"\ncwd = 1', "cwd must be text"),
        ('[agents.a]\ncommand = "x"\ncwd = "nowhere"', "nowhere is no folder"),
        ('[agents.a]\ncommand = "x"\ncomand = "y"', "'comand'; did you mean 'command'?"),
        ('[agents.a]\ncommand = "x"\nport = 1', "'port'; known are command, cwd, env"),
        ('[agent.a]\ncommand = "x"', "'agent'; did you mean 'agents'?"),
        ('[agents.""]\ncommand = "x"', "name"),
        ('[agents.a]\ncommand = "x"\n[agents.a]\ncommand = "y"', "line 3"),
        ('# first\n[agents.a\ncommand = "x"', "line 2"),
    ],
)
def test_bad_config_names_the_place(tmp_path: Path, text: str, hint: str) -> None:
    file = tmp_path / "sandport.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(AgentConfigError, match=r"sandport\.toml") as info:
        load_agents(file)
    assert hint in str(info.value)


def test_a_config_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "sandport.toml"
    with pytest.raises(AgentConfigError, match="No such file"):
        load_agents(file)
    file.write_bytes(b"[agents.a]\ncommand = '\xff'")
    with pytest.raises(AgentConfigError, match="not UTF-8"):
        load_agents(file)


def test_commands_that_cannot_run(tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.touch(mode=0o755)
    assert command_problem(AgentSpec("a", [sys.executable])) is None
    assert command_problem(AgentSpec("a", ["./agent"], cwd=tmp_path)) is None
    assert command_problem(AgentSpec("a", ["agent"], {"PATH": str(tmp_path)})) is None
    script.chmod(0o644)
    assert "cannot be run" in str(command_problem(AgentSpec("a", ["./agent"], cwd=tmp_path)))
    assert "agent a: no-such-agent is not on PATH" in str(command_problem(AgentSpec("a", ["no-such-agent"])))


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
            ({"host": "192.0.2.1"}, "--tls-cert"),
            ({"host": "0.0.0.0", "allow_remote": True}, "--public-url"),
            ({"host": "::", "allow_remote": True}, "--public-url"),
            ({"allow_origins": ["app.example"]}, "--allow-origin"),
            ({"token": "with a space in it, and long enough"}, "sandport token"),
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
        Settings(self.agents, tmp_path, token=new_token(), allow_origins=["null", "https://app.example"]).validate()
        Settings(self.agents, tmp_path, host="192.0.2.1", allow_remote=True).validate()  # its own address is known
        Settings(self.agents, tmp_path, host="0.0.0.0", allow_remote=True, public_urls=["https://a.example"]).validate()

    @pytest.mark.parametrize(
        ("host", "loopback"),
        [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("[::1]", True), ("localhost", True),
         ("0.0.0.0", False), ("::", False), ("example.com", False), ("192.168.1.2", False)],
    )  # fmt: skip
    def test_loopback(self, host: str, loopback: bool) -> None:
        assert is_loopback(host) is loopback


def every_command(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from every_command(child, (*path, name))


class TestCommandLine:
    @pytest.mark.parametrize("arguments", list(every_command()), ids=" ".join)
    def test_help_says_what_each_command_and_option_does(self, arguments: tuple[str, ...]) -> None:
        result = CliRunner().invoke(main, [*arguments, "--help"])
        assert result.exit_code == 0
        command: click.Command = main
        for name in arguments:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert command.help
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{arguments} {parameter.opts} has no help"
                assert parameter.opts[0] in result.output

    def test_version(self) -> None:
        assert CliRunner().invoke(main, ["--version"]).output.startswith("sandport")

    @pytest.mark.parametrize(
        ("arguments", "status", "remedy"),
        [
            (["--agent", "x", "--model", "y"], 2, "exclude each other"),
            (["--tls-key", "k.pem"], 2, "--tls-cert"),
            (["--agent", "'x"], 1, "cannot split"),
            (["--config", "no-such.toml"], 2, "does not exist"),
            (["--agent", "x", "--host", "192.0.2.1", "--allow-remote"], 1, "ip address"),  # a documentation address
            (["--agent", "x", "--host", "no-such-host.invalid", "--allow-remote"], 1, "address of this machine"),
            (["--agent", "x", "--tls-cert", "no-such.pem"], 1, "no-such.pem: No such file"),
            (["--agent", "x", "--token-file", "{file}"], 1, "sandport token"),
            (["--agent", "x", "--public-url", "sandport.example"], 1, "not an origin like https://"),
        ],
    )
    def test_mistakes_name_their_remedy(self, tmp_path: Path, arguments: list[str], status: int, remedy: str) -> None:
        file = tmp_path / "token"
        file.write_text("short\n", encoding="utf-8")
        result = CliRunner().invoke(main, ["serve", *(word.format(file=file) for word in arguments)])
        assert result.exit_code == status
        assert remedy in result.output.replace("\n", " ")

    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            result = CliRunner().invoke(main, ["serve", "--agent", "x", "--port", str(port)])
        assert result.exit_code == 1
        assert f"127.0.0.1:{port}" in result.output
        assert "another --port" in result.output

    def test_a_token_can_be_used_as_it_is_printed(self, tmp_path: Path) -> None:
        token = CliRunner().invoke(main, ["token"]).output
        assert valid_token(token.strip())
        assert token != CliRunner().invoke(main, ["token"]).output

    def test_agentpool_needs_its_environment(self) -> None:
        result = CliRunner().invoke(main, ["agentpool", "check"])
        assert result.exit_code == 1
        assert "agentpool==2.9.18" in result.output


class TestDoctor:
    def run(self, *arguments: str, **env: str) -> tuple[int, str]:
        environment = {agents.AGENTPOOL_ENV: "/no/such/file", "OPENAI_API_KEY": "sk-secret", **env}
        result = CliRunner().invoke(main, ["doctor", *arguments], env={**os.environ, **environment})
        return result.exit_code, result.output

    def test_what_is_missing_has_a_remedy(self, tmp_path: Path) -> None:
        status, output = self.run(SANDPORT_DIST=str(tmp_path))
        assert status == 0  # nothing that another agent and a client without a page would need
        for text in ("build.sh build", "/no/such/file", "OPENAI_API_KEY", "TLS", "reverse proxy"):
            assert text in output
        assert "sk-secret" not in output

    def test_what_was_named_must_be_fine(self, tmp_path: Path) -> None:
        config = tmp_path / "sandport.toml"
        config.write_text(f"[agents.a]\ncommand = '{sys.executable}'\n[agents.b]\ncommand = 'no-such-agent'\n")
        status, output = self.run("--config", str(config), "--json")
        assert status == 1
        report = json.loads(output)
        assert report["ok"] is False
        found = {entry["what"]: entry for entry in report["findings"]}
        assert found["agent a"]["state"] == "ok"
        assert found["agent b"]["state"] == "missing"
        assert found["agent b"]["remedy"]
        config.write_text("[agents.a]\ncomand = 'x'\n")
        status, output = self.run("--config", str(config))
        assert status == 1
        assert "did you mean 'command'" in output
        assert self.run("--dist", str(tmp_path))[0] == 1

    def test_json_is_whole(self, tmp_path: Path) -> None:
        status, output = self.run("--json", SANDPORT_DIST=str(tmp_path))
        report = json.loads(output)
        assert (status, report["ok"]) == (0, True)
        for entry in report["findings"]:
            assert set(entry) == {"state", "what", "detail", "remedy", "needed"}
            assert entry["state"] == "ok" or entry["remedy"], entry
        assert "sk-secret" not in output


class TestBundle:
    @pytest.fixture
    def checkout(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        for name in ("dist/index.html", "dist/runtime/manifest.json", "core/sandport/port.py", str(bundle.BUILT)):
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            os.utime(file, (1000, 1000))
        monkeypatch.setattr(bundle, "project_root", lambda: tmp_path)
        return tmp_path

    def test_as_built(self, checkout: Path) -> None:
        assert bundle.bundle_problem(checkout / "dist") is None

    def test_older_than_its_sources(self, checkout: Path) -> None:
        os.utime(checkout / "core/sandport/port.py", (2000, 2000))
        problem = str(bundle.bundle_problem(checkout / "dist"))
        assert "older than core/sandport/port.py" in problem
        assert "./build.sh build" in problem
        os.utime(checkout / bundle.BUILT, (3000, 3000))
        assert bundle.bundle_problem(checkout / "dist") is None

    @pytest.mark.parametrize("name", ["index.html", "runtime/manifest.json"])
    def test_missing_parts(self, checkout: Path, name: str) -> None:
        (checkout / "dist" / name).unlink()
        assert "./build.sh build" in str(bundle.bundle_problem(checkout / "dist"))
