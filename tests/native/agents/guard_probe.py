"""Break each place the guard looks at, one after the other, and see that it is missed. Runs where agentpool is."""

import importlib
import inspect
import json
import warnings

from sandport_native.agentpool import guard

warnings.simplefilter("ignore")
versions = guard.check_agentpool()
refusals = []
missed = 0
for place in guard._PLACES:
    *path, name = place.path.split(".")
    owner = importlib.import_module(place.module)
    for part in path:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    breakages = [lambda: None] if place.parameters or place.names else [None]
    for broken in breakages:
        setattr(owner, name, broken)
        try:
            guard.check_agentpool()
        except guard.UnknownAgentpoolError as error:
            refusals.append(str(error))
            missed += f"{place.module}.{place.path}" in str(error)
        finally:
            setattr(owner, name, original)

for package, version in (("agentpool", "2.9.19"), ("pydantic-ai-slim", "2.0.0")):
    known = guard._version
    guard._version = lambda name: version if name == package else known(name)  # noqa: B023
    try:
        guard.check_agentpool()
    except guard.UnknownAgentpoolError as error:
        refusals.append(str(error))
    else:
        raise SystemExit(f"{package} {version} was taken")
    finally:
        guard._version = known
    if version not in refusals[-1]:
        raise SystemExit(f"the message does not name {version}")

from sandport_native.agentpool.agent import SandportAgent  # noqa: E402
from sandport_native.agentpool.serve import ServeOptions  # noqa: E402

try:
    from sandport import ToolHost

    hosts = ToolHost.__name__
except ImportError as error:  # MCP SDK 1 is here: the agent's side works, and the message says what hosting needs
    hosts = str(error)

library = {"agent": SandportAgent.mcp_over_acp, "options": ServeOptions(None).mcp_over_acp}
print(
    json.dumps(
        {
            "places": len(guard._PLACES),
            "missed": missed,
            "refusals": refusals,
            "versions": versions,
            "library": library,
            "hosts": hosts,
        }
    )
)
