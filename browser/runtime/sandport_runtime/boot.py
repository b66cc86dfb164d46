"""From a fresh interpreter, or a memory image of one, to a served lane.

`prepare()` does what can be done without a page: imports and the making of servers. It runs at boot, or once at build
time, and then its result is part of the memory image. `start(host, config)` does the rest.

Invariant: nothing is served, and `ready` is not said, before the loop, the streams and the limits are in place; what
fails is said as `failed` with its stage and a remedy, once.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from sandport_runtime._control import Control

__all__ = ["Host", "prepare", "start"]

DEFAULT_SERVERS: Final[Mapping[str, str]] = {"workspace": "sandport_workspace:mcp"}
"""Server name -> module:attribute of a FastMCP server, when the bundle's manifest names none."""


class Host(Protocol):
    """What the worker's JavaScript lends to Python; see `browser/src/sandbox/boot.ts`."""

    def post(self, text: str) -> None:
        """Put a lane text on the port."""

    def post_utf8(self, utf8: Any) -> None:
        """Put a lane text on the port, given as a JavaScript array of its UTF-8, which goes with it."""

    def event(self, text: str, data: Any = None) -> None:
        """Put a control object, given as JSON, on the port.

        `data` becomes its member of that name: a JavaScript array of bytes, which goes with it.
        """

    def schedule(self, callback: Callable[[], None], ms: float) -> None:
        """Call back from JavaScript's loop; callbacks are proxies that live as long as the sandbox."""

    def arm(self, seconds: float) -> None:
        """See `Deadline.arm`."""

    def disarm(self) -> None:
        """See `Deadline.disarm`."""


class _Prepared:
    """What `prepare` made."""

    def __init__(self) -> None:
        self.servers: dict[str, Any] = {}
        self.failures: dict[str, str] = {}


_prepared: _Prepared | None = None


def prepare(servers: Mapping[str, str] = DEFAULT_SERVERS) -> None:
    """Install the stand-ins and import all that a served session needs. Idempotent.

    A server module that raises is remembered and reported at start; it harms no other.
    """
    global _prepared
    if _prepared is not None:
        return
    # Before fastmcp's import reads them: no rich tracebacks on stderr, no look for updates.
    os.environ["FASTMCP_ENABLE_RICH_LOGGING"] = "false"
    os.environ["FASTMCP_ENABLE_RICH_TRACEBACKS"] = "false"
    os.environ["FASTMCP_CHECK_FOR_UPDATES"] = "off"
    os.environ["FASTMCP_LOG_LEVEL"] = "WARNING"

    from sandport_runtime import _lean, _standins

    _lean.prepare_environment()
    _standins.install()

    from sandport.inline import install_inline_threads

    install_inline_threads(everywhere=True)

    from sandport_runtime import _control, _fresh, _tools  # noqa: F401 - part of the image

    _lean.install()

    prepared = _Prepared()
    for name, target in servers.items():
        module, _, attribute = target.partition(":")
        try:
            prepared.servers[name] = getattr(importlib.import_module(module), attribute or "mcp")
        except Exception as exc:
            prepared.failures[name] = f"{type(exc).__name__}: {exc}"
    _prepared = prepared


def start(host: Host, config_text: str) -> Control:
    """Serve the lane behind `host`.

    Args:
        host: the worker's side.
        config_text: JSON: {timeLimit: number | null, restored: bool, environ: {}, boot: {..}}.

    Returns:
        The control, whose `receive(text)` and `control(text, data)` the worker calls with what comes from the page.
    """
    from pyodide.ffi import create_proxy, to_js

    from sandport.host import TIME_LIMIT
    from sandport_runtime._channel import post_text
    from sandport_runtime._control import Control
    from sandport_runtime._fresh import refresh
    from sandport_runtime._loop import SandboxLoop
    from sandport_runtime._streams import Log, LogStream

    config: dict[str, Any] = json.loads(config_text)
    # Not in `prepare`: files are not part of a memory image.
    os.makedirs("/workspace", exist_ok=True)
    if config.get("restored"):
        refresh({**os.environ, **config.get("environ", {})})

    def event(members: dict[str, Any]) -> None:
        data = members.pop("data", None)
        if data is None:
            host.event(json.dumps(members))
        else:
            host.event(json.dumps(members), to_js(data))

    log = Log(lambda members: event({"event": "log", **members}))
    # The originals too: what restores "the real stdout" finds these.
    stdout = sys.stdout = sys.__stdout__ = LogStream(log, "stdout", 1)  # type: ignore[misc, assignment]
    stderr = sys.stderr = sys.__stderr__ = LogStream(log, "stderr", 2)  # type: ignore[misc, assignment]

    def post(text: str) -> None:
        # What a tool printed comes before what it answered.
        stdout.flush()
        stderr.flush()
        post_text(host, text, to_js)

    loop = SandboxLoop(host.schedule, deadline=host, time_limit=TIME_LIMIT, wrap=create_proxy)
    asyncio.get_event_loop_policy().set_event_loop(loop)
    time.sleep = _sleep  # type: ignore[assignment]

    assert _prepared is not None, "prepare() comes first"
    control = Control(
        post,
        event,
        time_limit=config.get("timeLimit"),
        servers=_prepared.servers,
        failures=_prepared.failures,
        raw_log=log.write,
        loop=loop,
    )

    async def serve() -> None:
        try:
            await control.run(config.get("boot", {}))
        except BaseException as exc:
            event(_failure("servers", exc))
            raise

    control.task = loop.create_task(serve(), name="sandport")
    loop.run_ready()
    return control


def _failure(stage: str, exc: BaseException) -> dict[str, Any]:
    traceback.print_exception(exc)
    sys.stderr.flush()
    while isinstance(exc, BaseExceptionGroup):
        # The group says nothing; its first member does.
        exc = exc.exceptions[0]
    return {
        "event": "failed",
        "stage": stage,
        "message": "".join(traceback.format_exception_only(exc)).strip(),
        "remedy": "Restart the sandbox; when it fails again, rebuild the bundle (./build.sh build).",
    }


def _sleep(seconds: float) -> None:
    """`time.sleep` in slices, so that the deadline ends it as it ends other code (a single wait would not look)."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        _original_sleep(min(left, 0.02))


_original_sleep = getattr(time.sleep, "__wrapped__", time.sleep)
