"""The JSON-RPC peer: one answer each, whatever a handler, the peer or the channel does."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from sandport import ChannelClosed, PeerError, memory_channel_pair
from sandport.rpc import Inbound, Peer

from .kit import RawAgent

Handler = Callable[[Inbound], Awaitable[Any]]


@asynccontextmanager
async def peer_and_raw(
    handler: Handler, *, notify: Callable[[str, Any], None] = lambda method, params: None, **options: Any
) -> AsyncIterator[tuple[Peer, RawAgent]]:
    ours, theirs = memory_channel_pair(options.pop("buffer", 64))
    peer = Peer(ours, handler, notify, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        yield peer, RawAgent(theirs)
        await theirs.aclose()


async def echo(inbound: Inbound) -> Any:
    return {"params": inbound.params}


async def test_requests_both_ways() -> None:
    async with peer_and_raw(echo) as (peer, raw):
        assert (await raw.ask("x", [1], "a"))["result"] == {"params": [1]}
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                assert await peer.request("y", {"b": 1}) == {"c": 2}

            tasks.start_soon(ask)
            request = await raw.receive()
            assert (request["id"], request["method"], request["params"]) == (0, "y", {"b": 1})
            await raw.send({"jsonrpc": "2.0", "id": 0, "result": {"c": 2}})


async def test_ids_carry_the_prefix() -> None:
    async with peer_and_raw(echo, id_prefix="sp7.") as (peer, raw), anyio.create_task_group() as tasks:
        tasks.start_soon(peer.request, "y", {})
        request = await raw.receive()
        assert request["id"] == "sp7.0"
        # Neither of these is the answer.
        for wrong in (0, "0", None, "sp7.1", [], 0.0):
            await raw.send({"jsonrpc": "2.0", "id": wrong, "result": {}})
        await raw.ask("x")
        assert peer.pending == 1
        await raw.send({"jsonrpc": "2.0", "id": "sp7.0", "result": {}})


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ({"error": {"code": 5, "message": "m", "data": [1]}}, 5, "m"),
        ({"error": {"code": 5}}, 5, ""),
        ({"error": "x"}, -32603, "malformed"),
        ({"error": None}, -32603, "malformed"),
        ({"error": {"code": "5"}}, -32603, "malformed"),
        ({"result": {}, "error": {"code": 5, "message": "m"}}, 5, "m"),
    ],
)
async def test_errors_of_the_peer(answer: Any, code: int, message: str) -> None:
    async with peer_and_raw(echo) as (peer, raw), anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(PeerError) as caught:
                await peer.request("y", {})
            assert caught.value.code == code
            assert message in caught.value.message

        tasks.start_soon(ask)
        await raw.send({"jsonrpc": "2.0", "id": (await raw.receive())["id"], **answer})


async def test_a_null_error_beside_a_result_is_none() -> None:
    async with peer_and_raw(echo) as (peer, raw), anyio.create_task_group() as tasks:

        async def ask() -> None:
            assert await peer.request("y", {}) == 1

        tasks.start_soon(ask)
        await raw.send({"jsonrpc": "2.0", "id": (await raw.receive())["id"], "result": 1, "error": None})


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_giving_up_tells_the_peer(how: str) -> None:
    async with peer_and_raw(echo) as (peer, raw), anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def ask() -> None:
            with scope:
                if how == "cancel":
                    await peer.request("y", {})
                else:
                    with pytest.raises(TimeoutError):
                        await peer.request("y", {}, timeout=0.01)

        tasks.start_soon(ask)
        request = await raw.receive()
        if how == "cancel":
            scope.cancel()
        cancelling = await raw.receive()
        assert (cancelling["method"], cancelling["params"]) == ("$/cancel_request", {"requestId": request["id"]})
        # The answer comes all the same, and nobody minds.
        await raw.send({"jsonrpc": "2.0", "id": request["id"], "result": {}})
        assert "result" in await raw.ask("x", None, "z")


async def test_a_timeout_covers_a_wedged_channel() -> None:
    async with peer_and_raw(echo, buffer=1) as (peer, _), anyio.create_task_group() as tasks:
        await peer.notify("fills", None)
        with anyio.fail_after(3), pytest.raises(TimeoutError):
            await peer.request("y", {}, timeout=0.01)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "error", [ValueError("secret"), KeyboardInterrupt(), SystemExit(3), ExceptionGroup("g", [OSError()])]
)
async def test_what_a_handler_raises_harms_its_request_only(error: BaseException) -> None:
    async def handler(inbound: Inbound) -> Any:
        if inbound.method == "bad":
            raise error
        return {}

    async with peer_and_raw(handler) as (_, raw):
        answer = await raw.ask("bad")
        assert answer["error"] == {"code": -32603, "message": "Internal error", "data": None}
        assert (await raw.ask("good"))["result"] == {}


async def test_a_handler_that_is_cancelled_from_within_is_answered() -> None:
    async def handler(inbound: Inbound) -> Any:
        raise asyncio.CancelledError

    async with peer_and_raw(handler) as (_, raw):
        assert (await raw.ask("bad"))["error"]["code"] == -32603


@pytest.mark.parametrize("value", [float("nan"), object(), {"a": {1}}, "x" * 500])
async def test_a_result_that_cannot_be_written(value: Any) -> None:
    async def handler(inbound: Inbound) -> Any:
        if inbound.params == "replace":
            inbound.unencodable = lambda error: {"instead": str(error)}
        if inbound.params == "refuse":

            def refuse(error: Exception) -> Any:
                raise PeerError(7, "refused")

            inbound.unencodable = refuse
        if inbound.params == "still bad":
            inbound.unencodable = lambda error: value if not isinstance(value, str) else float("nan")
        return value

    async with peer_and_raw(handler, max_message_chars=400) as (_, raw):
        assert (await raw.ask("x"))["error"]["code"] == -32603
        assert "instead" in (await raw.ask("x", "replace"))["result"]
        assert (await raw.ask("x", "refuse"))["error"]["code"] == 7
        assert (await raw.ask("x", "still bad"))["error"]["code"] == -32603


async def test_error_data_that_cannot_be_written_is_dropped() -> None:
    async def handler(inbound: Inbound) -> Any:
        raise PeerError(9, "told", {"x": float("nan")})

    async with peer_and_raw(handler) as (_, raw):
        assert (await raw.ask("x"))["error"] == {"code": 9, "message": "told", "data": None}


async def test_even_a_tiny_cap_leaves_no_request_unanswered() -> None:
    async with peer_and_raw(echo, max_message_chars=60) as (_, raw):
        await raw.send("x" * 70)
        assert "max_message_chars" in (await raw.receive())["error"]["message"]
        await raw.send('{"id":1,"method":"x","params":"' + "y" * 25 + '"}')
        assert (await raw.receive())["error"]["data"] == {"limit": "max_message_chars"}


@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"2.0"}',
        '{"id":1}',
        '{"method":1,"id":1}',
        '{"method":null,"result":1,"id":1}',
        '{"method":[],"id":1}',
        "{}",
    ],
)
async def test_neither_request_nor_answer(text: str) -> None:
    async with peer_and_raw(echo) as (_, raw):
        await raw.send(text)
        answer = await raw.receive()
        assert answer["error"]["code"] == -32600
        assert answer["id"] == json.loads(text).get("id")


async def test_an_open_id_is_not_opened_twice() -> None:
    go = anyio.Event()

    async def handler(inbound: Inbound) -> Any:
        await go.wait()
        return {}

    async with peer_and_raw(handler) as (peer, raw):
        await raw.post("x", None, "a")
        await raw.post("x", None, "a")
        refused = await raw.receive()
        assert (refused["id"], refused["error"]["code"]) == ("a", -32600)
        assert len(peer.inbound) == 1
        go.set()
        assert (await raw.receive())["result"] == {}


async def test_too_many_open_requests_are_refused_by_name() -> None:
    go = anyio.Event()

    async def handler(inbound: Inbound) -> Any:
        await go.wait()
        return {}

    async with peer_and_raw(handler, max_inbound_requests=3) as (_, raw):
        for n in range(4):
            await raw.post("x", None, n)
        refused = await raw.answer(3)
        assert refused["error"]["code"] == -33000
        assert refused["error"]["data"] == {"limit": "max_inbound_requests"}
        go.set()
        for n in range(3):
            await raw.answer(n)
        assert "result" in await raw.ask("x", None, 9)


async def test_the_end_of_the_channel_settles_all_at_once() -> None:
    unwound = anyio.Event()
    failed: list[str] = []

    async def handler(inbound: Inbound) -> Any:
        try:
            # Shielded, it would wait for ever if the peer did not let go of it first.
            with anyio.CancelScope(shield=True):
                await peer.request("back", {})
        except ChannelClosed:
            failed.append("inner")
        finally:
            unwound.set()

    async with peer_and_raw(handler) as (peer, raw), anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(ChannelClosed):
                await peer.request("y", {})
            failed.append("outer")

        tasks.start_soon(ask)
        await raw.post("x", None, "a")
        for _ in range(2):
            await raw.receive()
        with anyio.fail_after(2):
            await raw.channel.aclose()
            await unwound.wait()
    assert sorted(failed) == ["inner", "outer"]
    assert peer.closed
    with pytest.raises(ChannelClosed):
        await peer.request("y", {})
    with pytest.raises(ChannelClosed):
        await peer.notify("y", {})


async def test_the_peer_closes_its_own_end_too() -> None:
    """Whoever waits on the other side learns it."""
    ours, theirs = memory_channel_pair()
    async with anyio.create_task_group() as tasks:
        peer = Peer(ours, echo, lambda method, params: None)
        tasks.start_soon(peer.run)
        await anyio.wait_all_tasks_blocked()
        await peer.aclose()
        with anyio.fail_after(2), pytest.raises(ChannelClosed):
            await theirs.receive()


async def test_nothing_is_sent_for_a_cancelled_request() -> None:
    late = anyio.Event()

    async def handler(inbound: Inbound) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await late.wait()
        return "too late"

    async with peer_and_raw(handler) as (peer, raw):
        await raw.post("x", None, "a")
        await raw.notify("$/cancel_request", {"requestId": "a"})
        await raw.notify("$/cancel_request", {"requestId": "a"})
        assert (await raw.answer("a"))["error"]["code"] == -32800
        assert len(peer.inbound) <= 1
        late.set()
        assert (await raw.ask("$/cancel_request", {"requestId": "a"}, "c"))["result"] == {}
        assert raw._answers == {}


async def test_cancelling_each_other_over_full_channels_does_not_lock() -> None:
    """Neither receive loop waits for a write."""
    left, right = memory_channel_pair(1)
    started = 0
    all_started = anyio.Event()

    async def handler(inbound: Inbound) -> Any:
        nonlocal started
        started += 1
        if started == 40:
            all_started.set()
        await anyio.sleep_forever()

    peers = [Peer(end, handler, lambda method, params: None) for end in (left, right)]
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for peer in peers:
                tasks.start_soon(peer.run)
            async with anyio.create_task_group() as calls:
                for _ in range(20):
                    for peer in peers:
                        calls.start_soon(peer.request, "x", {})
                await all_started.wait()
                calls.cancel_scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert [peer.inbound for peer in peers] == [[], []]
            await peers[0].aclose()


async def test_a_bad_notification_handler_is_survived() -> None:
    def notify(method: str, params: Any) -> None:
        raise PeerError(1, "x") if method == "peer" else ZeroDivisionError

    async with peer_and_raw(echo, notify=notify) as (_, raw):
        await raw.notify("peer")
        await raw.notify("other")
        assert "result" in await raw.ask("x")


async def test_memory_stays_flat_over_many_messages() -> None:
    """Nothing is dropped, and nothing is kept."""
    count = 100_000
    seen = 0

    async def handler(inbound: Inbound) -> Any:
        nonlocal seen
        seen += 1
        return {"n": inbound.params}

    ours, theirs = memory_channel_pair()
    server = Peer(ours, handler, lambda method, params: None)
    client = Peer(theirs, handler, lambda method, params: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.run)
        tasks.start_soon(client.run)
        for _ in range(500):
            await client.request("x", "warm up")
        gc.collect()
        before = sys.getallocatedblocks()
        for n in range(count // 2):
            assert await client.request("x", n) == {"n": n}
        gc.collect()
        grown = sys.getallocatedblocks() - before
        await client.aclose()
    assert seen == count // 2 + 500
    assert grown < 1000, f"{grown} blocks of memory are left of {count} messages"


async def test_a_reader_that_stops_slows_the_writer() -> None:
    """A peer that sends and never reads meets the limits, not our memory."""
    ours, theirs = memory_channel_pair(8)
    peer = Peer(ours, echo, lambda method, params: None, max_inbound_requests=16)
    sent = 0

    async def flood() -> None:
        nonlocal sent
        for n in range(1000):
            await theirs.send(json.dumps({"jsonrpc": "2.0", "id": n, "method": "x"}))
            sent += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        tasks.start_soon(flood)
        await anyio.wait_all_tasks_blocked()
        # Eight answers in the channel, 16 that wait, one refusal, eight requests in the channel, one being sent.
        assert sent <= 8 + 16 + 1 + 8 + 1
        answers = 0
        with anyio.fail_after(10):
            while answers < 1000:
                await theirs.receive()
                answers += 1
        assert sent == 1000
        await theirs.aclose()
