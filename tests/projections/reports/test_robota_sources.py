"""Usage of a Robota session by source, and its timeline."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.reports.robota_sources import percentage, usage_by_source


def summary(total: Any, source: Any = None) -> dict[str, Any]:
    return {"type": "usage-summary", "data": {"totalTokens": total, "source": source}}


def span(op: str, duration_ms: float) -> dict[str, Any]:
    return {"type": "span", "data": {"spanId": "s", "op": op, "durationMs": duration_ms, "args": "SECRET"}}


SOURCES = st.none() | st.builds(lambda scope: {"scope": scope, "id": "x"}, st.sampled_from(["tool", "skill"]))
HISTORY = st.lists(
    st.builds(summary, st.integers(0, 1000), SOURCES) | st.builds(span, st.text(max_size=3), st.integers(0, 9)),
    max_size=12,
)


@given(HISTORY)
def test_sources_add_up_to_the_session_and_spans_are_all_in_the_timeline(history: list[Any]) -> None:
    report = usage_by_source({"id": "s", "history": history})
    assert sum(row["totalTokens"] for row in report["bySource"]) == report["totalTokens"]
    assert sum(row["turns"] for row in report["bySource"]) == sum(entry["type"] == "usage-summary" for entry in history)
    ops = [entry["data"]["op"] for entry in history if entry["type"] == "span"]
    assert [one["op"] for turn in report["timeline"] for one in turn["spans"]] == ops
    assert [turn["turnIndex"] for turn in report["timeline"]] == list(range(len(report["timeline"])))
    assert "SECRET" not in repr(report)


def test_costs_are_never_exact_once_there_is_usage() -> None:
    priced = {"type": "usage-summary", "data": {"totalTokens": 1, "costUsd": 0, "costStatus": "exact"}}
    report = usage_by_source({"id": "s", "history": [priced]})
    assert (report["costExact"], report["everyTurnPriced"]) == (False, True)
    assert usage_by_source({"id": "s"})["costExact"] is True


def test_what_is_no_number_counts_nothing() -> None:
    report = usage_by_source({"id": "s", "history": [summary("9"), summary(True), summary(None), summary(4)]})
    assert (report["totalTokens"], report["bySource"][0]["turns"]) == (4, 4)


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [(1, 16, 6.3), (1, 3, 33.3), (1, 2000, 0.1), (1, 0, 0), (0, 5, 0), (5, 5, 100), (0.00049999999999999994, 1, 0)],
)
def test_percentages_have_one_decimal_with_halves_up(part: float, whole: float, expected: float) -> None:
    assert percentage(part, whole) == expected
