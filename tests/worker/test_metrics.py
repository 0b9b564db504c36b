"""The table of metrics, and the book that accounts for every message."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from worker.metrics import COUNTERS, GAUGES, MessageBook, Metrics, Tally

PLACE = {"topic": "workflow-runs", "partition": "0"}


def samples(metrics: Metrics) -> dict[str, float]:
    """Sum what a scrape gives, by metric, for the partition under test."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            if {**sample.labels, **PLACE} == sample.labels:
                totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return totals


def assert_accounted(metrics: Metrics) -> None:
    found = samples(metrics)
    outcomes = (
        "projected_messages_total",
        "ignored_messages_total",
        "dead_lettered_messages_total",
        "in_flight_messages",
    )
    assert found.get("trace_projector_consumed_messages_total", 0) == sum(
        found.get(f"trace_projector_{outcome}", 0) for outcome in outcomes
    )


def tally_of(projected: int, ignored: int, dead: int) -> Tally:
    tally = Tally(projected + ignored + dead)
    tally.projected = projected
    if ignored:
        tally.ignored["no_change"] = ignored
    if dead:
        tally.dead_lettered["invalid_json"] = dead
    return tally


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.booleans()),
        max_size=8,
    )
)
def test_consumed_is_the_sum_of_all_outcomes_at_every_scrape(batches: list[tuple[int, int, int, bool]]) -> None:
    metrics = Metrics()
    book = MessageBook(metrics)
    assert_accounted(metrics)
    for projected, ignored, dead, is_lost in batches:
        tally = tally_of(projected, ignored, dead)
        book.take("workflow-runs", 0, tally.messages)
        assert_accounted(metrics)
        if is_lost:
            book.give_back("workflow-runs", 0, tally.messages)
        else:
            book.settle("workflow-runs", 0, tally)
        assert_accounted(metrics)
    assert samples(metrics).get("trace_projector_in_flight_messages", 0) == 0


def test_a_tally_that_leaves_a_message_out_is_a_fault_of_the_program() -> None:
    metrics = Metrics()
    book = MessageBook(metrics)
    book.take("workflow-runs", 0, 3)
    tally = tally_of(1, 1, 0)
    tally.messages = 3
    with pytest.raises(AssertionError):
        book.settle("workflow-runs", 0, tally)


def test_every_metric_is_named_by_noun_and_unit_and_described() -> None:
    for name, description in [*COUNTERS.items(), *GAUGES.items()]:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name), name
        assert description.help.endswith("."), name


def test_a_metric_has_exactly_its_labels() -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError):
        metrics.count("retries", topic="x")
    with pytest.raises(AssertionError):
        metrics.count("retries")


def test_gauges_are_read_when_they_are_asked_for() -> None:
    metrics = Metrics()
    level = [1.0]
    metrics.watch("paused_partitions", lambda: [(("fold",), level[0])])
    assert b'trace_projector_paused_partitions{role="fold"} 1.0' in metrics.exposition()
    level[0] = 2.0
    assert b'trace_projector_paused_partitions{role="fold"} 2.0' in metrics.exposition()
