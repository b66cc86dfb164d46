"""The control of a running sandbox: what the page asks for beside the lane.

Invariants: every request `{op, seq, ...}` gets exactly one `{seq, ok, ...}`, in whatever order they finish. Tools that
cannot be listed or described harm neither others nor the start. One lane is served at a time: the texts that follow a
`lane` request belong to the lane it opened, and the lane before it is closed, with all that was open on it. Ids of
servers come from the page; this side mints none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fastmcp import FastMCP

from sandport import LocalError, MountError, ToolHost
from sandport.host import TIME_LIMIT
from sandport_runtime._channel import PortChannel
from sandport_runtime._files import ArchiveError, mount_zip, zip_folder
from sandport_runtime._tools import LoadError, UserTools

if TYPE_CHECKING:
    from sandport_runtime._loop import SandboxLoop

__all__ = ["Control"]

USER: Final = "user"
"""The server that holds the tools a person loads."""
MIN_LOAD_LIMIT: Final = 5.0
"""Seconds that a module may take to load, where the limit of a call is smaller: importing costs more than calling."""


class Control:
    """Serves the lane and answers control requests.

    Args:
        post: puts a lane text on the port.
        event: sends a control object to the page; its member `data`, if any, is bytes.
        time_limit: seconds for one tools/call, and about that for the loading of a module; None for no limit.
        servers: FastMCP servers by name; each is mounted, and one that cannot be is reported.
        failures: servers that failed before, by name, with the reason.
        raw_log: takes what was written to the file descriptors.
        loop: the loop that `receive` and `control` drive.
    """

    def __init__(
        self,
        post: Callable[[str], object],
        event: Callable[[dict[str, Any]], object],
        *,
        time_limit: float | None,
        servers: Mapping[str, FastMCP[Any]],
        failures: Mapping[str, str],
        raw_log: Callable[[str, str], None],
        loop: SandboxLoop,
    ) -> None:
        self._post = post
        self._channel: PortChannel | None = None
        self._lanes: asyncio.TaskGroup | None = None
        self.task: asyncio.Task[None] | None = None
        self._event = event
        self._raw_log = raw_log
        self._loop = loop
        self._load_limit = None if time_limit is None else max(time_limit, MIN_LOAD_LIMIT)
        self._user = UserTools(self._load_limit)
        self._servers: dict[str, FastMCP[Any]] = {}
        self._failures = dict(failures)
        self._requests: set[asyncio.Task[None]] = set()
        self._host = ToolHost(time_limit=time_limit)
        for name, server in {**servers, USER: self._user.server}.items():
            try:
                self._host.mount(server, name=name)
            except Exception as exc:
                self._failures[name] = str(exc)
            else:
                self._servers[name] = server
        self._ops: dict[str, Callable[..., Awaitable[Any]]] = {
            "lane": self._lane,
            "declare": self._declare,
            "withdraw": self._withdraw,
            "adopt": self._adopt,
            "mountZip": self._mount_zip,
            "zipFolder": self._zip_folder,
            "loadTools": self._load_tools,
            "loadPackage": self._load_package,
            "unloadTools": self._unload_tools,
            "listTools": self._list_tools,
        }

    async def run(self, boot: Mapping[str, Any]) -> None:
        """Enter the servers' lifespans, say `ready`, and serve the lanes that the page opens, for ever."""
        async with self._host, asyncio.TaskGroup() as self._lanes:
            counts: list[dict[str, Any]] = []
            for name, server in self._servers.items():
                try:
                    counts.append({"name": name, "tools": len(await server.list_tools())})
                except Exception as exc:
                    self._failures[name] = f"its tools cannot be listed: {type(exc).__name__}: {exc}"
            counts += [{"name": name, "tools": 0, "error": text} for name, text in self._failures.items()]
            for name, text in self._failures.items():
                self._raw_log("stderr", f"the server {name!r} is not available: {text}\n")
            self._event({"event": "ready", "servers": counts, "boot": boot})
            await asyncio.get_running_loop().create_future()

    # -- called by the worker's JavaScript

    def receive(self, text: str) -> None:
        """A lane text came from the page."""
        if self._channel is not None:
            self._loop.run_after(self._channel.feed, text)

    def receive_utf8(self, utf8: Any) -> None:
        """A lane text came from the page as an ArrayBuffer of UTF-8, which Python takes over sooner than a string."""
        self.receive(utf8.to_bytes().decode())

    def control(self, text: str, data: Any = None) -> None:
        """A control request came from the page, as JSON; `data` is its binary member."""
        self._loop.run_after(self._start, json.loads(text), data)

    def _start(self, request: dict[str, Any], data: Any) -> None:
        if request.get("op") == "lane":
            # At once, not in a task: the next text on the port is the new lane's.
            request["channel"] = self._switch(request.get("prefix"))
        task = self._loop.create_task(self._answer(request, data))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def _switch(self, prefix: str | None) -> PortChannel | None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None if prefix is None else PortChannel(self._post)
        return self._channel

    # -- requests

    async def _answer(self, request: dict[str, Any], data: Any) -> None:
        seq = request.pop("seq", None)
        name = request.pop("op", None)
        try:
            op = self._ops.get(name) if isinstance(name, str) else None
            if op is None:
                raise ValueError(f"unknown operation {name!r}")
            if data is not None:
                # A copy into Python's memory: the page's buffer goes away with the message.
                request["data"] = data.to_bytes() if hasattr(data, "to_bytes") else bytes(data)
            value = await op(**request)
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            known = isinstance(exc, (ArchiveError, LoadError, LocalError, MountError, ValueError))
            message = str(exc) if known else f"{type(exc).__name__}: {exc}"
            self._event({"seq": seq, "ok": False, "error": {"message": message, "type": type(exc).__name__}})
        else:
            # Bytes travel beside the JSON.
            member = "data" if isinstance(value, bytes) else "value"
            self._event({"seq": seq, "ok": True, member: value})

    async def _lane(self, prefix: str | None, channel: PortChannel | None) -> None:
        """Serve a lane; ids of requests that start here begin with `prefix`. None only ends the lane before."""
        if prefix is None or channel is None:
            return
        if self._lanes is None:
            raise ValueError("the sandbox is not ready")
        self._lanes.create_task(self._serve(channel, prefix), name=f"lane {prefix}")
        # The task's first step: the host knows the lane when the page hears the answer, and can adopt.
        await asyncio.sleep(0)

    async def _serve(self, channel: PortChannel, prefix: str) -> None:
        try:
            await self._host.serve(channel, id_prefix=prefix)
        except Exception as exc:
            self._raw_log("stderr", f"the lane {prefix!r} failed: {type(exc).__name__}: {exc}\n")
            channel.close()

    async def _declare(self, servers: list[dict[str, str]]) -> None:
        for server in servers:
            if server["name"] not in self._servers:
                raise ValueError(self._no_server(server["name"]))
        for server in servers:
            self._host.declare(server["name"], server["id"])

    async def _withdraw(self, ids: list[str]) -> None:
        for server_id in ids:
            self._host.withdraw(server_id)

    async def _adopt(self, connections: list[dict[str, Any]]) -> None:
        for connection in connections:
            await self._host.adopt(connection["connectionId"], connection["serverId"], connection.get("initialize"))

    async def _mount_zip(self, path: str, data: bytes, replace: bool) -> dict[str, int]:
        files, size = mount_zip(path, data, replace=replace)
        return {"files": files, "bytes": size}

    async def _zip_folder(self, path: str) -> bytes:
        return zip_folder(path)

    async def _load_tools(self, name: str, source: str) -> dict[str, list[str]]:
        await self._limited()
        tools = await self._user.load(name, source)
        await self._changed()
        return {"tools": tools}

    async def _load_package(self, name: str, data: bytes, server: str | None = None) -> dict[str, list[str]]:
        await self._limited()
        tools = await self._user.load_package(name, data, server)
        await self._changed()
        return {"tools": tools}

    async def _limited(self) -> None:
        """Let the deadline end what this request does next and does not give way."""
        TIME_LIMIT.set(self._load_limit)
        # The next step of this task runs under the limit just set.
        await asyncio.sleep(0)

    async def _unload_tools(self, name: str) -> None:
        if await self._user.unload(name):
            await self._changed()

    async def _changed(self) -> None:
        try:
            await self._host.list_changed(USER)
        except Exception as exc:
            # What was loaded is loaded, whoever could not be told.
            self._raw_log("stderr", f"an agent was not told that the tools changed: {type(exc).__name__}: {exc}\n")
        self._event({"event": "tools"})

    async def _list_tools(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = []
        for name, server in self._servers.items():
            try:
                tools = await server.list_tools()
            except Exception as exc:
                self._raw_log("stderr", f"the tools of {name!r} cannot be listed: {type(exc).__name__}: {exc}\n")
                continue
            listed += [{"server": name, **_described(tool)} for tool in tools]
        return listed

    def _no_server(self, name: str) -> str:
        reason = self._failures.get(name)
        if reason is not None:
            return f"the server {name!r} is not available: {reason}"
        return f"there is no server {name!r}; there are {', '.join(sorted(self._servers))}"


def _described(tool: Any) -> dict[str, Any]:
    """A tool for the page's own display."""
    try:
        shown = tool.to_mcp_tool().model_dump(mode="json", by_alias=True, exclude_none=True)
        # A default of infinity, say, is no JSON.
        json.dumps(shown, allow_nan=False)
    except Exception as exc:
        why = f"It cannot be described: {type(exc).__name__}: {exc}"
        return {"name": str(tool.name), "description": why, "inputSchema": {}}
    return {
        key: shown[key] for key in ("name", "description", "inputSchema", "outputSchema", "annotations") if key in shown
    }
