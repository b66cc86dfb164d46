"""Who may use the gateway: checks of Host, Origin and token, without I/O.

Invariant: a request passes only if every check passes; loopback peers get no exception, because any web page that is
open in the person's browser is a loopback peer. The token is compared in constant time and never shown.

Sources: DNS rebinding needs the Host check, cross-site WebSocket needs the Origin check (CORS does not cover it).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

TOKEN_BYTES = 32
"""256 random bits for each start."""

SUBPROTOCOL = "acp.v1"

UTF8_SUBPROTOCOL = "sandport.acp.utf8"
"""Chosen where it is offered beside `SUBPROTOCOL`: a large message may then be a binary frame of its UTF-8, either way.
A browser takes 6 ms to make a text frame of 1 MB, and under 1 ms for the bytes that it has already."""
"""The subprotocol that is echoed. The token comes as a second one, because a browser can set no header here."""

TOKEN_PREFIX = "sandport.token."


SHOWN_BYTES = 100
"""How much of a stranger's header is put into the log."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was refused.

    Attributes:
        cause, remedy: what is wrong and what a person can do; safe to log and to send, and no cause holds `: `.
        got: what came instead, for the log alone.
    """

    cause: str
    remedy: str
    got: str = ""

    @property
    def reason(self) -> str:
        """`CAUSE: REMEDY`, as it is sent; a page shows each in its place."""
        return f"{self.cause}: {self.remedy}"

    def __str__(self) -> str:
        return f"{self.reason} (got {self.got})" if self.got else self.reason


def _shown(values: Sequence[str]) -> str:
    return ", ".join(repr(value[:SHOWN_BYTES]) for value in values[:3]) or "none"


def valid_token(token: str) -> bool:
    """Whether it has at least 128 bits at best, and only what may stand in a subprotocol's name."""
    return re.fullmatch(r"[A-Za-z0-9_.~-]{22,512}", token) is not None


def new_token() -> str:
    """A fresh token, URL-safe and valid inside a subprotocol name."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def host_of(origin: str) -> str:
    """The Host header a browser sends to this origin, e.g. `https://a.example` -> `a.example`.

    Raises:
        ValueError: not an http(s) origin, or it carries a path, query or user.
    """
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{origin!r} is not an origin like https://sandport.example")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{origin!r} must be an origin alone, without path or query")
    return parts.netloc.lower()


def _other_scheme(origin: str) -> str:
    scheme, _, rest = origin.partition("://")
    return f"{'http' if scheme == 'https' else 'https'}://{rest}"


class Access:
    """The gateway's door.

    Args:
        origins: the addresses under which the gateway is reached, e.g. `http://127.0.0.1:8765`. Their hosts are the
            accepted Host headers, they themselves the accepted Origins.
        token: what a socket must present.
        extra_origins: further pages that may open the socket; `"null"` opts in to opaque origins.
        public: those of a proxy, accepted like `origins`, but only together with their own Host.
    """

    def __init__(
        self, origins: Iterable[str], token: str, extra_origins: Iterable[str] = (), public: Iterable[str] = ()
    ) -> None:
        self._public = frozenset(origin.rstrip("/").lower() for origin in public)
        own = [*(origin.rstrip("/").lower() for origin in origins), *self._public]
        self._origin_by_host = {host_of(origin): origin for origin in own}
        self._origins = {*own, *(origin.rstrip("/").lower() for origin in extra_origins)}
        self._token = hashlib.sha256(token.encode()).digest()

    def origin_for(self, host: str) -> str:
        """The origin served under this Host header. Call only after `check_host` has passed."""
        return self._origin_by_host[host.lower()]

    def check_host(self, hosts: Sequence[str]) -> Refusal | None:
        """Check the request's Host headers; exactly one known host passes."""
        if len(hosts) != 1 or hosts[0].lower() not in self._origin_by_host:
            return Refusal(
                "unknown Host",
                "open the address that sandport printed at its last start; a proxy must pass the Host on, and "
                "--public-url must name it",
                f"Host {_shown(hosts)}",
            )
        return None

    def check_socket(self, hosts: Sequence[str], origins: Sequence[str], subprotocols: Sequence[str]) -> Refusal | None:
        """Check an upgrade to the agent's WebSocket.

        A missing Origin is accepted, since only programs that are no browsers omit it and the token still holds.
        `Origin: null` (sandboxed frames, file: pages) is an origin like any other and must be listed.
        """
        refusal = self.check_host(hosts)
        if refusal is not None:
            return refusal
        got = f"Origin {_shown(origins)}, Host {_shown(hosts)}"
        if len(origins) > 1 or (origins and origins[0].lower() not in self._origins):
            if len(origins) == 1 and _other_scheme(origins[0].lower()) in self._origins:
                why = "--public-url says http where the page has https, or the reverse; start sandport with the other"
                return Refusal("foreign Origin", why, got)
            why = "open the address that sandport printed, or start it with --allow-origin and this page's address"
            return Refusal("foreign Origin, this page may not use the agent", why, got)
        if origins and (origin := origins[0].lower()) in self._public and origin != self.origin_for(hosts[0]):
            return Refusal(
                "the Host is not that of the page",
                "the proxy must pass it on (nginx: proxy_set_header Host $http_host)",
                got,
            )
        tokens = [name.removeprefix(TOKEN_PREFIX) for name in subprotocols if name.startswith(TOKEN_PREFIX)]
        # Both sides are hashed first, so neither length nor content shows in the time taken.
        given = hashlib.sha256(tokens[0].encode("utf-8", "surrogateescape") if len(tokens) == 1 else b"").digest()
        if not hmac.compare_digest(given, self._token) or len(tokens) != 1:
            return Refusal("missing or wrong token", "open the address that sandport printed at its last start")
        if SUBPROTOCOL not in subprotocols:
            return Refusal(f"the subprotocol {SUBPROTOCOL} was not offered", "offer it beside the token")
        return None
