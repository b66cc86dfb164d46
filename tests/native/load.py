"""The gateway under load, in figures: memory for each idle socket, and what is left of many connections.

    python -m tests.native.load [--sockets 100] [--rounds 1000] [--agent COMMAND]

Only the gateway's own process is counted. The agents are processes of their own, of any size; by default each is `cat`,
which sends every message back and costs next to nothing, so that the gateway is what is measured. Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from .conftest import AcpSocket, RunningGateway, run_gateway

AGENT = "cat"
AT_ONCE = 8
"""Connections that come and go side by side; more would only wait for the processor."""


@dataclass(frozen=True)
class Held:
    """What the gateway's process holds."""

    kib: int
    """Memory that is its own, KiB: libraries that it shares with others are left out."""
    descriptors: int
    children: int
    tasks: int
    sockets: int


async def health(gateway: RunningGateway) -> dict[str, int]:
    """The gateway's own word, over plain HTTP."""
    stream = await anyio.connect_tcp("127.0.0.1", gateway.port)
    async with stream:
        host = f"127.0.0.1:{gateway.port}"
        await stream.send(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        data = b"".join([chunk async for chunk in stream])
    value: dict[str, int] = json.loads(data.partition(b"\r\n\r\n")[2])
    return value


async def held(gateway: RunningGateway) -> Held:
    """Count."""
    pid = gateway.process.pid
    base = Path(f"/proc/{pid}")
    says = await health(gateway)
    memory = (base / "smaps_rollup").read_text(encoding="ascii").splitlines()
    private = sum(int(line.split()[1]) for line in memory if line.startswith("Private_"))
    children = (base / "task" / str(pid) / "children").read_text(encoding="ascii").split()
    return Held(private, len(list((base / "fd").iterdir())), len(children), says["tasks"], says["sockets"])


async def emptied(gateway: RunningGateway) -> Held:
    """Count when the last agent is gone (its end takes a moment after the socket's)."""
    with anyio.fail_after(30):
        while (counted := await held(gateway)).sockets:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)
    return counted


async def echo(socket: AcpSocket) -> None:
    """One message there and back."""
    message = '{"jsonrpc":"2.0","id":1,"method":"echo"}'
    await socket.connection.send(message)
    assert "id" in json.loads(await socket.connection.recv())


@asynccontextmanager
async def idle(gateway: RunningGateway, count: int) -> AsyncIterator[None]:
    """That many sockets, each of which has answered once and is silent now."""
    async with AsyncExitStack() as stack:
        opened: list[AcpSocket] = []

        async def one() -> None:
            opened.append(await stack.enter_async_context(gateway.socket(open_timeout=60)))
            await echo(opened[-1])

        for start in range(0, count, AT_ONCE):
            async with anyio.create_task_group() as tasks:
                for _ in range(start, min(start + AT_ONCE, count)):
                    tasks.start_soon(one)
        # All are there at the same time, and all still answer.
        async with anyio.create_task_group() as tasks:
            for socket in opened:
                tasks.start_soon(echo, socket)
        yield


async def rounds(gateway: RunningGateway, count: int) -> Held:
    """Connect, say something, disconnect, that often; count what is left."""
    left = count

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with gateway.socket(open_timeout=60) as socket:
                await echo(socket)

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(client)
    return await emptied(gateway)


async def main(sockets: int, number: int, agent: str) -> None:
    """Print the figures."""
    async with run_gateway("--max-sockets", str(2 * sockets + AT_ONCE), agent=agent) as gateway:
        await rounds(gateway, AT_ONCE)
        counts = [await emptied(gateway)]
        began = time.perf_counter()
        async with idle(gateway, sockets):
            took = time.perf_counter() - began
            counts.append(await held(gateway))
            async with idle(gateway, sockets):
                counts.append(await held(gateway))
        counts.append(await emptied(gateway))
        for counted, what in zip(
            counts, ("alone", f"{sockets} idle", f"{2 * sockets} idle", "alone again"), strict=True
        ):
            print(
                f"{what:>12}: {counted.kib / 1024:6.1f} MiB, {counted.tasks:5d} tasks, {counted.descriptors:5d} "
                f"descriptors, {counted.children:4d} agents"
            )
        first, second = ((new.kib - old.kib) / sockets for old, new in itertools.pairwise(counts[:3]))
        print(f"    a socket: {first:.0f} KiB, then {second:.0f} KiB; {sockets} opened and answered in {took:.1f} s")
        before = await rounds(gateway, max(1, number // 10))
        began = time.perf_counter()
        after = await rounds(gateway, number)
        took = time.perf_counter() - began
        print(
            f"{number:5d} rounds: in {took:.1f} s; processes {after.children - before.children:+d}, "
            f"descriptors {after.descriptors - before.descriptors:+d}, tasks {after.tasks - before.tasks:+d}, "
            f"memory {after.kib - before.kib:+d} KiB"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sockets", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--agent", default=AGENT, help="the agent's command; it must answer each message with one")
    options = parser.parse_args()
    anyio.run(main, options.sockets, options.rounds, options.agent)
