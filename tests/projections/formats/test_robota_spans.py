"""Prompt spans of Robota sessions: order, repeats, and counters that cover everything."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.formats.robota_spans import prompt_spans

START, END = "2026-09-24T00:00:59.000Z", "2026-09-24T00:01:00.000Z"


def root(number: int) -> dict[str, Any]:
    data = {
        "usageObservationId": f"turn-{number}",
        "turnId": f"turn-{number}",
        "outcome": "success",
        "promptExecutionStartedAt": START,
        "promptExecutionEndedAt": END,
        "promptExecutionOutcome": "success",
        "promptExecutionTraceId": f"{number:032x}",
        "promptExecutionSpanId": f"{number:016x}",
    }
    return {"type": "usage-observation", "data": data}


def child(number: int, span: int) -> dict[str, Any]:
    data = {
        "traceId": f"{number:032x}",
        "parentSpanId": f"{number:016x}",
        "spanId": f"{span:016x}",
        "startedAt": START,
        "endedAt": END,
        "outcome": "failure",
        "round": 1,
        "disposition": "invoked",
        "usageProvenance": "complete",
        "promptTokens": 2,
        "completionTokens": 3,
        "totalTokens": 5,
        "modelId": "gpt-4o",
        "prompt": "SECRET",
    }
    return {"type": "provider-call-trace", "data": data}


ENTRIES = st.lists(
    st.builds(root, st.integers(0, 3)) | st.builds(child, st.integers(0, 3), st.integers(2, 9)), max_size=10
)


def counted(history: list[Any]) -> dict[str, Any]:
    read = prompt_spans([{"id": "s", "history": history}])
    # Sums of costs depend on the order of addition in the last digit only.
    read["callMetrics"]["estimatedCostUsd"] = round(read["callMetrics"]["estimatedCostUsd"], 12)
    return read


@given(ENTRIES, st.randoms(use_true_random=False))
def test_the_order_of_a_history_changes_only_the_order_of_the_spans(history: list[Any], random: Any) -> None:
    shuffled = random.sample(history, len(history))
    one, other = counted(history), counted(shuffled)
    assert sorted(map(repr, one.pop("spans"))) == sorted(map(repr, other.pop("spans")))
    assert one == other


@given(ENTRIES)
def test_a_repeated_history_exports_nothing(history: list[Any]) -> None:
    read = counted([*history, *history])
    assert [span for span in read["spans"] if span["name"] == "provider_call"] == []
    assert read["coverage"]["providerChildren"]["exported"] == 0


@given(ENTRIES)
def test_values_and_their_json_text_read_the_same_and_without_content(history: list[Any]) -> None:
    records = [{"id": "s", "history": history}]
    from_values = prompt_spans(records)
    assert prompt_spans(json.dumps(records)) == from_values
    assert prompt_spans(json.dumps(records).encode()) == from_values
    assert "SECRET" not in repr(from_values)


@given(ENTRIES)
def test_every_child_is_counted_exactly_once(history: list[Any]) -> None:
    read = counted(history)
    children = sum(entry["type"] == "provider-call-trace" for entry in history)
    assert sum(read["coverage"]["providerChildren"].values()) == children
    roots = sum(read["coverage"][name] for name in ("exported", "missing", "invalid", "duplicate"))
    assert roots == len(history) - children


@pytest.mark.parametrize("records", ["{}", "[1]", "[", b"\xff", [1]])
def test_records_of_another_shape_are_refused(records: Any) -> None:
    with pytest.raises(ProjectionError):
        prompt_spans(records)


def test_a_total_that_is_a_boolean_is_no_total() -> None:
    one = child(1, 2)
    one["data"] |= {"promptTokens": 1, "completionTokens": 0, "totalTokens": True}
    assert counted([root(1), one])["coverage"]["providerUsage"]["invalid"] == 1
