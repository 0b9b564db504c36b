"""Timing of Robota sessions."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from projections.reports.robota_timing import session_timing, timing_intervals

PLACES = [
    ("chat", "user"),
    ("chat", "assistant"),
    ("event", "tool-start"),
    ("event", "tool-end"),
    ("event", "tool-summary"),
    ("event", "other"),
]
HISTORY = st.lists(
    st.builds(
        lambda place, second: {"category": place[0], "type": place[1], "timestamp": f"2026-09-05T10:00:{second:02d}Z"},
        st.sampled_from(PLACES),
        st.integers(0, 59),
    ),
    max_size=15,
)


@given(HISTORY)
def test_counts_and_sums_cover_every_interval_once(history: list[Any]) -> None:
    timing = session_timing({"id": "s", "history": history})
    stats = timing["stats"]
    assert stats["llmWaitMs"]["count"] + stats["toolExecMs"]["count"] == timing["totalIntervals"]
    waited = [one["durationMs"] for one in timing["intervals"] if one["kind"] != "tool_exec"]
    assert stats["llmWaitMs"]["total"] == sum(waited)


@given(HISTORY, HISTORY)
def test_a_user_message_starts_afresh(before: list[Any], after: list[Any]) -> None:
    user = {"category": "chat", "type": "user", "timestamp": "2026-09-05T10:00:00Z"}
    whole = timing_intervals([*before, user, *after])
    first = timing_intervals(before)
    assert whole[: len(first)] == first
    turns = sum((entry["category"], entry["type"]) == ("chat", "user") for entry in before)
    shifted = [one._replace(turn_index=one.turn_index - turns) for one in whole[len(first) :]]
    assert shifted == timing_intervals([user, *after])


def test_an_entry_without_a_readable_time_gives_no_interval() -> None:
    history = [
        {"category": "chat", "type": "user", "timestamp": "2026-09-05T10:00:00Z"},
        {"category": "chat", "type": "assistant"},
    ]
    assert timing_intervals(history) == []
