"""The page servers of every ACP session of one connection.

Invariant: an attached server has exactly one owner task, which opens and closes it; when `detach` returns, the server's
provider is out of agentpool, its connection is closed, and nothing of it is left here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig, AcpMcpTransport
from sandport_native.agentpool.current import CURRENT_SESSION
from sandport_native.agentpool.provider import PageProvider
from sandport_native.agentpool.questions import Questions

if TYPE_CHECKING:
    from agentpool.agents.base_agent import BaseAgent
    from agentpool.mcp_server.manager import MCPManager
    from agentpool_server.acp_server.session import ACPSession

log = logging.getLogger("sandport.agentpool")

HANDSHAKE_TIMEOUT = 15.0
"""Seconds for connect (5 s of it), MCP handshake and first tool list; a session start must not hang on a dead page."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A server that could not be attached, for the person to read."""

    name: str
    reason: str


@dataclass(eq=False)
class _Attached:
    provider: PageProvider
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class PageServers:
    """Attaches and detaches page servers.

    Args:
        manager: the connections of this ACP connection.
        timeout: seconds for one MCP request, so also for a tool that waits for a person.
    """

    def __init__(self, manager: AcpMcpConnectionManager, timeout: float) -> None:
        self._manager = manager
        self._timeout = timeout
        self._sessions: dict[str, list[_Attached]] = {}
        self._background: set[asyncio.Task[None]] = set()

    def names(self, session_id: str) -> list[str]:
        """The servers attached to a session."""
        return [attached.provider.server_name for attached in self._sessions.get(session_id, ())]

    async def attach(self, session: ACPSession, configs: Sequence[AcpMCPServerConfig]) -> list[Failure]:
        """Open all servers side by side and register their tools, prompts and resources for the session.

        Returns those that failed; the others work.
        """
        token = CURRENT_SESSION.set(session.session_id)
        try:
            builtin = {tool.name for tool in await session.agent.tools.builtin_provider.get_tools()}
            names = _Names(builtin)
            outcomes = await asyncio.gather(*(self._attach(session, config, names) for config in configs))
            if configs:
                try:
                    await session._register_mcp_prompts_as_commands()
                except Exception:
                    log.exception("registering the page's prompts as commands failed")
        finally:
            CURRENT_SESSION.reset(token)
        return [outcome for outcome in outcomes if outcome is not None]

    async def detach(self, session_id: str) -> None:
        """Take all servers of the session out and disconnect them; bounded by the manager's disconnect timeout."""
        attached = self._sessions.pop(session_id, [])
        for item in attached:
            item.stop.set()
        await asyncio.gather(*(item.task for item in attached if item.task is not None), return_exceptions=True)

    async def close(self) -> None:
        """Detach every session's servers."""
        await asyncio.gather(*(self.detach(session_id) for session_id in list(self._sessions)))
        for task in list(self._background):
            task.cancel()
        await self._manager.close_all()

    async def _attach(self, session: ACPSession, config: AcpMCPServerConfig, names: _Names) -> Failure | None:
        agent = session.agent
        provider = PageProvider(
            session.session_id,
            config.name,
            AcpMcpTransport(self._manager, config),
            questions=Questions(session, config.name),
            roots=[Path(session.cwd).as_uri()] if Path(session.cwd or ".").is_absolute() else [],
            timeout=self._timeout,
            owner=agent.name,
            rename=lambda tool: names.free(tool, config.name),
            refresh=self._refresh,
        )
        attached = _Attached(provider)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        attached.task = asyncio.create_task(
            self._own(attached, agent, ready), name=f"sandport page server {config.name}"
        )
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                await asyncio.shield(ready)
        except TimeoutError:
            attached.task.cancel()
            await asyncio.gather(attached.task, return_exceptions=True)
            return self._failure(config, f"no answer within {HANDSHAKE_TIMEOUT:g} s")
        except Exception as exc:
            return self._failure(config, _root_cause(exc))
        self._sessions.setdefault(session.session_id, []).append(attached)
        log.info("page server %s attached to session %s", config.name, session.session_id)
        return None

    def _failure(self, config: AcpMCPServerConfig, reason: str) -> Failure:
        log.error("page server %s could not be attached: %s", config.name, reason)
        return Failure(config.name, reason)

    async def _own(self, attached: _Attached, agent: BaseAgent[Any, Any], ready: asyncio.Future[None]) -> None:
        provider = attached.provider
        manager: MCPManager = agent.mcp
        try:
            async with provider:
                await provider.refresh_tools_cache()
                manager.providers.append(provider)
                _forward_changes(manager, provider, "connect")
                try:
                    if not ready.done():
                        ready.set_result(None)
                    await attached.stop.wait()
                finally:
                    _forward_changes(manager, provider, "disconnect")
                    manager.providers.remove(provider)
        except Exception as exc:
            if not ready.done():
                ready.set_exception(exc)
            else:
                log.exception("page server %s", provider.server_name)

    def _refresh(self, provider: PageProvider) -> None:
        task = asyncio.create_task(provider.refresh_tools_cache())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class _Names:
    """Tool names of one session: two servers may both have a `search`, a model must not."""

    def __init__(self, taken: set[str]) -> None:
        self._owner = dict.fromkeys(taken, "")

    def free(self, tool: str, server: str) -> str:
        """The tool's own name if it is free or already this server's, else one with the server's name before it."""
        for name in (tool, f"{server}_{tool}"):
            if self._owner.setdefault(name, server) == server:
                return name
        number = 2
        while self._owner.setdefault(f"{server}_{tool}_{number}", server) != server:
            number += 1
        return f"{server}_{tool}_{number}"


def _forward_changes(manager: MCPManager, provider: PageProvider, verb: Literal["connect", "disconnect"]) -> None:
    """Pass a provider's change signals on. agentpool does so only for those that are there from the start."""
    aggregate = manager.aggregating_provider
    for kind in ("tools", "prompts", "resources"):
        signal = getattr(provider, f"{kind}_changed")
        getattr(signal, verb)(getattr(aggregate, f"_forward_{kind}_changed"))


def _root_cause(error: BaseException) -> str:
    """The innermost reason of an error that came through several layers."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif error.__cause__ is not None:
            error = error.__cause__
        elif error.__context__ is not None and not error.__suppress_context__:
            error = error.__context__
    if isinstance(error, TimeoutError | asyncio.CancelledError):
        return "the page did not answer in time"
    return str(error) or type(error).__name__
