"""Times of the lifecycle as whole milliseconds, as the reference compares them."""

import math
import re
from functools import lru_cache
from typing import Any

_ISO_TIME = re.compile(
    r"([0-9]{4}|[+-][0-9]{6})(?:-([0-9]{2})(?:-([0-9]{2}))?)?"
    r"(?:[Tt]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?([Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAY_MS = 86_400_000
_TIME_MS_MAX = 8_640_000_000_000_000


def instant_ms(value: Any) -> float:
    """Give a time as whole milliseconds since 1970 UTC; further digits are cut off, offsets honoured.

    Takes ISO 8601 in the ECMAScript forms only: ``YYYY``, ``YYYY-MM`` or ``YYYY-MM-DD``, expanded years (``+002026``),
    with or without ``Thh:mm``, ``Thh:mm:ss`` or ``Thh:mm:ss.digits``, then ``Z``, ``±hh:mm`` or ``±hhmm``; ``24:00:00``
    is the end of a day. A time without an offset is taken as UTC (the reference takes it as the local time of its
    machine), a day that no month has is no time, and the other spellings that ``Date.parse`` knows (RFC 2822 and
    older) are no times here. What is no time gives NaN, so that, as in the reference, every comparison with it is
    false (spec: titan 1).
    """
    return _parse(value) if isinstance(value, str) else math.nan


@lru_cache(maxsize=4_096)
def _parse(text: str) -> float:
    match = _ISO_TIME.fullmatch(text)
    if match is None or match[1] == "-000000":
        return math.nan
    days = _days(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    clock_ms = _clock_ms(match[4] or "00", match[5] or "00", match[6] or "00", match[7] or "")
    offset_ms = _offset_ms(match[8] or "Z")
    if days is None or clock_ms is None or offset_ms is None:
        return math.nan
    moment_ms = days * _DAY_MS + clock_ms - offset_ms
    return float(moment_ms) if abs(moment_ms) <= _TIME_MS_MAX else math.nan


def _days(year: int, month: int, day: int) -> int | None:
    """Count days since 1970-01-01 in the proleptic Gregorian calendar; None for a day that does not exist."""
    if not 1 <= month <= 12:
        return None
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _MONTH_DAYS[month - 1] + (is_leap and month == 2):
        return None
    past = year - 1
    before_year = past * 365 + past // 4 - past // 100 + past // 400
    before_month = sum(_MONTH_DAYS[: month - 1]) + (is_leap and month > 2)
    return before_year + before_month + day - 719_163


def _clock_ms(hour: str, minute: str, second: str, fraction: str) -> int | None:
    hours, minutes, seconds, milliseconds = int(hour), int(minute), int(second), int(f"{fraction}000"[:3])
    total_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds
    if minutes > 59 or seconds > 59 or total_ms > _DAY_MS:
        return None
    return total_ms


def _offset_ms(offset: str) -> int | None:
    if offset in "Zz":
        return 0
    hours, minutes = int(offset[1:3]), int(offset[-2:])
    if hours > 23 or minutes > 59:
        return None
    size_ms = (hours * 60 + minutes) * 60_000
    return -size_ms if offset[0] == "-" else size_ms
