"""The tools that a person brings: texts and packages, each a FastMCP server under `user`.

Invariant: what fails to load leaves what was loaded before in place, under the same name too; two of them never provide
the same tool or module; unloading runs the lifespan to its end and forgets the code. Loads and unloads happen one after
the other, in the order in which they were asked for, and each ends.

A call goes straight to the module's own server, which knows its tools. By FastMCP's way of mounting it would pass
through both servers, each with its look-ups, contexts and middleware: a third of a small call's time.
"""

from __future__ import annotations

import asyncio
import keyword
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastmcp import FastMCP
from fastmcp.server.providers.base import Provider
from fastmcp.server.providers.fastmcp_provider import FastMCPProvider
from mcp_types import CallToolRequestParams

from sandport.host import guard_tools
from sandport_runtime._modules import Code, LoadError, Text
from sandport_runtime._packages import Package

if TYPE_CHECKING:
    from mcp.server.context import HandlerResult, ServerRequestContext
    from mcp.server.lowlevel import Server

__all__ = ["LoadError", "UserTools"]

STOP_LIMIT: Final = 5.0
"""Seconds that a lifespan has to end; after that it is cancelled, and after as many again left alone."""


@dataclass
class _Loaded:
    code: Code
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
                if not self._started.done():
                    self._started.set_result(None)
                await self._stop.wait()
        except asyncio.CancelledError:
            self._started.cancel()
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            if self._started.done():
                # The tools go, or stay, in any case.
                traceback.print_exception(exc)
            else:
                self._started.set_exception(exc)

    async def start(self) -> None:
        try:
            await self._started
        except BaseException:
            self._task.cancel()
            raise

    async def stop(self) -> None:
        self._stop.set()
        for _ in range(2):
            await asyncio.wait({self._task}, timeout=STOP_LIMIT)
            if self._task.done():
                return
            self._task.cancel()


class UserTools:
    """The code under the server `user`.

    Args:
        limit: seconds that loading may take on the whole; None for no limit. What does not give way is for the loop's
            deadline to end.
    """

    def __init__(self, limit: float | None = None) -> None:
        self._limit = limit
        self._turn = asyncio.Lock()
        self.server: FastMCP[Any] = FastMCP(
            "user", instructions="Tools that the person at the page wrote. They may change while you work."
        )
        self._loaded: dict[str, _Loaded] = {}
        self._owners: dict[str, Server[Any]] = {}
        # What FastMCP does with a call: for tools that a module added after it was loaded, and for unknown ones.
        low = self.server._mcp_server
        self._by_mounting = _call_handler(low)
        low.add_request_handler("tools/call", CallToolRequestParams, self._call)

    async def _call(self, ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> HandlerResult:
        owner = self._owners.get(params.name)
        handler = self._by_mounting if owner is None else _call_handler(owner)
        return await handler(ctx, params)

    async def load(self, name: str, source: str) -> list[str]:
        """Load a module of one text, in place of what had the name before.

        Args:
            name: an identifier; the module's name in tracebacks.
            source: Python that defines a FastMCP server `mcp`.

        Returns:
            The names of its tools.

        Raises:
            LoadError: it does not compile, raised, took too long, or has no server; or one of its tools exists already.
        """
        return await self._load(name, Text(_identifier(name), source))

    async def load_package(self, name: str, data: bytes, server: str | None = None) -> list[str]:
        """Load a wheel or a zipped folder, in place of what had the name before.

        Args:
            name: an identifier; the package's own name where the folder itself is the package.
            data: the archive.
            server: `module` or `module:attribute` of its FastMCP server; see `Package`.

        Returns:
            The names of its tools.

        Raises:
            ArchiveError: the archive cannot be unpacked.
            LoadError: as `load`; or it cannot work here, or has a module of a name that is taken.
        """
        return await self._load(name, Package(_identifier(name), data, server))

    async def _load(self, name: str, code: Code) -> list[str]:
        async with self._turn:
            before = self._loaded.get(name)
            loaded: _Loaded | None = None
            try:
                async with asyncio.timeout(self._limit):
                    code.prepare()
                    # Another step, with a limit of its own.
                    await asyncio.sleep(0)
                    if before is not None:
                        before.code.leave()
                    loaded = await self._try(name, code)
                self._swap(name, before, loaded)
            except BaseException as exc:
                code.leave()
                code.forget()
                if before is not None:
                    before.code.enter()
                if loaded is not None:
                    await loaded.lifespan.stop()
                if isinstance(exc, (KeyboardInterrupt, TimeoutError)):
                    raise LoadError(f"{name!r} did not finish loading within the time limit") from None
                raise
            if before is not None:
                await before.lifespan.stop()
                before.code.forget()
            return loaded.tools

    async def _try(self, name: str, code: Code) -> _Loaded:
        """Run code whose predecessor has left, up to the point where only its tools have to be offered."""
        others = {other: loaded for other, loaded in self._loaded.items() if other != name}
        for other, loaded in others.items():
            if taken := sorted(code.names & loaded.code.names):
                raise LoadError(f"the package {other!r} already has a module {taken[0]!r}: rename one of them")
        server = code.run()
        try:
            tools = [tool.name for tool in await server.list_tools()]
        except Exception as exc:
            raise LoadError(f"the tools of {name!r} cannot be listed: {type(exc).__name__}: {exc}") from exc
        for other, loaded in others.items():
            if taken := sorted(set(tools) & set(loaded.tools)):
                raise LoadError(f"the module {other!r} already has a tool {taken[0]!r}: rename one of them")
        lifespan = _Lifespan(server)
        try:
            await lifespan.start()
        except (Exception, SystemExit) as exc:
            raise LoadError(f"the lifespan of {name!r} failed: {type(exc).__name__}: {exc}") from exc
        return _Loaded(code, server, FastMCPProvider(server), tools, lifespan)

    def _swap(self, name: str, before: _Loaded | None, loaded: _Loaded | None) -> None:
        """Offer other tools under a name, in one step: no call finds neither."""
        providers = self.server.providers
        if loaded is not None:
            # First: it is refused where it cannot work.
            self.server.add_provider(loaded.provider)
            guard_tools(loaded.server)
        if before is not None:
            at = providers.index(before.provider)
            if loaded is not None:
                providers.insert(at, providers.pop())
            providers.remove(before.provider)
            del self._loaded[name]
            for tool in before.tools:
                self._owners.pop(tool, None)
        if loaded is not None:
            self._loaded[name] = loaded
            self._owners.update(dict.fromkeys(loaded.tools, loaded.server._mcp_server))

    async def unload(self, name: str) -> bool:
        """Take code away; False when there is none of that name."""
        async with self._turn:
            loaded = self._loaded.get(name)
            if loaded is None:
                return False
            self._swap(name, loaded, None)
            await loaded.lifespan.stop()
            loaded.code.leave()
            loaded.code.forget()
            return True


def _identifier(name: str) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise LoadError(f"{name!r} is no Python identifier: use letters, digits and underscores")
    return name


def _call_handler(low: Server[Any]) -> Callable[[Any, Any], Awaitable[HandlerResult]]:
    entry = low.get_request_handler("tools/call")
    assert entry is not None
    return entry.handler
