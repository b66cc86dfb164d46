"""Text to message and back: strict JSON-RPC framing, one message a text.

Invariant: whatever text comes in, `decode` returns a JSON object or raises `PeerError` with the code and the id that
the answer must carry; it never raises anything else. Whatever `encode` returns is valid JSON and valid Unicode.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, Final

from pydantic_core import to_json

from sandport.wire.errors import INVALID_REQUEST, PARSE_ERROR, PeerError

__all__ = [
    "MAX_DEPTH",
    "MAX_MESSAGE_CHARS",
    "Message",
    "TooLarge",
    "decode",
    "encode",
    "error_message",
    "id_key",
    "is_id",
]

Message = dict[str, Any]
"""One JSON-RPC message as a parsed JSON object. Treated as immutable once it was handed on."""

MAX_MESSAGE_CHARS: Final = 32 * 1024 * 1024
"""Default cap on one message, in characters: that of the TypeScript SDK (`stream-limits`), so that it takes ours."""

MAX_DEPTH: Final = 1000
"""Arrays and objects within one another. In the browser a parser that goes deeper than about 5000 runs out of the
engine's stack, which ends the interpreter; a message of MCP or ACP has some ten levels."""

LONG_TEXT: Final = 16 * 1024
"""Characters from which on a string is written by pydantic's writer: four times as fast as Python's, under Pyodide too,
but a detour for a short one. It is given strings alone, for it takes values that are no JSON."""

_LONG_WITHIN: Final = 8
"""How deep long strings are looked for. A text of a tool's result is six levels down in the deepest dialect."""

_WIDE: Final = 16
"""Members of an array or object up to which long strings are looked for in it: a long list of values is Python's."""

_NO_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[^][{}"]++', re.DOTALL)
"""All of a JSON text but its brackets: strings, and what stands between."""
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


class TooLarge(PeerError):
    """A message over the cap. It names the cap, so that whoever meets it knows what to raise or shorten."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            INVALID_REQUEST, f"Message of {size} characters is over the limit of {limit} (max_message_chars)"
        )
        self.size = size
        self.limit = limit


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_encode_utf8: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def _has_surrogate(text: str) -> bool:
    """Whether a text holds a lone surrogate, which has no UTF-8. Encoding finds it ten times as fast as a search."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _holds_long(value: Any, depth: int) -> bool:
    """Whether an array or object holds a long string not too deep within; each message is asked."""
    if len(value) > _WIDE:
        return False
    for item in value.values() if type(value) is dict else value:
        kind = type(item)
        if kind is str:
            if len(item) >= LONG_TEXT:
                return True
        elif depth and (kind is dict or kind is list) and _holds_long(item, depth - 1):
            return True
    return False


def _encode_spliced(value: Any, depth: int) -> str:
    """As `_encode_utf8`, with long strings written by the faster writer. What holds none is Python's as a whole."""
    kind = type(value)
    if kind is str and len(value) >= LONG_TEXT:
        try:
            return to_json(value).decode()
        except ValueError:
            # A lone surrogate: whoever looks at the text as a whole writes it in escapes.
            return _encode_utf8(value)
    if depth and kind is dict and _holds_long(value, depth - 1) and all(type(key) is str for key in value):
        members = (f"{_encode_utf8(key)}:{_encode_spliced(item, depth - 1)}" for key, item in value.items())
        return f"{{{','.join(members)}}}"
    if depth and kind is list and _holds_long(value, depth - 1):
        return f"[{','.join(_encode_spliced(item, depth - 1) for item in value)}]"
    return _encode_utf8(value)


def _too_deep(text: str) -> bool:
    """Whether a text nests deeper than `MAX_DEPTH`. Few texts have that many brackets at all."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    steps = map(_STEP.__getitem__, _NO_BRACKETS.sub("", text))
    return max(accumulate(steps), default=0) > MAX_DEPTH


def decode(text: str, *, limit: int = MAX_MESSAGE_CHARS) -> Message:
    """Parse one JSON-RPC text into its object.

    Strict where `json.loads` is not: `NaN` and `Infinity` are refused (RFC 8259), a lone surrogate in the text is
    refused because it has no UTF-8, and only an object is a message here: ACP has no batches, so an array is one
    invalid request. White space around the object, a trailing newline included, is accepted.

    Raises:
        PeerError: with `PARSE_ERROR` or `INVALID_REQUEST`; the answer carries id null.
        TooLarge: over `limit` characters.
    """
    if len(text) > limit:
        raise TooLarge(len(text), limit)
    if _too_deep(text):
        raise PeerError(PARSE_ERROR, f"Parse error: nested deeper than {MAX_DEPTH} levels")
    try:
        value = _decoder.decode(text)
    except RecursionError:
        raise PeerError(PARSE_ERROR, "Parse error: nested too deeply") from None
    except ValueError as error:
        raise PeerError(PARSE_ERROR, f"Parse error: {error}") from None
    if not isinstance(value, dict):
        what = "a batch" if isinstance(value, list) else f"a JSON {type(value).__name__}"
        raise PeerError(INVALID_REQUEST, f"Invalid request: {what} is not a message; send one object a text")
    if _has_surrogate(text):
        raise PeerError(PARSE_ERROR, "Parse error: lone surrogate in the text")
    return value


def encode(message: Message, *, limit: int | None = MAX_MESSAGE_CHARS) -> str:
    """Write one message as compact JSON without a newline.

    Characters are written as they are; only a text that holds a lone surrogate (legal in JSON as an escape, and
    possible in a Python string) is written in ASCII escapes, so that it survives every UTF-8 transport.

    Args:
        message: what to write.
        limit: characters it may have; `None` for no limit.

    Raises:
        ValueError: a float that JSON cannot carry (`nan`, `inf`), or a circular structure.
        TypeError: a value that is not JSON.
        TooLarge: over `limit` characters.
    """
    try:
        long = _holds_long(message, _LONG_WITHIN)
        text = _encode_spliced(message, _LONG_WITHIN + 1) if long else _encode_utf8(message)
        if _has_surrogate(text):
            text = _encode_ascii(message)
    except RecursionError:
        raise ValueError("the value is nested too deeply for JSON") from None
    if limit is not None and len(text) > limit:
        raise TooLarge(len(text), limit)
    return text


def is_id(value: object) -> bool:
    """Whether a value can be the id of a request: a string or an integer, as in the ACP and MCP schemas.

    JSON-RPC 2.0, section 4, advises against other numbers: no two JSON writers agree on how to spell `1.0` or `1e2`.
    """
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def id_key(value: Any) -> tuple[str, Any]:
    """A dictionary key under which ids compare as JSON does: `1`, `"1"` and `true` are different values."""
    return (type(value).__name__, value)


def error_message(request_id: Any, error: PeerError) -> Message:
    """The JSON-RPC answer for an error. `data` is always there: some peers lose an error without it."""
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": error.code, "message": error.message, "data": error.data},
    }
