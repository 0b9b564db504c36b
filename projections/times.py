"""Comparing times of records: as instants with all their digits, equal instants by their text, absent ones last."""

from projections.text import instant

TimeKey = tuple[int, str, str]

_ABSENT: TimeKey = (2**63, "", "")


def time_key(at: str | None) -> TimeKey:
    """Give the sort key of a time of a record (seconds since 1970, fraction digits, text); absent sorts last."""
    return _ABSENT if at is None else instant(at)
