"""Zip archives from the page, as folders of the sandbox's file system, and folders as zip archives for the page.

Invariant: nothing is written outside the folder asked for, and no more than `MAX_BYTES`; with `replace` the folder
holds exactly the archive afterwards, also when it was somebody's working folder, or what it held before, when the
archive turns out damaged.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

__all__ = ["MAX_BYTES", "MAX_TAKEN", "ArchiveError", "mount_zip", "zip_folder"]

MAX_BYTES: Final = 512 * 1024 * 1024
"""Unpacked bytes of one archive: the file system lives in the page's memory, of which a tab has 2 to 4 GB."""
MAX_FILES: Final = 50_000
"""Files of one archive; each costs about a kilobyte beside its bytes."""


MAX_NAME: Final = 255
"""Bytes of one part of a path: Emscripten makes files with longer names, and does not find them again."""
_UNREADABLE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    ValueError,
    RuntimeError,
    EOFError,
)
"""What `zipfile` raises for archives that are damaged, encrypted, or of a kind that it does not know."""


MAX_TAKEN: Final = 200 * 1024 * 1024
"""Bytes of a folder that is taken out: it is in memory three times on its way to the page."""
LEFT_OUT: Final = "__pycache__"
"""Folders that Python makes by itself, and again."""


class ArchiveError(Exception):
    """An archive cannot be unpacked or made; the text says which rule or which entry."""


def zip_folder(path: str) -> bytes:
    """Pack the files below the folder `path`, uncompressed: they only go from one place in memory to another.

    Links are left out, and what Python compiled. A folder that is not there is one without files.

    Raises:
        ArchiveError: too many files, or too large.
    """
    out = io.BytesIO()
    files = size = 0
    # Times before 1980 have no place in a zip; the sandbox's clock may start there.
    with zipfile.ZipFile(out, "w", strict_timestamps=False) as archive:
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if name != LEFT_OUT)
            for name in sorted(names):
                file = Path(folder, name)
                if file.is_symlink() or not file.is_file():
                    continue
                files += 1
                size += file.stat().st_size
                if files > MAX_FILES or size > MAX_TAKEN:
                    limits = f"{MAX_FILES} files and {MAX_TAKEN} bytes"
                    raise ArchiveError(f"the folder {path!r} holds more than can be taken out: at most {limits}")
                archive.write(file, file.relative_to(path))
    return out.getvalue()


def mount_zip(path: str, data: bytes, *, replace: bool) -> tuple[int, int]:
    """Unpack `data` into the folder `path`.

    Returns:
        The number of files and of bytes written.

    Raises:
        ArchiveError: not a zip, an entry that leads outside, or too large.
    """
    root = PurePosixPath(path)
    if not root.is_absolute() or len(root.parts) < 2 or ".." in root.parts:
        raise ArchiveError(f"{path!r} is not an absolute path of a folder, like '/workspace'")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (*_UNREADABLE, OSError) as exc:
        raise ArchiveError(f"this is no zip archive ({exc})") from None
    with archive:
        entries = [info for info in archive.infolist() if not info.is_dir()]
        if len(entries) > MAX_FILES:
            raise ArchiveError(f"the archive has {len(entries)} files; at most {MAX_FILES} fit")
        size = sum(info.file_size for info in entries)
        if size > MAX_BYTES:
            raise ArchiveError(f"the archive unpacks to {size} bytes; at most {MAX_BYTES} fit")
        for info in entries:
            name = PurePosixPath(info.filename)
            if name.is_absolute() or ".." in name.parts or "\\" in info.filename:
                raise ArchiveError(f"the entry {info.filename!r} leads outside the folder")
            if any(len(part.encode()) > MAX_NAME for part in name.parts):
                raise ArchiveError(f"the entry {info.filename[:40]!r}… cannot be written: its name is too long")
        if not replace:
            return len(entries), _unpack(archive, entries, path)
        aside = f"{path.rstrip('/')}.new"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            written = _unpack(archive, entries, aside)
            folder = Path(path)
            folder.mkdir(parents=True, exist_ok=True)
            for child in folder.iterdir():
                if child.is_dir() and not child.is_symlink():
                    shutil.rmtree(child)
                else:
                    child.unlink()
            for child in Path(aside).iterdir():
                child.rename(folder / child.name)
        except OSError as exc:
            raise ArchiveError(f"the folder {path!r} cannot be replaced: {exc}") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return len(entries), written


def _unpack(archive: zipfile.ZipFile, entries: Iterable[zipfile.ZipInfo], path: str) -> int:
    """Write the entries below `path`; returns the number of bytes."""
    written = 0
    made: set[str] = set()
    os.makedirs(path, exist_ok=True)
    for info in entries:
        target = os.path.join(path, info.filename)
        parent = os.path.dirname(target)
        try:
            if parent not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            content = archive.read(info)
            if len(content) != info.file_size:
                raise zipfile.BadZipFile(f"{len(content)} bytes instead of {info.file_size}")
            written += len(content)
            with open(target, "wb") as file:
                file.write(content)
        except _UNREADABLE as exc:
            raise ArchiveError(f"the entry {info.filename!r} cannot be read: {exc}") from None
        except OSError as exc:
            # An entry that is a folder for another one, a name that is too long.
            raise ArchiveError(f"the entry {info.filename!r} cannot be written: {exc.strerror}") from None
    return written
