"""The tools that a person writes in the page: modules loaded from text, each a FastMCP server under `user`.

Invariant: a module that fails to load leaves what was loaded before in place, under the same name too; two modules
never provide the same tool; unloading runs the module's lifespan to its end and forgets the module.
"""

from __future__ import annotations

import asyncio
import linecache
import sys
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.providers.base import Provider

__all__ = ["LoadError", "UserTools"]


class LoadError(Exception):
    """A tool module could not be loaded; the text says why, and where in the module."""


@dataclass
class _Loaded:
    server: FastMCP[Any]
    provider: Provider
    tools: list[str]
    lifespan: _Lifespan


class _Lifespan:
    """A server's lifespan, entered and left in one task (its cancel scopes require that)."""

    def __init__(self, server: FastMCP[Any]) -> None:
        self._server = server
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"lifespan of {server.name}")

    async def _run(self) -> None:
        try:
            async with self._server._lifespan_manager():
                self._started.set_result(None)
                await self._stop.wait()
        except BaseException as exc:
            if not self._started.done():
                self._started.set_exception(exc)
                return
            raise

    async def start(self) -> None:
        await self._started

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(self._task, return_exceptions=True)


class UserTools:
    """The modules under the server `user`."""

    def __init__(self) -> None:
        self.server: FastMCP[Any] = FastMCP(
            "user", instructions="Tools that the person at the page wrote. They may change while you work."
        )
        self._loaded: dict[str, _Loaded] = {}

    async def load(self, name: str, source: str) -> list[str]:
        """Load a module, in place of an earlier one of the same name.

        Args:
            name: an identifier; the module's name in tracebacks.
            source: Python that defines a FastMCP server `mcp`.

        Returns:
            The names of its tools.

        Raises:
            LoadError: it does not compile, raised, or has no server; or one of its tools exists already.
        """
        if not name.isidentifier():
            raise LoadError(f"{name!r} is no Python identifier: use letters, digits and underscores")
        server = _execute(name, source)
        tools = [tool.name for tool in await server.list_tools()]
        for other, loaded in self._loaded.items():
            taken = sorted(set(tools) & set(loaded.tools))
            if other != name and taken:
                raise LoadError(f"the module {other!r} already has a tool {taken[0]!r}: rename one of them")
        lifespan = _Lifespan(server)
        try:
            await lifespan.start()
        except Exception as exc:
            raise LoadError(f"the lifespan of {name!r} failed: {type(exc).__name__}: {exc}") from exc
        await self.unload(name)
        before = len(self.server.providers)
        self.server.mount(server)
        self._loaded[name] = _Loaded(server, self.server.providers[before], tools, lifespan)
        return tools

    async def unload(self, name: str) -> bool:
        """Take a module away; False when there is none of that name."""
        loaded = self._loaded.pop(name, None)
        if loaded is None:
            return False
        self.server.providers.remove(loaded.provider)
        await loaded.lifespan.stop()
        return True


def _execute(name: str, source: str) -> FastMCP[Any]:
    """Run the module's text and return the server that it defines."""
    filename = f"<{name}>"
    module = ModuleType(f"sandport_user.{name}")
    module.__file__ = filename
    # Tracebacks then show the text's own lines.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    before = sys.modules.get(module.__name__)
    # pydantic looks annotations up in the module of that name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, filename, "exec"), module.__dict__)
        return _server_of(name, module)
    except BaseException as exc:
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
        if isinstance(exc, LoadError):
            raise
        if isinstance(exc, KeyboardInterrupt):
            raise LoadError(f"{name!r} did not finish loading within the time limit") from None
        if isinstance(exc, (Exception, SystemExit)):
            raise LoadError(_own_traceback(exc, filename)) from None
        raise


def _server_of(name: str, module: ModuleType) -> FastMCP[Any]:
    server = module.__dict__.get("mcp")
    if isinstance(server, FastMCP):
        return server
    found = [value for value in module.__dict__.values() if isinstance(value, FastMCP)]
    if len(found) == 1:
        return found[0]
    raise LoadError(
        f"{name!r} defines no server: it needs `mcp = FastMCP({name!r})` and functions with `@mcp.tool`"
        if not found
        else f"{name!r} defines {len(found)} servers: name one of them `mcp`"
    )


def _own_traceback(exc: BaseException, filename: str) -> str:
    """The traceback from the module's own first frame on: the frames before are ours and say nothing."""
    shown = traceback.TracebackException.from_exception(exc)
    for index, frame in enumerate(shown.stack):
        if frame.filename == filename:
            del shown.stack[:index]
            break
    else:
        shown.stack.clear()
    return "".join(shown.format()).rstrip()
