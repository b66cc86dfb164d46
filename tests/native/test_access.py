from __future__ import annotations

import pytest

from sandport_native.gateway.access import Access, host_of, new_token

OWN = "http://127.0.0.1:8765"
GOOD = ["acp.v1", "sandport.token.secret-token"]


@pytest.fixture
def access() -> Access:
    return Access([OWN, "http://localhost:8765"], "secret-token")


def test_own_page_passes(access: Access) -> None:
    assert access.check_socket(["127.0.0.1:8765"], [OWN], GOOD) is None
    assert access.check_socket(["LOCALHOST:8765"], ["http://localhost:8765"], GOOD) is None


def test_programs_without_origin_pass(access: Access) -> None:
    assert access.check_socket(["127.0.0.1:8765"], [], GOOD) is None


@pytest.mark.parametrize(
    "origins",
    [
        ["http://evil.example"],
        ["null"],
        ["http://127.0.0.1:8766"],
        ["https://127.0.0.1:8765"],
        ["http://127.0.0.1:8765.evil.example"],
        [""],
        [OWN, OWN],
    ],
)
def test_foreign_origin_is_refused(access: Access, origins: list[str]) -> None:
    refusal = access.check_socket(["127.0.0.1:8765"], origins, GOOD)
    assert refusal is not None
    assert "Origin" in refusal.reason


class TestBehindAProxy:
    """A proxy that changes what the gateway checks is refused with a text that says which setting it is."""

    PUBLIC = "https://sandport.example"

    @pytest.fixture
    def access(self) -> Access:
        return Access([OWN], "secret-token", public=[self.PUBLIC])

    def test_as_it_should_be(self, access: Access) -> None:
        assert access.check_socket(["sandport.example"], [self.PUBLIC], GOOD) is None
        assert access.origin_for("sandport.example") == self.PUBLIC
        assert access.check_socket(["127.0.0.1:8765"], [OWN], GOOD) is None

    @pytest.mark.parametrize(
        ("host", "origin", "hint"),
        [
            ("127.0.0.1:8765", "https://sandport.example", "$http_host"),  # the proxy does not pass the Host on
            ("sandport.example", "http://sandport.example", "http where the page has https"),
            ("sandport.example:8443", "https://sandport.example:8443", "--public-url must name it"),
            ("backend", "https://sandport.example", "a proxy must pass the Host on"),
        ],
    )
    def test_wrong_settings(self, access: Access, host: str, origin: str, hint: str) -> None:
        refusal = access.check_socket([host], [origin], GOOD)
        assert refusal is not None
        assert hint in refusal.reason
        assert repr(host) in str(refusal)  # the log says what came
        assert host not in refusal.reason


def test_a_strangers_headers_are_cut_for_the_log(access: Access) -> None:
    refusal = access.check_host(["x\n" * 5000])
    assert refusal is not None
    assert len(str(refusal)) < 1000
    assert "\n" not in str(refusal)


@pytest.mark.parametrize("hosts", [[], ["evil.example"], ["127.0.0.1"], ["127.0.0.1:8766"], ["127.0.0.1:8765"] * 2])
def test_foreign_host_is_refused(access: Access, hosts: list[str]) -> None:
    refusal = access.check_socket(hosts, [OWN], GOOD)
    assert refusal is not None
    assert "Host" in refusal.reason


@pytest.mark.parametrize(
    "offered",
    [
        [],
        ["acp.v1"],
        ["acp.v1", "sandport.token."],
        ["acp.v1", "sandport.token.secret-toke"],
        ["acp.v1", "sandport.token.secret-token", "sandport.token.secret-token"],
        ["acp.v1", "sandport.token.\udcff"],
    ],
)
def test_wrong_token_is_refused_and_not_repeated(access: Access, offered: list[str]) -> None:
    refusal = access.check_socket(["127.0.0.1:8765"], [OWN], offered)
    assert refusal is not None
    assert "token" in refusal.reason
    assert "secret" not in refusal.reason


def test_subprotocol_is_needed(access: Access) -> None:
    refusal = access.check_socket(["127.0.0.1:8765"], [OWN], ["sandport.token.secret-token"])
    assert refusal is not None
    assert "acp.v1" in refusal.reason


def test_null_origin_can_be_allowed() -> None:
    access = Access([OWN], "secret-token", ["null"])
    assert access.check_socket(["127.0.0.1:8765"], ["null"], GOOD) is None


def test_tokens_are_long_and_new() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) >= 43 for token in tokens)  # 256 bits in base64


@pytest.mark.parametrize(
    "origin", ["ftp://x", "x.example", "https://u:p@x.example", "https://x.example/path", "https://"]
)
def test_origins_are_checked(origin: str) -> None:
    with pytest.raises(ValueError):
        host_of(origin)
