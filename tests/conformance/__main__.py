"""`python -m tests.conformance`: run the MCP conformance suite; exit 1 if a check failed."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings

import anyio
from tests.conformance import hosts, sessions, stateless, suite
from tests.peers import install

SHIMS = {"2025-11-25": sessions.shim, "2026-07-28": stateless.shim}
"""How a revision's dialect family is reached."""


async def _all(chosen: list[tuple[str, hosts.Make]]) -> list[suite.Score]:
    scores = []
    for host, make in chosen:
        for revision in suite.REVISIONS:
            async with make() as lane, SHIMS[revision](lane) as url:
                score = await suite.run(revision, url, host)
            print(f"{score} ({host})", *score.faults, sep="\n  ", file=sys.stderr, flush=True)
            scores.append(score)
    return scores


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--pyodide", action="store_true", help="also with the host inside Pyodide, from dist/")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    # The suite has the server do what the newest revision calls deprecated.
    warnings.simplefilter("ignore")
    chosen: list[tuple[str, hosts.Make]] = [("native", hosts.native)]
    if options.pyodide:
        chosen.append(("pyodide", hosts.pyodide))
    try:
        install.npm(suite.HERE, suite.NODE_MODULES)
    except install.InstallError as error:
        print(error, file=sys.stderr)
        return 1
    scores = anyio.run(_all, chosen)
    legs = [", ".join(str(score) for score in scores if score.host == host) + f" ({host})" for host, _ in chosen]
    print(f"conformance: {', '.join(legs)}")
    return 1 if any(score.faults for score in scores) else 0


if __name__ == "__main__":
    sys.exit(main())
