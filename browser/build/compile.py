"""Turns wheels and source trees into the zips of the bundle; runs inside Pyodide, whose bytecode it makes.

Invariant: the same input gives the same bytes (order, times and modes are fixed), and nothing is left out but what
`_dropped` names. Every .py becomes a .pyc beside it without its source, except where a package reads its own source.
"""

from __future__ import annotations

import importlib._bootstrap_external as external
import io
import zipfile
from collections.abc import Iterable, Mapping
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any

SITE = "/sandport/site.zip"
CORE = "/sandport/core.zip"
NATIVE = "/sandport/native"

READ_AS_SOURCE = {
    # anyio builds its lazy imports by reading these two (inspect.getsource).
    "anyio/__init__.py",
    "anyio/abc/__init__.py",
}
DROPPED_FOLDERS = ("pydantic/v1/", "fastmcp/cli/", "pydantic/mypy.py", "pydantic/_hypothesis_plugin.py")
"""Parts of wheels that nothing in a served session imports, and that are large or would not work."""
KEPT_METADATA = ("METADATA", "entry_points.txt")
"""What importlib.metadata is asked for at run time."""


def _dropped(name: str) -> bool:
    path = PurePosixPath(name)
    if any("dist-info" in part for part in path.parts):
        return path.name not in KEPT_METADATA
    if "__pycache__" in path.parts or "tests" in path.parts or ".data/" in name:
        return True
    if path.suffix in (".pyi", ".c", ".h", ".pyx", ".pxd", ".rst") or path.name == "py.typed":
        return True
    return any(name.startswith(folder) for folder in DROPPED_FOLDERS)


def _bytecode(source: bytes, shown: str) -> bytes:
    """The contents of a .pyc that is never checked against a source."""
    from importlib.util import source_hash

    code = compile(source, shown, "exec", dont_inherit=True)
    return bytes(external._code_to_hash_pyc(code, source_hash(source), False))  # type: ignore[attr-defined]


def _compiled(entries: Iterable[tuple[str, bytes]], root: str) -> dict[str, bytes]:
    result: dict[str, bytes] = {}
    for name, data in entries:
        if name.endswith(".py") and name not in READ_AS_SOURCE:
            try:
                result[name + "c"] = _bytecode(data, f"{root}/{name}")
                continue
            except SyntaxError:
                # Templates that only look like modules stay as they are.
                pass
        result[name] = data
    return result


def _zip(entries: Mapping[str, bytes]) -> bytes:
    """An archive of stored entries: a third smaller in transit than a compressed one, since the server compresses all
    of it at once, and read without inflating. Sorted by kind, so that like stands by like."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(entries, key=lambda name: (PurePosixPath(name).suffix, name)):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            archive.writestr(info, entries[name])
    return out.getvalue()


def _entries(archive: zipfile.ZipFile) -> dict[str, bytes]:
    return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}


def stdlib(path: str) -> bytes:
    """Pyodide's python_stdlib.zip, compiled. It ships as source, and every import of it would compile."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: data for name, data in _entries(archive).items() if "__pycache__" not in name}
    return _zip(_compiled(entries.items(), "/lib/python314.zip"))


def wheels(folder: str) -> dict[str, Any]:
    """The layer that changes seldom: all wheels of a folder, compiled.

    Returns:
        {site: bytes, native: bytes, packages: {name: lock entry}}; `native` holds the packages with a .so, whole.
    """
    site: dict[str, bytes] = {}
    native: dict[str, bytes] = {}
    packages: dict[str, Any] = {}
    for path in sorted(Path(folder).glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            kept = [(name, archive.read(name)) for name in names if not _dropped(name)]
        is_native = any(name.endswith(".so") for name in names)
        root = NATIVE if is_native else SITE
        (native if is_native else site).update(_compiled(kept, root))
        packages.update(_lock_entry(path, names, kept))
    return {"site": _zip(site), "native": _zip(native), "packages": packages}


def _lock_entry(path: Path, names: list[str], kept: list[tuple[str, bytes]]) -> dict[str, Any]:
    metadata = next(data for name, data in kept if name.endswith(".dist-info/METADATA"))
    fields = Parser().parsestr(metadata.decode("utf-8"))
    name = fields["Name"].lower().replace("_", "-").replace(".", "-")
    modules = {
        part.removesuffix(".py")
        for part in (entry.split("/")[0] for entry in names)
        if not part.endswith((".dist-info", ".data", ".so")) and part.removesuffix(".py").isidentifier()
    }
    return {
        name: {
            "name": name,
            "version": fields["Version"],
            "file_name": path.name,
            "install_dir": "site",
            "package_type": "package",
            "imports": sorted(modules),
            "depends": [],
            "unvendored_tests": False,
        }
    }


def sources(folder: str) -> bytes:
    """Our own source trees below `folder`, compiled."""
    root = Path(folder)
    entries = [
        (str(path.relative_to(root)), path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and not _dropped(str(path.relative_to(root)))
    ]
    return _zip(_compiled(entries, CORE))
