"""Times of the lifecycle are whole milliseconds, and only ISO 8601 is a time."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.lifecycle import instant_ms

NOON_MS = datetime(2026, 3, 19, 12, tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize(
    ("text", "offset_ms"),
    [
        ("2026-03-19T12:00:00.000Z", 0),
        ("2026-03-19T12:00:00Z", 0),
        ("2026-03-19T12:00Z", 0),
        ("2026-03-19t12:00:00z", 0),
        ("2026-03-19T14:00:00+02:00", 0),
        ("2026-03-19T14:00:00+0200", 0),
        ("2026-03-19T06:30:00-05:30", 0),
        ("+002026-03-19T12:00:00Z", 0),
        ("2026-03-19T12:00:00.5Z", 500),
        ("2026-03-19T12:00:00.0009Z", 0),
        ("2026-03-19T12:00:00.123999999Z", 123),
        ("2026-03-19T12:00:00", 0),
        ("2026-03-19", -43_200_000),
        ("2026-03-19T24:00:00Z", 43_200_000),
        ("2026-03-19T24:00:00.0009Z", 43_200_000),
    ],
)
def test_iso_times_are_read_in_whole_milliseconds_with_further_digits_cut_off(text: str, offset_ms: int) -> None:
    assert instant_ms(text) == NOON_MS + offset_ms


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "not-a-time", "2026-13-01T00:00:00Z", "2026-00-01", "2026-02-29T00:00:00Z", "2026-04-31",
        "2026-03-19T25:00:00Z", "2026-03-19T24:00:01Z", "2026-03-19T24:00:00.001Z", "2026-03-19T12:60:00Z",
        "2026-03-19T12:00:60Z", "2026-03-19T12:00:00+24:00", "2026-03-19T12:00:00+02:60", "2026-03-19T12:00:00Z\n",
        " 2026-03-19T12:00:00Z", "2026-03-19 12:00:00Z", "Thu, 19 Mar 2026 12:00:00 GMT", "2026-03-19T12Z",
        "-000000-01-01T00:00:00Z", "+275761-01-01T00:00:00Z", "٢٠٢٦-03-19T12:00:00Z", "26-03-19", "2026-3-19",
        None, 1_774_180_800_000, True, ["2026-03-19"],
    ],
    ids=repr,
)  # fmt: skip
def test_anything_else_is_no_time(value: Any) -> None:
    assert math.isnan(instant_ms(value))


def test_a_leap_day_is_a_day_and_the_year_zero_a_year() -> None:
    assert instant_ms("2028-02-29") - instant_ms("2028-02-28") == 86_400_000
    assert instant_ms("0000-03-01") - instant_ms("0000-02-28") == 2 * 86_400_000
    assert instant_ms("-000001-01-01") == instant_ms("0000-01-01") - 365 * 86_400_000
    assert instant_ms("+275760-09-13T00:00:00Z") == 8.64e15


@given(
    moment=st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)),  # noqa: DTZ001 - UTC below
    offset_minutes=st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_every_offset_names_the_same_instant(moment: datetime, offset_minutes: int) -> None:
    local = moment.replace(tzinfo=UTC)
    sign = "-" if offset_minutes < 0 else "+"
    hours, minutes = divmod(abs(offset_minutes), 60)
    shifted = (moment + timedelta(minutes=offset_minutes)).isoformat(timespec="microseconds")
    text = f"{shifted}{sign}{hours:02}:{minutes:02}"
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert instant_ms(text) == (local - epoch) // timedelta(milliseconds=1)
