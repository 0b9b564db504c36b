"""The JSON parser: strict, bounded, and silent about what it read."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.decode import JSON_DEPTH_MAX, decode_json
from projections.errors import ProjectionError

# Escaped in the text below, a lone surrogate sends a document through the second parser.
LONE = b'"\\ud800"'
WELL_FORMED = st.characters(exclude_categories=["Cs"])
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(WELL_FORMED),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(WELL_FORMED), children, max_size=4),
    max_leaves=20,
)


def refusal(data: bytes) -> str:
    with pytest.raises(ProjectionError) as caught:
        decode_json(data)
    assert caught.value.__context__ is None, "the parser's own error would carry the document along"
    return caught.value.reason


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"undefined"])
def test_words_that_are_no_json_are_refused_by_both_parsers(literal: bytes) -> None:
    assert refusal(b"[" + literal + b"]") == "invalid_json"
    assert refusal(b"[" + LONE + b"," + literal + b"]") == "invalid_json"


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"9" * 400])
def test_numbers_beyond_a_double_are_refused_by_both_parsers(number: bytes) -> None:
    assert refusal(b"[" + number + b"]") == "number_out_of_range"
    assert refusal(b"[" + LONE + b"," + number + b"]") == "number_out_of_range"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_depth_limit_is_127(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deepest = opening * JSON_DEPTH_MAX + b"1" + closing * JSON_DEPTH_MAX
    assert JSON_DEPTH_MAX == 127
    assert decode_json(deepest) is not None
    assert refusal(opening + deepest + closing) == "too_deep"


def test_the_depth_limit_is_127_in_the_second_parser_too() -> None:
    assert decode_json(b"[" * 127 + LONE + b"]" * 127) is not None
    assert refusal(b"[" * 128 + LONE + b"]" * 128) == "too_deep"


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000])
def test_a_hundred_thousand_brackets_are_refused_without_a_crash(data: bytes) -> None:
    assert refusal(data) == "too_deep"


def test_brackets_inside_strings_are_not_depth() -> None:
    text = "[{" * 500 + '"\\'
    assert decode_json(json.dumps([text]).encode()) == [text]
    assert decode_json(json.dumps([text, "\ud800"]).encode()) == [text, "\ud800"]


def test_many_brackets_side_by_side_are_not_depth() -> None:
    assert decode_json(b"[" + b",".join([b"[]"] * 1_000) + b"]") == [[]] * 1_000


@pytest.mark.parametrize("data", [b'{"a":1,"b":2,"a":3}', b'{"a":1,"b":2,"a":3,"l":' + LONE + b"}"])
def test_the_last_of_two_equal_keys_wins(data: bytes) -> None:
    assert decode_json(data)["a"] == 3


def test_lone_surrogate_escapes_are_read_and_pairs_are_joined() -> None:
    assert decode_json(b'["\\ud800","\\udFFFx","\\ud83d\\ude00","\\uDBFF"]') == ["\ud800", "\udfffx", "😀", "\udbff"]


@pytest.mark.parametrize("raw", [b"\x00", b"\t", b"\n", b"\x1f"])
def test_raw_control_characters_in_strings_are_refused_by_both_parsers(raw: bytes) -> None:
    assert refusal(b'["a' + raw + b'"]') == "invalid_json"
    assert refusal(b"[" + LONE + b',"a' + raw + b'"]') == "invalid_json"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"[1,]",
        b"{'a':1}",
        b"[01]",
        b"[1.]",
        b"[.5]",
        b"[+1]",
        b"// c\n1",
        b'["\\x41"]',
        b'["\\ud800',
        b'{"a":"\\ud800"',
        b"{}\x00",
    ],
)
def test_what_is_not_strict_json_is_refused(data: bytes) -> None:
    assert refusal(data) == "invalid_json"


@pytest.mark.parametrize("data", [b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'{"a":"\xe9"}', b'["\\ud800\xff"]'])
def test_bytes_that_are_not_utf8_are_refused_by_name(data: bytes) -> None:
    assert refusal(data) == "invalid_utf8"


def test_an_unterminated_string_of_quotes_costs_linear_time() -> None:
    assert refusal(b'["' + b'\\"' * 2_000_000) == "invalid_json"


@pytest.mark.parametrize("second", [b"", b"," + LONE])
def test_integers_of_64_bits_stay_exact_and_greater_ones_become_the_nearest_double(second: bytes) -> None:
    numbers = b"[9007199254740993,18446744073709551615,-9223372036854775808,18446744073709551616" + second + b"]"
    first = decode_json(numbers)[:4]
    assert first == [9007199254740993, 18446744073709551615, -9223372036854775808, 18446744073709551616.0]
    assert [type(number) for number in first] == [int, int, int, float]


def test_an_integer_of_thousands_of_digits_does_not_crash_the_second_parser() -> None:
    assert refusal(b"[" + LONE + b"," + b"1" * 10_000 + b"]") == "number_out_of_range"


@given(JSON_VALUES)
def test_both_parsers_read_every_document_alike(value: Any) -> None:
    data = orjson.dumps(value)
    assert decode_json(data) == value
    assert decode_json(b"[" + LONE + b"," + data + b"]") == ["\ud800", value]


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_bounded_reason(data: bytes) -> None:
    try:
        decode_json(data)
    except ProjectionError as error:
        assert error.reason in {"invalid_json", "invalid_utf8", "too_deep", "number_out_of_range"}  # noqa: PT017
        assert str(error) == error.reason  # noqa: PT017
