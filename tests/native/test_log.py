from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from sandport_native.log import RateLimiter, Redactor, _JsonFormatter, _TextFormatter


def record(logger_text: str, redactor: Redactor, *arguments: object, error: bool = False) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(redactor)
    handler.setFormatter(_JsonFormatter())
    logger = logging.Logger("sandport.test")
    logger.addHandler(handler)
    if error:
        try:
            raise ValueError("with token-12345678")
        except ValueError:
            logger.exception(logger_text, *arguments)
    else:
        logger.warning(logger_text, *arguments)
    return stream.getvalue()


def test_secrets_are_replaced_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "key-87654321")
    redactor = Redactor()
    redactor.add("token-12345678")
    text = record("a token-12345678 %s", redactor, "and key-87654321", error=True)
    assert "12345678" not in text
    assert "87654321" not in text
    entry = json.loads(text)
    assert entry["message"] == "a *** and ***"
    assert "ValueError: with ***" in entry["traceback"]


def test_short_values_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "on")
    assert Redactor().clean("on and on") == "on and on"


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer {secret}",
        "authorization: Basic {secret}",
        "headers={{'Authorization': 'Bearer {secret}', 'Accept': '*/*'}}",
        '{{"authorization":"{secret}"}}',
        "[('authorization', 'Bearer {secret}')]",
        "using bearer {secret} now",
        "offered acp.v1, sandport.token.{secret}",
        "open http://127.0.0.1:1/#token={secret} now",
    ],
)
def test_credentials_nobody_told_us_of(text: str) -> None:
    cleaned = Redactor().clean(text.format(secret="c3VwZXI-c2VjcmV0_dmFsdWU="))
    assert "c3VwZXI" not in cleaned
    assert "***" in cleaned


def test_ordinary_words_stay() -> None:
    for text in ("the bearer of news", "authorization failed", "a token was wrong", "bearer: none"):
        assert Redactor().clean(text) == text


def test_a_secret_of_several_lines_is_hidden_line_by_line() -> None:
    redactor = Redactor()
    redactor.add("-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----\n")
    assert redactor.clean("agent says MIIEvQIBADANBgkq") == "agent says ***"


def test_a_secret_that_looks_like_a_path_is_one_only_if_it_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLASH_SECRET", "/9j4AAQSkZJRgABAQ")
    monkeypatch.setenv("AUTH_SOCKET", str(tmp_path))
    redactor = Redactor()
    assert redactor.clean("x /9j4AAQSkZJRgABAQ") == "x ***"
    assert redactor.clean(f"listening on {tmp_path}") == f"listening on {tmp_path}"


@pytest.mark.parametrize("form", [_JsonFormatter, _TextFormatter])
def test_a_record_is_one_line_and_moves_no_cursor(form: type[logging.Formatter]) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form())
    logger = logging.Logger("sandport.test")
    logger.addHandler(handler)
    logger.info("from the agent: %s", "a\nINFO sandport: forged\r\x1b[2J\x9b1m\u2028é", extra={"socket": 7, "pid": 1})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert not any(character in text for character in "\r\x1b\x9b\u2028")
    assert "é" in text
    if form is _JsonFormatter:
        entry = json.loads(text)
        assert (entry["socket"], entry["pid"]) == (7, 1)
        assert entry["message"].endswith("\x1b[2J\x9b1m\u2028é")


def test_rate_limiter_counts_what_it_drops() -> None:
    limiter = RateLimiter(3, 1.0)
    assert [limiter.allow(100.0) for _ in range(5)] == [True, True, True, False, False]
    assert limiter.take_dropped() == 2
    assert limiter.take_dropped() == 0
    assert limiter.allow(101.0)
    assert not limiter.allow(101.0)
