"""Running the gateway: address, token, signals, shutdown.

Invariant: the token leaves this process on stdout only (and in a private file for the browser that `--open` starts);
after `serve` returns no agent is running.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import resource
import signal
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvicorn

from sandport_native.agents import command_problem
from sandport_native.bundle import bundle_problem
from sandport_native.gateway.access import Access, host_of, new_token, valid_token
from sandport_native.gateway.app import MAX_SOCKETS, Agents, Gateway
from sandport_native.gateway.tls import Certificate, CertificateError
from sandport_native.http import ListenError, QuietServer, listen
from sandport_native.lines import MAX_LINE_BYTES
from sandport_native.log import redactor

log = logging.getLogger("sandport.gateway")

PING_INTERVAL = 20.0
"""Seconds between WebSocket pings. Browsers answer them below the page, so a hidden tab stays connected and proxies
see traffic."""

PING_TIMEOUT = 60.0
"""Seconds without a pong after which the socket counts as dead. A laptop that slept is dead; a busy one is not."""

FRAME_SLACK = 16 * 1024 * 1024
"""A frame up to this much over the message limit is still read, to answer it with an error; beyond, the socket is
closed with 1009."""

HTTP_GRACE = 3
"""Seconds running downloads get at shutdown."""


DESCRIPTORS = 6
"""File descriptors that a socket needs: its own, three pipes, the agent's process, and one while it is started."""

SPARE_DESCRIPTORS = 64
"""Those of the gateway itself, of downloads, and of requests that are refused."""


class SettingsError(ValueError):
    """The settings contradict each other; the text says how to mend it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `sandport serve` needs to know.

    Args:
        agents: the agents to offer.
        dist: the built bundle.
        host, port: where to listen; port 0 takes a free one.
        public_urls: addresses under which a reverse proxy publishes the gateway.
        allow_origins: further origins that may open the socket, `"null"` included.
        allow_remote: opt in to plain HTTP on a host other than loopback.
        certificate: speak TLS itself.
        open_browser: open the page when ready.
        max_sockets, max_message: limits, see `Gateway`.
        ping: seconds between WebSocket pings, see `PING_INTERVAL`.
        token: fixed token for several gateways behind a balancer; None makes a fresh one.
    """

    agents: Agents
    dist: Path
    host: str = "127.0.0.1"
    port: int = 0
    public_urls: Sequence[str] = field(default_factory=tuple)
    allow_origins: Sequence[str] = field(default_factory=tuple)
    allow_remote: bool = False
    certificate: Certificate | None = None
    open_browser: bool = False
    max_sockets: int = MAX_SOCKETS
    max_message: int = MAX_LINE_BYTES
    ping: float = PING_INTERVAL
    token: str | None = None

    def validate(self) -> None:
        """Raises SettingsError when the settings would be unsafe or can not work."""
        for url in self.public_urls:
            try:
                host_of(url)
            except ValueError as exc:
                raise SettingsError(f"--public-url: {exc}") from exc
        for origin in self.allow_origins:
            try:
                if origin != "null":
                    host_of(origin)
            except ValueError as exc:
                raise SettingsError(f"--allow-origin: {exc}") from exc
        if self.certificate is not None:
            try:
                self.certificate.check()
            except CertificateError as exc:
                raise SettingsError(f"TLS: {exc}") from exc
        elif not is_loopback(self.host) and not self.allow_remote:
            raise SettingsError(
                f"--host {self.host} is not loopback: all who can reach it could try the agent, and read along, over "
                "plain HTTP. Keep 127.0.0.1 and put a TLS reverse proxy in front, or give --tls-cert and --tls-key, "
                "or add --allow-remote if you accept that."
            )
        if is_wildcard(self.host) and not self.public_urls:
            raise SettingsError(f"--host {self.host} also needs --public-url, the address people will open")
        if self.token is not None and not valid_token(self.token):
            raise SettingsError(
                "the token must have at least 128 random bits: 22 or more letters, digits, - or _ and nothing else; "
                "`sandport token` makes one"
            )


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of the machine, so that nobody can open it by that name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether the host name or address can only be reached from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def own_origins(host: str, port: int, scheme: str = "http") -> list[str]:
    """The origins under which a server bound to host and port is reached on this machine."""
    # Who listens everywhere listens on loopback too, and no browser opens 0.0.0.0.
    names = [] if is_wildcard(host) else [f"[{host.strip('[]')}]" if ":" in host else host]
    if is_loopback(host) or not names:
        names += [name for name in ("127.0.0.1", "localhost", "[::1]") if name not in names]
    suffix = "" if port == (443 if scheme == "https" else 80) else f":{port}"
    return [f"{scheme}://{name}{suffix}" for name in names]


def reserve_descriptors(max_sockets: int) -> None:
    """Raise this process's soft limit of open files to what that many sockets need.

    Raises:
        SettingsError: the hard limit is lower.
    """
    need = DESCRIPTORS * max_sockets + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise SettingsError(
            f"--max-sockets {max_sockets} needs {need} open files and this user may have {hard}: raise the limit "
            f"(`ulimit -n {need}`, in systemd LimitNOFILE={need}) or take --max-sockets "
            f"{max(1, (hard - SPARE_DESCRIPTORS) // DESCRIPTORS)}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


async def serve(settings: Settings, announce: Callable[[str], None] = print) -> None:
    """Serve until SIGINT or SIGTERM; then close all sockets with 1001 and end all agents.

    Args:
        settings: see `Settings`.
        announce: gets the one line with the address and the token.

    Raises:
        SettingsError: the settings are unsafe, or the address is in use.
    """
    settings.validate()
    reserve_descriptors(settings.max_sockets)
    token = settings.token or new_token()
    redactor.add(token)
    try:
        listener = listen(settings.host, settings.port)
    except ListenError as exc:
        raise SettingsError(str(exc)) from exc
    with listener as sock:
        port = sock.getsockname()[1]
        certificate = settings.certificate
        origins = own_origins(settings.host, port, "http" if certificate is None else "https")
        gateway = Gateway(
            Access(origins, token, settings.allow_origins, settings.public_urls),
            settings.agents,
            settings.dist,
            max_sockets=settings.max_sockets,
            max_message=settings.max_message,
        )
        server = QuietServer(
            uvicorn.Config(
                gateway.app,
                ssl_certfile=certificate.cert if certificate is not None else None,
                ssl_keyfile=certificate.key if certificate is not None else None,
                ws="websockets-sansio",
                ws_max_size=settings.max_message + FRAME_SLACK,
                ws_ping_interval=settings.ping,
                ws_ping_timeout=PING_TIMEOUT,
                ws_per_message_deflate=False,  # on loopback it only costs time and memory
                access_log=False,
                log_config=None,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=HTTP_GRACE,
                # The Host header decides what is served, so no forwarded header may change what we see.
                proxy_headers=False,
            )
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch_signals, gateway, server, certificate)
            tasks.start_soon(_announce_when_ready, server, settings, origins, token, announce)
            try:
                await server.serve([sock])
            finally:
                with anyio.CancelScope(shield=True):
                    await gateway.stop()
                tasks.cancel_scope.cancel()


async def _watch_signals(gateway: Gateway, server: QuietServer, certificate: Certificate | None) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    with anyio.open_signal_receiver(*numbers) as signals:
        async for number in signals:
            if server.should_exit:
                server.force_exit = True
                continue
            if number == signal.SIGHUP and certificate is not None:
                _renew(certificate, server)
                continue
            log.info("stopping: %d sockets open", gateway.open_sockets)
            # Ours first: uvicorn would close the sockets with 1012 and cut off the reason.
            await gateway.stop()
            server.should_exit = True


def _renew(certificate: Certificate, server: QuietServer) -> None:
    """Read the certificate anew; open connections keep theirs, and a bad one leaves the old in force."""
    try:
        certificate.check()
        context = server.config.ssl
        assert context is not None
        certificate.load_into(context)
    except CertificateError as exc:
        log.error("the certificate was not renewed: %s", exc)
    else:
        log.info("the certificate was read anew")


async def _announce_when_ready(
    server: QuietServer, settings: Settings, origins: Sequence[str], token: str, announce: Callable[[str], None]
) -> None:
    await server.ready.wait()
    address = f"{settings.public_urls[0].rstrip('/') if settings.public_urls else origins[0]}/#token={token}"
    announce(f"Sandport is ready: {address}")
    problems = [bundle_problem(settings.dist), *map(command_problem, settings.agents.specs.values())]
    for problem in filter(None, problems):
        log.warning("%s", problem)
    if Path.cwd() == Path("/") and any(spec.cwd is None for spec in settings.agents.specs.values()):
        log.warning("agents work on the root folder, where this was started: start it elsewhere, or give each a cwd")
    for url in settings.public_urls:
        if url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
            log.warning("%s is plain HTTP: browsers deny such a page what the sandbox needs; publish it by https", url)
    if settings.open_browser:
        with _private_redirect(address) as page:
            opened = await anyio.to_thread.run_sync(webbrowser.open, page.as_uri())
            if not opened:
                log.warning("no browser could be opened; open the address yourself")
            await anyio.sleep_forever()  # the browser reads the file when it likes


@contextlib.contextmanager
def _private_redirect(address: str) -> Iterator[Path]:
    """A file only this user can read that sends a browser to the address: an argument would show in `ps`."""
    descriptor, name = tempfile.mkstemp(prefix="sandport-", suffix=".html", dir=os.environ.get("XDG_RUNTIME_DIR"))
    page = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(
                '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                f'<title>Sandport</title><meta http-equiv="refresh" content="0; url={address}">'
            )
        yield page
    finally:
        page.unlink(missing_ok=True)
