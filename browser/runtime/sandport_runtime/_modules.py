"""What tools are made of: Python that is run in the sandbox, of one text or of a package (`_packages`).

Invariant: `leave` takes out of the interpreter all that `run` and `enter` put there, and `enter` puts the same back; so
the next version of some code can be tried, and the one before comes back when it fails.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Protocol

from fastmcp import FastMCP

__all__ = ["NAMESPACE", "Code", "LoadError", "Text", "explained", "only_server"]

NAMESPACE = "sandport_user"
"""Modules made of texts are called `sandport_user.NAME`."""


class LoadError(Exception):
    """Tools could not be loaded; the text says why, and where in their code."""


class Code(Protocol):
    """Python that defines a FastMCP server."""

    @property
    def names(self) -> frozenset[str]:
        """The top-level modules that it brings, and that no other code may bring."""

    def prepare(self) -> None:
        """Do what can be done before code of the same name has left; nothing of this code runs.

        Raises:
            LoadError: it cannot work here.
        """

    def run(self) -> FastMCP[Any]:
        """Run it, and find its server.

        Raises:
            LoadError: it does not compile, raised, was interrupted, or has no server.
        """

    def leave(self) -> None:
        """Take its modules out of the interpreter. Idempotent; also after a `run` that failed."""

    def enter(self) -> None:
        """Put the modules back that `leave` took out. Idempotent."""

    def forget(self) -> None:
        """Remove what is left of it after `leave`: its files."""


class Text:
    """A module of one text.

    Args:
        name: an identifier; the module's name in tracebacks.
        source: its Python.
    """

    def __init__(self, name: str, source: str) -> None:
        self.names: frozenset[str] = frozenset()
        self._name = name
        self._source = source
        self._filename = f"<{name}>"
        self._module = ModuleType(f"{NAMESPACE}.{name}")
        self._module.__file__ = self._filename

    def prepare(self) -> None:
        """See `Code.prepare`: there is nothing to do."""

    def run(self) -> FastMCP[Any]:
        """See `Code.run`."""
        self.enter()
        try:
            exec(compile(self._source, self._filename, "exec"), self._module.__dict__)
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            raise explained(self._name, exc, self._filename.__eq__) from None
        return only_server(self._name, [self._module])

    def enter(self) -> None:
        """See `Code.enter`."""
        # pydantic looks annotations up in the module of that name; tracebacks show the text's own lines.
        sys.modules[self._module.__name__] = self._module
        lines = self._source.splitlines(keepends=True)
        linecache.cache[self._filename] = (len(self._source), None, lines, self._filename)

    def leave(self) -> None:
        """See `Code.leave`."""
        sys.modules.pop(self._module.__name__, None)
        linecache.cache.pop(self._filename, None)

    def forget(self) -> None:
        """See `Code.forget`: there are no files."""


def only_server(name: str, modules: Iterable[ModuleType]) -> FastMCP[Any]:
    """The server that the modules define: the one called `mcp`, or the only one.

    Raises:
        LoadError: there is none, or there are several.
    """
    called: dict[int, FastMCP[Any]] = {}
    found: dict[int, FastMCP[Any]] = {}
    for module in modules:
        for key, value in module.__dict__.items():
            if isinstance(value, FastMCP):
                found[id(value)] = value
                if key == "mcp":
                    called[id(value)] = value
    for servers in (called, found):
        if len(servers) == 1:
            return next(iter(servers.values()))
    raise LoadError(
        f"{name!r} defines no server: it needs `mcp = FastMCP({name!r})` and functions with `@mcp.tool`"
        if not found
        else f"{name!r} defines {len(found)} servers: name one of them `mcp`"
    )


def explained(name: str, exc: BaseException, own: Callable[[str], bool]) -> LoadError:
    """What code raised while it was loaded, as an error for whoever wrote it.

    Args:
        name: what the code is called.
        exc: what it raised; an interrupt means that its time was up.
        own: whether a file's name is one of the code's. The traceback begins there: frames before are ours and say
            nothing.
    """
    if isinstance(exc, KeyboardInterrupt):
        return LoadError(f"{name!r} did not finish loading within the time limit")
    shown = traceback.TracebackException.from_exception(exc)
    first = next((index for index, frame in enumerate(shown.stack) if own(frame.filename)), len(shown.stack))
    del shown.stack[:first]
    # Between two modules lies the machinery that imports; Python's own tracebacks leave it out too.
    shown.stack[:] = [frame for frame in shown.stack if not frame.filename.startswith("<frozen importlib")]
    return LoadError("".join(shown.format()).rstrip())
