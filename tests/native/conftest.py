"""Fixtures of the native tests: a real gateway process and sockets to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from websockets.asyncio.client import ClientConnection, connect

HERE = Path(__file__).parent
ECHO = f"{sys.executable} {HERE / 'agents' / 'echo.py'}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class RunningGateway:
    """A `sandport serve` process."""

    process: Process
    port: int
    token: str
    log: list[str] = field(default_factory=list)
    log_grew: anyio.Event = field(default_factory=anyio.Event)
    origin: str = ""
    """Where a page of this gateway comes from."""

    @asynccontextmanager
    async def socket(self, **options: Any) -> AsyncIterator[AcpSocket]:
        settings: dict[str, Any] = {
            "origin": self.origin,
            "subprotocols": ["acp.v1", f"sandport.token.{self.token}"],
            "max_size": None,
            "compression": None,
            "proxy": None,
        }
        query = options.pop("query", "")
        address = options.pop("address", self.origin).replace("http", "ws", 1)
        settings.update(options)
        async with connect(f"{address}/acp{query}", **settings) as connection:
            yield AcpSocket(connection)

    async def wait_log(self, text: str) -> str:
        """Wait for a log line that contains the text."""
        with anyio.fail_after(20):
            while True:
                for line in self.log:
                    if text in line:
                        return line
                await self.log_grew.wait()


@dataclass
class AcpSocket:
    connection: ClientConnection
    last_id: int = 0

    async def request(self, method: str, params: object = None) -> Any:
        self.last_id += 1
        await self.connection.send(
            json.dumps({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params})
        )
        return await self.receive()

    async def receive(self) -> Any:
        return json.loads(await self.connection.recv())


@asynccontextmanager
async def run_gateway(
    *arguments: str, env: dict[str, str] | None = None, agent: str | None = ECHO, prefix: Sequence[str] = ()
) -> AsyncIterator[RunningGateway]:
    """Start `sandport serve`, yield it when it is ready, stop it with SIGTERM; `prefix` is a program that starts it."""
    command: Sequence[str] = [*prefix, sys.executable, "-m", "sandport_native", "serve", *arguments]
    if agent is not None:
        command = [*command, "--agent", agent]
    async with await anyio.open_process(command, env={**os.environ, **(env or {})}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        with anyio.fail_after(30):
            line = (await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 4096)).decode()
        address, _, token = line.removeprefix("Sandport is ready: ").strip().partition("/#token=")
        port = arguments[arguments.index("--port") + 1] if "--port" in arguments else address.rpartition(":")[2]
        gateway = RunningGateway(process, int(port), token, origin=address)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_collect, process, gateway)
            try:
                yield gateway
            finally:
                with anyio.CancelScope(shield=True):
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(signal.SIGTERM)
                    with anyio.move_on_after(20) as late:
                        await process.wait()
                    if late.cancelled_caught:
                        process.kill()
                tasks.cancel_scope.cancel()
        assert not late.cancelled_caught, "the gateway did not stop"


async def _collect(process: Process, gateway: RunningGateway) -> None:
    assert process.stderr is not None
    rest = b""
    async for data in process.stderr:
        *lines, rest = (rest + data).split(b"\n")
        gateway.log += [line.decode() for line in lines]
        gateway.log_grew.set()
        gateway.log_grew = anyio.Event()


@pytest.fixture
async def gateway(anyio_backend: str) -> AsyncIterator[RunningGateway]:
    async with run_gateway() as running:
        yield running


def free_port() -> int:
    """A port of loopback that nobody has; another program could take it, which is why most tests let the gateway."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def gone(pid: int, seconds: float = 15) -> None:
    """Wait for a process that is not our child to end (there is no event for that: poll the process table)."""
    with anyio.fail_after(seconds):
        while alive(pid):  # noqa: ASYNC110
            await anyio.sleep(0.02)
