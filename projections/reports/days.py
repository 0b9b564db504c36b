"""Days and windows of time in a time zone: which day an instant falls on, and what a person's bound means."""

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple

from projections.errors import ProjectionError
from projections.reports.spend import Moment, moment_of
from projections.text import is_time

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Window(NamedTuple):
    """A stretch of time: from ``since`` on, before ``until``; None where it is open."""

    since: Moment | None = None
    until: Moment | None = None

    def holds(self, moment: Moment) -> bool:
        """Whether an instant lies in it."""
        return (self.since is None or self.since <= moment) and (self.until is None or moment < self.until)


ANY_TIME: Final = Window()


def window_of(since: str | None, until: str | None, zone: tzinfo) -> Window:
    """Make a window of what a person wrote.

    A bound is a day (``2026-11-03``: since its start; until its end, so the day itself is in), a time with an offset or
    ``Z``, or a time without one, which is a time of the zone; an instant until which is not in. Raises ``invalid_time``
    with the field ``since`` or ``until``, and ``empty_window`` when nothing lies between the two.
    """
    window = Window(
        None if since is None else _bound(since, zone, "since"), None if until is None else _bound(until, zone, "until")
    )
    if window.since is not None and window.until is not None and window.until <= window.since:
        raise ProjectionError("empty_window", "until")
    return window


def day_of(moment: Moment, zone: tzinfo) -> str | None:
    """Give the calendar day (``YYYY-MM-DD``) of an instant in a zone; None outside the years 1 to 9999."""
    try:
        return (_EPOCH + timedelta(seconds=moment[0])).astimezone(zone).date().isoformat()
    except OverflowError:
        return None


def moment_text(moment: Moment) -> str:
    """Write an instant as UTC with all its digits; only for the years 1 to 9999."""
    seconds, fraction = moment
    clock = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    return f"{clock}{f'.{fraction}' if fraction else ''}Z"


def _bound(text: str, zone: tzinfo, field: str) -> Moment:
    text = text.strip().replace(" ", "T", 1)
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text) + timedelta(days=field == "until")
            return _moment_in(datetime.combine(day, time.min), zone), ""
        if is_time(text):
            moment = moment_of(text)
        else:
            # Read as UTC first: the grammar of times and their digits is the same.
            seconds, fraction = moment_of(f"{text}Z")
            moment = _moment_in((_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None), zone), fraction
        moment_text(moment)
    except (ValueError, OverflowError):
        raise ProjectionError("invalid_time", field) from None
    return moment


def _moment_in(local: datetime, zone: tzinfo) -> int:
    """Give the seconds since 1970 of a local time; of a time that comes twice, the first."""
    return round((local.replace(tzinfo=zone) - _EPOCH).total_seconds())
