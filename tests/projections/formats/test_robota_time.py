"""Robota timestamps, read as ECMAScript reads them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.formats.robota_time import canonical_ms, iso_text, read_date_ms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ANY_MS = st.integers(min_value=-8_640_000_000_000_000, max_value=8_640_000_000_000_000)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2026-09-05T10:00:00.000Z", "2026-09-05T10:00:00.000Z"),
        ("2026-09-05", "2026-09-05T00:00:00.000Z"),
        ("2026-09", "2026-09-01T00:00:00.000Z"),
        ("2026", "2026-01-01T00:00:00.000Z"),
        ("2026-09-05T10:00:00+09:00", "2026-09-05T01:00:00.000Z"),
        ("2026-09-05T10:00:00-0330", "2026-09-05T13:30:00.000Z"),
        ("2026-09-05 10:00Z", "2026-09-05T10:00:00.000Z"),
        ("2026-09-05t10:00:00z", "2026-09-05T10:00:00.000Z"),
        ("2026-09-05T10:00:00", "2026-09-05T10:00:00.000Z"),
        ("2026-09-05T10:00:00.1Z", "2026-09-05T10:00:00.100Z"),
        ("2026-09-05T10:00:00.1239Z", "2026-09-05T10:00:00.123Z"),
        ("2026-09-05T24:00:00Z", "2026-09-06T00:00:00.000Z"),
        ("2026-02-30", "2026-03-02T00:00:00.000Z"),
        ("+012345-01-02T03:04:05Z", "+012345-01-02T03:04:05.000Z"),
        ("-000001-01-01T00:00:00Z", "-000001-01-01T00:00:00.000Z"),
        (None, "1970-01-01T00:00:00.000Z"),
        (True, "1970-01-01T00:00:00.001Z"),
        (12.7, "1970-01-01T00:00:00.012Z"),
        (-0.9, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (8_640_000_000_000_000, "+275760-09-13T00:00:00.000Z"),
    ],
)
def test_a_readable_timestamp_is_read_as_ecmascript_reads_it(value: Any, text: str) -> None:
    ms = read_date_ms(value)
    assert ms is not None
    assert iso_text(ms) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yesterday",
        "2026-13-01",
        "2026-00-01",
        "2026-01-32",
        "2026-01-00",
        "2026-09-05T24:00:01Z",
        "2026-09-05T10:60:00Z",
        "2026-09-05T10:00:60Z",
        "2026-09-05T10:00:00+24:00",
        "2026-09-05T10:00:00+09:60",
        "2026-09-05T10:00:00.Z",
        "2026-09-05T10:00:00,5Z",
        " 2026-09-05T10:00:00Z",
        "2026-09-05T10:00:00Z\n",
        "٢٠٢٦-09-05",
        "-000000-01-01T00:00:00Z",
        "+275760-09-13T00:00:00.001Z",
        8_640_000_000_000_001,
        float("nan"),
        float("inf"),
        [],
        {},
    ],
)
def test_an_unreadable_timestamp_is_none(value: Any) -> None:
    assert read_date_ms(value) is None


@given(ANY_MS)
def test_every_time_reads_back_from_its_own_text(ms: int) -> None:
    assert read_date_ms(iso_text(ms)) == ms


@given(st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999))
def test_texts_agree_with_the_standard_library_where_it_reaches(ms: int) -> None:
    expected = (EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    assert iso_text(ms)[:-1].lstrip("0") == expected.lstrip("0")


@given(st.integers(min_value=0, max_value=18_446_744_073_709))
def test_a_canonical_time_is_accepted_up_to_64_bits_of_nanoseconds(ms: int) -> None:
    assert canonical_ms(iso_text(ms)) == ms


@pytest.mark.parametrize(
    "value",
    [
        "2026-09-05T10:00:00Z",
        "2026-09-05T10:00:00.0000Z",
        "2026-09-05T10:00:00.000+00:00",
        "2026-02-30T10:00:00.000Z",
        "2026-09-05T24:00:00.000Z",
        "1969-12-31T23:59:59.999Z",
        "2554-07-21T23:34:33.710Z",
        1_788_602_400_000,
        None,
    ],
)
def test_a_time_that_is_not_spelled_canonically_is_refused(value: Any) -> None:
    assert canonical_ms(value) is None
