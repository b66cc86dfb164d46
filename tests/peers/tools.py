"""The server that Sandport lends to agents in these tests."""

from __future__ import annotations

from typing import Any

import anyio
from fastmcp import Context, FastMCP
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel

from sandport import ask as sandport_ask
from sandport import current_call

__all__ = ["ERROR_CODE", "NAME", "Tools"]

NAME = "desk"
"""As it is declared to agents."""
ERROR_CODE = -32077
"""What the resource `bad://thing` fails with: a code of ours, with data."""


class Answer(BaseModel):
    """What a person is asked for."""

    ok: bool


class Tools:
    """A server and what its tools tell a test."""

    def __init__(self) -> None:
        self.server: FastMCP[Any] = FastMCP(NAME, version="1.0.0")
        self.running = 0
        """Calls of `block` that are running."""
        self.stopped = 0
        """Calls of `block` whose `finally` ran."""
        self._changed = anyio.Event()
        self._release = anyio.Event()
        self._mount()

    async def until(self, **wanted: int) -> None:
        """Wait until counters have these values."""
        while any(getattr(self, name) != value for name, value in wanted.items()):
            await self._changed.wait()

    def release(self) -> None:
        """Let every running `block` and `count` return."""
        self._release.set()
        self._release = anyio.Event()

    def _count(self, running: int, stopped: int = 0) -> None:
        self.running += running
        self.stopped += stopped
        self._changed.set()
        self._changed = anyio.Event()

    def _mount(self) -> None:
        server = self.server

        @server.tool
        def add(a: int, b: int) -> int:
            """The sum of two integers."""
            return a + b

        @server.tool
        def echo(value: Any) -> Any:
            """The value as it came."""
            return value

        @server.tool
        def fail() -> str:
            """Raises."""
            raise ValueError("the tool failed")

        @server.tool
        async def count(to: int, ctx: Context) -> str:
            """Reports progress `to` times, and returns when it is released."""
            release = self._release
            for step in range(1, to + 1):
                await ctx.report_progress(step, to, f"step {step}")
            await release.wait()
            return f"counted to {to}"

        @server.tool
        async def block() -> str:
            """Runs until it is cancelled or released."""
            self._count(+1)
            try:
                await self._release.wait()
            except BaseException:
                self._count(0, +1)
                raise
            finally:
                self._count(-1)
            return "released"

        @server.tool
        async def ask(ctx: Context) -> str:
            """Asks the person, the same way in every era."""
            answer = await sandport_ask(ctx, "Sure?", Answer)
            return f"{answer.action}: {getattr(answer, 'data', None)}"

        @server.tool
        async def ask_by_hand(ctx: Context) -> Any:
            """Asks with MCP's own result, which the stateless era alone has."""
            if not ctx.input_responses:
                form = ElicitRequestFormParams(message="Sure?", requested_schema=Answer.model_json_schema())
                return InputRequiredResult(input_requests={"confirm": ElicitRequest(params=form)}, request_state="s-1")
            given = ctx.input_responses["confirm"]
            assert isinstance(given, ElicitResult)
            return f"{given.action}: {given.content}"

        @server.tool
        def who() -> dict[str, str | None]:
            """How this call came."""
            call = current_call()
            assert call is not None
            return {"dialect": call.dialect, "session": call.session_id, "tool_call": call.tool_call_id}

        @server.resource("bad://thing")
        def bad() -> str:
            """Fails with a code and data."""
            raise MCPError(ERROR_CODE, "no such thing", {"hint": "none"})

        @server.resource("data://thing")
        def thing() -> str:
            """A text."""
            return "a thing"
