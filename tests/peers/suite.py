"""Suites of named cases against one peer, and their table.

Invariant: a case passes or fails on its own account; one that fails prints what was exchanged while it ran.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import anyio
from tests.peers.channels import Exchange

__all__ = ["CASE_LIMIT", "Case", "Outcome", "Suite", "check", "run", "same", "table"]

CASE_LIMIT = 30.0
"""Seconds a case may take; each takes well under one on an idle machine."""
START_LIMIT = 240.0
"""Seconds a peer has to come up: agentpool imports for 10 s on an idle machine, and a minute on a busy one."""

Case = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class Suite:
    """Cases against one peer. They share one running peer and run in order; the name of a case is its function's."""

    peer: str
    version: str
    dialect: str
    role: str
    """What the peer is: `agent` (uses our tools) or `provider` (lends tools to us)."""
    cases: Sequence[Case]
    open: Callable[[Exchange], AbstractAsyncContextManager[Any]]
    """Starts the peer; what it yields is handed to each case."""
    quick: bool = False
    """Whether it is the newest of its family."""
    missing: str | None = None
    """Why it cannot run here; it then counts as failed."""
    limit: float = CASE_LIMIT
    """Seconds for each case."""

    @property
    def name(self) -> str:
        """For `--only` and messages."""
        return f"{self.peer} {self.version} {self.dialect} {self.role}"


@dataclass
class Outcome:
    """What came of a suite."""

    suite: Suite
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


def check(condition: object, what: str) -> None:
    """Fail a case with a reason."""
    if not condition:
        raise AssertionError(what)


def same(found: object, wanted: object, what: str = "") -> None:
    """Fail a case unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{what or 'found'}: {found!r}, wanted: {wanted!r}")


async def run(suite: Suite) -> Outcome:
    """Run a suite."""
    outcome = Outcome(suite)
    exchange = Exchange()
    start = time.monotonic()
    left = [case.__name__ for case in suite.cases]
    try:
        if suite.missing is not None:
            raise RuntimeError(suite.missing)
        await _run(suite, exchange, outcome, left)
    except (Exception, ExceptionGroup) as error:
        # The peer did not come up, or broke down between cases: what did not run has failed.
        _report(suite.name, left[0] if left else "end", error, exchange)
        outcome.failed += left or ["end"]
    outcome.seconds = time.monotonic() - start
    return outcome


async def _run(suite: Suite, exchange: Exchange, outcome: Outcome, left: list[str]) -> None:
    with anyio.move_on_after(START_LIMIT) as starting:
        async with suite.open(exchange) as peer:
            starting.deadline = float("inf")
            for case in suite.cases:
                exchange.clear()
                try:
                    with anyio.fail_after(suite.limit):
                        await case(peer)
                except (Exception, ExceptionGroup) as error:
                    _report(suite.name, case.__name__, error, exchange)
                    outcome.failed.append(case.__name__)
                else:
                    outcome.passed.append(case.__name__)
                left.pop(0)
            exchange.clear()
    if starting.cancelled_caught:
        raise TimeoutError(f"the peer did not come up in {START_LIMIT:g} s")


def _report(suite: str, case: str, error: BaseException, exchange: Exchange) -> None:
    text = "".join(traceback.format_exception(error))
    print(f"--- failed: {suite}: {case}\n{text}--- exchanged\n{exchange}\n---", file=sys.stderr, flush=True)


def table(outcomes: Sequence[Outcome]) -> str:
    """Peer, version, dialect, role, cases passed of all, as text."""
    rows = [("peer", "version", "dialect", "role", "cases", "")]
    for outcome in outcomes:
        suite = outcome.suite
        total = len(outcome.passed) + len(outcome.failed)
        rows.append(
            (
                suite.peer,
                suite.version,
                suite.dialect,
                suite.role,
                f"{len(outcome.passed)}/{total}",
                "" if not outcome.failed else "failed: " + ", ".join(outcome.failed),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:5], widths, strict=True)), row[5]]).rstrip()
        for row in rows
    )
