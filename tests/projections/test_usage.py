"""Usage: distinct spend, and its sums."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.usage import add_usage, claude_usage, count_of, fold_usage, sum_or_null, usage_from_measurements

COUNTS = st.none() | st.integers(0, 1_000)
TOKENS = st.fixed_dictionaries(
    dict.fromkeys(("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total"), COUNTS)
)
SHARED = {
    "model": st.none() | st.sampled_from(["m1", "m2"]),
    "tokens": TOKENS,
    "cost": st.none() | st.fixed_dictionaries({"usd": st.integers(0, 8), "kind": st.just("reported")}),
    "source": st.just("s"),
}
DELTAS = st.fixed_dictionaries({"kind": st.just("delta"), "responseId": st.sampled_from("abc"), **SHARED})
SNAPSHOTS = st.fixed_dictionaries(
    {
        "kind": st.just("snapshot"),
        "scope": st.sampled_from(["turn", "conversation"]),
        "scopeId": st.sampled_from("tc"),
        "epoch": st.sampled_from(["e0", "e1"]),
        "sequence": st.integers(0, 3),
        **SHARED,
    }
)
MEASUREMENTS = st.lists(DELTAS | SNAPSHOTS, max_size=8) | st.lists(SNAPSHOTS, max_size=8)


@given(MEASUREMENTS)
def test_folding_twice_is_folding_once_and_gives_the_inputs_themselves(measurements: list[dict[str, Any]]) -> None:
    folded = fold_usage(measurements)
    again = fold_usage(folded.measurements)
    assert [id(item) for item in again.measurements] == [id(item) for item in folded.measurements]
    assert again.basis == folded.basis
    assert all(any(item is given_one for given_one in measurements) for item in folded.measurements)


@given(MEASUREMENTS)
def test_deltas_and_snapshots_are_never_summed_together(measurements: list[dict[str, Any]]) -> None:
    basis, kept = fold_usage(measurements)
    assert {item["kind"] for item in kept} <= {basis}
    assert (basis == "delta") == any(item["kind"] == "delta" for item in measurements)


@given(st.lists(SNAPSHOTS, max_size=8))
def test_no_turn_is_counted_in_an_epoch_that_its_conversation_covers(measurements: list[dict[str, Any]]) -> None:
    kept = fold_usage(measurements).measurements
    covered = {item["epoch"] for item in measurements if item["scope"] == "conversation"}
    assert all(item["scope"] == "conversation" for item in kept if item["epoch"] in covered)


@given(MEASUREMENTS, st.lists(DELTAS, max_size=3))
def test_a_measurement_reported_again_changes_no_sum(
    measurements: list[dict[str, Any]], deltas: list[dict[str, Any]]
) -> None:
    reported = [*measurements, *deltas]
    assert usage_from_measurements([*reported, *deltas]) == usage_from_measurements(reported)


def test_no_measurement_is_no_usage_and_an_unknown_one_costs_nothing() -> None:
    tokens = dict.fromkeys(("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total"))
    unknown = {"kind": "delta", "responseId": "a", "model": None, "tokens": tokens, "cost": None, "source": "s"}
    assert usage_from_measurements([]) is None
    assert usage_from_measurements([unknown]) == {"costUsd": 0}


def test_adding_to_nothing_copies() -> None:
    usage = {"costUsd": 1, "inputTokens": 2}
    total = add_usage(None, usage)
    assert total == usage
    assert total is not usage


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (0, 0),
        (7, 7),
        (7.0, 7),
        (-0.0, 0),
        (7.5, None),
        (-1, None),
        (True, None),
        ("7", None),
        (None, None),
        (2**53 - 1, 2**53 - 1),
        (2**53, None),
        (1e300, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_a_count_is_a_whole_number_that_a_record_can_hold(value: Any, count: int | None) -> None:
    assert count_of(value) == count
    assert type(count_of(value)) is type(count)


def test_one_unknown_count_makes_a_sum_unknown() -> None:
    assert sum_or_null([1, None]) is None
    assert sum_or_null([]) == 0


@pytest.mark.parametrize(
    ("creation", "split"),
    [
        ({"ephemeral_5m_input_tokens": 3}, {"ttl5m": 3, "ttl1h": 0}),
        ({"ephemeral_1h_input_tokens": 4.0}, {"ttl5m": 0, "ttl1h": 4}),
        ({"ephemeral_5m_input_tokens": "3"}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_cache_writes_are_split_where_the_block_says_so(creation: Any, split: dict[str, int] | None) -> None:
    assert claude_usage({"cache_creation": creation})["cacheWriteSplit"] == split
