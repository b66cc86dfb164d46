"""Stock ACP agents, each as a person would set it up: what `docs/bridge.md` says, pinned.

None of them takes MCP servers over ACP, so each is used through the bridge. Those that want a language model get the
scripted one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.peers.scripted_model import request

__all__ = ["RECIPES", "Recipe"]

KEY = "none"
"""What stands where a key would: the scripted model asks for none."""

After = Literal["works", "second prompt", "new session"]


@dataclass(frozen=True)
class Recipe:
    """How to start an agent and what to expect of it."""

    name: str
    version: str
    folder: str
    """Its locked packages, below `agents/`."""
    command: Sequence[str]
    mcp: str
    """The MCP revision it speaks over HTTP, or how else it is reached."""
    asks: bool
    """Whether it asks before each call of a tool."""
    env: Mapping[str, str]
    """Variables; `{base}` is the model's address, `{home}` the agent's home."""
    files: Mapping[str, str]
    """Files in its home, with the same places to fill."""
    after_cancel: After = "works"
    """What makes it use a tool again once a call was cancelled."""
    call: Callable[[str, str, dict[str, Any]], str] = lambda _server, tool, arguments: request(tool, arguments)
    """The prompt that makes it call a tool of a server."""


OPENCODE = {
    "model": "scripted/scripted",
    "small_model": "scripted/scripted",
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "scripted": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Scripted",
            "options": {"baseURL": "{base}/v1", "apiKey": KEY},
            "models": {
                "scripted": {"name": "Scripted", "tool_call": True, "limit": {"context": 128000, "output": 4096}}
            },
        }
    },
}

CODEX = """\
model = "scripted"
model_provider = "scripted"
approval_policy = "on-request"

[model_providers.scripted]
name = "Scripted"
base_url = "{base}/v1"
wire_api = "responses"
env_key = "SCRIPT_KEY"
supports_websockets = false
"""

QWEN = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "{base}/v1", "OPENAI_MODEL": "scripted"}

RECIPES = [
    Recipe(
        "fast-agent",
        "0.10.48",
        "fast-agent",
        ["fast-agent", "acp", "--model", "passthrough"],
        "2026-07-28",
        True,
        {},
        {},
        "second prompt",
        lambda server, tool, arguments: f"***CALL_TOOL {server}__{tool} {json.dumps(arguments)}",
    ),
    Recipe(
        "OpenCode",
        "1.18.33",
        "opencode",
        ["opencode", "acp"],
        "2025-11-25",
        False,
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_CONFIG": "{home}/opencode.json",
        },
        {"opencode.json": json.dumps(OPENCODE)},
    ),
    Recipe(
        "codex-acp (zed)",
        "0.16.0",
        "codex",
        ["codex-acp"],
        "2025-06-18",
        True,
        {"CODEX_HOME": "{home}/codex", "SCRIPT_KEY": KEY},
        {"codex/config.toml": CODEX},
    ),
    Recipe(
        "codex-acp",
        "2.6.0",
        "codex-2",
        ["codex-acp"],
        "2025-06-18",
        True,
        {"CODEX_HOME": "{home}/codex", "SCRIPT_KEY": KEY, "INITIAL_AGENT_MODE": "workspace-write"},
        {"codex/config.toml": CODEX},
    ),
    Recipe(
        "Qwen Code",
        "0.15.10",
        "qwen",
        ["qwen", "--acp", "--auth-type", "openai"],
        "2025-11-25",
        True,
        # It sends even what goes to loopback through a proxy.
        {**QWEN, "HTTP_PROXY": "", "HTTPS_PROXY": ""},
        {".qwen/settings.json": json.dumps({"tools": {"exclude": ["tool_search"], "approvalMode": "default"}})},
    ),
    Recipe(
        "Qwen Code",
        "0.24.4",
        "qwen-24",
        ["qwen", "--acp", "--auth-type", "openai"],
        "2025-11-25",
        True,
        {**QWEN, "QWEN_CODE_LEGACY_MCP_BLOCKING": "1"},
        {".qwen/settings.json": json.dumps({"tools": {"toolSearch": {"enabled": False}, "approvalMode": "default"}})},
        "new session",
    ),
    Recipe(
        "Gemini CLI",
        "0.61.0",
        "gemini",
        ["gemini", "--acp"],
        "2025-06-18",
        True,
        {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": "{base}", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
        {
            ".gemini/settings.json": json.dumps(
                {
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": False},
                    "telemetry": {"enabled": False},
                    "general": {"disableAutoUpdate": True},
                }
            )
        },
    ),
    Recipe(
        "Hermes",
        "0.19.0",
        "hermes",
        ["hermes-acp"],
        "stdio",
        False,
        {"HERMES_HOME": "{home}/hermes", "OPENAI_API_KEY": KEY},
        {
            "hermes/config.yaml": "model:\n  default: scripted\n  provider: custom\n"
            '  base_url: "{base}/v1"\n  api_key: none\n'
        },
        "new session",
    ),
]
