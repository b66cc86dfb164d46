"""What holds for every test of the core: no socket, process or thread is started, and nothing is left behind."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing.process
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import anyio
import pytest

from sandport.agent import AcpMcpConnectionManager
from sandport.connection import McpConnection
from sandport.host.lane import HostLane
from sandport.port import PortCore
from sandport.rpc import Peer

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # under Pyodide
    pass
else:
    settings.register_profile("core", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    settings.load_profile("core")


HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """An async test needs no mark of its own."""
    if collector.path.parent == HERE and collector.istestfunction(obj, name) and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("anyio_backend", "nothing_left")(obj)
        pytest.mark.anyio(obj)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets, processes and threads raise. The pair of sockets by which asyncio wakes itself is not one to outside."""

    def refuse(what: str) -> Any:
        def raiser(*_: Any, **__: Any) -> None:
            raise AssertionError(f"the core must not use {what}")

        return raiser

    class PairOnly(socket.socket):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            fileno = kwargs.get("fileno", args[3] if len(args) > 3 else None)
            if fileno is None:
                raise AssertionError("the core must not use socket.socket")
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(socket, "socket", PairOnly)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse("subprocess.Popen"))
    monkeypatch.setattr(threading.Thread, "start", refuse("threading.Thread.start"))
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse("multiprocessing"))
    if hasattr(os, "fork"):
        monkeypatch.setattr(os, "fork", refuse("os.fork"))


@pytest.fixture
async def nothing_left(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """After a test: no task, and nothing in the tables of the peers, ports, lanes and managers it made."""
    made: dict[type, WeakSet[Any]] = {}
    for kind in (Peer, PortCore, HostLane, AcpMcpConnectionManager, McpConnection):
        made[kind] = WeakSet()
        monkeypatch.setattr(kind, "__init__", _recorded(kind.__init__, made[kind]))
    before = asyncio.all_tasks()
    yield
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    # The task that runs the tests is the plugin's own.
    left = [
        task
        for task in asyncio.all_tasks() - before
        if not task.done() and "TestRunner" not in getattr(task.get_coro(), "__qualname__", "")
    ]
    assert not left, f"tasks are left: {left}"
    for peer in made[Peer]:
        assert peer.pending == 0
        assert peer.inbound == []
        assert peer._working == 0
    for core in made[PortCore]:
        assert core.open_requests == 0
        assert not core._calls
        assert all(state.open == 0 and not state.held for state in core._sandboxes.values())
    for lane in made[HostLane]:
        assert lane.connections == {}
        assert lane._calls == {}
    for manager in made[AcpMcpConnectionManager]:
        assert manager.connections == []
    for connection in made[McpConnection]:
        assert connection.pending == 0


def _recorded(init: Any, into: WeakSet[Any]) -> Any:
    def recording(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        into.add(self)

    return recording
