"""ECMAScript's text rules, where Python's differ."""

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.text import (
    JS_SPACE,
    JS_SPACE_CHARACTERS,
    TIME_PATTERN,
    ecma_pattern,
    encode_component,
    instant,
    is_blank,
    is_time,
    js_text,
    storable_json,
    storable_text,
    text_of_storable,
    trim_text,
    utf8_of,
    utf16_length,
    well_formed,
)
from projections.times import is_earlier

ANY_TEXT = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\x00\ufffd\ud800\udfff0abdf"))
ORDINARY = st.text(st.characters(exclude_characters="\x00\ufffd", exclude_categories=["Cs"]))


def test_white_space_is_the_same_set_in_text_and_in_patterns() -> None:
    matched = re.findall(f"[{JS_SPACE}]", "".join(map(chr, range(0x110000))))
    assert matched == sorted(JS_SPACE_CHARACTERS)
    assert len(JS_SPACE_CHARACTERS) == 25


@pytest.mark.parametrize("character", ["\x1c", "\x1f", "\x85", "\u200b", "\u180e"])
def test_characters_that_only_python_or_unicode_calls_space_are_none(character: str) -> None:
    assert trim_text(f" {character} ") == character
    assert not is_blank(character)


@pytest.mark.parametrize("character", ["\ufeff", "\u00a0", "\u3000", "\u2028", "\v"])
def test_characters_that_ecmascript_calls_space_are_trimmed(character: str) -> None:
    assert trim_text(f"{character}a b{character}") == "a b"
    assert is_blank(character)


@pytest.mark.parametrize(
    ("text", "length"), [("", 0), ("abc", 3), ("é", 1), ("😀", 2), ("\ud800", 1), ("a😀\ud800", 4)]
)
def test_lengths_count_utf16_units(text: str, length: int) -> None:
    assert utf16_length(text) == length


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (40, "40"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        ("17", "17"),
        (17.0, "17"),
        (-0.0, "0"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1e-7, "1e-7"),
        (0.000001, "0.000001"),
        (-1.5, "-1.5"),
        (2**53 + 1, "9007199254740992"),
        (10**25, "1e+25"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (5e-324, "5e-324"),
    ],
)
def test_scalars_have_their_ecmascript_text(value: float | str | None, text: str) -> None:
    assert js_text(value) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 10**400])
def test_a_number_without_a_finite_double_has_no_text(value: float) -> None:
    with pytest.raises(ProjectionError, match="number_out_of_range"):
        js_text(value)


def test_patterns_use_ecmascript_classes() -> None:
    assert ecma_pattern(r"^\S.*\d$").fullmatch("a\x85\x1c1")
    assert not ecma_pattern(r"^\S.*\d$").fullmatch("a\u20281")
    assert not ecma_pattern(r"^\d$").fullmatch("١")
    assert not ecma_pattern(r"^\d$").fullmatch("1\n")
    assert not ecma_pattern(r"^[^:\s]$").fullmatch("\ufeff")
    assert ecma_pattern(r"^[^:\s]$").fullmatch("\x1f")
    assert ecma_pattern(r"^a\.b[.]$").fullmatch("a.b.")
    assert not ecma_pattern(r"^a\.b[.]$").fullmatch("axb.")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_encoded_component_holds_no_separator_and_decodes_to_the_text(text: str) -> None:
    encoded = encode_component(text)
    assert re.fullmatch(r"(?:[A-Za-z0-9\-_.!~*'()]|%[0-9A-F]{2})*", encoded)
    raw = re.sub(rb"%(..)", lambda match: bytes([int(match[1], 16)]), encoded.encode("ascii"))
    assert raw.decode("utf-8") == text


def test_a_lone_surrogate_is_no_component() -> None:
    with pytest.raises(ProjectionError, match="lone_surrogate"):
        encode_component("x\ud800")


@given(ANY_TEXT, ANY_TEXT)
def test_no_two_texts_share_a_storable_form(first: str, second: str) -> None:
    assume(first != second)
    assert storable_text(first) != storable_text(second)


@given(ANY_TEXT)
def test_a_storable_text_is_utf8_without_nul_and_gives_the_text_back(text: str) -> None:
    stored = storable_text(text)
    assert "\x00" not in stored.encode("utf-8").decode("utf-8")
    assert text_of_storable(stored) == text


@given(ORDINARY)
def test_ordinary_text_is_stored_as_the_same_object(text: str) -> None:
    assert storable_text(text) is text


def test_the_storable_form_is_the_documented_one() -> None:
    assert storable_text("a\x00b\ud800c\ufffd😀") == "a\ufffd0000b\ufffdd800c\ufffdfffd😀"


def test_json_is_made_storable_at_every_depth_and_stays_the_same_object_when_it_is() -> None:
    plain = {"a": [1, None, {"b": "é"}], "c": "😀"}
    assert storable_json(plain) is plain
    assert storable_json({"k\x00": ["\ud800", {"a": "\ufffd"}], "n": 1}) == {
        "k\ufffd0000": ["\ufffdd800", {"a": "\ufffdfffd"}],
        "n": 1,
    }


def test_lone_surrogates_are_digested_as_ecmascript_encodes_them() -> None:
    assert well_formed("a\ud800b😀") == "a\ufffdb😀"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("1970-01-01T00:00:00Z", (0, "")),
        ("1970-01-01T00:00Z", (0, "")),
        ("1970-01-01T01:00:00.500+01:00", (0, "5")),
        ("1969-12-31T23:59:59.000000001Z", (-1, "000000001")),
        ("2000-02-29T12:34:56.10-05:30", (951_847_496, "1")),
        ("0000-01-01T00:00:00Z", (-62_167_219_200, "")),
        ("9999-12-31T23:59:59Z", (253_402_300_799, "")),
        ("2026-09-28T10:00:00.000-00:00", (1_790_589_600, "")),
    ],
)
def test_an_instant_is_its_seconds_and_all_its_digits(text: str, key: tuple[int, str]) -> None:
    assert instant(text) == (*key, text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-30T00:00:00Z",
        "2025-02-29T00:00:00Z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01t00:00:00z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00Z\n",
        "2026-01-01T00:00:00+0100",
        "٢026-01-01T00:00:00Z",
        "02026-01-01T00:00:00Z",
        "",
    ],
)
def test_what_is_no_time_has_no_instant(text: str) -> None:
    assert not is_time(text)
    with pytest.raises(ProjectionError, match="invalid_time"):
        instant(text)


def as_fraction(text: str) -> Fraction:
    seconds, digits, _ = instant(text)
    return Fraction(seconds) + (Fraction(int(digits), 10 ** len(digits)) if digits else 0)


TIMES = st.builds(
    lambda moment, digits, offset: f"{moment:%Y-%m-%dT%H:%M:%S}{'.' + digits if digits else ''}{offset}",
    st.datetimes(min_value=datetime(1000, 1, 2)),  # noqa: DTZ001 - the offset is drawn apart
    st.text("0123456789", max_size=12),
    st.sampled_from(["Z", "+00:00", "-00:00", "+14:00", "-23:59", "+05:45"]),
)


DAYS = ("2026-02-28", "2026-02-29", "2024-02-29", "2000-02-29", "1900-02-29", "20260228")
CLOCKS = ("T", "t", "10:59", "24:00", "٠9:00", ":07", ":60", ".", ".5", "Z", "z", "+14:00", "-24:00", "\n", "")
PARTS_OF_TIMES = st.sampled_from([*DAYS, *CLOCKS])
UTC_TIMES = TIMES.map(lambda text: f"{text[:19]}Z")


@given(st.one_of(TIMES, st.lists(PARTS_OF_TIMES, max_size=6).map("".join)))
def test_what_a_time_is_its_pattern_says(text: str) -> None:
    assert is_time(text) == (TIME_PATTERN.fullmatch(text) is not None)


@given(TIMES | UTC_TIMES, TIMES | UTC_TIMES)
def test_a_time_is_earlier_than_another_when_its_instant_is(first: str, second: str) -> None:
    assert is_earlier(first, second) == (instant(first) < instant(second))


@given(ANY_TEXT)
def test_utf8_of_a_text_is_that_of_its_well_formed_form(text: str) -> None:
    assert utf8_of(text) == well_formed(text).encode()


@given(TIMES, TIMES)
def test_instants_order_by_time_then_by_text(first: str, second: str) -> None:
    by_time = (as_fraction(first), first) < (as_fraction(second), second)
    assert (instant(first) < instant(second)) == by_time


@given(st.datetimes(timezones=st.just(UTC)))
def test_seconds_agree_with_the_calendar_of_the_standard_library(moment: datetime) -> None:
    microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert as_fraction(moment.isoformat()) == Fraction(microseconds, 10**6)
