"""Error texts without the machine's own paths.

Invariant: a text of an exception that leaves the host names no directory of the interpreter or of its packages. Paths
of the tools' own data stay: they are what the error is about.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import Final

import mcp

__all__ = ["redact"]


def _places() -> list[str]:
    # Of the standard library, of the installed packages, and of this one, for a checkout that is installed in place.
    # Not from `sysconfig`: under Pyodide its data is no part of a trimmed bundle.
    files = [(getattr(os, "__file__", None), 1), (mcp.__file__, 2), (__file__, 3)]
    places = set()
    for file, levels in files:
        place = os.path.abspath(file) if file else ""
        for _ in range(levels):
            place = os.path.dirname(place)
        places.add(place)
    # A root directory would take every path there is.
    return sorted((place for place in places if len(PurePath(place).parts) > 2), key=len, reverse=True)


_MACHINE_PATH: Final = re.compile(rf"(?:{'|'.join(map(re.escape, _places())) or '(?!)'})[\\/][^\s'\"<>()\[\]:,;]*")


def redact(text: str) -> str:
    """The text with paths into the interpreter and its packages cut down to the file's name."""
    return _MACHINE_PATH.sub(lambda found: PurePath(found.group()).name, text)
