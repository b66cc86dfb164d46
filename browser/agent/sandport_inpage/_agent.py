"""The ACP agent: sessions, their turns, and what is kept of them.

Invariants: a session has one turn at a time, and a turn ends with exactly one answer to its `session/prompt`. What a
turn completed is kept, also when it was stopped or failed. Servers belong to one session on one connection, and are
closed with either.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import uuid4

import anyio
from acp import run_agent, text_block, tool_content, update_agent_message_text, update_user_message_text
from acp.exceptions import RequestError
from acp.interfaces import Agent as AcpAgent
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AgentThoughtChunk,
    ClientCapabilities,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionDeleteCapabilities,
    SessionForkCapabilities,
    SessionInfo,
    SessionInfoUpdate,
    SessionListCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
    ToolCallStart,
)
from pydantic_ai import Agent, AgentRunResultEvent, BinaryContent, UsageLimits
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelHTTPError,
    RunCancelled,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.messages import (
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from sandport.agent import AcpMcpConnectionManager, AcpMCPServerConfig
from sandport.channel import Channel
from sandport.rpc import Inbound, Peer
from sandport.wire.errors import PeerError
from sandport_inpage._lanes import DECLARED, PREFIX, AcpTransport, Lanes
from sandport_inpage._models import ModelChoice
from sandport_inpage._place import PAGE, Place
from sandport_inpage._questions import Questions
from sandport_inpage._store import Head, SessionStore, StoreError
from sandport_inpage._tools import CALL_TIMEOUT, Failure, LentTools, PlanTool, Servers
from sandport_inpage._turn import MODES, Turn

__all__ = ["serve_agent"]

logger = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 1
FORMAT: Final = 1
"""Version of a kept session's text; another one is refused, not guessed at."""
META: Final = "sandport"
"""In the `_meta` of a session's answer: which lent servers are connected, which failed and why."""
MAX_STEPS: Final = 50
"""Requests to the model in one turn: an agent that goes round in circles ends, and says so."""
MAX_TITLE: Final = 60


@dataclass(eq=False)
class _Session:
    id: str
    cwd: str
    mode: str
    servers: Servers = field(init=False)
    title: str | None = None
    updated: str = field(default_factory=lambda: _now())
    messages: list[ModelMessage] = field(default_factory=list)
    always: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    turn: Turn | None = None
    stop: Callable[[], None] | None = None
    """Stops the running turn."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no turn runs."""

    def __post_init__(self) -> None:
        self.over.set()

    @property
    def head(self) -> Head:
        return {"sessionId": self.id, "cwd": self.cwd, "title": self.title, "updatedAt": self.updated}


class _InPageAgent:
    """The agent on one connection. Its methods are those of `acp.interfaces.Agent`."""

    def __init__(
        self, manager: AcpMcpConnectionManager, store: SessionStore, model: Callable[[], ModelChoice], place: Place
    ) -> None:
        self._manager = manager
        self._place = place
        self._store = store
        self._model = model
        self._sessions: dict[str, _Session] = {}
        self._runner: Agent[Turn, str] = Agent(deps_type=Turn, output_type=str)
        self._client: Client | None = None
        self._shows: ClientCapabilities | None = None

    def on_connect(self, conn: Client) -> None:
        """The SDK's connection to the client is there."""
        self._client = conn

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def aclose(self) -> None:
        """The connection ended: stop all turns and leave all servers."""
        for session in self._sessions.values():
            if session.stop is not None:
                session.stop()
        await asyncio.gather(*(session.servers.aclose() for session in self._sessions.values()))

    # -- the connection

    async def initialize(
        self, protocol_version: int, client_capabilities: ClientCapabilities | None = None, **_: Any
    ) -> InitializeResponse:
        self._shows = client_capabilities
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=Implementation(name=self._place.name, title=self._place.title, version="0.1.0"),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(image=True, audio=False, embedded_context=True),
                mcp_capabilities=McpCapabilities(http=False, sse=False, acp=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    fork=SessionForkCapabilities(),
                    close=SessionCloseCapabilities(),
                    delete=SessionDeleteCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    async def authenticate(self, method_id: str, **_: Any) -> None:
        raise RequestError.invalid_params({"methodId": "this agent needs no authentication"})

    # -- sessions

    async def new_session(self, cwd: str, mcp_servers: Any = None, **meta: Any) -> NewSessionResponse:
        session = self._open(uuid4().hex, cwd)
        report = await self._attach(session, mcp_servers, meta)
        return NewSessionResponse(session_id=session.id, modes=self._modes(session), field_meta=report)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Any = None, **meta: Any
    ) -> LoadSessionResponse:
        session = await self._take_up(session_id, cwd)
        await self._replay(session)
        report = await self._attach(session, mcp_servers, meta)
        return LoadSessionResponse(modes=self._modes(session), field_meta=report)

    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Any = None, **meta: Any
    ) -> ResumeSessionResponse:
        session = await self._take_up(session_id, cwd)
        report = await self._attach(session, mcp_servers, meta)
        return ResumeSessionResponse(modes=self._modes(session), field_meta=report)

    async def fork_session(
        self, session_id: str, cwd: str, mcp_servers: Any = None, **meta: Any
    ) -> ForkSessionResponse:
        origin = self._sessions.get(session_id) or await self._kept(session_id)
        session = self._open(uuid4().hex, cwd)
        session.messages, session.mode, session.title = list(origin.messages), origin.mode, origin.title
        await self._keep(session)
        report = await self._attach(session, mcp_servers, meta)
        return ForkSessionResponse(session_id=session.id, modes=self._modes(session), field_meta=report)

    async def list_sessions(self, cwd: str | None = None, **_: Any) -> ListSessionsResponse:
        try:
            heads = await self._store.list()
        except StoreError as error:
            raise _failed(f"The kept sessions cannot be read: {error}") from error
        chosen = [head for head in heads if cwd is None or head["cwd"] == cwd]
        chosen.sort(key=lambda head: head["updatedAt"], reverse=True)
        return ListSessionsResponse(
            sessions=[
                SessionInfo(
                    session_id=head["sessionId"],
                    cwd=head["cwd"],
                    title=head["title"],
                    updated_at=head["updatedAt"],
                )
                for head in chosen
            ]
        )

    async def close_session(self, session_id: str, **_: Any) -> None:
        await self._close(self._find(session_id))

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> None:
        session = self._find(session_id)
        if mode_id not in MODES:
            raise RequestError.invalid_params({"modeId": f"there are {', '.join(sorted(MODES))}"})
        session.mode = mode_id
        if session.turn is not None:
            session.turn.mode = mode_id

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method != "session/delete":
            raise RequestError.method_not_found(f"_{method}")
        session_id = params.get("sessionId")
        if not isinstance(session_id, str):
            raise RequestError.invalid_params({"sessionId": "must be a string"})
        if session_id in self._sessions:
            await self._close(self._sessions[session_id])
        try:
            await self._store.delete(session_id)
        except StoreError as error:
            raise _failed(f"The session cannot be deleted: {error}") from error
        return {}

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        logger.debug("ignored the notification _%s", method)

    def _open(self, session_id: str, cwd: str) -> _Session:
        session = self._sessions[session_id] = _Session(session_id, cwd, self._place.mode)
        session.servers = Servers(self._manager, Questions(lambda: session.turn, lambda: self._shows))
        return session

    def _find(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise _no_session(session_id)
        return session

    async def _take_up(self, session_id: str, cwd: str) -> _Session:
        """A session by its id: the open one, its turn stopped, or one that was kept."""
        session = self._sessions.get(session_id)
        if session is not None:
            await self._halt(session)
        else:
            kept = await self._kept(session_id)
            session = self._open(session_id, cwd)
            session.messages, session.mode, session.title = kept.messages, kept.mode, kept.title
        session.cwd = cwd
        return session

    async def _kept(self, session_id: str) -> _Session:
        try:
            text = await self._store.read(session_id)
        except StoreError as error:
            raise _failed(f"The session cannot be read: {error}") from error
        if text is None:
            raise _no_session(session_id)
        try:
            record = json.loads(text)
            if record["format"] != FORMAT:
                raise ValueError(f"it is of format {record['format']!r}, this agent reads {FORMAT}")
            mode = record["mode"] if record["mode"] in MODES else self._place.mode
            session = _Session(session_id, record["cwd"], mode)
            session.messages = ModelMessagesTypeAdapter.validate_python(record["messages"])
            session.title = record["title"]
        except (ValueError, KeyError, TypeError) as error:
            raise _failed(f"The session {session_id!r} was kept, and cannot be read: {error}") from error
        return session

    async def _keep(self, session: _Session) -> None:
        """Write a session down. A store that fails is logged: the conversation itself goes on."""
        session.updated = _now()
        record = {
            "format": FORMAT,
            "cwd": session.cwd,
            "mode": session.mode,
            "title": session.title,
            "messages": ModelMessagesTypeAdapter.dump_python(session.messages, mode="json"),
        }
        try:
            await self._store.write(session.head, json.dumps(record, ensure_ascii=False))
        except StoreError as error:
            logger.warning("the session %s is not kept: %s", session.id, error)

    async def _close(self, session: _Session) -> None:
        await self._halt(session)
        await session.servers.aclose()
        self._sessions.pop(session.id, None)

    async def _halt(self, session: _Session) -> None:
        if session.stop is not None:
            session.stop()
        await session.over.wait()

    async def _attach(self, session: _Session, others: Sequence[Any] | None, meta: dict[str, Any]) -> dict[str, Any]:
        """Connect the lent servers; what cannot be is said in the answer and, with the first turn, to the person."""
        configs: list[AcpMCPServerConfig] = []
        for entry in meta.get(DECLARED, ()):
            name = entry.get("name")
            if not isinstance(name, str) or not name:
                raise RequestError.invalid_params({"mcpServers": "a server of type acp needs a name"})
            try:
                config = AcpMCPServerConfig.from_declaration(entry, timeout=CALL_TIMEOUT)
            except (PeerError, ValueError) as error:
                raise RequestError.invalid_params({"mcpServers": f"{name}: {error}"}) from error
            assert config is not None
            if any(config.name == other.name or config.acp_id == other.acp_id for other in configs):
                raise RequestError.invalid_params({"mcpServers": f"two servers share a name or an id: {name}"})
            configs.append(config)
        failures = await session.servers.attach(configs)
        failures += [Failure(str(server.name), self._place.elsewhere) for server in others or ()]
        session.failures = failures
        report = [{"name": name, "status": "connected"} for name in session.servers.names]
        report += [{"name": item.name, "status": "failed", "reason": item.reason} for item in failures]
        return {META: {"mcpServers": report}}

    async def _replay(self, session: _Session) -> None:
        """Send the conversation again, as `session/load` wants."""
        results = {
            part.tool_call_id: part
            for message in session.messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        }
        for message in session.messages:
            for part in message.parts:
                update: Any = None
                if isinstance(part, UserPromptPart) and isinstance(message, ModelRequest):
                    update = update_user_message_text(_prompt_text(part.content))
                elif isinstance(part, TextPart) and part.content:
                    update = update_agent_message_text(part.content)
                elif isinstance(part, ThinkingPart) and part.content:
                    update = _thought(part.content)
                elif isinstance(part, ToolCallPart) and part.tool_name != PlanTool.NAME:
                    update = _replayed_call(part, results.get(part.tool_call_id))
                if update is not None:
                    await self.client.session_update(session_id=session.id, update=update)

    def _modes(self, session: _Session) -> SessionModeState:
        modes = self._place.modes
        return SessionModeState(
            current_mode_id=session.mode,
            available_modes=[SessionMode(id=mode, name=name, description=text) for mode, (name, text) in modes.items()],
        )

    # -- turns

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.stop(session_id)

    def stop(self, session_id: str) -> None:
        """Stop the turn of a session; one that runs none, or is unknown, is left alone."""
        session = self._sessions.get(session_id)
        if session is not None and session.stop is not None:
            session.stop()

    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> PromptResponse:
        session = self._find(session_id)
        if session.turn is not None:
            raise RequestError(-32600, "This session is still working on a message: wait for it, or cancel it.")
        choice = self._model()
        turn = session.turn = Turn(self.client, session.id, session.mode, session.always)
        session.over.clear()
        try:
            await self._tell_failures(session)
            content = _content(prompt)
            if session.title is None:
                await self._name(session, _prompt_text(content))
            return await self._run(session, turn, choice, content)
        finally:
            session.turn = session.stop = None
            session.over.set()

    async def _run(
        self, session: _Session, turn: Turn, choice: ModelChoice, content: list[UserContent]
    ) -> PromptResponse:
        toolsets: list[Any] = [LentTools(session.servers)]
        if not choice.scripted:
            toolsets.append(PlanTool())
        async with self._runner.run_stream_events(
            content,
            message_history=session.messages,
            model=choice.model,
            deps=turn,
            toolsets=toolsets,
            instructions=None if choice.scripted else self._place.instructions,
            usage_limits=UsageLimits(request_limit=MAX_STEPS),
        ) as events:
            session.stop = events.cancel
            reason = "the turn ended"
            try:
                async for event in events:
                    await self._show(session, turn, event)
                    if isinstance(event, FunctionToolResultEvent):
                        session.messages = events.all_messages()
                        await self._keep(session)
                session.messages = events.all_messages()
                return PromptResponse(stop_reason=_stop_reason(session.messages))
            except RunCancelled as stopped:
                session.messages = stopped.all_messages() or session.messages
                reason = "Stopped."
                return PromptResponse(stop_reason="cancelled")
            except UsageLimitExceeded:
                session.messages = events.all_messages()
                return PromptResponse(stop_reason="max_turn_requests")
            except (AgentRunError, UserError) as error:
                session.messages = events.all_messages()
                raise _model_failed(error, choice, self._place) from error
            finally:
                await turn.settle(reason)
                await self._keep(session)

    async def _show(self, session: _Session, turn: Turn, event: Any) -> None:
        """Tell the client of one event of the run. Calls of lent tools tell of themselves."""
        text = thought = ""
        match event:
            case PartStartEvent(part=TextPart(content=content)):
                text = content
            case PartDeltaEvent(delta=TextPartDelta(content_delta=delta)):
                text = delta
            case PartStartEvent(part=ThinkingPart(content=content)):
                thought = content
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=delta)):
                thought = delta or ""
            case FunctionToolCallEvent(part=part, args_valid=valid) if valid is not True:
                # It never reaches its tool: say here what became of it.
                await turn.announce(part.tool_call_id, part.tool_name, "other", part.args_as_dict())
            case FunctionToolResultEvent(part=part):
                await turn.finish(part.tool_call_id, part.outcome == "success", str(part.content))
            case AgentRunResultEvent():
                pass
        if text:
            await self.client.session_update(session_id=session.id, update=update_agent_message_text(text))
        if thought:
            await self.client.session_update(session_id=session.id, update=_thought(thought))

    async def _tell_failures(self, session: _Session) -> None:
        failures, session.failures = session.failures, []
        if not failures:
            return
        lines = "\n".join(f"- **{failure.name}**: {failure.reason}" for failure in failures)
        text = f"Some tools are not available:\n\n{lines}\n\n"
        await self.client.session_update(session_id=session.id, update=update_agent_message_text(text))

    async def _name(self, session: _Session, text: str) -> None:
        line = text.strip().partition("\n")[0]
        session.title = line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…"
        update = SessionInfoUpdate(session_update="session_info_update", title=session.title, updated_at=_now())
        await self.client.session_update(session_id=session.id, update=update)


async def serve_agent(
    channel: Channel, store: SessionStore, model: Callable[[], ModelChoice], place: Place = PAGE
) -> None:
    """Serve an ACP client until the channel ends.

    Args:
        channel: to the client; its `mcp/*` messages and its own travel apart on it.
        store: keeps the sessions.
        model: the model for the next turn; asked at its start, so a change takes effect between turns.
        place: where this is, for what the agent says and whether it asks first.
    """
    lanes = Lanes(channel)

    async def answer(inbound: Inbound) -> dict[str, Any]:
        return await manager.handle_request(inbound.method, inbound.params, inbound)

    peer = Peer(
        lanes.mcp,
        answer,
        lambda method, params: manager.handle_notification(method, params),
        id_prefix=PREFIX,
    )
    manager = AcpMcpConnectionManager(peer)
    agent = _InPageAgent(manager, store, model, place)
    transport = AcpTransport(lanes.acp, agent.stop)

    async def read() -> None:
        await lanes.run()
        # Whoever waits for the client now waits in vain.
        manager.abandon_all()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        tasks.start_soon(read)
        try:
            await run_agent(cast("AcpAgent", agent), transport, use_unstable_protocol=True)
        finally:
            with anyio.CancelScope(shield=True):
                await agent.aclose()
                await manager.close_all()
                await peer.aclose()
            await channel.aclose()


# ---------------------------------------------------------------- helpers


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _content(prompt: Sequence[Any]) -> list[UserContent]:
    """The blocks of a prompt as the model gets them."""
    import base64

    content: list[UserContent] = []
    for block in prompt:
        match block.type:
            case "text":
                content.append(block.text)
            case "image":
                content.append(BinaryContent(base64.b64decode(block.data), media_type=block.mime_type))
            case "resource_link":
                content.append(f"[{block.title or block.name}]({block.uri})")
            case "resource" if hasattr(block.resource, "text"):
                content.append(f"{block.resource.uri}:\n{block.resource.text}")
            case other:
                raise RequestError.invalid_params({"prompt": f"this agent takes no content of type {other}"})
    return content


def _prompt_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(item if isinstance(item, str) else "[picture]" for item in content)


def _thought(text: str) -> AgentThoughtChunk:
    return AgentThoughtChunk(session_update="agent_thought_chunk", content=text_block(text))


def _replayed_call(part: ToolCallPart, result: ToolReturnPart | None) -> ToolCallStart:
    good = result is not None and result.outcome == "success"
    text = "Stopped." if result is None else result.model_response_str(wrap_if_error=False)
    output = result.content if result is not None and isinstance(result.content, (dict, list)) else None
    members: dict[str, Any] = {"raw_output": output} if output is not None else {}
    return ToolCallStart(
        session_update="tool_call",
        tool_call_id=part.tool_call_id,
        title=part.tool_name,
        status="completed" if good else "failed",
        raw_input=part.args_as_dict(),
        content=[tool_content(text_block(text))],
        **members,
    )


def _stop_reason(messages: Sequence[ModelMessage]) -> Any:
    last = messages[-1] if messages else None
    if isinstance(last, ModelResponse):
        return {"length": "max_tokens", "content_filter": "refusal"}.get(last.finish_reason or "", "end_turn")
    return "end_turn"


def _no_session(session_id: str) -> RequestError:
    return RequestError(-32002, f"There is no session {session_id!r}", {"sessionId": session_id})


def _failed(message: str) -> RequestError:
    return RequestError(-32603, message)


def _model_failed(error: Exception, choice: ModelChoice, place: Place) -> RequestError:
    """What went wrong with the model, with a remedy that a person can follow."""
    remedy = "Send the message again; when it stays, look at the endpoint's own log."
    if isinstance(error, ModelHTTPError):
        status = error.status_code
        message = f"The endpoint answered HTTP {status}: {_body(error.body)}"
        if status in (401, 403):
            remedy = place.wrong_key
        elif status == 404:
            remedy = f"Check the address, which often ends in /v1, and the model's name ({choice.name})."
        elif status == 429:
            remedy = "The endpoint's limit is reached: wait, or use another model."
    elif isinstance(error, ModelAPIError):
        message = f"The endpoint cannot be reached: {_cause(error)}"
        remedy = place.unreachable
    else:
        message = f"{type(error).__name__}: {error}"
    return RequestError(-32603, message[:2000], {"remedy": remedy})


def _body(body: Any) -> str:
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        return str(message or body)
    return str(body)


def _cause(error: BaseException) -> str:
    while (inner := error.__cause__) is not None:
        error = inner
    return str(error) or type(error).__name__
