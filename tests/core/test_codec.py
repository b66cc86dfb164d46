"""The codec: strict JSON-RPC framing, and a parser corpus built from the JSON grammar."""

from __future__ import annotations

import itertools
import json
import math
import sys
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandport import PeerError, codec, memory_channel_pair
from sandport.codec import TooLarge, decode, encode, error_message, id_key, is_id
from sandport.rpc import Peer
from sandport.wire.errors import INVALID_REQUEST, PARSE_ERROR

from .kit import RawAgent

# -- the corpus: each text and what becomes of it ----------------------------------------------------------------

GOOD_NUMBERS = "0 -0 1 -1 10 123456789012345678901234567890 0.5 -0.5 1e5 1E5 1e+5 1e-5 0e0 0E-0 1.5e300 -1.5E-300 20e1"
BAD_NUMBERS = (
    "01 -01 +1 .5 5. -.5 -5. 1e 1e+ 1E- 0x1F 0b1 0o7 1_000 1,000 --1 +-1 - + 1e1.5 1.2.3 NaN -NaN nan Infinity "
    "-Infinity inf -inf 1f 1L ١ ½ 1e1e1 0.e1 2.e3 0e+ .2e-3 -foo -1x 1ea 0.3e 9.e+ ¹ １"
)
GOOD_STRINGS = [
    '""',
    '"a"',
    '"é"',
    '"日本"',
    '"😀"',
    '"\\u0000"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\""',
    '"\\\\"',
    '"\\/"',
    '"\\b\\f\\n\\r\\t"',
    '"/"',
    '"\x7f"',
    '"\u2028\u2029"',
    '"\ufeff"',
    '"\uffff"',
    '"\\uFFFF"',
    '"\\uAbCd"',
]
BAD_STRINGS = [
    '"',
    "'a'",
    '"a',
    'a"',
    '"\t"',
    '"\n"',
    '"\r"',
    '"\x00"',
    '"\x1f"',
    '"\\x41"',
    '"\\a"',
    '"\\u12"',
    '"\\u12G4"',
    '"\\U0041"',
    '"\\u"',
    '"\\"',
    '"\\',
    '"a\\',
    "`a`",
    '"\\\t"',
    '"\\u00A"',
    '"\\ud83d\\u"',
    '"\ud800"',
    '"\udc00"',
    '"\\é"',
    '"""',
    '"a""',
    "“a”",
]
GOOD_SPACE = ["", " ", "\t", "\n", "\r", " \t\r\n "]
BAD_SPACE = ["\x0b", "\x0c", "\xa0", "\u2003", "\ufeff", "\u2060", "\x00", "\u3000", "//x\n", "/**/", "#x\n"]
WORDS = ["true", "false", "null"]
BAD_WORDS = ["True", "TRUE", "tru", "truee", "nul", "nulll", "None", "undefined", "fals", "FALSE", "t", "n", "ｔrue"]
BAD_ARRAYS = [
    "[",
    "]",
    "[1",
    "[1,",
    "[,]",
    "[,1]",
    "[1,]",
    "[1,,2]",
    "[1 2]",
    "[1:2]",
    "[}",
    "[1}",
    "[[]",
    "[]]",
    "[a]",
    "(1)",
]
BAD_OBJECTS = [
    "{",
    "}",
    "{]",
    '{"a"}',
    '{"a":}',
    '{"a":1',
    '{"a":1,',
    '{"a":1,}',
    "{,}",
    '{,"a":1}',
    '{"a" 1}',
    '{"a"::1}',
    "{a:1}",
    "{'a':1}",
    "{1:1}",
    "{null:1}",
    '{"a":1 "b":2}',
    '{"a":1,,"b":2}',
    '{"a":1;"b":2}',
    '{"a":1}}',
    '{"a":1}x',
    '{"a"=1}',
    '{"a":1}{"b":2}',
    '{"a":1},',
    "{[]:1}",
    '{"a":{}',
    '{"a":[}',
    '{"a":[1,}',
]
BATCHES = [
    "[]",
    "[{}]",
    '[{"jsonrpc":"2.0","id":1,"method":"x"},{"jsonrpc":"2.0","id":2,"method":"x"}]',
    "[1,2]",
    "[[]]",
]


def corpus() -> list[tuple[str, int | None]]:
    """Texts, and the code they are refused with; `None`: a message."""
    good_values = [*GOOD_NUMBERS.split(), *GOOD_STRINGS, *WORDS, "[]", "{}", "[1,[2,[3]]]", '{"a":{"b":[]}}', "[{},{}]"]
    bad_values = [*BAD_NUMBERS.split(), *BAD_STRINGS, *BAD_WORDS, *BAD_ARRAYS, *BAD_OBJECTS]
    texts: list[tuple[str, int | None]] = []
    # A value alone is JSON, but no message.
    texts += [(value, None if value.startswith("{") else INVALID_REQUEST) for value in good_values]
    # A lone surrogate is looked for in messages only.
    texts += [(value, PARSE_ERROR) for value in bad_values if value not in ('"\ud800"', '"\udc00"')]
    # The same as a member.
    texts += [(f'{{"jsonrpc":"2.0","method":"x","params":{{"a":{value}}}}}', None) for value in good_values]
    texts += [
        (f'{{"jsonrpc":"2.0","method":"x","params":{{"a":{value}}}}}', PARSE_ERROR)
        for value in bad_values
        # These close what is open, so that they are no error here.
        if value not in ('{"a":1}}', '{"a":1},', '"a""', '{"a":1}{"b":2}')
    ]
    # White space, legal and not, in every place.
    places = [
        '%s{"a":1}',
        '{%s"a":1}',
        '{"a"%s:1}',
        '{"a":%s1}',
        '{"a":1%s}',
        '{"a":1}%s',
        '{"a":[%s]}',
        '{"a":{%s}}',
        "%s",
    ]
    texts += [(place % space, None) for place, space in itertools.product(places[:-1], GOOD_SPACE)]
    texts += [(place % space, PARSE_ERROR) for place, space in itertools.product(places, BAD_SPACE)]
    texts += [(space, PARSE_ERROR) for space in GOOD_SPACE]
    texts += [(batch, INVALID_REQUEST) for batch in BATCHES]
    # Cut short anywhere.
    whole = '{"jsonrpc":"2.0","id":1,"method":"a\\u00e9","params":[true,null,-1.5e3]}'
    texts += [(whole[:end], PARSE_ERROR) for end in range(1, len(whole))]
    texts += [("[" * 100_000, PARSE_ERROR), ('{"a":' * 100_000, PARSE_ERROR), ("9" * 5000, PARSE_ERROR)]
    return list(dict.fromkeys(texts))


CORPUS = corpus()


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) >= 250


@pytest.mark.parametrize(("text", "code"), CORPUS, ids=lambda value: ascii(value)[:60])
def test_corpus(text: str, code: int | None) -> None:
    """S10."""
    if code is None:
        assert decode(text) == json.loads(text)
        return
    with pytest.raises(PeerError) as caught:
        decode(text)
    assert caught.value.code == code
    json.loads(encode(error_message(None, caught.value)))


async def test_the_channel_lives_on_through_the_corpus() -> None:
    """P15, S10."""
    seen: list[Any] = []
    ours, theirs = memory_channel_pair()

    async def on_request(inbound: Any) -> Any:
        seen.append(inbound.params)
        return {}

    peer = Peer(ours, on_request, lambda method, params: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        agent = RawAgent(theirs)
        for number, (text, code) in enumerate(CORPUS):
            await agent.send(text)
            if code is not None:
                assert (await agent.receive())["error"]["code"] == code, text
            elif "method" not in decode(text):
                # An object that is neither a request nor an answer.
                assert (await agent.receive())["error"]["code"] == INVALID_REQUEST, text
            assert (await agent.ask("ping", number))["result"] == {}
        await theirs.aclose()
    assert seen == list(range(len(CORPUS)))


# -- the rest ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES)
def test_p15_a_batch_is_one_invalid_request(batch: str) -> None:
    with pytest.raises(PeerError) as caught:
        decode(batch)
    assert caught.value.code == INVALID_REQUEST


@pytest.mark.parametrize("number", [1915883588174806058, 2**53 + 1, -(2**63), 10**40, 0.1, 1e300, 5e-324])
def test_s08_numbers_are_exact(number: float) -> None:
    assert decode(encode({"a": number})) == {"a": number}
    assert f'"a":{number}' in encode({"a": number}) or isinstance(number, float)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_s10_no_nan_leaves(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": [value]})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j])
def test_what_is_not_json_does_not_leave(value: object) -> None:
    with pytest.raises(TypeError):
        encode({"a": value})


def test_a_circle_does_not_leave() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError):
        encode({"a": circle})


@pytest.mark.skipif(sys.platform == "emscripten", reason="the engine's stack ends before Python's own limit")
def test_deep_values_do_not_leave() -> None:
    deep: Any = 0
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        encode({"a": deep})
    while isinstance(deep, list):  # let go of it level by level: freeing it at once is as deep
        deep = deep[0]


def test_a_lone_surrogate_leaves_as_an_escape() -> None:
    text = encode({"a": "x\ud800é"})
    text.encode()
    assert decode(text) == {"a": "x\ud800é"}


LONG = codec.LONG_TEXT * "x"


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        LONG[:-1],
        LONG + '"\\\b\f\n\r\t/\x00\x1f\x7f\u2028\u2029',
        LONG + "é漢😀\uffff",
        LONG + "\ud800",
        "é\udc00" + LONG,
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        lambda text: {text: text, "a": {"b": [1, None, {"c": text}], "d": 0.5}},
        lambda text: {"a": [text] * 3, "b": {1: text, None: 2, False: 0.1}},
        lambda text: {"a": [text, *range(50)], "b": {str(n): text for n in range(50)}},
        lambda text: {"a": [[[[[[[[[[[[text]]]]]]]]]]]]},
    ],
    ids=["dicts", "lists", "wide", "deep"],
)
def test_long_strings_are_written_as_short_ones_are(text: str, place: Any) -> None:
    message = place(text)
    written = encode(message)
    written.encode()
    plain = json.dumps(message, ensure_ascii="\ud800" in text or "\udc00" in text, separators=(",", ":"))
    assert written == plain


@pytest.mark.parametrize("bad", [math.nan, {1, 2}, b"x", {(1, 2): 3}])
def test_what_is_not_json_does_not_leave_beside_a_long_string(bad: object) -> None:
    for message in ({"a": LONG, "b": bad}, {"a": [LONG, [bad]]}):
        with pytest.raises((ValueError, TypeError)):
            encode(message)


def test_a_circle_around_a_long_string_does_not_leave() -> None:
    circle: dict[str, Any] = {"text": LONG}
    circle["again"] = circle
    with pytest.raises(ValueError):
        encode(circle)


def test_of_two_members_of_one_name_the_last_counts() -> None:
    text = '{"jsonrpc":"2.0","id":1,"method":"a","params":{"n":1,"n":2},"\\u006dethod":"b"}'
    message = decode(text)
    assert (message["method"], message["params"]) == ("b", {"n": 2})


def test_members_keep_their_order() -> None:
    assert list(decode('{"b":1,"a":2,"c":3}')) == ["b", "a", "c"]
    assert encode({"b": 1, "a": 2}) == '{"b":1,"a":2}'


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_l06_the_size_limit_names_itself(over: int) -> None:
    text = '{"a":"' + "x" * (100 - 8 + over) + '"}'
    if over <= 0:
        assert decode(text, limit=100)
        assert encode(decode(text), limit=100) == text
        return
    for attempt in (lambda: decode(text, limit=100), lambda: encode({"a": "x" * (100 - 8 + over)}, limit=100)):
        with pytest.raises(TooLarge, match="max_message_chars") as caught:
            attempt()
        assert caught.value.code == INVALID_REQUEST
        assert (caught.value.size, caught.value.limit) == (101, 100)


@pytest.mark.parametrize("value", ["", "1", 0, 1, -1, 2**70, "\ud800"])
def test_ids(value: object) -> None:
    assert is_id(value)


@pytest.mark.parametrize("value", [None, True, False, 1.0, 1e2, math.inf, math.nan, [], {}, [1]])
def test_no_ids(value: object) -> None:
    assert not is_id(value)


def test_p12_ids_of_different_types_are_different() -> None:
    assert len({id_key(value) for value in ("1", 1, True, 1.0, "", 0, False)}) == 7


# -- fuzz --------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def judge(text: str) -> None:
    """A message, or a `PeerError` with one of two codes; anything else fails the test."""
    try:
        message, code = decode(text), PARSE_ERROR
    except PeerError as error:
        message, code = {}, error.code
    assert isinstance(message, dict)
    assert code in (PARSE_ERROR, INVALID_REQUEST)


@settings(max_examples=300)
@given(st.text() | st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\u\n\ud800', max_size=40))
def test_fuzz_any_text(text: str) -> None:
    judge(text)


@settings(max_examples=200)
@given(st.dictionaries(st.text(), json_values))
def test_fuzz_round_trip(message: dict[str, Any]) -> None:
    text = encode(message)
    text.encode()
    assert "\n" not in text
    assert decode(text) == message


@settings(max_examples=200)
@given(st.dictionaries(st.text(), json_values))
def test_fuzz_both_writers_write_the_same(message: dict[str, Any]) -> None:
    text = encode(message)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "LONG_TEXT", 1)
        assert encode(message) == text


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=5), json_values), st.data())
def test_fuzz_damaged(message: dict[str, Any], data: st.DataObject) -> None:
    text = encode(message)
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=2)) + text[at + data.draw(st.integers(0, 2)) :]
    judge(damaged)


@pytest.mark.parametrize(
    "inner", ["[" * 999 + "]" * 999, '"' + "[" * 5000 + '"', "[" + "[],{}," * 5000 + "0]", '"\\"' + "[" * 5000 + '"']
)
def test_brackets_are_counted_by_depth_and_not_in_strings(inner: str) -> None:
    assert decode(f'{{"a":{inner}}}') == json.loads(f'{{"a":{inner}}}')


@pytest.mark.parametrize("text", ['{"a":' + "[" * 1000 + "]" * 1000 + "}", '{"a":"\\\\",' + '"b":[' * 5000])
def test_what_nests_too_deeply_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(PeerError, match="nested deeper than 1000 levels") as caught:
        decode(text)
    assert caught.value.code == PARSE_ERROR
