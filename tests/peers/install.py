"""Installs the peers, each in a place of its own, when their locks changed.

Invariant: what is installed is what the lock says; nothing is installed into the environment that runs the tests.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.peers.channels import HERE, NODE_MODULES, ROOT

__all__ = ["InstallError", "agent", "node", "npm", "python"]

STAMPS = ROOT / ".cache" / "stamps"


class InstallError(Exception):
    """A peer cannot be installed; the message says what to do."""


def _digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _run(command: Sequence[str], cwd: Path, what: str) -> None:
    print(f"==> Installing {what}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=cwd, stdout=sys.stderr, timeout=600, check=False)
    if done.returncode:
        raise InstallError(f"{what} could not be installed: {' '.join(command)} ended with {done.returncode}")


def npm(folder: Path, modules: Path, *command: str) -> None:
    """`npm ci`, or another command, in `folder` unless `modules` stands as its lock says."""
    lock = folder / "package-lock.json"
    stamp, digest = STAMPS / f"npm-{folder.name}", _digest([lock])
    if modules.is_dir() and stamp.exists() and stamp.read_text() == digest:
        return
    found = shutil.which("npm")
    if found is None:
        raise InstallError("npm is missing. Get it with: apt-get install nodejs npm")
    options = ["--no-audit", "--no-fund", "--loglevel=error"]
    _run([found, *(command or ["ci"]), *options], folder, f"{folder.name}/package-lock.json")
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest)


def node() -> None:
    """The releases of the TypeScript SDK."""
    npm(HERE, NODE_MODULES)


def agent(folder: Path) -> Path:
    """An agent from a lock of its own, npm's or pip's, with nothing of ours beside; returns where its programs are."""
    if (folder / "package.json").exists():
        # Not `ci`: it wants every optional package of every platform in the lock, and not all of them are published.
        npm(folder, folder / "node_modules", "install", "--no-save")
        return folder / "node_modules" / ".bin"
    lock, target = folder / "requirements.txt", ROOT / ".venv-peers" / folder.name
    stamp, digest = STAMPS / f"venv-peers-{folder.name}", _digest([lock])
    if not ((target / "bin").is_dir() and stamp.exists() and stamp.read_text() == digest):
        uv = _uv()
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(target)], ROOT, str(target.name))
        sync = [
            uv,
            "pip",
            "sync",
            "--quiet",
            "--python",
            str(target),
            "--require-hashes",
            "--compile-bytecode",
            str(lock),
        ]
        _run(sync, ROOT, f"{folder.name}/{lock.name}")
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest)
    return target / "bin"


def _uv() -> str:
    local = ROOT / ".tools" / "bin" / "uv"
    uv = str(local) if local.exists() else shutil.which("uv")
    if uv is None:
        raise InstallError("uv is missing: run ./build.sh once, it gets its own")
    return uv


def python(name: str, requirement: str, *, prerelease: bool = False) -> Path:
    """An environment `.venv-peers/<name>` with Sandport and one requirement; returns its interpreter."""
    folder = ROOT / ".venv-peers" / name
    interpreter = folder / "bin" / "python"
    project = ROOT / "pyproject.toml"
    stamp = STAMPS / f"venv-peers-{name}"
    digest = _digest([project, ROOT / "requirements" / "dev.txt"]) + requirement
    if interpreter.exists() and stamp.exists() and stamp.read_text() == digest:
        return interpreter
    uv = _uv()
    _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], ROOT, f".venv-peers/{name}")
    pre = ["--prerelease=allow"] if prerelease else []
    locked = ["--constraint", str(_without(requirement))]
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--compile-bytecode",
        "--python",
        str(folder),
        *pre,
        *locked,
        "--editable",
        ".",
        requirement,
    ]
    _run(install, ROOT, requirement)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(digest)
    return interpreter


def _without(requirement: str) -> Path:
    """The project's lock without the package that is asked for in another version, and without hashes."""
    name = requirement.split("==")[0]
    kept = [
        line.split("\\")[0].strip()
        for line in (ROOT / "requirements" / "dev.txt").read_text().splitlines()
        if line and line[0].isalnum() and not line.startswith(f"{name}==")
    ]
    target = STAMPS.parent / "peers-constraints.txt"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(kept) + "\n")
    return target
