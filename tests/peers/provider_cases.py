"""What Sandport's agent side finds when it uses tools of somebody else. A case is a function of `ProviderPeer`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from tests.peers.provider_driver import ProviderPeer
from tests.peers.suite import Case, check, same

from sandport.agent import AcpMCPServerConfig, AcpMcpTransport
from sandport.errors import ChannelClosed, LocalError, PeerError

__all__ = ["CONNECT", "LAST", "STATELESS"]


async def dialect_is_found_out(peer: ProviderPeer) -> None:
    connection = await peer.manager.create_connection(peer.config)
    same(connection.dialect.name, peer.dialect)
    await connection.aclose()
    same(peer.manager.connections, [])


async def lists_tools(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        names = {tool.name for tool in await client.list_tools()}
    same(names, {"add", "echo", "fail", "count", "block", "ask"})


async def calls_a_tool(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        result = await client.call_tool("add", {"a": 2, "b": 40})
    same(result.structured_content, {"sum": 42})


async def values_come_unharmed(peer: ProviderPeer) -> None:
    value = "\u00fc\u2028\U0001f600\u0000" + "x" * 100_000
    async with peer.client() as client:
        result = await client.call_tool("echo", {"text": value})
    same(result.content[0].text, value)


async def reports_progress(peer: ProviderPeer) -> None:
    seen: list[float] = []
    all_seen = anyio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        if len(seen) == 3:
            all_seen.set()

    async with peer.client(progress_handler=note) as client:
        result = await client.call_tool("count", {"to": 3})
        same(result.content[0].text, "counted to 3")
        await all_seen.wait()
    same(sorted(seen), [1, 2, 3])


async def tool_failure_is_a_result(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        result = await client.call_tool("fail", {}, raise_on_error=False)
    check(result.is_error, "no error")
    same(result.content[0].text, "the tool failed")


async def unknown_tool_keeps_its_code(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        try:
            await client.call_tool("nope", {})
        except MCPError as error:
            same(error.error.code, -32602)
        except ToolError as error:
            raise AssertionError("the code is lost") from error
        else:
            raise AssertionError("no error")


async def unknown_method_is_not_found(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        try:
            await client.list_prompts()
        except MCPError as error:
            same(error.error.code, -32601)
        except Exception as error:
            raise AssertionError(f"not an MCP error: {error!r}") from error


async def cancel_reaches_the_tool(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                with suppress(MCPError):
                    await client.call_tool("block", {})

            tasks.start_soon(call)
            await peer.do("event", event="blocked")
            tasks.cancel_scope.cancel()
        await peer.do("event", event="aborted")
        cancels = [item for item in peer.exchange.messages("->") if item.get("method") == "$/cancel_request"]
        same(len(cancels), 1, "cancellations sent")
        same((await client.call_tool("add", {"a": 1, "b": 2})).structured_content, {"sum": 3})


async def calls_run_side_by_side(peer: ProviderPeer) -> None:
    results: list[Any] = []

    async with peer.client() as client:

        async def add(n: int) -> None:
            results.append((await client.call_tool("add", {"a": n, "b": n})).structured_content["sum"] == 2 * n)

        async with anyio.create_task_group() as tasks:
            for n in range(32):
                tasks.start_soon(add, n)
    same(results, [True] * 32)


async def answers_elicitation(peer: ProviderPeer) -> None:
    """A live request in the handshake era, `input_required` and a retry in the stateless one."""

    async def answer(message: str, response_type: Any, params: Any, context: Any) -> ElicitResult[Any]:
        same(message, "Sure?")
        return ElicitResult(action="accept", content={"ok": True})

    async with peer.client(elicitation_handler=answer) as client:
        result = await client.call_tool("ask", {})
    same(result.content[0].text, 'accept: {"ok":true}')


async def elicitation_needs_a_handler(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        try:
            result = await client.call_tool("ask", {}, raise_on_error=False)
        except MCPError:
            return
        check(result.is_error, f"answered without a handler: {result}")


async def hears_of_changed_tools(peer: ProviderPeer) -> None:
    heard = anyio.Event()

    async def note(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            heard.set()

    async with peer.client(message_handler=note) as client:
        await client.ping()
        await peer.do("changed")
        await heard.wait()


async def disconnect_is_told(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        await client.ping()
        same(await peer.do("connections"), 1)
    await peer.do("event", event="disconnected")
    same(await peer.do("connections"), 0)


async def unknown_server_is_refused(peer: ProviderPeer) -> None:
    config = AcpMCPServerConfig(name="nobody", acp_id="nobody", dialects=peer.config.dialects)
    try:
        await peer.manager.create_connection(config)
    except PeerError as error:
        # Where both families are tried, the last refusal counts.
        check(error.code in ((-33001,) if peer.stateless else (-32602, -33001)), f"code {error.code}")
    else:
        raise AssertionError("connected to nobody")
    async with peer.client() as client:
        same((await client.call_tool("add", {"a": 1, "b": 2})).structured_content, {"sum": 3})


async def wrong_dialect_is_unavailable(peer: ProviderPeer) -> None:
    """Pinned to a dialect that the provider does not speak: an error at once, and the rest lives."""
    wrong = "connect-serverId" if peer.stateless else "stateless"
    config = peer.config.model_copy(update={"dialects": (wrong,)})
    with anyio.fail_after(3):
        try:
            await peer.manager.create_connection(config)
        except PeerError:
            pass
        else:
            raise AssertionError("connected in a dialect that the provider does not speak")
    async with peer.client() as client:
        await client.list_tools()


async def other_family_by_hand(peer: ProviderPeer) -> None:
    """A provider of both families, pinned to the stateless one."""
    config = peer.config.model_copy(update={"dialects": ("stateless",)})
    connection = await peer.manager.create_connection(config)
    same(connection.dialect.name, "stateless")
    async with Client(AcpMcpTransport(peer.manager, config)) as client:
        same((await client.call_tool("add", {"a": 1, "b": 2})).structured_content, {"sum": 3})
    await connection.aclose()


async def sixty_fifth_active_request_is_33000(peer: ProviderPeer) -> None:
    async with peer.client() as client:
        failure: MCPError | None = None
        codes = anyio.Event()

        async def block() -> None:
            nonlocal failure
            try:
                await client.call_tool("block", {})
            except MCPError as error:
                failure = error
                codes.set()

        async with anyio.create_task_group() as tasks:
            for _ in range(65):
                tasks.start_soon(block)
            await codes.wait()
            tasks.cancel_scope.cancel()
        assert failure is not None
        same(failure.error.code, -33000)


async def listens(peer: ProviderPeer) -> None:
    """`subscriptions/listen` over Sandport's connection: acknowledged, told of a change, ended by cancelling."""
    connection = await peer.manager.create_connection(peer.config)
    heard: list[str] = []
    told = anyio.Event()

    async def on_notify(context: Any, method: str, params: Any) -> None:
        heard.append(method)
        if method == "notifications/subscriptions/acknowledged":
            await peer.do("changed")
        if method == "notifications/tools/list_changed":
            told.set()

    async def on_request(context: Any, method: str, params: Any) -> dict[str, Any]:
        raise MCPError(-32601, method)

    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "sandport", "version": "1"},
    }
    async with anyio.create_task_group() as tasks:
        await tasks.start(connection.run, on_request, on_notify)
        params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        tasks.start_soon(connection.send_raw_request, "subscriptions/listen", params, {"timeout": None})
        await told.wait()
        tasks.cancel_scope.cancel()
    same(heard[0], "notifications/subscriptions/acknowledged")
    await connection.aclose()


async def end_of_the_channel_settles_all(peer: ProviderPeer) -> None:
    async with anyio.create_task_group() as tasks:
        settled = anyio.Event()

        async def call() -> None:
            try:
                async with peer.client() as client:
                    await client.call_tool("block", {})
            except (MCPError, PeerError, LocalError, RuntimeError):
                settled.set()

        tasks.start_soon(call)
        await peer.do("event", event="blocked")
        with suppress(ChannelClosed):
            await peer.do("leave")
        await settled.wait()
    same(peer.manager.connections, [])


_SHARED: list[Case] = [
    dialect_is_found_out,
    lists_tools,
    calls_a_tool,
    values_come_unharmed,
    reports_progress,
    tool_failure_is_a_result,
    unknown_tool_keeps_its_code,
    unknown_method_is_not_found,
    cancel_reaches_the_tool,
    calls_run_side_by_side,
    answers_elicitation,
    elicitation_needs_a_handler,
    unknown_server_is_refused,
    wrong_dialect_is_unavailable,
]
LAST: list[Case] = [end_of_the_channel_settles_all]
"""Ends the peer."""
CONNECT: list[Case] = [*_SHARED, hears_of_changed_tools, disconnect_is_told, *LAST]
STATELESS: list[Case] = [*_SHARED, listens, sixty_fifth_active_request_is_33000, *LAST]
