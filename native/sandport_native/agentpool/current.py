"""Which ACP session the running code works for.

Invariant: set once, at the top of the task that handles a session's request, and inherited by every task below it;
code that runs for no session sees None, and so no page tools.
"""

from __future__ import annotations

from contextvars import ContextVar

CURRENT_SESSION: ContextVar[str | None] = ContextVar("sandport_acp_session", default=None)
