"""`python -m tests.peers`: run every peer, print the table; exit 1 if a case failed."""

from __future__ import annotations

import argparse
import logging
import sys

import anyio
from tests.peers import agentpool, agentpool_sets, fork, install, python_sdk, recorded, stock, ts
from tests.peers.suite import Outcome, Suite, run, table


def suites() -> list[Suite]:
    """Every suite there is."""
    return [
        *ts.agents(),
        *ts.providers(),
        *python_sdk.suites(),
        *agentpool.suites(),
        *agentpool_sets.suites(),
        *fork.suites(),
        *ts.legacy(),
        *recorded.suites(),
        *stock.suites(),
    ]


async def _all(chosen: list[Suite]) -> list[Outcome]:
    outcomes = []
    for suite in chosen:
        outcome = await run(suite)
        total = len(outcome.passed) + len(outcome.failed)
        print(f"{suite.name}: {len(outcome.passed)}/{total} in {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    return outcomes


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the newest of each family")
    parser.add_argument("--only", metavar="NAME", help="only suites whose name contains NAME")
    parser.add_argument("--list", action="store_true", help="print the names of the suites")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    chosen = [
        suite
        for suite in suites()
        if (suite.quick or not options.quick) and (options.only or "").lower() in suite.name.lower()
    ]
    if options.list:
        print("\n".join(suite.name for suite in chosen))
        return 0
    try:
        install.node()
    except install.InstallError as error:
        print(error, file=sys.stderr)
        return 1
    outcomes = anyio.run(_all, chosen)
    print(table(outcomes))
    passed, failed = (sum(len(getattr(item, kind)) for item in outcomes) for kind in ("passed", "failed"))
    print(f"peers: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
