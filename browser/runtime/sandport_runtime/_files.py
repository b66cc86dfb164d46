"""Zip archives from the page, as folders of the sandbox's file system.

Invariant: nothing is written outside the folder asked for, and no more than `MAX_BYTES`; with `replace` the folder
holds exactly the archive afterwards, also when it was somebody's working folder.
"""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

__all__ = ["MAX_BYTES", "ArchiveError", "mount_zip"]

MAX_BYTES: Final = 512 * 1024 * 1024
"""Unpacked bytes of one archive: the file system lives in the page's memory, of which a tab has 2 to 4 GB."""
MAX_FILES: Final = 50_000
"""Files of one archive; each costs about a kilobyte beside its bytes."""


class ArchiveError(Exception):
    """An archive cannot be unpacked; the text says which rule or which entry."""


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
    except zipfile.BadZipFile as exc:
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
        folder = Path(path)
        if replace and folder.is_dir():
            for child in folder.iterdir():
                if child.is_dir() and not child.is_symlink():
                    shutil.rmtree(child)
                else:
                    child.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        written = 0
        made: set[str] = set()
        for info in entries:
            target = os.path.join(path, info.filename)
            parent = os.path.dirname(target)
            if parent not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            try:
                content = archive.read(info)
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as exc:
                raise ArchiveError(f"the entry {info.filename!r} cannot be read: {exc}") from None
            written += len(content)
            with open(target, "wb") as file:
                file.write(content)
    return len(entries), written
