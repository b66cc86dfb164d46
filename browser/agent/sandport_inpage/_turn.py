"""What one prompt does towards the client while it is worked on: updates, questions, and the plan.

Invariants: a tool call is announced once, before anything else is said of it, and gets one last status; what is still
open when the turn ends gets it then. Nothing is run that the mode or the person does not allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from acp import text_block, tool_content
from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import (
    AgentPlanUpdate,
    AllowedOutcome,
    PermissionOption,
    PlanEntry,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
)

if TYPE_CHECKING:
    from acp.schema import ContentToolCallContent

__all__ = ["ASK", "AUTO", "MODES", "Kind", "Refused", "Turn"]

AUTO: Final = "auto"
ASK: Final = "ask"
MODES: Final = frozenset({AUTO, ASK})
"""Ids of a session's modes; their words depend on the place."""

Kind = Literal["read", "edit", "delete", "search", "execute", "fetch", "other"]
MAX_SHOWN: Final = 20_000
"""Characters of a result that are shown as the call's content; the raw output has all of it."""


class Refused(Exception):
    """A call was not allowed."""


@dataclass(eq=False)
class Turn:
    """The updates of one prompt.

    Args:
        client: the ACP client.
        session_id: whose turn it is.
        mode: a key of `MODES`.
        always: tools that the person allowed for the rest of the session, as offered to the model; added to here.
    """

    client: Client
    session_id: str
    mode: str
    always: set[str]
    _open: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)

    async def announce(self, call_id: str, title: str, kind: Kind, arguments: Any) -> None:
        """Tell of a call. A second time does nothing."""
        if call_id in self._known:
            return
        self._known.add(call_id)
        self._open.add(call_id)
        await self._update(
            ToolCallStart(
                session_update="tool_call",
                tool_call_id=call_id,
                title=title,
                kind=kind,
                status="pending",
                raw_input=arguments,
            )
        )

    async def allow(self, call_id: str, tool: str, title: str, arguments: Any, *, harmless: bool) -> None:
        """Return when the call may run, and say that it does.

        Args:
            call_id: an announced call.
            tool: its name as offered to the model.
            title: shown with the question.
            arguments: shown in full.
            harmless: whether its server marks it as read-only.

        Raises:
            Refused: it may not.
        """
        if self.mode == ASK and not harmless and tool not in self.always:
            options = [
                PermissionOption(option_id="once", name="Allow", kind="allow_once"),
                PermissionOption(option_id="always", name=f"Always allow {tool} here", kind="allow_always"),
                PermissionOption(option_id="reject", name="Do not run it", kind="reject_once"),
            ]
            answer = await self.ask(call_id, title, options, arguments)
            if answer == "always":
                self.always.add(tool)
            elif answer != "once":
                raise Refused("The person did not allow this call.")
        await self._progress(call_id, status="in_progress")

    async def ask(
        self, call_id: str | None, title: str, options: Sequence[PermissionOption], arguments: Any = None
    ) -> str | None:
        """Put a question; the chosen option's id, or `None` when the client took the question away.

        Raises:
            Refused: the client cannot ask.
        """
        call = ToolCallUpdate(
            tool_call_id=call_id or f"question-{uuid4().hex}", title=title, status="pending", raw_input=arguments
        )
        try:
            response = await self.client.request_permission(
                session_id=self.session_id, tool_call=call, options=list(options)
            )
        except RequestError as error:
            raise Refused(f"The client did not put the question to the person: {error}") from error
        outcome = response.outcome
        return outcome.option_id if isinstance(outcome, AllowedOutcome) else None

    async def report(self, call_id: str, text: str) -> None:
        """Show how far a running call is."""
        if call_id in self._open:
            await self._progress(call_id, content=[tool_content(text_block(text))])

    async def finish(self, call_id: str, ok: bool, text: str, output: Any = None) -> None:
        """The last status of a call. A second one does nothing."""
        if call_id not in self._open:
            return
        self._open.discard(call_id)
        shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n… ({len(text) - MAX_SHOWN} more characters)"
        await self._progress(
            call_id,
            status="completed" if ok else "failed",
            content=[tool_content(text_block(shown))],
            output=output,
        )

    async def settle(self, reason: str) -> None:
        """The turn is over: what has no last status gets it."""
        for call_id in list(self._open):
            await self.finish(call_id, False, reason)

    async def plan(self, entries: Sequence[PlanEntry]) -> None:
        """Show the plan, in place of an earlier one."""
        await self._update(AgentPlanUpdate(session_update="plan", entries=list(entries)))

    async def _progress(
        self,
        call_id: str,
        *,
        status: Literal["in_progress", "completed", "failed"] | None = None,
        content: list[ContentToolCallContent] | None = None,
        output: Any = None,
    ) -> None:
        members: dict[str, Any] = {"status": status, "content": content, "raw_output": output}
        given = {name: value for name, value in members.items() if value is not None}
        await self._update(ToolCallProgress(session_update="tool_call_update", tool_call_id=call_id, **given))

    async def _update(self, update: Any) -> None:
        await self.client.session_update(session_id=self.session_id, update=update)
