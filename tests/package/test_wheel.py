"""The Python wheel as somebody else gets it: built, installed into a clean environment, imported, run.

It needs uv (`.tools/bin/uv`, or on the PATH) and a registry or uv's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CALL = """
import asyncio, json
from fastmcp import Client, FastMCP
from sandport import ToolHost, memory_channel_pair
from sandport.agent import AcpMCPServerConfig, AcpMcpTransport, manager_on_channel

mcp = FastMCP("greeter")

@mcp.tool
def greet(name: str) -> str:
    return f"Hello, {name}!"

async def main():
    host = ToolHost()
    host.mount(mcp, name="greeter")
    ours, theirs = memory_channel_pair()
    async with host, manager_on_channel(ours) as manager:
        host.declare("greeter", "server-1")
        serving = asyncio.create_task(host.serve(theirs))
        async with Client(AcpMcpTransport(manager, AcpMCPServerConfig(name="greeter", acp_id="server-1"))) as client:
            print((await client.call_tool("greet", {"name": "Ada"})).data)
        await theirs.aclose()
        await serving

asyncio.run(main())
"""


def uv() -> str:
    found = shutil.which("uv", path=os.pathsep.join([str(ROOT / ".tools/bin"), os.environ.get("PATH", "")]))
    if found is None:
        pytest.fail("uv is missing: ./build.sh test installs it into .tools")
    return found


def run(*command: str | Path, cwd: Path, expect: int = 0) -> str:
    # Nothing of the repository may help: no PYTHONPATH, no active environment.
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(uv(), "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what it asks for; returns its `bin`."""
    folder = tmp_path_factory.mktemp("clean")
    run(uv(), "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    run(uv(), "pip", "install", "--quiet", "--python", python, f"sandport[native] @ {wheel.as_uri()}", cwd=folder)
    return folder / "venv/bin"


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    packages = {"sandport", "sandport_demo", "sandport_native"}
    assert packages <= tops
    assert not [top for top in tops - packages if not top.endswith(".dist-info")]
    wanted = {
        "sandport/py.typed",
        "sandport/__init__.py",
        "sandport_native/py.typed",
        "sandport_native/demo/agents.yml",
    }
    assert wanted <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".log"))]


def lines(text: str) -> Sequence[str]:
    return text.strip().splitlines()


def test_core_imports_without_the_native_part(clean: Path, tmp_path: Path) -> None:
    code = "import sys, sandport; print(sandport.__version__, 'sandport_native' in sys.modules)"
    version, native = run(clean / "python", "-c", code, cwd=tmp_path).split()
    assert version == "0.1.0"
    assert native == "False"


def test_command_runs(clean: Path, tmp_path: Path) -> None:
    assert "sandport serve" in run(clean / "sandport", "--help", cwd=tmp_path)
    assert lines(run(clean / "sandport", "--version", cwd=tmp_path)) == ["sandport, version 0.1.0"]
    assert "--agent" in run(clean / "python", "-m", "sandport_native", "serve", "--help", cwd=tmp_path)


def test_a_tool_is_called_over_the_lane(clean: Path, tmp_path: Path) -> None:
    assert lines(run(clean / "python", "-c", CALL, cwd=tmp_path)) == ["Hello, Ada!"]
