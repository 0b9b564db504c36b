"""Comparing times of records: as instants with all their digits, equal instants by their text, absent ones last."""

from projections.text import instant

TimeKey = tuple[int, str, str]

_ABSENT: TimeKey = (2**63, "", "")


def time_key(at: str | None) -> TimeKey:
    """Give the sort key of a time of a record (seconds since 1970, fraction digits, text); absent sorts last."""
    return _ABSENT if at is None else instant(at)


def is_earlier(one: str, other: str) -> bool:
    """Say whether a time of a record sorts before another, as by ``time_key``."""
    # In UTC and with as many characters both have one shape, and the texts are in the order of the instants.
    if len(one) == len(other) and one[-1] == other[-1] == "Z":
        return one < other
    return instant(one) < instant(other)
