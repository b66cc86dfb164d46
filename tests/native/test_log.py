from __future__ import annotations

import io
import json
import logging

import pytest

from sandport_native.log import RateLimiter, Redactor, _JsonFormatter


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


def test_rate_limiter_counts_what_it_drops() -> None:
    limiter = RateLimiter(3, 1.0)
    assert [limiter.allow(100.0) for _ in range(5)] == [True, True, True, False, False]
    assert limiter.take_dropped() == 2
    assert limiter.take_dropped() == 0
    assert limiter.allow(101.0)
    assert not limiter.allow(101.0)
