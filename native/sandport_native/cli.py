"""The command `sandport`.

Invariant: this module imports only what `--help` needs; each command imports its own part, so that the gateway never
needs agentpool and agentpool's environment never needs the gateway.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

try:
    import click
except ModuleNotFoundError:
    raise SystemExit("sandport: the command line needs further packages: pip install 'sandport[native]'") from None

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
@click.version_option(package_name="sandport", prog_name="sandport")
def main() -> None:
    """Sandport lends Python tools that live in a browser page to an AI agent, through ACP itself.

    Start with `sandport serve`: it prints the address of a page whose tools the agent can use.
    `sandport doctor` says what is installed here and what is missing.
    """


@main.command()
@click.option("--agent", "agent", metavar="COMMAND", help="Command line of any ACP agent. Default: the demo agent.")
@click.option(
    "--config",
    "config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with several agents to choose from ([agents.NAME] command, env, cwd).",
)
@click.option("--model", metavar="MODEL", help="Model of the demo agent, e.g. openai:gpt-5. Default: a script, no LLM.")
@click.option("--dist", type=click.Path(file_okay=False, path_type=Path), help="The built bundle. Default: dist/.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default="a free one", type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Speak TLS with this certificate and its chain (PEM). SIGHUP reads it anew.",
)
@click.option(
    "--tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The certificate's private key (PEM, no passphrase). Default: in --tls-cert too.",
)
@click.option(
    "--allow-remote", is_flag=True, help="Allow plain HTTP on a --host that is not loopback; TLS needs no such leave."
)
@click.option(
    "--public-url",
    "public_urls",
    multiple=True,
    metavar="URL",
    help="Address at which people open the page when it is not the gateway's own, e.g. that of a reverse proxy. "
    "Repeatable; the first is printed.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Another page that may open the socket, e.g. https://app.example; `null` for pages without an origin. "
    "Repeatable.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--max-sockets", default=128, show_default=True, type=click.IntRange(1), help="Pages, and so agents, at once."
)
@click.option(
    "--max-message",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    metavar="MIB",
    help="Largest message in either direction, in MiB.",
)
@click.option(
    "--ping",
    default=20.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="Time between WebSocket pings. A proxy must be silent for longer before it gives a socket up.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Fixed token, for several gateways behind one balancer (see `sandport token`). Default: a fresh one for each "
    "start.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The log on stderr: for people, or one JSON object a line.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
def serve(
    agent: str | None,
    config: Path | None,
    model: str | None,
    dist: Path | None,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    allow_remote: bool,
    public_urls: tuple[str, ...],
    origins: tuple[str, ...],
    open_browser: bool,
    max_sockets: int,
    max_message: int,
    ping: float,
    token_file: Path | None,
    log_format: Literal["text", "json"],
    verbose: bool,
) -> None:
    """Serve the page and its WebSocket to an agent from one origin.

    Prints one line with the address to open; it holds a token that is new for each start. Each open page gets an agent
    process of its own, which ends with the page. Stop with Ctrl-C.

    \b
    sandport serve                                 the demo agent, a free port
    sandport serve --open --agent 'AGENT --acp'    any other ACP agent
    sandport serve --config sandport.toml          several, and the page chooses
    """
    import anyio

    from sandport_native.agents import AgentConfigError, default_dist, demo_agent, load_agents, parse_command
    from sandport_native.gateway.app import Agents
    from sandport_native.gateway.server import Settings, SettingsError
    from sandport_native.gateway.server import serve as run
    from sandport_native.gateway.tls import Certificate
    from sandport_native.log import configure, redactor
    from sandport_native.process import AgentSpec

    configure(log_format, logging.DEBUG if verbose else logging.INFO)
    if sum(value is not None for value in (agent, config, model)) > 1:
        raise click.UsageError(
            "--agent, --config and --model exclude each other: --model is the demo agent's, --config names several"
        )
    if tls_key is not None and tls_cert is None:
        raise click.UsageError("--tls-key also needs --tls-cert, the certificate that belongs to the key")
    try:
        if config is not None:
            specs = load_agents(config)
            for spec in specs.values():
                for value in spec.env.values():
                    redactor.add(value)
        elif agent is not None:
            command = parse_command(agent)
            specs = {"agent": AgentSpec(Path(command[0]).name, command)}
        else:
            specs = {"demo": demo_agent(model)}
        settings = Settings(
            Agents(specs),
            dist if dist is not None else default_dist(),
            host=host,
            port=port,
            public_urls=public_urls,
            allow_origins=origins,
            allow_remote=allow_remote,
            certificate=Certificate(tls_cert, tls_key) if tls_cert is not None else None,
            open_browser=open_browser,
            max_sockets=max_sockets,
            max_message=max_message * 1024 * 1024,
            ping=ping,
            token=_read_token(token_file) if token_file is not None else None,
        )
        anyio.run(run, settings, _announce)
    except (AgentConfigError, SettingsError) as exc:
        raise click.ClickException(str(exc)) from exc


def _announce(line: str) -> None:
    click.echo(line)


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise click.ClickException(f"--token-file {file}: {why}; it must be readable by this user") from exc


@main.command()
def token() -> None:
    """Print a new token for --token-file.

    \b
    (umask 077; sandport token > token)
    sandport serve --token-file token
    """
    from sandport_native.gateway.access import new_token

    click.echo(new_token())


@main.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Look at the agents of this file too, as `serve --config` would.",
)
@click.option("--dist", type=click.Path(file_okay=False, path_type=Path), help="The built bundle. Default: dist/.")
@click.option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Look at this certificate too, as `serve --tls-cert` would.",
)
@click.option("--tls-key", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Its private key.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object: ok, and findings with state, what, detail, remedy."
)
def doctor(config: Path | None, dist: Path | None, tls_cert: Path | None, tls_key: Path | None, as_json: bool) -> None:
    """Say what is installed, what would work, and what to do about the rest.

    It changes nothing and needs no network. Exit status 1 if something is missing or wrong that `sandport serve` needs,
    or that you named with an option; else 0.
    """
    from sandport_native.doctor import examine, report

    findings = []
    for finding in examine(config=config, dist=dist, cert=tls_cert, key=tls_key):
        findings.append(finding)
        if not as_json:
            click.echo(str(finding))
    if as_json:
        click.echo(report(findings))
    if any(finding.failed for finding in findings):
        raise SystemExit(1)


@main.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
def bridge(command: tuple[str, ...], verbose: bool) -> None:
    """Give an ACP agent on stdio the page tools of its client, when it has no MCP-over-ACP of its own.

    \b
    sandport bridge -- fast-agent acp --model passthrough

    Start it where you would start the agent: ACP on stdin and stdout, logs and the agent's own words on stderr. The
    client sees the capability `acp`; the agent sees ordinary MCP servers on loopback (or on stdio when it knows no
    HTTP). An agent that has MCP-over-ACP is passed through untouched. `sandport serve` does this by itself.

    \b
    Exit status: 0    the client left (end of stdin)
                 N    the agent ended by itself, with its status (128 + the number of a signal)
                 1    the agent ended before it had answered `initialize`
                 2    wrong usage
                 127  the command cannot be started
    """
    import anyio

    from sandport_native.bridge.stdio import run
    from sandport_native.log import configure
    from sandport_native.process import AgentSpec, AgentStartError
    from sandport_native.stdio import StdoutStream

    stdout = StdoutStream()
    configure(level=logging.DEBUG if verbose else logging.INFO)
    try:
        status = anyio.run(run, AgentSpec(Path(command[0]).name, command), stdout)
    except AgentStartError as exc:
        click.echo(f"Error: {exc}", err=True)
        status = 127
    raise SystemExit(status)


@main.group()
def agentpool() -> None:
    """Stock agentpool with MCP-over-ACP. Runs in the environment that has agentpool 2.9.18."""


@agentpool.command()
def check() -> None:
    """Check that the installed agentpool is one this add-on knows. Exit status 1 and a reason if not."""
    from sandport_native.agentpool.guard import UnknownAgentpoolError, check_agentpool

    try:
        click.echo(check_agentpool())
    except UnknownAgentpoolError as exc:
        raise click.ClickException(str(exc)) from exc


@agentpool.command("serve-acp")
@click.argument("config", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--agent", "agent", metavar="NAME", help="The agent of CONFIG to serve. Default: the pool's main agent.")
@click.option("--demo", is_flag=True, help="Serve the built-in demo agent; it needs no CONFIG and no key.")
@click.option(
    "--model", metavar="MODEL", help="Any model agentpool knows, e.g. openai:gpt-5; replaces the agent's own."
)
@click.option(
    "--mcp-over-acp/--no-mcp-over-acp",
    default=True,
    show_default=True,
    help="Offer and accept `acp` servers.",
)
@click.option("--private", is_flag=True, help="List no session that another process opened.")
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log there. Default: agentpool's log."
)
def serve_acp(
    config: Path | None,
    agent: str | None,
    demo: bool,
    model: str | None,
    mcp_over_acp: bool,
    private: bool,
    log_file: Path | None,
) -> None:
    """Serve an agentpool agent over ACP on stdin and stdout, with native MCP-over-ACP.

    \b
    sandport agentpool serve-acp agents.yml --agent helper
    sandport agentpool serve-acp --demo
    sandport agentpool serve-acp --demo --model openai:gpt-5
    """
    from sandport_native.agentpool.guard import UnknownAgentpoolError, check_agentpool

    if demo == (config is not None):
        raise click.UsageError("give either CONFIG or --demo")
    try:
        check_agentpool()
    except UnknownAgentpoolError as exc:
        raise click.ClickException(str(exc)) from exc
    from sandport_native.agentpool.serve import ServeOptions, run

    raise SystemExit(run(ServeOptions(config, agent, model, mcp_over_acp, log_file, private=private)))
