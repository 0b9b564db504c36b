"""Normalising a Robota session: what hides what, and which shapes are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.formats.robota_session import hidden_summaries, normalize_session
from projections.formats.robota_usage import decode_usage_snapshot

AT = "2026-09-05T10:00:00.000Z"


def usage(total: int) -> dict[str, Any]:
    return {
        "kind": "exact",
        "scope": "turn",
        "totalTokens": total,
        "contextUsedTokens": 1,
        "contextMaxTokens": 2,
        "contextUsedPercentage": 50,
        "costStatus": "unknown",
    }


def summary(entry_id: str, total: int) -> dict[str, Any]:
    return {"id": entry_id, "timestamp": AT, "type": "usage-summary", "data": usage(total)}


def observation(entry_id: str, total: int) -> dict[str, Any]:
    data = {"usageObservationId": f"o-{entry_id}", "turnId": "t", "outcome": "success", "usage": usage(total)}
    return {"id": entry_id, "timestamp": AT, "type": "usage-observation", "data": data}


def slow_hidden(history: list[dict[str, Any]]) -> set[str]:
    """The rule as written: every observation looks at every summary that is left."""
    left = [(index, entry) for index, entry in enumerate(history) if entry["type"] == "usage-summary"]
    hidden = set()
    for index, entry in enumerate(history):
        if entry["type"] != "usage-observation":
            continue
        same = [one for one in left if one[1]["data"] == entry["data"]["usage"]]
        if same:
            nearest = min(same, key=lambda one: (abs(one[0] - index), one[0]))
            hidden.add(nearest[1]["id"])
            left.remove(nearest)
    return hidden


@given(
    st.lists(
        st.tuples(st.sampled_from([summary, observation]), st.sampled_from([1, 2]), st.sampled_from("abcdefgh")),
        max_size=14,
    )
)
def test_each_observation_hides_the_nearest_summary_of_equal_usage(entries: list[Any]) -> None:
    history = [build(entry_id, total) for build, total, entry_id in entries]
    assert hidden_summaries(history) == slow_hidden(history)


def test_usages_are_equal_whatever_the_spelling_of_their_numbers() -> None:
    other = summary("s", 10)
    other["data"] = {**dict(reversed(usage(10).items())), "totalTokens": 10.0, "unknown": "key"}
    assert hidden_summaries([other, observation("o", 10)]) == {"s"}
    assert decode_usage_snapshot(other["data"]) == decode_usage_snapshot(usage(10))


@given(st.lists(st.none() | st.text(max_size=3) | st.just({}) | st.just({"type": "usage-summary"}), max_size=5))
def test_entries_that_say_nothing_change_nothing(noise: list[Any]) -> None:
    history = [summary("s", 1)]
    assert normalize_session({"id": "x", "history": [*history, *noise]}) == normalize_session(
        {"id": "x", "history": history}
    )


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"history": []}, "id"),
        ({"id": 7}, "id"),
        ({"id": "x", "history": {}}, "history"),
        ({"id": "x", "skillActivationEvents": "no"}, "skillActivationEvents"),
    ],
)
def test_a_record_of_another_shape_is_refused_without_its_content(record: dict[str, Any], field: str) -> None:
    with pytest.raises(ProjectionError) as caught:
        normalize_session(record)
    assert (caught.value.reason, caught.value.field) == ("invalid_field", field)


def test_content_of_a_session_never_reaches_what_is_read() -> None:
    record = {
        "id": "x",
        "cwd": "SECRET",
        "name": "SECRET",
        "history": [
            {"id": "1", "timestamp": AT, "type": "user", "data": {"content": "SECRET"}},
            {"id": "2", "timestamp": AT, "type": "tool-start", "data": {"toolName": "Bash", "firstArg": "SECRET"}},
        ],
    }
    read = normalize_session(record).as_json()
    assert "SECRET" not in repr(read)
    assert [activity["key"] for activity in read["activities"]] == ["tool:Bash"]
