"""The personal usage report: windows, zones, duplicates, sums."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.reports.robota_personal import UsageRequest, find_zone, personal_usage

NOW = "2026-09-06T12:00:00.000Z"
WEEK = UsageRequest("7d", "UTC", NOW)


def observation(observation_id: str, total: int, at: str) -> dict[str, Any]:
    usage = {
        "kind": "exact",
        "scope": "turn",
        "totalTokens": total,
        "contextUsedTokens": 1,
        "contextMaxTokens": 2,
        "contextUsedPercentage": 50,
        "costStatus": "unknown",
    }
    data = {
        "usageObservationId": observation_id,
        "turnId": observation_id,
        "outcome": "success",
        "modelId": f"m{total % 3}",
        "usage": usage,
    }
    return {"id": observation_id, "timestamp": at, "type": "usage-observation", "data": data}


RECORDS = st.lists(
    st.builds(
        lambda session, entries: {"id": session, "history": entries},
        st.sampled_from(["s1", "s2", "S1", "\U00010000", "\uffff"]),
        st.lists(
            st.builds(
                observation,
                st.integers(0, 30).map(lambda number: f"o{number}"),
                st.integers(0, 9),
                st.integers(1, 6).map(lambda day: f"2026-09-0{day}T11:00:00Z"),
            ),
            max_size=5,
        ),
    ),
    max_size=4,
)


def first_copies(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: set[str] = set()
    kept = []
    for record in records:
        history = [entry for entry in record["history"] if not (entry["id"] in seen or seen.add(entry["id"]))]  # type: ignore[func-returns-value]
        kept.append(record | {"history": history})
    return kept


@given(RECORDS, st.randoms(use_true_random=False))
def test_the_order_of_records_without_duplicates_changes_nothing(records: list[dict[str, Any]], random: Any) -> None:
    unique = first_copies(records)
    assert personal_usage(random.sample(unique, len(unique)), WEEK) == personal_usage(unique, WEEK)


@given(RECORDS)
def test_a_record_that_is_given_twice_adds_only_to_the_count_of_duplicates(records: list[dict[str, Any]]) -> None:
    once, twice = personal_usage(records, WEEK), personal_usage([*records, *records], WEEK)
    observations = sum(len(record["history"]) for record in records)
    assert (
        twice["coverage"].pop("duplicateObservations") == once["coverage"].pop("duplicateObservations") + observations
    )
    assert twice["coverage"].pop("validSessions") == 2 * once["coverage"].pop("validSessions")
    assert once == twice


@given(RECORDS)
def test_days_and_groups_add_up_to_the_totals(records: list[dict[str, Any]]) -> None:
    report = personal_usage(records, WEEK)
    for name in ("turns", "totalTokens"):
        assert sum(day["totals"][name] for day in report["daily"]) == report["totals"][name]
        for group in ("byModel", "byProvider", "bySurface", "bySource"):
            assert sum(row[name] for row in report[group]) == report["totals"][name]


def test_a_day_that_a_zone_skipped_is_listed() -> None:
    report = personal_usage([], UsageRequest("7d", "Pacific/Apia", "2011-12-31T12:00:00Z"))
    assert "2011-12-30" in [day["date"] for day in report["daily"]]


@pytest.mark.parametrize("name", ["utc", "UTC", "america/new_york", "Asia/Kathmandu"])
def test_a_zone_is_found_whatever_its_case(name: str) -> None:
    assert find_zone(name).key.lower() == name.lower()


@pytest.mark.parametrize(
    "name", ["", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "localtime", "America", "\x00"]
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(ProjectionError, match="unknown_time_zone"):
        personal_usage([], UsageRequest("7d", name, NOW))


@pytest.mark.parametrize("now", ["", "soon", "+012345-01-01T00:00:00Z", "-000001-01-01T00:00:00Z", "0001-01-03"])
def test_a_now_outside_the_calendar_is_refused(now: str) -> None:
    with pytest.raises(ProjectionError, match="invalid_field: now"):
        personal_usage([], UsageRequest("30d", "UTC", now))
