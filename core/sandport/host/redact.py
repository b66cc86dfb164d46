"""Error texts without the machine's own paths.

Invariant: a text of an exception that leaves the host names no directory of the interpreter or of its packages. Paths
of the tools' own data stay: they are what the error is about.
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import PurePath
from typing import Final

__all__ = ["redact"]


def _places() -> list[str]:
    paths = sysconfig.get_paths()
    places = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths}
    # The directory of this package, for a checkout that is installed in place.
    places.add(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    # A root directory would take every path there is.
    return sorted((place for place in places if len(PurePath(place).parts) > 2), key=len, reverse=True)


_MACHINE_PATH: Final = re.compile(rf"(?:{'|'.join(map(re.escape, _places())) or '(?!)'})[\\/][^\s'\"<>()\[\]:,;]*")


def redact(text: str) -> str:
    """The text with paths into the interpreter and its packages cut down to the file's name."""
    return _MACHINE_PATH.sub(lambda found: PurePath(found.group()).name, text)
