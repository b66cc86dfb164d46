"""Logs for people and for machines, without secrets.

Invariant: nothing in a record's text survives that equals a registered secret or the value of an environment
variable whose name says that it is one. The filter sits on the handler, so it sees every record.
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


class Redactor(logging.Filter):
    """Replaces secrets by `***` in the text of each record, arguments and traceback included."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets = {
            value
            for name, value in os.environ.items()
            if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET and not value.startswith(("/", "."))
        }

    def add(self, secret: str) -> None:
        """Hide this text from now on."""
        if secret:
            self._secrets.add(secret)

    def clean(self, text: str) -> str:
        """The text with each known secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
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


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("socket", "agent", "pid"):
            if hasattr(record, name):
                entry[name] = getattr(record, name)
        if record.exc_text:
            entry["traceback"] = record.exc_text
        return json.dumps(entry, ensure_ascii=False)


def configure(log_format: LogFormat = "text", level: int = logging.INFO) -> None:
    """Send the logs of `sandport` to stderr and quieten the libraries below it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(redactor)
    if log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
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
