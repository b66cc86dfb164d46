from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sandport_native.gateway.access import Access
from sandport_native.gateway.app import Agents, Gateway
from sandport_native.gateway.static import is_hashed, media_type
from sandport_native.process import AgentSpec

ORIGIN = "http://127.0.0.1:8765"
PLAIN = b"console.log('x');\n" * 100


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    root = tmp_path / "dist"
    (root / "assets").mkdir(parents=True)
    (root / "runtime").mkdir()
    (root / "index.html").write_text("<!doctype html>page", encoding="utf-8")
    (root / "sandbox.html").write_text("<!doctype html>frame", encoding="utf-8")
    (root / "assets" / "index-BxK3d9aZ.js").write_bytes(PLAIN)
    (root / "assets" / "index-BxK3d9aZ.js.br").write_bytes(b"pretend brotli")
    (root / "assets" / "index-BxK3d9aZ.js.gz").write_bytes(gzip.compress(PLAIN))
    (root / "runtime" / "pyodide.asm.wasm").write_bytes(b"\0asm")
    (root / "headers.json").write_text(
        json.dumps({"*": {"X-All": "yes"}, "sandbox.html": {"Content-Security-Policy": "connect-src {origin}"}}),
        encoding="utf-8",
    )
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / ".hidden").write_text("hidden", encoding="utf-8")
    return root


@pytest.fixture
def client(dist: Path) -> TestClient:
    gateway = Gateway(Access([ORIGIN], "t"), Agents({"a": AgentSpec("a", ["true"])}), dist)
    return TestClient(gateway.app, base_url=ORIGIN, headers={"accept-encoding": "identity"})


def test_page_with_default_headers(client: TestClient) -> None:
    response = client.get("/")
    assert response.status_code == 200
    assert response.text == "<!doctype html>page"
    assert response.headers["x-all"] == "yes"
    assert response.headers["cache-control"] == "no-cache"


def test_own_headers_replace_the_default_and_get_the_origin(client: TestClient) -> None:
    response = client.get("/sandbox.html")
    assert response.headers["content-security-policy"] == f"connect-src {ORIGIN}"
    assert "x-all" not in response.headers


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("br, gzip", "br"),
        ("gzip, deflate", "gzip"),
        ("gzip, br;q=0", "gzip"),
        ("identity", None),
        ("brr", None),
    ],
)
def test_compressed_siblings(client: TestClient, dist: Path, accept: str, coding: str | None) -> None:
    with client.stream("GET", "/assets/index-BxK3d9aZ.js", headers={"accept-encoding": accept}) as response:
        raw = b"".join(response.iter_raw())
    assert response.headers.get("content-encoding") == coding
    assert response.headers["vary"] == "Accept-Encoding"
    assert response.headers["content-type"].startswith("text/javascript")
    ending = {"br": ".br", "gzip": ".gz", None: ""}[coding]
    assert raw == (dist / "assets" / f"index-BxK3d9aZ.js{ending}").read_bytes()


def test_hashed_names_are_immutable(client: TestClient) -> None:
    assert "immutable" in client.get("/assets/index-BxK3d9aZ.js").headers["cache-control"]
    assert is_hashed("runtime/site.0a1b2c3d4e5f6071.zip")
    for path in ("index.html", "runtime/pyodide-lock.json", "runtime/python_stdlib.zip", "workspace.zip"):
        assert not is_hashed(path)


def test_etag_spares_the_body_and_differs_by_encoding(client: TestClient) -> None:
    path = "/assets/index-BxK3d9aZ.js"
    plain = client.get(path).headers["etag"]
    packed = client.get(path, headers={"accept-encoding": "gzip"}).headers["etag"]
    assert plain != packed
    again = client.get(path, headers={"if-none-match": plain})
    assert again.status_code == 304
    assert again.content == b""
    assert client.get(path, headers={"if-none-match": packed}).status_code == 200


def test_rebuilt_file_is_seen(client: TestClient, dist: Path) -> None:
    before = client.get("/").headers["etag"]
    (dist / "index.html").write_text("<!doctype html>new page", encoding="utf-8")
    after = client.get("/", headers={"if-none-match": before})
    assert after.status_code == 200
    assert after.text.endswith("new page")


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/link.txt",
        "/.hidden",
        "/headers.json",
        "/assets",
        "/nope",
        "/a%00b",
        "//etc/passwd",
    ],
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert "secret" not in response.text


def test_only_reading_is_allowed(client: TestClient) -> None:
    assert client.post("/").status_code == 405
    assert client.head("/").status_code == 200


def test_foreign_host_gets_403_everywhere(client: TestClient) -> None:
    for path in ("/", "/health", "/agents", "/acp"):
        assert client.get(path, headers={"host": "evil.example"}).status_code == 403


def test_plain_get_of_the_socket_says_what_it_is(client: TestClient) -> None:
    assert client.get("/acp").status_code == 426


def test_missing_bundle_names_the_remedy(client: TestClient, dist: Path) -> None:
    (dist / "index.html").unlink()
    response = client.get("/")
    assert response.status_code == 404
    assert "build.sh build" in response.text


def test_media_types() -> None:
    assert media_type("a/b.wasm") == "application/wasm"
    assert media_type("b.mjs") == "text/javascript"
    assert media_type("noending") == "application/octet-stream"
