"""`stateless+`: `stateless`, and a request may carry `sessionId` and `toolCallId` (Rust SDK 5.6, Python SDK 1.1)."""

from __future__ import annotations

from typing import Final

from sandport.wire.stateless import StatelessDialect

__all__ = ["STATELESS_PLUS"]

STATELESS_PLUS: Final = StatelessDialect(name="stateless+", hints=True)
