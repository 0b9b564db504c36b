"""Times as Robota reads them: what ECMAScript's ``new Date(value)`` makes of a persisted timestamp.

Times are whole milliseconds since 1970-01-01T00:00:00Z (``ms``), from -8.64e15 to 8.64e15.
"""

import re
from typing import Any, Final

from projections.formats.robota_numbers import is_number

MS_PER_DAY: Final = 86_400_000
_MS_MAX: Final = 8_640_000_000_000_000
_DAYS_PER_ERA: Final = 146_097
_MINUTES_PER_DAY: Final = 24 * 60
_NANOSECONDS_PER_MS: Final = 1_000_000
_NANOSECONDS_MAX: Final = 2**64 - 1

_ISO: Final = re.compile(
    r"(?P<year>[0-9]{4}|[+-][0-9]{6})(?:-(?P<month>[0-9]{2})(?:-(?P<day>[0-9]{2}))?)?"
    r"(?:[Tt ](?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]+))?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_CANONICAL: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def read_date_ms(value: Any) -> int | None:
    """Read a persisted timestamp; None when it is unreadable.

    Texts are ISO 8601 dates and times (a date alone is UTC), numbers are milliseconds, truncated; null is 1970-01-01,
    as in the reference. A time without a zone is read as UTC (the reference takes its host's zone), and free-form
    dates that only one engine's legacy parser knows are unreadable.
    """
    if value is None:
        return 0
    if isinstance(value, str):
        return _read_iso_ms(value)
    if isinstance(value, bool):
        return int(value)
    # The comparison is false for NaN too.
    if not is_number(value) or not abs(value) <= _MS_MAX:
        return None
    return int(value)


def iso_text(ms: int) -> str:
    """Write a time as ``Date.prototype.toISOString`` does: UTC, three digits, six-digit years outside 0..9999."""
    days, rest_ms = divmod(ms, MS_PER_DAY)
    year, month, day = _civil_date(days)
    seconds, millis = divmod(rest_ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    sign = "-" if year < 0 else "+"
    year_text = f"{year:04d}" if 0 <= year <= 9999 else f"{sign}{abs(year):06d}"
    return f"{year_text}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}Z"


def canonical_ms(value: Any) -> int | None:
    """Read a time that is spelled exactly as `iso_text` spells it and fits 64 bits of nanoseconds; else None."""
    if not isinstance(value, str) or not _CANONICAL.fullmatch(value):
        return None
    ms = _read_iso_ms(value)
    if ms is None or ms < 0 or unix_nanoseconds(ms) > _NANOSECONDS_MAX or iso_text(ms) != value:
        return None
    return ms


def unix_nanoseconds(ms: int) -> int:
    """Give a time in nanoseconds since 1970."""
    return ms * _NANOSECONDS_PER_MS


def _read_iso_ms(text: str) -> int | None:
    match = _ISO.fullmatch(text)
    if match is None or match["year"] == "-000000":
        return None
    year, month, day = int(match["year"]), int(match["month"] or 1), int(match["day"] or 1)
    # Days 29 to 31 of a shorter month run over into the next one, as in the reference.
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    time_ms, zone_minutes = _time_of_day_ms(match), _zone_minutes(match["zone"])
    if time_ms is None or zone_minutes is None:
        return None
    ms = (_days_of_date(year, month, 1) + day - 1) * MS_PER_DAY + time_ms - zone_minutes * 60_000
    return ms if abs(ms) <= _MS_MAX else None


def _time_of_day_ms(match: re.Match[str]) -> int | None:
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    millis = int(((match["fraction"] or "") + "000")[:3])
    ms = ((hour * 60 + minute) * 60 + second) * 1000 + millis
    if minute > 59 or second > 59 or ms > MS_PER_DAY:
        return None
    return ms


def _zone_minutes(zone: str | None) -> int | None:
    if zone is None or zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if minutes > 59 or hours * 60 + minutes >= _MINUTES_PER_DAY:
        return None
    return (hours * 60 + minutes) * (-1 if zone[0] == "-" else 1)


def _days_of_date(year: int, month: int, day: int) -> int:
    """Count the days from 1970-01-01 to a date of the proleptic Gregorian calendar, in any year."""
    # Years start in March here, so the leap day is a year's last.
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _DAYS_PER_ERA + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _civil_date(days: int) -> tuple[int, int, int]:
    """Give the (year, month, day) that lies so many days after 1970-01-01; the inverse of `_days_of_date`."""
    era, day_of_era = divmod(days + 719_468, _DAYS_PER_ERA)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = (month_from_march + 2) % 12 + 1
    return year_of_era + era * 400 + (month <= 2), month, day
