"""The Python example against the example agent, as its README says to run it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_agent_calls_the_programs_tool() -> None:
    node = shutil.which("node")
    assert node is not None
    script, agent = ROOT / "examples/03-python-sdk/lend.py", ROOT / "examples/agent/agent.mjs"
    done = subprocess.run(
        [sys.executable, script, 'call greet {"name": "Ada"}', "--", node, agent],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout == "greet says: Hello, Ada!\n", done.stderr
    assert done.returncode == 0
