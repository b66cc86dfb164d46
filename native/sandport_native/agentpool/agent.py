"""agentpool's ACP agent with MCP-over-ACP: one wrap around its request handler, per connection.

Invariant: whatever is not about `acp` servers reaches agentpool as it came. A session's servers live from its start to
its close, its replacement, or the end of the connection. Turns of one agent object never overlap, and each session has
a conversation of its own, although agentpool shares the object between sessions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from acp.exceptions import RequestError
from acp.schema import (
    CancelNotification,
    CloseSessionRequest,
    ForkSessionRequest,
    ListSessionsRequest,
    ListSessionsResponse,
    ResumeSessionRequest,
)
from agentpool.messaging.message_history import MessageHistory
from agentpool_server.acp_server.acp_agent import AgentPoolACPAgent
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessagesTypeAdapter

from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig
from sandport.errors import PeerError
from sandport.rpc import Inbound
from sandport.wire import LEGACY
from sandport_native.agentpool.current import CURRENT_SESSION
from sandport_native.agentpool.outer import AgentpoolOuter
from sandport_native.agentpool.servers import Failure, PageServers
from sandport_native.agentpool.streams import REQUEST_ID_KEY, LaneOrder

if TYPE_CHECKING:
    from acp.agent.connection import AgentSideConnection
    from agentpool.agents.base_agent import BaseAgent

log = logging.getLogger("sandport.agentpool")

Handler = Callable[[str, Any, bool], Awaitable[Any]]

OPENERS = frozenset({"session/new", "session/load", "session/fork", "session/resume"})
CANCELLATIONS = frozenset({"$/cancel_request", "mcp/cancel"})
FINISH_TIMEOUT = 5.0
"""Seconds a cancelled turn gets to unwind before the next may start."""

META_KEY = "sandport"
"""In the `_meta` of a session's answer: which page servers were attached, which failed and why."""


@dataclass(eq=False)
class _Conversation:
    history: MessageHistory
    agent_session_id: str | None
    staged: list[Any] = field(default_factory=list)
    """What commands have put aside for its next prompt."""


class SandportAgent(AgentPoolACPAgent):
    """`AgentPoolACPAgent` that uses the page's servers.

    Made by `make_agent`, which also wraps the connection's handler.
    """

    mcp_over_acp: bool = False
    """Whether `acp` servers are offered and accepted. `serve-acp` turns it on; who uses the class decides."""
    private: bool = False
    """Whether `session/list` leaves out sessions that this process did not open: then only who knows the id of another
    one, which cannot be guessed, can load it."""
    mcp_timeout: float = 300.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._turn_lock = asyncio.Lock()
        self._turns: dict[str, asyncio.Task[Any]] = {}
        self._running: str | None = None
        self._cancelled: set[str] = set()
        self._conversations: dict[str, _Conversation] = {}
        self._inbound: dict[Any, Inbound] = {}
        self._notices: dict[str, list[Failure]] = {}
        self._opened: set[str] = set()

    def bind(self, connection: AgentSideConnection, order: LaneOrder) -> None:
        """Wrap the connection's handler. Once, right after the connection was made."""
        rpc = connection._conn
        self._order = order
        self.mcp = AcpMcpConnectionManager(AgentpoolOuter(rpc, order))
        self.servers = PageServers(self.mcp, self.mcp_timeout)
        self._inner: Handler = rpc._handler
        rpc._handler = self._handle

    async def shut_down(self) -> None:
        """Disconnect every server and close every session. The connection may already be gone."""
        for session_id, task in self._turns.items():
            self._cancelled.add(session_id)
            task.cancel()
        await self.servers.close()
        await self.session_manager.close_all_sessions()

    def connection_lost(self) -> None:
        """The client is gone: fail at once what waits for it, so that shutting down waits for nobody."""
        self.mcp.abandon_all()
        for inbound in self._inbound.values():
            inbound.abandon()

    # ------------------------------------------------------------ the wrap

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        fields: Mapping[str, Any] = params if isinstance(params, dict) else {}
        session_id = fields.get("sessionId")
        if isinstance(session_id, str):
            # This task handles this one message, so nothing has to set it back.
            CURRENT_SESSION.set(session_id)
        if method in CANCELLATIONS:
            self._cancel_request(fields.get("requestId"))
            return None
        if method.removeprefix("_").startswith("mcp/"):
            return await self._mcp(method, params, is_notification)
        if is_notification or not isinstance(params, dict):
            return await self._inner(method, params, is_notification)
        if method == "initialize":
            return self._with_capability(await self._inner(method, params, False))
        if method in OPENERS:
            return await self._open(method, params)
        if method == "session/prompt" and isinstance(session_id, str):
            return await self._prompt(session_id, params)
        return await self._inner(method, params, False)

    def _with_capability(self, response: Any) -> Any:
        # A dict passes through agentpool unchanged; its capability model would drop the field.
        result = response.model_dump(by_alias=True, exclude_none=True) if isinstance(response, BaseModel) else response
        capabilities = result.setdefault("agentCapabilities", {})
        if self.mcp_over_acp:
            capabilities.setdefault("mcpCapabilities", {})["acp"] = True
        # Stock agentpool implements fork but neither declares nor routes it; `_open` routes it.
        capabilities.setdefault("sessionCapabilities", {}).setdefault("fork", {})
        return result

    async def _mcp(self, method: str, params: Any, is_notification: bool) -> Any:
        if not self.mcp_over_acp:
            raise RequestError.method_not_found(method)
        if is_notification and method.removeprefix("_") == "mcp/message":
            try:
                self.mcp.handle_notification(method, params)
            except PeerError as exc:
                log.debug("dropped %s: %s", method, exc)
            finally:
                self._order.handled()
            return None
        if is_notification:
            return None
        inbound = Inbound(None, method, params)
        request_id = params.pop(REQUEST_ID_KEY, None) if isinstance(params, dict) else None
        inbound.id = request_id
        if request_id is not None:
            self._inbound[request_id] = inbound
        try:
            with inbound.scope:
                return await self.mcp.handle_request(method, params, inbound)
        except PeerError as exc:
            raise RequestError(exc.code, exc.message, exc.data) from exc
        finally:
            self._inbound.pop(request_id, None)
        raise RequestError(-32800, "Request cancelled")

    def _cancel_request(self, request_id: Any) -> None:
        inbound = self._inbound.get(request_id) if isinstance(request_id, str | int) else None
        if inbound is not None and not inbound.settled:
            inbound.settled = inbound.cancelled = True
            inbound.scope.cancel()

    # ------------------------------------------------------------ sessions

    async def _open(self, method: str, params: dict[str, Any]) -> Any:
        configs, others, skipped = self._split(params.get("mcpServers"))
        params = {**params, "mcpServers": others}
        known = params.get("sessionId") if method in ("session/load", "session/resume") else None
        if isinstance(known, str):
            # A client that came back: what runs for the old one waits for answers that will not come.
            await self._stop_turn(known)
            await self.servers.detach(known)
            response = await self._bring_back(known, method, params)
        else:
            response = await self._route(method, params)
        result = response.model_dump(by_alias=True, exclude_none=True) if isinstance(response, BaseModel) else response
        result = dict(result or {})
        session_id = known or result.get("sessionId")
        session = self.session_manager.get_session(session_id) if isinstance(session_id, str) else None
        if session is not None:
            self._opened.add(session.session_id)
        failures = list(skipped)
        if session is not None and configs:
            failures += await self.servers.attach(session, configs)
        elif configs:
            failures += [Failure(config.name, "the session could not be opened") for config in configs]
        if configs or skipped:
            attached = self.servers.names(str(session_id))
            report = [{"name": name, "status": "connected"} for name in attached]
            report += [{"name": item.name, "status": "failed", "reason": item.reason} for item in failures]
            result["_meta"] = {**(result.get("_meta") or {}), META_KEY: {"mcpServers": report}}
        if failures and isinstance(session_id, str):
            self._notices[session_id] = failures
        return result

    async def _bring_back(self, session_id: str, method: str, params: dict[str, Any]) -> Any:
        """Load or resume: the session comes back with its history, or the answer is an error that says why.

        agentpool would answer with success either way, and go on without the history.
        """
        sessions = self.session_manager
        if sessions.get_session(session_id) is None and await sessions.storage.load_session(session_id) is None:
            raise RequestError(-32002, f"agentpool's history has no session {session_id}", None)
        async with self._turn(session_id):
            with _whole_history(self.default_agent) as loads:
                response = await self._route(method, params)
        if sessions.get_session(session_id) is None or None in loads or not loads:
            await self.close_session(CloseSessionRequest(session_id=session_id))
            reason = f"agentpool could not load session {session_id} from its history; its log says why"
            raise RequestError(-32603, reason, None)
        return response

    async def _route(self, method: str, params: dict[str, Any]) -> Any:
        if method == "session/resume":
            return await self.resume_session(ResumeSessionRequest.model_validate(params))
        if method == "session/fork":
            return await self.fork_session(ForkSessionRequest.model_validate(params))
        return await self._inner(method, params, False)

    def _split(self, servers: Any) -> tuple[list[AcpMCPServerConfig], list[Any], list[Failure]]:
        """The `acp` entries as configs, the other entries as they came, and the `acp` entries that are not wanted."""
        if servers is None:
            return [], [], []
        if not isinstance(servers, list):
            raise RequestError.invalid_params({"mcpServers": "must be a list"})
        configs: list[AcpMCPServerConfig] = []
        skipped: list[Failure] = []
        others: list[Any] = []
        for entry in servers:
            if not (isinstance(entry, dict) and (entry.get("type") == "acp" or LEGACY.read_declaration(entry))):
                others.append(entry)
                continue
            name = entry.get("name")
            if not self.mcp_over_acp:
                log.warning("skipped the acp server %r: MCP-over-ACP is off", name)
                skipped.append(Failure(str(name), "MCP-over-ACP is switched off in this agent"))
                continue
            if not isinstance(name, str) or not name:
                raise RequestError.invalid_params({"mcpServers": "an acp server needs a name"})
            try:
                config = AcpMCPServerConfig.from_declaration(entry, timeout=self.mcp_timeout)
            except (PeerError, ValueError) as exc:
                raise RequestError.invalid_params({"mcpServers": f"{name}: {exc}"}) from exc
            assert config is not None
            for other in configs:
                if config.name == other.name or config.acp_id == other.acp_id:
                    raise RequestError.invalid_params({"mcpServers": f"two acp servers share a name or id: {name}"})
            configs.append(config)
        return configs, others, skipped

    async def list_sessions(self, params: ListSessionsRequest) -> ListSessionsResponse:
        """The stored sessions; of `private` agents their own alone."""
        listed = await super().list_sessions(params)
        if self.private:
            listed.sessions = [item for item in listed.sessions if item.session_id in self._opened]
        return listed

    async def close_session(self, params: CloseSessionRequest) -> Any:
        """Close a session, its page servers first: they must not see a call that is about to be cut off."""
        await self._stop_turn(params.session_id)
        await self.servers.detach(params.session_id)
        self._conversations.pop(params.session_id, None)
        self._notices.pop(params.session_id, None)
        return await super().close_session(params)

    # ------------------------------------------------------------ turns

    async def _prompt(self, session_id: str, params: dict[str, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if session_id not in self._opened:
            # agentpool would make one with this id, and write into the history of somebody else's session.
            raise RequestError(-32002, f"no session {session_id} is open here; load or resume it first", None)
        if session_id in self._turns:
            raise RequestError(-32600, "A prompt of this session is running; cancel it first", None)
        self._turns[session_id] = task
        try:
            async with self._turn(session_id):
                await self._tell_failures(session_id)
                response = await self._inner("session/prompt", params, False)
                # A tool that fails because the turn was cancelled can make agentpool end the turn in another way.
                return {"stopReason": "cancelled"} if session_id in self._cancelled else response
        except asyncio.CancelledError:
            if session_id not in self._cancelled:
                raise  # the connection ends
            return {"stopReason": "cancelled"}
        finally:
            self._turns.pop(session_id, None)
            self._cancelled.discard(session_id)

    async def _tell_failures(self, session_id: str) -> None:
        session = self.session_manager.get_session(session_id)
        failures = self._notices.pop(session_id, [])
        if session is None or not failures:
            return
        lines = [f"- **{failure.name}**: {failure.reason}" for failure in failures]
        text = "Some of the page's tools are not available:\n\n" + "\n".join(lines) + "\n\n"
        await session.notifications.send_agent_text(text)

    async def cancel(self, params: CancelNotification) -> None:
        """Cancel a session's turn, and only its own: agentpool would interrupt whatever its shared agent is doing."""
        task = self._turns.get(params.session_id)
        if task is None or params.session_id in self._cancelled:
            return
        self._cancelled.add(params.session_id)
        if self._running == params.session_id:
            await super().cancel(params)
        if not task.cancelling():  # it still waits for its turn, or agentpool has not started its stream yet
            task.cancel()

    async def _stop_turn(self, session_id: str) -> None:
        task = self._turns.get(session_id)
        if task is not None and task is not asyncio.current_task():
            await self.cancel(CancelNotification(session_id=session_id))
            await asyncio.wait([task])

    @asynccontextmanager
    async def _turn(self, session_id: str) -> AsyncIterator[None]:
        """Have the agent object for oneself, with this session's conversation in it."""
        async with self._turn_lock:
            session = self.session_manager.get_session(session_id)
            agent: BaseAgent[Any, Any] = session.agent if session is not None else self.default_agent
            own = self._conversations.get(session_id)
            # The list itself stays the agent's: commands hold on to it.
            staged = agent.staged_content._parts
            if own is None:
                # What stands there was put aside when the session was made: it is this one's.
                own = _Conversation(MessageHistory(storage=agent.conversation.storage), None, staged.copy())
                staged.clear()
            outside = _Conversation(agent.conversation, agent.session_id, staged.copy())
            agent.conversation, agent.session_id = own.history, own.agent_session_id
            staged[:] = own.staged
            self._running = session_id
            try:
                async with _finishing_streams(agent):
                    yield
            finally:
                self._running = None
                self._conversations[session_id] = _Conversation(agent.conversation, agent.session_id, staged.copy())
                agent.conversation, agent.session_id = outside.history, outside.agent_session_id
                staged[:] = outside.staged


@contextmanager
def _whole_history(agent: BaseAgent[Any, Any]) -> Iterator[list[Any]]:
    """Load histories as messages; agentpool leaves them as the plain dicts it stored, which fail in the next turn.

    Yields what each load came to: the session's data, or None for one that failed.
    """
    original = agent.load_session
    loads: list[Any] = []

    async def load_session(session_id: str) -> Any:
        loads.append(None)
        loaded = await original(session_id)
        for message in agent.conversation.chat_messages:
            if any(isinstance(part, dict) for part in message.messages):
                message.messages = ModelMessagesTypeAdapter.validate_python(message.messages)
        loads[-1] = loaded
        return loaded

    agent.load_session = load_session  # type: ignore[method-assign]
    try:
        yield loads
    finally:
        del agent.load_session


@asynccontextmanager
async def _finishing_streams(agent: BaseAgent[Any, Any]) -> AsyncIterator[None]:
    """Read agentpool's event stream to its end in the task that began it.

    A cancelled turn leaves the stream half read. The garbage collector would close it in a task of its own, where the
    cancel scopes inside cannot be left: they would then go on cancelling the task that handles the prompt, and its
    answer would never be sent. So the stream is held here and read on; with the flag set it ends by itself at once.
    """
    streams: list[Any] = []
    original = agent.run_stream

    def run_stream(*args: Any, **kwargs: Any) -> Any:
        stream = original(*args, **kwargs)
        streams.append(stream)
        return stream

    agent.run_stream = run_stream  # type: ignore[assignment]
    try:
        yield
    finally:
        del agent.run_stream
        for stream in streams:
            if inspect.getasyncgenstate(stream) != inspect.AGEN_SUSPENDED:
                continue
            await _cancel_into(stream, agent)


async def _cancel_into(stream: Any, agent: BaseAgent[Any, Any]) -> None:
    """Have a half-read stream meet the cancellation that hit its reader, and read what it still says."""
    task = asyncio.current_task()
    assert task is not None
    agent._cancelled = True
    task.cancel()  # arrives where the stream waits next: at its tool call or its model
    try:
        with anyio.move_on_after(FINISH_TIMEOUT):
            async for _ in stream:
                pass
    except (Exception, asyncio.CancelledError):
        log.debug("a cancelled turn ended badly", exc_info=True)
    finally:
        task.uncancel()
