"""Logs for people and for machines, without secrets.

Invariant: nothing in a record's text survives that equals a registered secret or the value of an environment
variable whose name says that it is one, nor what follows `Authorization:` or `Bearer` or is one of our tokens; and a
record is one line, whatever a stranger put into it. The filter sits on the handler, so it sees every record.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Literal

LogFormat = Literal["text", "json"]

_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")
_MIN_SECRET = 8  # shorter values would blank ordinary words

_CREDENTIALS = (
    re.compile(r"(?i)(\bauthorization\b[\"']?\s*[:=,]\s*[\"']?)(?:(?:basic|bearer|digest|token)\s+)?[^\s\"',;]+"),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(sandport\.token\.|#token=)[^\s\"',;&]+"),
)
"""What stands before a credential that we do not know."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def _lines(value: str) -> list[str]:
    """A secret of several lines, such as a key in PEM form, reaches a log line by line."""
    return [line for line in (value, *value.splitlines()) if len(line.strip()) >= _MIN_SECRET]


def _is_path(value: str) -> bool:
    return value.startswith(("/", ".")) and os.path.exists(value)


class Redactor(logging.Filter):
    """Replaces secrets by `***` in the text of each record, arguments and traceback included."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for name, value in os.environ.items():
            if _SECRET_NAME.search(name) and not _is_path(value):
                self.add(value)

    def add(self, secret: str) -> None:
        """Hide this text from now on; one that is shorter than an ordinary word is not hidden."""
        self._secrets.update(_lines(secret))
        if self._secrets:
            # The longest first: a secret may be a part of another one.
            self._pattern = re.compile("|".join(map(re.escape, sorted(self._secrets, key=len, reverse=True))))

    def clean(self, text: str) -> str:
        """The text with each known secret replaced, and what looks like a credential."""
        if self._pattern is not None:
            text = self._pattern.sub("***", text)
        for pattern in _CREDENTIALS:
            text = pattern.sub(r"\1***", text)
        return text

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.clean(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self.clean(record.exc_text)
        return True


redactor = Redactor()
"""The process's one redactor; `configure` puts it on the handler."""


FIELDS = ("socket", "agent", "pid", "code", "seconds")
"""What a record may carry as `extra` for the JSON form: the socket's number, the agent's name and process id, the
close code, how long the socket lived."""


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        # A terminal obeys control characters, and a reader believes what looks like a line of ours.
        record.message = record.getMessage().replace("\n", "\\n").replace("\t", " ")
        record.msg, record.args = _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", record.message), None
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            if hasattr(record, name):
                entry[name] = getattr(record, name)
        if record.exc_text:
            entry["traceback"] = record.exc_text
        return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(entry, ensure_ascii=False))


def configure(log_format: LogFormat = "text", level: int = logging.INFO) -> None:
    """Send the logs of `sandport` to stderr and quieten the libraries below it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(redactor)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter())
    # uvicorn takes a refusal before the upgrade, which is an answer, for a mistake of the application.
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: "without completing handshake" not in record.getMessage()
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sandport").setLevel(level)


class RateLimiter:
    """A token bucket over a clock that the caller passes in: `burst` at once, `per_second` in the long run."""

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst, self._rate = float(burst), per_second
        self._level, self._at = float(burst), 0.0
        self.dropped = 0

    def allow(self, now: float) -> bool:
        """Whether one more may pass at time `now` (seconds, monotonic); counts those that may not."""
        self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._level < 1:
            self.dropped += 1
            return False
        self._level -= 1
        return True

    def take_dropped(self) -> int:
        """How many were refused since the last call."""
        count, self.dropped = self.dropped, 0
        return count
