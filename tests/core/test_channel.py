"""The in-memory channel: order, closing from either end, back-pressure."""

from __future__ import annotations

import anyio
import pytest

from sandport import Channel, ChannelClosed, memory_channel_pair


async def test_order_both_ways() -> None:
    left, right = memory_channel_pair()
    assert isinstance(left, Channel)
    for n in range(10):
        await left.send(f"l{n}")
        await right.send(f"r{n}")
    assert [await right.receive() for _ in range(10)] == [f"l{n}" for n in range(10)]
    assert [await left.receive() for _ in range(10)] == [f"r{n}" for n in range(10)]


async def test_the_other_end_reads_what_was_sent_before_the_close() -> None:
    left, right = memory_channel_pair()
    await left.send("last")
    await left.aclose()
    await left.aclose()
    assert await right.receive() == "last"
    for end in (left, right):
        with pytest.raises(ChannelClosed):
            await end.receive()
        with pytest.raises(ChannelClosed):
            await end.send("x")


@pytest.mark.parametrize("closer", ["own", "other"])
async def test_close_wakes_a_reader(closer: str) -> None:
    left, right = memory_channel_pair()
    ended = anyio.Event()

    async def read() -> None:
        with pytest.raises(ChannelClosed):
            await left.receive()
        ended.set()

    with anyio.fail_after(2):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            await (left if closer == "own" else right).aclose()
            await ended.wait()


@pytest.mark.parametrize("closer", ["own", "other"])
async def test_close_wakes_a_writer(closer: str) -> None:
    left, right = memory_channel_pair(1)
    await left.send("fills the buffer")
    ended = anyio.Event()

    async def write() -> None:
        with pytest.raises(ChannelClosed):
            await left.send("waits")
        ended.set()

    with anyio.fail_after(2):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            await (left if closer == "own" else right).aclose()
            await ended.wait()


async def test_a_cancelled_send_sends_nothing() -> None:
    left, right = memory_channel_pair(1)
    await left.send("1")
    with anyio.move_on_after(0):
        await left.send("2")
    assert await right.receive() == "1"
    await left.send("3")
    assert await right.receive() == "3"


async def test_a_slow_reader_slows_the_writer() -> None:
    left, right = memory_channel_pair(4)
    sent = 0

    async def write() -> None:
        nonlocal sent
        for n in range(20):
            await left.send(str(n))
            sent += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await anyio.wait_all_tasks_blocked()
        assert sent == 4
        for n in range(20):
            assert await right.receive() == str(n)
            await anyio.wait_all_tasks_blocked()
            assert sent <= n + 1 + 4 + 1
    assert sent == 20
