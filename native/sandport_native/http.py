"""uvicorn as a part of a program: a socket of one's own, no signal handlers, and an event when it accepts."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import anyio
import uvicorn


class ListenError(OSError):
    """The address is in use or not ours; the text names it."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ListenError: the address is in use or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts. Without, each small message that follows
    # another waits for its acknowledgement, 40 ms a turn.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host.strip("[]"), port))
    except OSError as exc:
        sock.close()
        raise ListenError(f"cannot listen on {host}:{port}: {exc.strerror}; {_remedy(exc)}") from exc
    sock.listen(128)
    sock.setblocking(False)
    return sock


def _remedy(exc: OSError) -> str:
    match exc.errno:
        case errno.EADDRINUSE:
            return "another program has it: stop that one, or take another --port (0 for a free one)"
        case errno.EACCES | errno.EPERM:
            return "ports below 1024 belong to root: take a higher --port and let a proxy listen on the low one"
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address: see `ip address`, or keep --host 127.0.0.1"
        case _:
            return "--host must be an address of this machine, such as 127.0.0.1"


class QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers, with an event when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()
