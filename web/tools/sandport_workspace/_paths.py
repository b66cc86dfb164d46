"""Where files are.

Invariant: every path handed out by a :class:`Workspace` lies, with all links followed, inside its root.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fastmcp.exceptions import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator

SKIPPED_FOLDERS = frozenset({".git", ".hg", ".venv", "__pycache__", "node_modules"})
"""Folders of machine-made files: large, and never what a question about a project means."""


class Workspace:
    """A folder and the rules for paths in it."""

    def __init__(self, root: str | Path) -> None:
        self._given = Path(root)

    @property
    def root(self) -> Path:
        """The folder, links followed. It may be replaced at run time, hence no caching."""
        return self._given.resolve()

    def resolve(self, path: str) -> Path:
        """Return the existing file or folder that ``path`` names.

        ``path`` is relative to the root; an absolute path is taken when it lies inside the root.

        Raises:
            ToolError: the path leaves the workspace, or names nothing.
        """
        root = self.root
        if "\0" in path:
            raise ToolError("the path has a null character in it")
        target = (root / path).resolve()
        if not target.is_relative_to(root):
            raise ToolError(f"{path!r} is outside the workspace; use a path relative to its root, such as 'src/app.py'")
        if not target.exists():
            raise ToolError(f"there is no {path!r} in the workspace; list_files shows what there is")
        return target

    def file(self, path: str) -> Path:
        """Like :meth:`resolve`, for a file."""
        target = self.resolve(path)
        if not target.is_file():
            raise ToolError(f"{path!r} is a folder, not a file; list_files(path={path!r}) shows what is in it")
        return target

    def name(self, target: Path) -> str:
        """Return how tools spell ``target``: relative to the root, with forward slashes."""
        return target.relative_to(self.root).as_posix() or "."

    def files(self, path: str, pattern: str) -> Iterator[Path]:
        """Yield the files below ``path`` that match the glob ``pattern``, sorted, machine-made folders left out.

        Raises:
            ToolError: bad path or pattern.
        """
        base = self.resolve(path)
        if base.is_file():
            yield base
            return
        pure = PurePosixPath(pattern)
        if not pattern or pure.is_absolute() or ".." in pure.parts:
            raise ToolError(f"{pattern!r} is no pattern below a folder; use one such as '**/*.py'")
        root = self.root
        for found in sorted(base.glob(pattern)):
            if not SKIPPED_FOLDERS.isdisjoint(found.relative_to(root).parts):
                continue
            # A link may point outside; what it shows is not part of the workspace.
            if found.is_file() and found.resolve().is_relative_to(root):
                yield found
