"""The built bundle over HTTP.

Invariant: only regular files below the bundle's folder are served, with the headers that the build wrote down for
them and no others that could weaken them; a file's bytes and its ETag always belong together.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

HEADERS_FILE = "headers.json"
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"

_HASHED = re.compile(r"(?:^assets/.*-[A-Za-z0-9_-]{8}|[.-][0-9a-f]{8,64})(?:\.[A-Za-z0-9]+)+$")
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".whl": "application/zip",
    ".map": "application/json",
    ".webmanifest": "application/manifest+json",
}


def is_hashed(path: str) -> bool:
    """Whether the name carries a hash of the content, so that it can be cached for ever."""
    return _HASHED.search(path) is not None


def media_type(path: str) -> str:
    """The Content-Type by file name, without the charset."""
    suffix = PurePosixPath(path).suffix
    return _TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"


def _accepts(header: str, coding: str) -> bool:
    for item in header.split(","):
        name, _, params = item.partition(";")
        if name.strip().lower() == coding:
            return re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", params) is None
    return False


class Bundle:
    """Files below `root`.

    Args:
        root: the folder `dist/`. It may be rebuilt while the gateway runs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._headers: tuple[int, Mapping[str, Mapping[str, str]]] | None = None

    @property
    def built(self) -> bool:
        """Whether there is a page to serve."""
        return (self.root / "index.html").is_file()

    async def respond(self, request: Request, origin: str) -> Response:
        """The response to GET or HEAD of the request's path; `origin` replaces `{origin}` in the headers."""
        path = request.url.path.removeprefix("/") or "index.html"
        return await anyio.to_thread.run_sync(self._respond, path, request, origin)

    def _respond(self, path: str, request: Request, origin: str) -> Response:
        file = self._find(path)
        if file is None:
            if not self.built:
                return PlainTextResponse(
                    f"No bundle in {self.root.name}/. Build it with: ./build.sh build",
                    404,
                    self._common(path, origin),
                )
            return PlainTextResponse("Not found", 404, self._common(path, origin))
        headers = self._common(path, origin)
        headers.setdefault("Cache-Control", IMMUTABLE if is_hashed(path) else REVALIDATE)
        accepted = request.headers.get("accept-encoding", "")
        siblings = [(coding, file.with_name(file.name + ending)) for coding, ending in _ENCODINGS]
        siblings = [(coding, sibling) for coding, sibling in siblings if sibling.is_file()]
        chosen = file
        # A range counts bytes of the encoded form; that form may change between requests, so ranges get the plain file.
        if siblings:
            headers["Vary"] = "Accept-Encoding"
            if "range" not in request.headers:
                for coding, sibling in siblings:
                    if _accepts(accepted, coding):
                        chosen = sibling
                        headers["Content-Encoding"] = coding
                        break
        stat = chosen.stat()
        etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}-{headers.get("Content-Encoding", "id")}"'
        headers["ETag"] = etag
        if _matches(request.headers.get("if-none-match"), etag):
            return Response(status_code=304, headers=headers)
        return FileResponse(chosen, headers=headers, media_type=media_type(path), stat_result=stat)

    def _find(self, path: str) -> Path | None:
        pure = PurePosixPath(path)
        if "\x00" in path or "\\" in path or any(part in ("..", "") or part.startswith(".") for part in pure.parts):
            return None
        if path == HEADERS_FILE or pure.is_absolute():
            return None
        root = self.root.resolve()
        file = (root / pure).resolve()
        return file if file.is_relative_to(root) and file.is_file() else None

    def _common(self, path: str, origin: str) -> dict[str, str]:
        table = self._table()
        entry = table.get("/" + path, table.get(path, table.get("*", {})))
        return {name: value.replace("{origin}", origin) for name, value in entry.items()}

    def _table(self) -> Mapping[str, Mapping[str, str]]:
        file = self.root / HEADERS_FILE
        try:
            stamp = file.stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        if self._headers is None or self._headers[0] != stamp:
            self._headers = (stamp, json.loads(file.read_text(encoding="utf-8")))
        return self._headers[1]


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    return header.strip() == "*" or any(item.strip().removeprefix("W/") == etag for item in header.split(","))
