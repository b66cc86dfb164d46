"""agentpool's configuration file, without the servers that only a session can have.

Invariant: a file without entries of type `acp` is read by agentpool's own loader.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from agentpool.models.manifest import AgentsManifest

log = logging.getLogger("sandport.agentpool")


def load_manifest(path: Path) -> AgentsManifest:
    """Read a configuration. Entries of type `acp` among its `mcp_servers` are skipped with a warning.

    Stock agentpool refuses a file that has one. A page's servers come with its sessions, so none can stand in a file
    for good; one that an agentpool with MCP-over-ACP of its own has stored there must not keep this one from starting.

    Raises:
        ValueError: unreadable, or not what agentpool takes.
    """
    import yamling

    try:
        data: Any = yamling.load_yaml_file(str(path), resolve_inherit=True)
    except Exception:
        return AgentsManifest.from_file(str(path))  # it says what is wrong
    skipped = _without_acp(data)
    if not skipped:
        return AgentsManifest.from_file(str(path))
    for name in skipped:
        log.warning("skipped the acp server %r of %s: such servers come with a session", name, path)
    try:
        manifest = AgentsManifest.model_validate(data)
    except ValueError as exc:
        raise ValueError(f"Failed to load agent config from {path}") from exc
    where = {"config_file_path": str(path)}  # relative paths in it are resolved against this
    nodes = {
        kind: {name: node.model_copy(update=where) for name, node in getattr(manifest, kind).items()}
        for kind in ("agents", "teams")
    }
    return manifest.model_copy(update={**where, **nodes})


def _without_acp(node: Any) -> list[str]:
    """Take the `acp` entries out of every `mcp_servers` list below `node`; their names."""
    skipped: list[str] = []
    if isinstance(node, list):
        for item in node:
            skipped += _without_acp(item)
    elif isinstance(node, dict):
        servers = node.get("mcp_servers")
        if isinstance(servers, list):
            kept = [item for item in servers if not (isinstance(item, dict) and item.get("type") == "acp")]
            skipped += [str(item.get("name")) for item in servers if item not in kept]
            node["mcp_servers"] = kept
        for value in node.values():
            skipped += _without_acp(value)
    return skipped
