"""What an agent of somebody else finds when it uses tools that Sandport lends. A case is a function of `AgentPeer`."""

from __future__ import annotations

from contextlib import suppress

import anyio
from tests.peers.driver import AgentPeer, Failure
from tests.peers.suite import Case, check, same
from tests.peers.tools import ERROR_CODE, NAME

from sandport import ChannelClosed

__all__ = ["CONNECT", "EXTRAS", "FULL_STATELESS", "LAST", "SILENT", "STATELESS"]

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {"form": {}}},
    "clientInfo": {"name": "peer", "version": "1"},
}
ELICITS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


def text(result: dict[str, object]) -> str:
    """The text of a tool's result."""
    content = result["content"]
    assert isinstance(content, list)
    return "".join(item["text"] for item in content)


async def fails(awaited: object, where: str, code: int) -> Failure:
    """The failure of a request, which must have this code."""
    try:
        result = await awaited  # type: ignore[misc]
    except Failure as failure:
        same((failure.where, failure.code), (where, code), "error")
        return failure
    raise AssertionError(f"no error {code} but {result!r}")


# -- both families ----------------------------------------------------------------------------------------------


async def reads_the_declaration(peer: AgentPeer) -> None:
    """The agent's own decoder lets the superset declaration through, with the id it knows."""
    servers = await peer.do("servers")
    same([server["name"] for server in servers], [NAME])
    known = "id" if peer.dialect == "connect-acpId" else "url" if peer.legacy else "serverId"
    check(servers[0].get(known), f"{known} is missing in {servers[0]}")


async def lists_tools(peer: AgentPeer) -> None:
    result = await peer.request("tools/list")
    names = {tool["name"] for tool in result["tools"]}
    check({"add", "echo", "count", "block", "ask"} <= names, f"tools: {names}")
    check(all(tool["inputSchema"]["type"] == "object" for tool in result["tools"]), "an input schema is no object")


async def calls_a_tool(peer: AgentPeer) -> None:
    result = await peer.call("add", {"a": 2, "b": 40})
    same(text(result), "42")
    same(result["structuredContent"], {"result": 42})
    check(not result.get("isError"), "isError")


async def values_come_unharmed(peer: AgentPeer) -> None:
    value = {
        "text": "\u00fc\u2028\U0001f600\u0000",
        "number": 2**53 - 1,
        "deep": [[[None, True, {}]]],
        "long": "x" * 100_000,
    }
    result = await peer.call("echo", {"value": value})
    same(result["structuredContent"].get("result", result["structuredContent"]), value)


async def reports_progress(peer: AgentPeer) -> None:
    """While the call runs: some callers drop a notification that they read together with the answer."""
    params = {"name": "count", "arguments": {"to": 3}, "_meta": {"progressToken": "p-1"}}
    key = await peer.start("tools/call", params)
    where = {"key": key} if peer.stateless else {}
    for step in (1, 2, 3):
        note = await peer.do("note", method="notifications/progress", progress=step, **where)
        same((note["params"]["progressToken"], note["params"]["total"]), ("p-1", 3))
    peer.tools.release()
    same(text(await peer.outcome(key)), "counted to 3")


async def tool_failure_is_a_result(peer: AgentPeer) -> None:
    result = await peer.call("fail")
    same(result["isError"], True)
    check("the tool failed" in text(result), text(result))


async def bad_arguments_are_a_result(peer: AgentPeer) -> None:
    result = await peer.call("add", {"a": "many"})
    same(result["isError"], True)


async def error_keeps_code_and_data(peer: AgentPeer) -> None:
    where = "inner" if peer.stateless else "outer"
    failure = await fails(peer.request("resources/read", {"uri": "bad://thing"}), where, ERROR_CODE)
    same(failure.data, {"hint": "none"})


async def unknown_tool_is_invalid_params(peer: AgentPeer) -> None:
    await fails(peer.call("nope"), "inner" if peer.stateless else "outer", -32602)


async def unknown_method_is_not_found(peer: AgentPeer) -> None:
    await fails(peer.request("no/such"), "inner" if peer.stateless else "outer", -32601)


async def cancel_stops_the_tool(peer: AgentPeer) -> None:
    before = peer.tools.stopped
    key = await peer.start("tools/call", {"name": "block", "arguments": {}})
    await peer.tools.until(running=1)
    await peer.do("cancel", key=key)
    await fails(peer.outcome(key), "outer", -32800)
    await peer.tools.until(running=0)
    same(peer.tools.stopped, before + 1)


async def stray_cancel_hits_nothing(peer: AgentPeer) -> None:
    key = await peer.start("tools/call", {"name": "block", "arguments": {}})
    await peer.tools.until(running=1)
    done = await peer.start("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})
    await peer.outcome(done)
    await peer.do("cancel", key=done)
    peer.tools.release()
    same(text(await peer.outcome(key)), "released")


async def calls_run_side_by_side(peer: AgentPeer) -> None:
    keys = [await peer.start("tools/call", {"name": "block", "arguments": {}}) for _ in range(8)]
    await peer.tools.until(running=8)
    same(text(await peer.call("add", {"a": 1, "b": 2})), "3")
    peer.tools.release()
    for key in keys:
        same(text(await peer.outcome(key)), "released")


async def works_inside_a_prompt(peer: AgentPeer) -> None:
    params = {"name": "add", "arguments": {"a": 20, "b": 3}}
    outcome = await peer.prompt("call", method="tools/call", params=params, **peer.where())
    same(text(outcome["result"]), "23")


async def dialect_is_told_apart(peer: AgentPeer) -> None:
    result = await peer.call("who")
    same(result["structuredContent"]["dialect"], "legacy" if peer.legacy else peer.dialect)


# -- the connect family -----------------------------------------------------------------------------------------


async def connects(peer: AgentPeer) -> None:
    answer = await peer.do("connect", server=NAME)
    check(isinstance(answer["connectionId"], str) and answer["connectionId"], f"connect: {answer}")
    peer.connection = answer["connectionId"]
    result = await peer.request("initialize", INITIALIZE)
    same(result["protocolVersion"], "2025-11-25")
    same(result["serverInfo"]["name"], NAME)
    await peer.do("notify", connection=peer.connection, method="notifications/initialized")


async def pings(peer: AgentPeer) -> None:
    same(await peer.request("ping"), {})


async def elicits_live(peer: AgentPeer) -> None:
    await peer.do("answers", by={"elicitation/create": {"action": "accept", "content": {"ok": True}}})
    check("accept" in text(await peer.call("ask")), "the answer did not arrive")
    await peer.do("answers", by={"elicitation/create": {"action": "decline"}})
    check("decline" in text(await peer.call("ask")), "the refusal did not arrive")


async def useless_answer_fails_the_tool_alone(peer: AgentPeer) -> None:
    """What the agentpool fork answers to every request of the client's."""
    await peer.do("answers", by={"elicitation/create": {}})
    same((await peer.call("ask"))["isError"], True)
    same(await peer.request("ping"), {})


async def hears_of_changed_tools(peer: AgentPeer) -> None:
    await peer.host.list_changed(NAME)
    note = await peer.do("note", method="notifications/tools/list_changed")
    same(note["connectionId"], peer.connection)


async def connections_do_not_meet(peer: AgentPeer) -> None:
    mine, other = peer.connection, (await peer.do("connect", server=NAME))["connectionId"]
    check(mine != other, "the same connection id twice")
    peer.connection = other
    try:
        await peer.request("initialize", INITIALIZE)
        same(text(await peer.call("add", {"a": 5, "b": 5})), "10")
        await peer.do("disconnect", connection=other)
        await fails(peer.call("add", {"a": 5, "b": 5}), "outer", -32602)
    finally:
        peer.connection = mine
    same(await peer.request("ping"), {})


async def unknown_server_is_refused(peer: AgentPeer) -> None:
    prefix = "_" if peer.legacy else ""
    key = "acp_id" if peer.legacy else "acpId" if peer.dialect == "connect-acpId" else "serverId"
    outcome = await peer.do("outer", method=f"{prefix}mcp/connect", params={key: "nobody"})
    same(outcome["outer"]["code"], -32602)
    nobody = {"connectionId": "nobody", "method": "ping"}
    outcome = await peer.do("outer", method=f"{prefix}mcp/message", params=nobody)
    same(outcome["outer"]["code"], -32602)


async def disconnect_settles_what_is_open(peer: AgentPeer) -> None:
    before = peer.tools.stopped
    key = await peer.start("tools/call", {"name": "block", "arguments": {}})
    await peer.tools.until(running=1)
    same(await peer.do("disconnect", connection=peer.connection), {})
    try:
        await peer.outcome(key)
    except Failure as failure:
        same(failure.where, "outer")
    else:
        raise AssertionError("a call outlived its connection")
    await peer.tools.until(running=0)
    same(peer.tools.stopped, before + 1)
    same(await peer.do("disconnect", connection=peer.connection), {})
    await fails(peer.request("ping"), "outer", -32602)


# -- the stateless family ---------------------------------------------------------------------------------------


async def discovers(peer: AgentPeer) -> None:
    result = await peer.request("server/discover")
    check("2026-07-28" in result["supportedVersions"], f"versions: {result}")
    same(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], NAME)


async def handshake_is_not_found(peer: AgentPeer) -> None:
    await fails(peer.request("initialize", INITIALIZE), "inner", -32601)
    await fails(peer.request("ping"), "inner", -32601)


async def wrong_revision_is_named(peer: AgentPeer) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2025-06-18"}
    failure = await fails(peer.request("tools/list", {"_meta": meta}), "inner", -32022)
    same(failure.data["requested"], "2025-06-18")


async def unknown_server_id_is_33001(peer: AgentPeer) -> None:
    outcome = await peer.do("call", server="nobody", method="tools/list", params={})
    same(outcome["outer"]["code"], -33001)
    same(outcome["outer"]["data"]["serverId"], "nobody")


async def _asks(peer: AgentPeer, tool: str) -> None:
    first = await peer.call(tool, _meta=ELICITS)
    same(first["resultType"], "input_required")
    (key, request), *others = first["inputRequests"].items()
    same((request["method"], others), ("elicitation/create", []))
    answers = {key: {"action": "accept", "content": {"ok": True}}}
    more = {"requestState": first["requestState"]} if "requestState" in first else {}
    second = await peer.call(tool, _meta=ELICITS, inputResponses=answers, **more)
    same(second.get("resultType", "complete"), "complete")
    check("accept" in text(second), text(second))


async def asks_by_input_required(peer: AgentPeer) -> None:
    await _asks(peer, "ask")


async def asks_by_hand(peer: AgentPeer) -> None:
    await _asks(peer, "ask_by_hand")


async def asking_needs_the_capability(peer: AgentPeer) -> None:
    failure = await fails(peer.call("ask"), "inner", -32021)
    same(failure.data, {"requiredCapabilities": {"elicitation": {"form": {}}}})


async def listens_for_changes(peer: AgentPeer) -> None:
    key = await peer.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, requestId="listen-1")
    acknowledged = await peer.do("note", key=key, method="notifications/subscriptions/acknowledged")
    same(acknowledged["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "listen-1")
    await peer.host.list_changed(NAME)
    changed = await peer.do("note", key=key, method="notifications/tools/list_changed")
    same(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "listen-1")
    await peer.do("cancel", key=key)
    await fails(peer.outcome(key), "outer", -32800)


async def active_request_id_is_refused(peer: AgentPeer) -> None:
    key = await peer.start("tools/call", {"name": "block", "arguments": {}}, requestId="twice")
    await peer.tools.until(running=1)
    # By hand: the SDK's caller refuses to send it.
    server_id = (await peer.do("servers"))[0]["serverId"]
    again = {"serverId": server_id, "requestId": "twice", "method": "tools/list"}
    same((await peer.do("outer", method="mcp/message", params=again))["outer"]["code"], -32602)
    peer.tools.release()
    same(text(await peer.outcome(key)), "released")


async def sixty_fifth_active_request_waits(peer: AgentPeer) -> None:
    """The binding allows a provider to refuse it; ours lets it wait for a place."""
    keys = [await peer.start("tools/call", {"name": "block", "arguments": {}}) for _ in range(64)]
    await peer.tools.until(running=64)
    late = await peer.start("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    peer.tools.release()
    same(text(await peer.outcome(late)), "3")
    for key in keys:
        same(text(await peer.outcome(key)), "released")


async def over_the_limit_is_33000(peer: AgentPeer) -> None:
    """A host that lets nothing wait refuses in the binding's own code, and goes on."""
    keys = [await peer.start("tools/call", {"name": "block", "arguments": {}}) for _ in range(64)]
    await peer.tools.until(running=64)
    failure = await fails(peer.call("add", {"a": 1, "b": 2}), "outer", -33000)
    same(failure.data, {"limit": "max_waiting_requests"})
    peer.tools.release()
    for key in keys:
        same(text(await peer.outcome(key)), "released")
    same(text(await peer.call("add", {"a": 1, "b": 2})), "3")


async def hints_reach_the_tool(peer: AgentPeer) -> None:
    """`stateless+`: session and tool call are told to the tool."""
    result = await peer.request("tools/call", {"name": "who", "arguments": {}}, sessionId="s1", toolCallId="t7")
    same(result["structuredContent"], {"dialect": "stateless+", "session": "s1", "tool_call": "t7"})


async def nothing_is_declared_to_the_silent(peer: AgentPeer) -> None:
    """An agent that does not advertise acp would refuse the session; it gets one without our servers."""
    same(await peer.do("servers"), [])


async def end_of_the_agent_stops_the_tools(peer: AgentPeer) -> None:
    before = peer.tools.stopped
    async with anyio.create_task_group() as tasks:
        if not peer.stateless:
            peer.connection = (await peer.do("connect", server=NAME))["connectionId"]
            await peer.request("initialize", INITIALIZE)
        await peer.start("tools/call", {"name": "block", "arguments": {}})
        await peer.tools.until(running=1)

        async def leave() -> None:
            with suppress(ConnectionError, ChannelClosed):
                await peer.do("leave")

        tasks.start_soon(leave)
        await peer.tools.until(running=0)
    same(peer.tools.stopped, before + 1)


_SHARED: list[Case] = [
    lists_tools,
    calls_a_tool,
    values_come_unharmed,
    reports_progress,
    tool_failure_is_a_result,
    bad_arguments_are_a_result,
    error_keeps_code_and_data,
    unknown_tool_is_invalid_params,
    unknown_method_is_not_found,
    cancel_stops_the_tool,
    stray_cancel_hits_nothing,
    calls_run_side_by_side,
    works_inside_a_prompt,
    dialect_is_told_apart,
]

CONNECT: list[Case] = [
    reads_the_declaration,
    connects,
    pings,
    *_SHARED,
    elicits_live,
    useless_answer_fails_the_tool_alone,
    hears_of_changed_tools,
    connections_do_not_meet,
    unknown_server_is_refused,
    disconnect_settles_what_is_open,
]
"""For agents of the connect family; `connects` has to come first."""

LAST: list[Case] = [end_of_the_agent_stops_the_tools]
"""Ends the peer."""
SILENT: list[Case] = [nothing_is_declared_to_the_silent]
"""For agents that do not advertise MCP over ACP."""

STATELESS: list[Case] = [
    reads_the_declaration,
    discovers,
    *_SHARED,
    handshake_is_not_found,
    wrong_revision_is_named,
    unknown_server_id_is_33001,
    asks_by_input_required,
    asks_by_hand,
    asking_needs_the_capability,
    listens_for_changes,
    active_request_id_is_refused,
    sixty_fifth_active_request_waits,
]
"""For agents of the stateless family."""

FULL_STATELESS: list[Case] = [over_the_limit_is_33000]
"""Against a host that lets no request wait."""

EXTRAS: list[Case] = [hints_reach_the_tool]
"""For agents that add the members of `stateless+`."""
