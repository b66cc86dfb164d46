from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport_native.lines import Line, LineSplitter, Oversize, message_head


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 132_000])
def test_lines_around_64_kib_pass(size: int) -> None:
    splitter = LineSplitter()
    data = b"x" * size + b"\n"
    events = [event for start in range(0, len(data), 65_536) for event in splitter.feed(data[start : start + 65_536])]
    assert events == [Line(b"x" * size)]
    assert splitter.buffered == 0


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
def test_any_cut_gives_the_same_lines(lines: list[bytes], step: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(1000)
    events = [event for start in range(0, len(data), step) for event in splitter.feed(data[start : start + step])]
    assert events == [Line(line.removesuffix(b"\r")) for line in lines if line.strip()]
    assert splitter.end() is None


def test_limit_drops_one_line_and_names_itself() -> None:
    splitter = LineSplitter(10)
    events = list(splitter.feed(b"0123456789\n" + b"a" * 11 + b"\nnext\n"))
    assert events == [Line(b"0123456789"), Oversize(b"a" * 11, 11, 10), Line(b"next")]
    assert "limit of 10 bytes" in str(events[1])


def test_unterminated_flood_is_not_buffered() -> None:
    splitter = LineSplitter(100)
    for _ in range(1000):
        assert list(splitter.feed(b"z" * 1000)) == []
    assert splitter.buffered == 0
    (event,) = splitter.feed(b"\n")
    assert isinstance(event, Oversize)
    assert event.size == 1_000_000
    assert len(event.prefix) == 512


def test_end_gives_the_unfinished_line() -> None:
    splitter = LineSplitter()
    assert list(splitter.feed(b"half")) == []
    assert splitter.end() == Line(b"half")
    assert splitter.end() is None


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError):
        LineSplitter(0)


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"x', ("7", False)),
        (b' {"jsonrpc": "2.0", "id": "a-b", "method": "fs/x"', ('"a-b"', True)),
        (b'{"jsonrpc":"2.0","id":-1,"error":', ("-1", False)),
        (b'{"jsonrpc":"2.0","method":"x","id":3', None),
        (b'{"params":{"jsonrpc":"2.0","id":3,"result":', None),
        (b"", None),
    ],
)
def test_message_head(prefix: bytes, head: tuple[str, bool] | None) -> None:
    assert message_head(prefix) == head
