"""The personal usage report of Robota: the last 7 or 30 local calendar days over all sessions of one person."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from projections.errors import ProjectionError
from projections.formats.robota_numbers import add
from projections.formats.robota_session import Activity, UsageObservation, normalize_session
from projections.formats.robota_time import MS_PER_DAY, iso_text, read_date_ms
from projections.reports.robota_order import locale_key, utf16_key
from projections.reports.robota_totals import UsageTotals

_DAYS_BY_PERIOD: Final = {"30d": 30}
_DAYS_DEFAULT: Final = 7
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The names that a zone directory holds beside zones.
_NO_ZONES: Final = frozenset({"localtime", "posixrules", "factory"})
_UNKNOWN: Final = "unknown"


class UsageRequest(NamedTuple):
    """What a report covers: ``period`` ``30d`` or anything else for 7 days, an IANA time zone, and the present."""

    period: str
    timezone: str
    now: str


class _Window:
    """The local calendar days of a report; a time belongs to it when it is not after now and on one of them."""

    def __init__(self, request: UsageRequest) -> None:
        now_ms = read_date_ms(request.now)
        if now_ms is None:
            raise ProjectionError("invalid_field", "now")
        self.now_ms = now_ms
        self._zone = find_zone(request.timezone)
        count = _DAYS_BY_PERIOD.get(request.period, _DAYS_DEFAULT)
        # A local day is never further away than its number of days and one change of a zone's offset.
        self._start_ms = now_ms - (count + 2) * MS_PER_DAY
        try:
            today = self._local_date(now_ms)
            # Date arithmetic, not instants: a day that a zone skipped or a clock change shortened is still listed.
            self.days = [(today - timedelta(days=count - 1 - index)).isoformat() for index in range(count)]
        except OverflowError as error:
            raise ProjectionError("invalid_field", "now") from error
        self._known = frozenset(self.days)

    def day_of(self, at_ms: int) -> str | None:
        """Give the listed day of a time in ms since 1970; None when the time is outside the report."""
        if not self._start_ms < at_ms <= self.now_ms:
            return None
        day = self._local_date(at_ms).isoformat()
        return day if day in self._known else None

    def _local_date(self, at_ms: int) -> date:
        return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(self._zone).date()


class _Selection:
    """The observations and activities inside the window, each id once, with their days."""

    def __init__(self, records: Sequence[Mapping[str, Any]], window: _Window) -> None:
        self.observations: list[tuple[str, UsageObservation]] = []
        self.activities: list[tuple[str, Activity]] = []
        self.duplicates = 0
        # An id outside the window reserves nothing; the first inside it wins, across sessions too.
        seen_observations: set[str] = set()
        seen_activities: set[str] = set()
        for session in map(normalize_session, records):
            for observation in session.observations:
                if (day := window.day_of(observation.at_ms)) is None:
                    continue
                if observation.id in seen_observations:
                    self.duplicates += 1
                    continue
                seen_observations.add(observation.id)
                self.observations.append((day, observation))
            for activity in session.activities:
                day = window.day_of(activity.at_ms)
                if day is not None and activity.id not in seen_activities:
                    seen_activities.add(activity.id)
                    self.activities.append((day, activity))


def personal_usage(
    records: Sequence[Mapping[str, Any]],
    request: UsageRequest,
    *,
    corrupt_session_ids: Sequence[str] = (),
    unsupported_session_ids: Sequence[str] = (),
) -> dict[str, Any]:
    """Report the usage of session records over a window of local calendar days that ends on the day of ``now``.

    Gives totals, days (all of them, the last one partial), groups by model, provider, surface, source and activity,
    and the coverage of the report. Groups go by total descending, then in locale order. Raises ``unknown_time_zone``,
    and ``invalid_field`` for a ``now`` or a session record that cannot be read.
    """
    window = _Window(request)
    selection = _Selection(records, window)
    totals, by_day = _sum_up(selection, window.days)
    selected = [observation for _, observation in selection.observations]
    return {
        "schemaVersion": 1,
        "generatedAt": iso_text(window.now_ms),
        "period": request.period,
        "timezone": request.timezone,
        "interval": {"startDate": window.days[0], "endDate": window.days[-1]},
        "totals": totals.with_sessions(),
        "daily": [
            {
                "date": day,
                "partial": day == window.days[-1],
                "totals": day_totals.with_sessions(),
                "sessionIds": day_totals.sorted_session_ids(),
            }
            for day, day_totals in by_day.items()
        ],
        "byModel": _group_by_share(selected, "modelId"),
        "byProvider": _group_by_share(selected, "providerId"),
        "bySurface": _group(selected, lambda item: item.observation.get("surface", _UNKNOWN)),
        "bySource": _group(selected, _source_key),
        "byActivity": _group_activities([activity for _, activity in selection.activities]),
        "sessionIds": totals.sorted_session_ids(),
        "coverage": {
            "validSessions": len(records),
            "corruptSessions": len(corrupt_session_ids),
            "unsupportedSessions": len(unsupported_session_ids),
            "duplicateObservations": selection.duplicates,
            **_count_unknown(selected),
            "corruptSessionIds": sorted(corrupt_session_ids, key=utf16_key),
            "unsupportedSessionIds": sorted(unsupported_session_ids, key=utf16_key),
        },
    }


@lru_cache(maxsize=64)
def find_zone(name: str) -> ZoneInfo:
    """Find an IANA time zone, whatever the case of its name, as ECMAScript does; raises ``unknown_time_zone``."""
    known = _zones_by_folded_name().get(name.lower())
    if known is None:
        raise ProjectionError("unknown_time_zone", "timezone")
    try:
        return ZoneInfo(known)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ProjectionError("unknown_time_zone", "timezone") from error


@lru_cache(maxsize=1)
def _zones_by_folded_name() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones() if name.lower() not in _NO_ZONES}


def _sum_up(selection: _Selection, days: Sequence[str]) -> tuple[UsageTotals, dict[str, UsageTotals]]:
    totals = UsageTotals()
    by_day = {day: UsageTotals() for day in days}
    for day, observation in selection.observations:
        totals.add(observation)
        by_day[day].add(observation)
    for day, activity in selection.activities:
        totals.session_ids.add(activity.session_id)
        by_day[day].session_ids.add(activity.session_id)
    return totals, by_day


def _group(items: Sequence[UsageObservation], key_of: Callable[[UsageObservation], str]) -> list[dict[str, Any]]:
    groups: dict[str, UsageTotals] = {}
    for item in items:
        groups.setdefault(key_of(item), UsageTotals()).add(item)
    rows = [
        {"key": key, "label": key, **totals.sums(), "sessionIds": totals.sorted_session_ids()}
        for key, totals in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["totalTokens"], locale_key(row["key"])))


def _group_by_share(items: Sequence[UsageObservation], name: str) -> list[dict[str, Any]]:
    """Group by model or provider; a turn with shares is split by them and counts once in every group it touched."""
    parts = [part for item in items for part in _split(item, name)]
    return _group(parts, lambda item: item.observation.get(name, _UNKNOWN))


def _split(item: UsageObservation, name: str) -> Iterator[UsageObservation]:
    if "modelShares" not in item.observation:
        yield item
        return
    merged: dict[str, dict[str, Any]] = {}
    for share in item.observation["modelShares"]:
        held = merged.get(share[name])
        merged[share[name]] = share if held is None else _merge_shares(held, share)
    for key, usage in merged.items():
        yield item._replace(observation=item.observation | {name: key, "usage": usage})


def _merge_shares(held: dict[str, Any], share: dict[str, Any]) -> dict[str, Any]:
    merged = {field: add(held[field], share[field]) for field in ("promptTokens", "completionTokens", "totalTokens")}
    if _UNKNOWN in (held["costStatus"], share["costStatus"]):
        return merged | {"costStatus": _UNKNOWN}
    return merged | {"costStatus": "estimated", "costUsd": add(held["costUsd"], share["costUsd"])}


def _source_key(item: UsageObservation) -> str:
    source = item.observation.get("source")
    if source is None:
        return _UNKNOWN
    return f"{source['scope']}:{source['id']}" if "id" in source else str(source["scope"])


def _group_activities(activities: Sequence[Activity]) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for activity in activities:
        count = groups.get(activity.key, {"count": 0})["count"] + 1
        groups[activity.key] = {"key": activity.key, "label": activity.label, "kind": activity.kind, "count": count}
    return sorted(groups.values(), key=lambda row: (-row["count"], locale_key(row["key"])))


def _count_unknown(selected: Sequence[UsageObservation]) -> dict[str, int]:
    seen = [item.observation for item in selected]
    return {
        "legacyObservations": sum(item.legacy for item in selected),
        "unknownModelObservations": sum("modelId" not in one and "modelShares" not in one for one in seen),
        "unknownProviderObservations": sum("providerId" not in one and "modelShares" not in one for one in seen),
        "unknownSurfaceObservations": sum(one.get("surface", _UNKNOWN) == _UNKNOWN for one in seen),
    }
