from pathlib import Path


def write(rows, folder: Path) -> None: ...
