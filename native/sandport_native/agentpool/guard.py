"""Is the installed agentpool one that the add-on knows?

Invariant: `check_agentpool` returns only if every private place that the add-on touches has the shape it was written
for; anything else is an `UnknownAgentpoolError` that names the place and the remedy.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

SUPPORTED = "2.9.18"
REMEDY = f"install agentpool=={SUPPORTED} with 'pydantic-ai-slim<2' (Python 3.13)"


class UnknownAgentpoolError(Exception):
    """agentpool is missing, of another version, or shaped otherwise."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A callable that must exist, take these parameters, and mention these names in its code."""

    module: str
    path: str
    parameters: Sequence[str] = ()
    names: Sequence[str] = ()


_PLACES = (
    _Place("acp.connection", "Connection.__init__", names=("_handler", "_state", "_next_request_id")),
    _Place(
        "acp.connection",
        "Connection.send_request",
        ("method", "params"),
        ("_next_request_id", "register_outgoing"),
    ),
    _Place("acp.connection", "Connection.send_notification", ("method", "params")),
    _Place("acp.connection", "Connection._run_request", ("message",), ("_handler",)),
    _Place("acp.task.state", "InMemoryMessageStateStore.resolve_outgoing", ("request_id", "result")),
    _Place("acp.task.state", "InMemoryMessageStateStore.register_outgoing", ("request_id", "method")),
    _Place("acp.agent.connection", "AgentSideConnection.__init__", ("to_agent",), ("_conn",)),
    _Place("agentpool_server.acp_server.acp_agent", "AgentPoolACPAgent.initialize", ("params",)),
    _Place("agentpool_server.acp_server.acp_agent", "AgentPoolACPAgent.prompt", ("params",)),
    _Place("agentpool_server.acp_server.acp_agent", "AgentPoolACPAgent.fork_session", ("params",)),
    _Place("agentpool_server.acp_server.acp_agent", "AgentPoolACPAgent.resume_session", ("params",)),
    _Place("agentpool_server.acp_server.acp_agent", "AgentPoolACPAgent.close_session", ("params",)),
    _Place("agentpool_server.acp_server.acp_agent", "AgentPoolACPAgent.list_sessions", ("params",)),
    _Place("agentpool.models.manifest", "AgentsManifest.from_file", ("path",), ("load_yaml_file", "model_validate")),
    _Place("agentpool_server.acp_server.session_manager", "ACPSessionManager.get_session", ("session_id",)),
    _Place(
        "agentpool_server.acp_server.session_manager",
        "ACPSessionManager.resume_session",
        names=("storage", "load_session"),
    ),
    _Place("agentpool_server.acp_server.session_manager", "ACPSessionManager.close_all_sessions"),
    _Place("agentpool_server.acp_server.session", "ACPSession._register_mcp_prompts_as_commands"),
    _Place("agentpool_server.acp_server.session", "ACPSession.__post_init__", names=("requests", "notifications")),
    _Place("agentpool_server.acp_server.server", "ACPServer.from_config", ("config", "agent")),
    _Place("agentpool.mcp_server.client", "MCPClient._get_client", ("config", "force_oauth")),
    _Place("agentpool.mcp_server.client", "MCPClient.__init__", ("config",), ("_client", "_get_client")),
    _Place(
        "agentpool.mcp_server.client",
        "MCPClient.call_tool",
        ("name", "run_context", "arguments", "agent_ctx"),
    ),
    _Place("agentpool.mcp_server.manager", "MCPManager.__init__", names=("providers", "aggregating_provider")),
    _Place(
        "agentpool.resource_providers.aggregating", "AggregatingResourceProvider._forward_tools_changed", ("event",)
    ),
    _Place(
        "agentpool.resource_providers.mcp_provider",
        "MCPResourceProvider.__init__",
        ("server", "name", "owner", "source"),
        ("client", "_tools_cache", "_saved_enabled_states"),
    ),
    _Place("agentpool.resource_providers.mcp_provider", "MCPResourceProvider._on_tools_changed", ("_meta",)),
    _Place("agentpool.agents.base_agent", "BaseAgent.__init__", names=("conversation", "staged_content")),
    _Place("agentpool.agents.staged_content", "StagedContent.consume", names=("_parts",)),
    _Place("agentpool.agents.base_agent", "BaseAgent.interrupt", names=("_cancelled",)),
    _Place("agentpool.agents.native_agent.agent", "Agent.load_session", ("session_id",), ("chat_messages",)),
    _Place("agentpool.agents.native_agent.agent", "Agent._stream_events", names=("_cancelled",)),
    _Place("agentpool.messaging.messagenode", "MessageNode.__init__", names=("session_id",)),
    _Place("agentpool.messaging.message_history", "MessageHistory.__init__", ("storage", "messages")),
)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise UnknownAgentpoolError(f"{name} is not installed here; {REMEDY}") from None


def _check(place: _Place) -> None:
    where = f"{place.module}.{place.path}"
    try:
        target: object = importlib.import_module(place.module)
        for name in place.path.split("."):
            target = inspect.getattr_static(target, name)
    except (ImportError, AttributeError) as exc:
        raise UnknownAgentpoolError(f"{where} is not there ({exc}); {REMEDY}") from exc
    function: Any = getattr(target, "__func__", target)  # classmethods
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        raise UnknownAgentpoolError(f"{where} is not a function any more; {REMEDY}")
    missing = [name for name in place.parameters if name not in inspect.signature(function).parameters]
    missing += [name for name in place.names if name not in function.__code__.co_names]
    if missing:
        raise UnknownAgentpoolError(f"{where} no longer has {missing[0]!r}; {REMEDY}")


def check_agentpool() -> str:
    """Check versions and places.

    Returns:
        One line with the versions found.

    Raises:
        UnknownAgentpoolError: see there.
    """
    found = _version("agentpool")
    if found != SUPPORTED:
        raise UnknownAgentpoolError(f"agentpool {found} is installed, this add-on knows {SUPPORTED}; {REMEDY}")
    pydantic_ai = _version("pydantic-ai-slim")
    if int(pydantic_ai.partition(".")[0]) >= 2:
        raise UnknownAgentpoolError(
            f"agentpool {SUPPORTED} can not be imported with pydantic-ai-slim {pydantic_ai}; {REMEDY}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in _PLACES:
            _check(place)
    versions = {name: _version(name) for name in ("fastmcp", "mcp")}
    return f"agentpool {found}, pydantic-ai-slim {pydantic_ai}, " + ", ".join(f"{n} {v}" for n, v in versions.items())
