"""Tool packages: a wheel or a zipped folder, unpacked into a folder of its own and imported from there.

Invariant: a package never shadows what is there without it, and after `leave` and `forget` nothing of it is left: no
module, no entry of `sys.path`, no file. A version never reads another version's files: each has its own folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, version
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fastmcp import FastMCP

from sandport_runtime._files import mount_zip
from sandport_runtime._modules import NAMESPACE, LoadError, explained, only_server

__all__ = ["FOLDER", "Package"]

FOLDER: Final = "/tools"
"""Where packages are unpacked: not in /workspace, which is the tools' to change."""
BAKE: Final = "build it into the bundle: ./build.sh build --with"
"""The way for what cannot be loaded into a running sandbox."""
BESIDE_FILES: Final = frozenset({"conftest.py", "noxfile.py", "setup.py"})
BESIDE_FOLDERS: Final = frozenset({"__MACOSX", "__pycache__", "build", "dist", "docs", "examples", "test", "tests"})
"""What lies beside the modules of a project, and is none of them."""
STAND_INS: Final = frozenset({"beartype", "rpds-py"})
"""Distributions for which the bundle has something that works in their place."""
NATIVE: Final = frozenset({".dll", ".dylib", ".pyd", ".so"})
MAKES_SERVER: Final = re.compile(rb"\bFastMCP\s*(\[[^\]]*\]\s*)?\(")
_WORD: Final = r"[^\W\d]\w*"
SERVER: Final = re.compile(rf"{_WORD}(\.{_WORD})*(:{_WORD})?")
PURE_TAG: Final = re.compile(r"py3(\d*)-none-any")

_versions = count(1)


class Package:
    """A package of tools; see `sandport_runtime._modules.Code`.

    Args:
        name: what the person calls it, an identifier.
        data: a wheel or another zip archive.
        server: `module` or `module:attribute` of its FastMCP server. By default the top-level module is asked, and
            then the modules whose source makes a FastMCP, outermost first.
    """

    def __init__(self, name: str, data: bytes, server: str | None = None) -> None:
        if server is not None and not SERVER.fullmatch(server):
            raise LoadError(f"{server!r} names no server: write `module` or `module:attribute`")
        self._name = name
        self._data = data
        self._server = server
        self._folder = Path(f"{FOLDER}/{name}.{next(_versions)}")
        self._root = self._folder
        self._modules: dict[str, ModuleType] = {}
        self._entered = False
        self.names: frozenset[str] = frozenset()
        """See `Code.names`."""

    def prepare(self) -> None:
        """Put the files in place, and look at what they are.

        Raises:
            ArchiveError: they cannot be unpacked.
            LoadError: they cannot work here.
        """
        mount_zip(str(self._folder), self._data, replace=False)
        self._data = b""
        self._look()

    def run(self) -> FastMCP[Any]:
        """See `Code.run`.

        Raises:
            LoadError: as there; or a module of it would shadow one that is there already.
        """
        for name in sorted(self.names):
            if name in sys.stdlib_module_names:
                raise LoadError(f"the module {name!r} of {self._name!r} is one of Python's own: rename it")
            if _exists(name):
                raise LoadError(f"the module {name!r} of {self._name!r} is in the sandbox already: rename it")
        self.enter()
        importlib.invalidate_caches()
        try:
            return self._find()
        except LoadError:
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            inside = f"{self._folder}/"
            raise explained(self._name, exc, lambda file: file.startswith(inside)) from None

    def enter(self) -> None:
        """See `Code.enter`."""
        if self._entered:
            return
        sys.path.append(str(self._root))
        sys.modules.update(self._modules)
        self._entered = True

    def leave(self) -> None:
        """See `Code.leave`."""
        if not self._entered:
            return
        self._entered = False
        if str(self._root) in sys.path:
            sys.path.remove(str(self._root))
        # Nobody else has modules of these names: `run` saw to that.
        for name in [name for name in sys.modules if name.partition(".")[0] in self.names]:
            self._modules[name] = sys.modules.pop(name)

    def forget(self) -> None:
        """See `Code.forget`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        inside = f"{self._folder}/"
        for cache in (linecache.cache, sys.path_importer_cache):
            for path in [path for path in cache if f"{path}/".startswith(inside)]:
                del cache[path]

    # -- what the files are

    def _look(self) -> None:
        for path in self._folder.rglob("*"):
            if path.suffix in NATIVE:
                raise LoadError(f"{self._name!r} holds native code ({path.name}): {BAKE} {self._name}")
        infos = [path for path in self._folder.glob("*.dist-info") if (path / "WHEEL").is_file()]
        if len(infos) == 1:
            self._wheel(infos[0])
            self.names = frozenset(_modules_in(self._root.iterdir()))
        else:
            self._find_root()
            self.names = frozenset(_modules_in(path for path in self._root.iterdir() if not _is_beside(path)))
        if not self.names:
            raise LoadError(f"{self._name!r} holds no Python module")

    def _find_root(self) -> None:
        """Where the modules of a folder lie: a zipped project has them in a folder of its own, or in `src`."""
        if (self._root / "__init__.py").is_file():
            # The folder itself is the package.
            inner = self._folder.with_name(f"{self._folder.name}.inner")
            self._folder.rename(inner)
            self._folder.mkdir()
            inner.rename(self._folder / self._name)
        wanted = self._server and re.split("[.:]", self._server)[0]
        while not (wanted and (self._root / wanted).is_dir()):
            inside = [path for path in self._root.iterdir() if not _is_beside(path)]
            if any(path.suffix == ".py" or (path / "__init__.py").is_file() for path in inside):
                break
            below = [path for path in inside if _holds_python(path)]
            source = [path for path in below if path.name == "src"]
            if len(source or below) != 1:
                break
            (self._root,) = source or below

    def _wheel(self, info: Path) -> None:
        if not (info / "METADATA").is_file():
            raise LoadError(f"the wheel has no {info.name}/METADATA")
        distribution = Distribution.at(info)
        title = distribution.name or self._name
        tags = re.findall(r"^Tag:\s*(\S+)", distribution.read_text("WHEEL") or "", re.MULTILINE)
        if not any(_is_pure(tag) for tag in tags):
            raise LoadError(f"the wheel is made for {', '.join(tags) or 'nobody'}, not for any Python: {BAKE} {title}")
        for part in ("purelib", "platlib"):
            for inner in self._folder.glob(f"*.data/{part}"):
                for path in inner.iterdir():
                    if (self._folder / path.name).exists():
                        raise LoadError(f"the wheel holds {path.name!r} twice")
                    path.rename(self._folder / path.name)
        problems = list(_unmet(distribution))
        if problems:
            missing = " ".join(f"--with {name}" for name, _ in problems if name)
            remedy = f": {BAKE.removesuffix(' --with')} {missing} --with {title}" if missing else ""
            raise LoadError(f"{title} needs {', '.join(text for _, text in problems)}{remedy}")

    # -- its server

    def _find(self) -> FastMCP[Any]:
        if self._server is not None:
            name, _, attribute = self._server.partition(":")
            if name.partition(".")[0] not in self.names:
                raise LoadError(f"{self._name!r} has no module {name!r}; it has {', '.join(sorted(self.names))}")
            module = importlib.import_module(name)
            if not attribute:
                return only_server(name, [module])
            server = getattr(module, attribute, None)
            if not isinstance(server, FastMCP):
                raise LoadError(f"{self._server!r} is no FastMCP server")
            return server
        problem = LoadError(f"{self._name!r} defines no server: none of its modules makes a FastMCP")
        for level in self._levels():
            modules = [importlib.import_module(name) for name in level]
            if any(isinstance(value, FastMCP) for module in modules for value in module.__dict__.values()):
                return only_server(self._name, modules)
        raise problem

    def _levels(self) -> Iterator[list[str]]:
        """Modules that may hold the server, those to be asked first first."""
        if len(self.names) == 1 or self._name in self.names:
            yield [self._name if self._name in self.names else next(iter(self.names))]
        levels: dict[int, list[str]] = {}
        for path in self._root.rglob("*.py"):
            inner = path.relative_to(self._root)
            parts = inner.with_suffix("").parts if path.name != "__init__.py" else inner.parent.parts
            if (
                parts
                and parts[0] in self.names
                and all(part.isidentifier() for part in parts)
                and path.name != "__main__.py"
                and not any(_is_beside(self._root / outer) for outer in (inner, *inner.parents[:-1]))
                and MAKES_SERVER.search(path.read_bytes())
            ):
                levels.setdefault(len(parts), []).append(".".join(parts))
        for depth in sorted(levels):
            yield sorted(levels[depth])


def _exists(name: str) -> bool:
    if name in sys.modules or name == NAMESPACE:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True


def _modules_in(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        name = path.stem if path.suffix == ".py" else path.name
        if name.isidentifier() and (path.suffix == ".py" or _holds_python(path)):
            yield name


def _is_beside(path: Path) -> bool:
    if path.is_dir():
        return path.name in BESIDE_FOLDERS or path.name.startswith(".")
    return path.name in BESIDE_FILES or path.name.startswith((".", "test_")) or path.stem.endswith("_test")


def _holds_python(path: Path) -> bool:
    return path.is_dir() and next(path.rglob("*.py"), None) is not None


def _is_pure(tag: str) -> bool:
    match = PURE_TAG.fullmatch(tag)
    return match is not None and int(match[1] or 0) <= sys.version_info.minor


def _unmet(distribution: Distribution) -> Iterator[tuple[str, str]]:
    """What a distribution requires and does not find: the name of what is missing, or "", and a text."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name

    metadata = distribution.metadata
    ours = platform.python_version()
    try:
        if "Requires-Python" in metadata and not SpecifierSet(metadata["Requires-Python"]).contains(ours):
            yield "", f"Python {metadata['Requires-Python']} (this is {ours})"
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            if canonicalize_name(requirement.name) in STAND_INS:
                continue
            try:
                found = version(requirement.name)
            except PackageNotFoundError:
                yield requirement.name, f"{requirement.name}{requirement.specifier}, which the bundle lacks"
            else:
                if not requirement.specifier.contains(found, prereleases=True):
                    yield "", f"{requirement.name}{requirement.specifier} (the bundle has {found})"
    except ValueError as exc:
        # What `packaging` cannot read, or a marker that compares what cannot be compared.
        raise LoadError(f"the wheel's metadata cannot be read: {exc}") from None
