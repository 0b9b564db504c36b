"""Robota's usage snapshots and observations: read whole or not at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.formats.robota_usage import (
    decode_model_shares,
    decode_usage_observation,
    decode_usage_snapshot,
    decode_usage_source,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
USAGE: dict[str, Any] = {
    "kind": "exact",
    "scope": "turn",
    "totalTokens": 100,
    "promptTokens": 60,
    "completionTokens": 40,
    "contextUsedTokens": 100,
    "contextMaxTokens": 200_000,
    "contextUsedPercentage": 0.05,
    "costStatus": "exact",
    "costUsd": 0.01,
}
SHARE = {
    "providerId": "p",
    "modelId": "m",
    "promptTokens": 1,
    "completionTokens": 2,
    "totalTokens": 3,
    "costStatus": "estimated",
    "costUsd": 0.1,
}


def test_an_exact_cost_is_read_as_an_estimate() -> None:
    assert decode_usage_snapshot(USAGE) == USAGE | {"costStatus": "estimated"}


def test_reading_what_was_read_changes_nothing() -> None:
    once = decode_usage_snapshot(USAGE | {"source": {"scope": "tool", "id": "", "label": "x"}, "extra": "content"})
    assert decode_usage_snapshot(once) == once
    assert once is not None
    assert once["source"] == {"scope": "tool", "label": "x"}
    assert "extra" not in once


@given(st.sampled_from(sorted(USAGE)), JSON)
def test_a_snapshot_is_read_whole_or_not_at_all(name: str, value: Any) -> None:
    decoded = decode_usage_snapshot(USAGE | {name: value})
    assert decoded is None or (set(decoded) == set(USAGE) and decoded["costStatus"] == "estimated")


@pytest.mark.parametrize("value", [None, [], "main", {"scope": "Main"}, {"scope": ["main"]}, {}])
def test_a_source_without_a_known_scope_is_none(value: Any) -> None:
    assert decode_usage_source(value) is None


@pytest.mark.parametrize(
    "broken",
    [SHARE | {"costStatus": "exact"}, SHARE | {"modelId": ""}, SHARE | {"totalTokens": None}, "share", None],
)
def test_one_unreadable_share_discards_the_split(broken: Any) -> None:
    assert decode_model_shares([SHARE]) == [SHARE]
    assert decode_model_shares([SHARE, broken]) is None


def test_an_observation_with_unreadable_usage_is_a_turn_without_usage() -> None:
    observation = decode_usage_observation(
        {"usageObservationId": "o", "turnId": "t", "outcome": "failure", "usage": USAGE | {"totalTokens": -1}}
    )
    assert observation == {"usageObservationId": "o", "turnId": "t", "outcome": "failure"}


@given(JSON)
def test_no_json_value_breaks_the_observation_decoder(value: Any) -> None:
    decoded = decode_usage_observation(value)
    assert decoded is None or isinstance(decoded, dict)
