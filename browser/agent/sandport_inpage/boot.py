"""From a fresh interpreter, or a memory image of one, to an agent that waits for its page.

The two functions are those of `sandport_runtime.boot`, so the worker starts either.

Invariant: `ready` is not said before loop and streams are in place; what fails is said as `failed`, once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandport_runtime.boot import Host

    from sandport_inpage._control import Control

__all__ = ["prepare", "start"]


def prepare(servers: Mapping[str, str] | None = None) -> None:
    """Import all that a turn needs; idempotent. `servers` is the sandbox's, and nothing here."""
    os.environ["FASTMCP_CHECK_FOR_UPDATES"] = "off"
    os.environ["FASTMCP_ENABLE_RICH_LOGGING"] = "false"
    os.environ["FASTMCP_LOG_LEVEL"] = "WARNING"

    from sandport_runtime import _standins

    _standins.install()

    from sandport.inline import install_inline_threads

    install_inline_threads(everywhere=True)

    from sandport_runtime import _channel, _fresh, _loop, _streams  # noqa: F401 - part of the image

    from sandport_inpage import _control  # noqa: F401 - part of the image


def start(host: Host, config_text: str) -> Control:
    """Serve the page behind `host`.

    Args:
        host: the worker's side.
        config_text: JSON: {restored: bool, environ: {}, boot: {..}}.

    Returns:
        The control, whose `receive(text)` and `control(text)` the worker calls with what comes from the page.
    """
    from pyodide.ffi import create_proxy
    from sandport_runtime._fresh import refresh
    from sandport_runtime._loop import SandboxLoop
    from sandport_runtime._streams import Log, LogStream

    from sandport_inpage._control import Control

    config: dict[str, Any] = json.loads(config_text)
    if config.get("restored"):
        refresh({**os.environ, **config.get("environ", {})})

    def event(members: dict[str, Any]) -> None:
        host.event(json.dumps(members))

    log = Log(lambda members: event({"event": "log", **members}))
    sys.stdout = sys.__stdout__ = LogStream(log, "stdout", 1)  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = LogStream(log, "stderr", 2)  # type: ignore[misc, assignment]

    loop = SandboxLoop(host.schedule, wrap=create_proxy)
    asyncio.get_event_loop_policy().set_event_loop(loop)
    control = Control(host.post, event, loop=loop, report=lambda text: log.write("stderr", text))

    async def ready() -> None:
        try:
            await control.run(config.get("boot", {}))
        except BaseException as error:
            event(
                {
                    "event": "failed",
                    "stage": "servers",
                    "message": f"{type(error).__name__}: {error}",
                    "remedy": "Reload the page; when it fails again, rebuild the bundle (./build.sh build).",
                }
            )
            raise

    control.task = loop.create_task(ready(), name="sandport agent")
    loop.run_ready()
    return control
