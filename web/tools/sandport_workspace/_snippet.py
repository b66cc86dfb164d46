"""Run a piece of Python and give back what it printed and what its last expression was worth.

Invariant: whatever the snippet does, stdout, stderr and the working folder are as before when :func:`run` ends.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILENAME = "<snippet>"
MAX_STDOUT = 64_000
"""Characters of output kept: far more than a model reads, far less than a message may hold."""
MAX_RESULT = 16_000
"""Characters of the last expression's repr kept."""


class SnippetError(Exception):
    """The snippet raised; the text is its traceback, without any frame that is not its own."""


class _Capture:
    """A text sink that keeps the first :data:`MAX_STDOUT` characters, so that endless printing stays small."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kept = 0
        self._dropped = 0

    def write(self, text: str) -> int:
        room = MAX_STDOUT - self._kept
        if room > 0:
            self._parts.append(text[:room])
            self._kept += min(len(text), room)
        self._dropped += max(0, len(text) - max(room, 0))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def text(self) -> str:
        tail = f"\n[{self._dropped} more characters were not kept]" if self._dropped else ""
        return "".join(self._parts) + tail


def _shorten(text: str) -> str:
    if len(text) <= MAX_RESULT:
        return text
    return f"{text[:MAX_RESULT]}… [{len(text) - MAX_RESULT} more characters]"


def _own_traceback(error: BaseException) -> str:
    """Format ``error`` with only the snippet's own frames: the caller's say nothing about the fault."""
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list([f for f in shown.stack if f.filename == FILENAME])
    return "".join(shown.format()).rstrip()


def run(code: str, folder: Path) -> tuple[str, str | None]:
    """Execute ``code`` with ``folder`` as the working folder.

    Returns:
        What it printed, and the ``repr`` of its last expression (None when it does not end with one, or is None).

    Raises:
        SnippetError: the code does not compile, raised, or called ``exit``.
        KeyboardInterrupt: a time limit ended it. Never caught here, so that a limit always works.
    """
    output = _Capture()
    before = os.getcwd()
    namespace: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            tree = ast.parse(code, FILENAME)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, FILENAME, "exec"), namespace)
            if not isinstance(last, ast.Expr):
                return output.text(), None
            value = eval(compile(ast.Expression(last.value), FILENAME, "eval"), namespace)
            return output.text(), None if value is None else _shorten(repr(value))
    except (Exception, SystemExit) as error:
        printed = output.text()
        raise SnippetError(_own_traceback(error) + (f"\n\nprinted before:\n{printed}" if printed else "")) from None
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        os.chdir(before)
