"""Timing of one Robota session: how long its turns waited for the model and for tools.

A turn starts with a user message and ends with the assistant's; only category and type of an entry select.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from projections.formats.robota_session import Entry, history_of, session_id_of
from projections.formats.robota_time import iso_text, read_date_ms

SLOW_INTERVAL_MS: Final = 10_000

_USER: Final = ("chat", "user")
_ASSISTANT: Final = ("chat", "assistant")
_TOOL_START: Final = ("event", "tool-start")
_TOOL_END: Final = ("event", "tool-end")
_TOOL_SUMMARY: Final = ("event", "tool-summary")


class TimingInterval(NamedTuple):
    """The time between two entries of a turn (turns count from 1); negative when the clock ran backwards."""

    kind: str
    from_type: str
    to_type: str
    from_ms: int
    to_ms: int
    turn_index: int

    @property
    def duration_ms(self) -> int:
        """Give the length in ms."""
        return self.to_ms - self.from_ms

    def as_json(self) -> dict[str, Any]:
        """Give the interval as the reference shows it."""
        return {
            "kind": self.kind,
            "fromType": self.from_type,
            "toType": self.to_type,
            "fromTimestamp": iso_text(self.from_ms),
            "toTimestamp": iso_text(self.to_ms),
            "durationMs": self.duration_ms,
            "turnIndex": self.turn_index,
        }


class _Turn:
    """One open turn: where it started, whether a tool ran, and the tool end that the model has not answered yet."""

    def __init__(self, index: int, user: Entry) -> None:
        self.index = index
        self.user = user
        self.used_tool = False
        self.tool_end: Entry | None = None

    def interval(self, kind: str, start: Entry, end: Entry) -> list[TimingInterval]:
        """Give the interval between two entries; none when a time cannot be read."""
        from_ms, to_ms = (read_date_ms(entry.get("timestamp", "")) for entry in (start, end))
        if from_ms is None or to_ms is None:
            return []
        return [TimingInterval(kind, start["type"], end["type"], from_ms, to_ms, self.index)]

    def since_tool_end(self, kind: str, end: Entry) -> list[TimingInterval]:
        return [] if self.tool_end is None else self.interval(kind, self.tool_end, end)


def session_timing(record: Mapping[str, Any]) -> dict[str, Any]:
    """Give the intervals of a session, the slow ones (from ten seconds on), and averages in ms.

    Raises ``invalid_field`` for a record that cannot be read.
    """
    intervals = timing_intervals(history_of(record))
    shown = [interval.as_json() for interval in intervals]
    return {
        "sessionId": session_id_of(record),
        "createdAt": record.get("createdAt"),
        "totalIntervals": len(intervals),
        "intervals": shown,
        "slowIntervals": [interval for interval in shown if interval["durationMs"] >= SLOW_INTERVAL_MS],
        "stats": _stats(intervals),
    }


def timing_intervals(entries: Sequence[Entry]) -> list[TimingInterval]:
    """Find the intervals of every turn, in history order."""
    intervals: list[TimingInterval] = []
    turn: _Turn | None = None
    turns = 0
    previous: Entry = {}
    for entry in entries:
        if _is(entry, _USER):
            turns += 1
            turn = _Turn(turns, entry)
        elif turn is not None:
            intervals += _advance(turn, previous, entry)
            if _is(entry, _ASSISTANT):
                turn = None
        previous = entry
    return intervals


def _advance(turn: _Turn, previous: Entry, entry: Entry) -> list[TimingInterval]:
    found: list[TimingInterval] = []
    if _is(entry, _TOOL_START):
        if turn.used_tool:
            found = turn.since_tool_end("llm_between_tools", entry)
        else:
            found = turn.interval("user_to_first_tool", turn.user, entry)
        turn.used_tool, turn.tool_end = True, None
    elif _is(entry, _TOOL_END):
        # Parallel tools end in any order, so only an end right after a start is that tool's.
        if _is(previous, _TOOL_START):
            found = turn.interval("tool_exec", previous, entry)
        turn.tool_end = entry
    elif _is(entry, _TOOL_SUMMARY):
        found = turn.since_tool_end("llm_final_response", entry)
    elif _is(entry, _ASSISTANT):
        if turn.used_tool:
            found = turn.since_tool_end("llm_final_response", entry)
        else:
            found = turn.interval("user_to_assistant", turn.user, entry)
    return found


def _is(entry: Entry, place: tuple[str, str]) -> bool:
    return (entry.get("category"), entry.get("type")) == place


def _stats(intervals: Sequence[TimingInterval]) -> dict[str, Any]:
    tool_ms = [interval.duration_ms for interval in intervals if interval.kind == "tool_exec"]
    model_ms = [interval.duration_ms for interval in intervals if interval.kind != "tool_exec"]
    direct_ms = [interval.duration_ms for interval in intervals if interval.kind == "user_to_assistant"]
    return {
        "llmWaitMs": {**_average(model_ms), "total": sum(model_ms), "count": len(model_ms)},
        "toolExecMs": {**_average(tool_ms), "median": _median(tool_ms), "count": len(tool_ms)},
        "userToAssistantMs": {**_average(direct_ms), "count": len(direct_ms)},
    }


def _average(durations_ms: Sequence[int]) -> dict[str, int]:
    if not durations_ms:
        return {"avg": 0, "max": 0}
    return {"avg": _round_half_up(sum(durations_ms), len(durations_ms)), "max": max(durations_ms)}


def _median(durations_ms: Sequence[int]) -> int:
    if not durations_ms:
        return 0
    ordered = sorted(durations_ms)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else _round_half_up(ordered[middle - 1] + ordered[middle], 2)


def _round_half_up(dividend: int, divisor: int) -> int:
    """Divide integers and round, halves towards positive infinity (ECMAScript's ``Math.round``)."""
    return (2 * dividend + divisor) // (2 * divisor)
