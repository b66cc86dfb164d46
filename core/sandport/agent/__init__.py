"""The agent side that consumes tools which its ACP client provides."""

from __future__ import annotations

from sandport.agent.config import (
    AcpMcpServer,
    AcpMCPServerConfig,
    EnvVariable,
    HttpHeader,
    HttpMcpServer,
    McpServer,
    ServerConfig,
    SseMcpServer,
    StdioMcpServer,
    convert_acp_mcp_server_to_config,
    mcp_config_to_acp,
)
from sandport.agent.manager import AcpMcpConnection, AcpMcpConnectionManager
from sandport.agent.peer import connect_acp_mcp_server, disconnect_acp_mcp_server, manager_on_channel
from sandport.agent.transport import AcpMcpTransport

__all__ = [
    "AcpMCPServerConfig",
    "AcpMcpConnection",
    "AcpMcpConnectionManager",
    "AcpMcpServer",
    "AcpMcpTransport",
    "EnvVariable",
    "HttpHeader",
    "HttpMcpServer",
    "McpServer",
    "ServerConfig",
    "SseMcpServer",
    "StdioMcpServer",
    "connect_acp_mcp_server",
    "convert_acp_mcp_server_to_config",
    "disconnect_acp_mcp_server",
    "manager_on_channel",
    "mcp_config_to_acp",
]
