"""The tool host, through raw messages of every dialect."""

from __future__ import annotations

import pytest

from sandport import ToolHost

from .kit import NAMES, RawAgent, make_server, serving, text_of


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("port", [False, True], ids=["direct", "port"])
async def test_p01_one_server_every_dialect(dialect: str, port: bool) -> None:
    """P01."""
    async with ToolHost() as host:
        host.mount(make_server())
        host.declare("tools", "S1")
        async with serving(host, port=port) as channel:
            agent = RawAgent(channel, dialect)
            address = await agent.open("S1")
            listed = await agent.mcp(address, "tools/list")
            assert {tool["name"] for tool in listed["result"]["tools"]} >= {"add", "echo", "fail", "wait"}
            result = (await agent.call(address, "add", {"a": 2, "b": 3}))["result"]
            assert result["structuredContent"] == {"result": 5}
            assert text_of(result) == "5"
            assert not result.get("isError")
