"""How servers are declared on the wire and configured in an agent, and the way between the two.

Invariant: the converters know every member of both unions; a new one is a type error until they do (`assert_never`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, assert_never

from fastmcp.mcp_config import RemoteMCPServer, StdioMCPServer
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandport.wire import Dialect, declaration, read_declaration
from sandport.wire.errors import LocalError

__all__ = [
    "AcpMCPServerConfig",
    "AcpMcpServer",
    "EnvVariable",
    "HttpHeader",
    "HttpMcpServer",
    "McpServer",
    "ServerConfig",
    "SseMcpServer",
    "StdioMcpServer",
    "convert_acp_mcp_server_to_config",
    "mcp_config_to_acp",
]

DEFAULT_TIMEOUT = 30.0
"""Seconds an `mcp/message` request waits for its answer."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)


class EnvVariable(_Wire):
    """One environment variable of a stdio server (ACP schema)."""

    name: str
    value: str


class HttpHeader(_Wire):
    """One HTTP header (ACP schema)."""

    name: str
    value: str


class AcpMcpServer(_Wire):
    """An ACP `McpServer` that is reached through the ACP channel itself.

    One of `id` (`connect-acpId`) and `serverId` (later schemas) is required; `declaration` writes both.
    """

    type: Literal["acp"] = "acp"
    name: str
    id: str | None = None
    server_id: str | None = Field(default=None, alias="serverId")

    @model_validator(mode="after")
    def _has_an_id(self) -> AcpMcpServer:
        if not (self.id or self.server_id):
            raise ValueError("a server of type acp needs a non-empty id or serverId")
        return self

    @property
    def acp_id(self) -> str:
        """The server's id, whichever member said it."""
        return self.server_id or self.id or ""


class HttpMcpServer(_Wire):
    """An ACP `McpServer` over Streamable HTTP."""

    type: Literal["http"] = "http"
    name: str
    url: str
    headers: list[HttpHeader] = []


class SseMcpServer(_Wire):
    """An ACP `McpServer` over HTTP with SSE."""

    type: Literal["sse"] = "sse"
    name: str
    url: str
    headers: list[HttpHeader] = []


class StdioMcpServer(_Wire):
    """An ACP `McpServer` that the agent starts as a process."""

    name: str
    command: str
    args: list[str] = []
    env: list[EnvVariable] = []


McpServer = AcpMcpServer | HttpMcpServer | SseMcpServer | StdioMcpServer
"""The ACP schema's `McpServer`."""


class AcpMCPServerConfig(BaseModel):
    """The configuration of a server that the ACP client provides."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["acp"] = "acp"
    name: str = ""
    acp_id: Annotated[str, Field(min_length=1)]
    """The id the client declared."""
    timeout: Annotated[float, Field(gt=0)] = DEFAULT_TIMEOUT
    """Seconds an `mcp/message` request waits for its answer."""
    dialects: tuple[str, ...] = ()
    """Names of the dialects its provider may speak; empty: any. See docs/dialects.md on pinning one."""
    enabled: bool = True

    @classmethod
    def from_declaration(cls, entry: dict[str, Any], **options: Any) -> AcpMCPServerConfig | None:
        """The configuration for an `mcpServers` entry as it came, `None` if the entry is not carried over ACP.

        Raises:
            PeerError: the entry is of type `acp` and has no usable id.
        """
        found = read_declaration(entry)
        if found is None:
            return None
        server_id, dialects = found
        return cls(name=str(entry.get("name", "")), acp_id=server_id, dialects=_names(dialects), **options)


def _names(dialects: tuple[Dialect, ...]) -> tuple[str, ...]:
    return tuple(dialect.name for dialect in dialects)


ServerConfig = AcpMCPServerConfig | StdioMCPServer | RemoteMCPServer
"""What an agent is configured with: FastMCP's own server configurations, and ours."""


def convert_acp_mcp_server_to_config(server: McpServer) -> ServerConfig:
    """Turn a server of the ACP schema into the configuration an agent connects with."""
    match server:
        case AcpMcpServer():
            config = AcpMCPServerConfig.from_declaration(server.model_dump(by_alias=True, exclude_none=True))
            assert config is not None
            return config
        case HttpMcpServer():
            return RemoteMCPServer(url=server.url, transport="http", headers=_headers(server.headers))
        case SseMcpServer():
            return RemoteMCPServer(url=server.url, transport="sse", headers=_headers(server.headers))
        case StdioMcpServer():
            env = {variable.name: variable.value for variable in server.env}
            return StdioMCPServer(command=server.command, args=server.args, env=env)
        case _:
            assert_never(server)


def mcp_config_to_acp(name: str, config: ServerConfig) -> McpServer:
    """Turn a configuration into the server of the ACP schema that declares it.

    Args:
        name: the server's name in the session; FastMCP's configurations carry none.
        config: the configuration.

    Raises:
        LocalError: a remote server of a transport that ACP cannot declare.
    """
    match config:
        case AcpMCPServerConfig():
            return AcpMcpServer.model_validate(declaration(name or config.name, config.acp_id))
        case StdioMCPServer():
            env = [EnvVariable(name=key, value=str(value)) for key, value in config.env.items()]
            return StdioMcpServer(name=name, command=config.command, args=list(config.args), env=env)
        case RemoteMCPServer():
            headers = [HttpHeader(name=key, value=value) for key, value in config.headers.items()]
            if config.transport == "sse":
                return SseMcpServer(name=name, url=config.url, headers=headers)
            if config.transport in ("http", "streamable-http", None):
                return HttpMcpServer(name=name, url=config.url, headers=headers)
            raise LocalError(f"ACP cannot declare a server over {config.transport!r}")
        case _:
            assert_never(config)


def _headers(headers: list[HttpHeader]) -> dict[str, str]:
    return {header.name: header.value for header in headers}
