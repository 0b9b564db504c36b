"""Usage of one Robota session by source, and the timeline of its spans per turn.

Reads the raw ``usage-summary`` and ``span`` entries of the history in order; times and ids of entries decide nothing.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from projections.formats.robota_numbers import Number, add, is_number, plain
from projections.formats.robota_session import Entry, history_of, session_id_of
from projections.text import js_text

_MAIN_THREAD: Final = {"scope": "main", "label": "main thread"}
_SPAN_FIELDS: Final = ("spanId", "op", "durationMs")


class _Spending:
    """The running sums of a session or of one of its sources."""

    __slots__ = ("completion", "cost_usd", "priced", "prompt", "total", "turns")

    def __init__(self) -> None:
        self.prompt: Number = 0
        self.completion: Number = 0
        self.total: Number = 0
        self.cost_usd: Number = 0
        self.turns = 0
        self.priced = True

    def add(self, summary: Mapping[str, Any]) -> None:
        self.prompt = add(self.prompt, _count(summary.get("promptTokens")))
        self.completion = add(self.completion, _count(summary.get("completionTokens")))
        self.total = add(self.total, _count(summary.get("totalTokens")))
        self.cost_usd = add(self.cost_usd, _count(summary.get("costUsd")))
        self.turns += 1
        self.priced = self.priced and "costUsd" in summary


class _Timeline:
    """Spans of a turn come before its summary; a turn without spans has no entry and takes no index."""

    def __init__(self) -> None:
        self.turns: list[dict[str, Any]] = []
        self._pending: list[dict[str, Any]] = []

    def add(self, span: dict[str, Any]) -> None:
        self._pending.append(span)

    def close_turn(self, source: Mapping[str, Any]) -> None:
        if not self._pending:
            return
        duration_ms: Number = 0
        for span in self._pending:
            duration_ms = add(duration_ms, span["durationMs"])
        self.turns.append(
            {
                "turnIndex": len(self.turns),
                "source": dict(source),
                "label": _label_of(source),
                "spans": self._pending,
                "totalDurationMs": duration_ms,
            }
        )
        self._pending = []


def usage_by_source(record: Mapping[str, Any]) -> dict[str, Any]:
    """Sum a session's usage by source, with the top consumer and the timeline of spans per turn.

    A summary without a source is the main thread's. Counts are taken as they stand: splits are not checked against
    totals, and what is no number counts 0. Costs come from a price table and prove nothing, so ``costExact`` is false
    as soon as there is usage; ``everyTurnPriced`` says whether every turn had a cost at all. Raises ``invalid_field``
    for a record that cannot be read.
    """
    session_id = session_id_of(record)
    session, timeline = _Spending(), _Timeline()
    sources: dict[str, tuple[Mapping[str, Any], _Spending]] = {}
    for entry in history_of(record):
        if (span := _read_span(entry)) is not None:
            timeline.add(span)
        elif entry.get("type") == "usage-summary" and isinstance(entry.get("data"), Mapping):
            summary = entry["data"]
            source = summary["source"] if isinstance(summary.get("source"), Mapping) else _MAIN_THREAD
            session.add(summary)
            # The first summary of a source gives its label.
            sources.setdefault(_key_of(source), (source, _Spending()))[1].add(summary)
            timeline.close_turn(source)
    timeline.close_turn(_MAIN_THREAD)
    rows = [_source_row(key, source, spent, session.total) for key, (source, spent) in sources.items()]
    rows.sort(key=lambda row: -row["totalTokens"])
    return {
        "sessionId": session_id,
        "totalTokens": session.total,
        "promptTokens": session.prompt,
        "completionTokens": session.completion,
        "costUsd": session.cost_usd,
        "costExact": not rows,
        "everyTurnPriced": session.priced,
        "bySource": rows,
        **({"topConsumer": rows[0]} if rows else {}),
        "timeline": timeline.turns,
    }


def percentage(part: Number, whole: Number) -> Number:
    """Give a share in percent with one decimal, halves rounded up; 0 of nothing."""
    if whole <= 0:
        return 0
    tenths = part / whole * 1000
    # Adding one half first would round 0.49999999999999994 up.
    rounded = math.floor(tenths) + (tenths - math.floor(tenths) >= 0.5)
    return plain(rounded / 10)


def _source_row(key: str, source: Mapping[str, Any], spent: _Spending, whole: Number) -> dict[str, Any]:
    return {
        "key": key,
        "source": dict(source),
        "label": _label_of(source),
        "promptTokens": spent.prompt,
        "completionTokens": spent.completion,
        "totalTokens": spent.total,
        "turns": spent.turns,
        "percentage": percentage(spent.total, whole),
        "costUsd": spent.cost_usd,
        "costExact": False,
        "everyTurnPriced": spent.priced,
    }


def _read_span(entry: Entry) -> dict[str, Any] | None:
    data = entry.get("data")
    if entry.get("type") != "span" or not isinstance(data, Mapping):
        return None
    if not isinstance(data.get("spanId"), str) or not isinstance(data.get("op"), str):
        return None
    if not is_number(data.get("durationMs")):
        return None
    return {name: data[name] for name in _SPAN_FIELDS}


def _key_of(source: Mapping[str, Any]) -> str:
    return f"{_field_text(source, 'scope')}:{_field_text(source, 'id')}"


def _label_of(source: Mapping[str, Any]) -> str:
    if source.get("label") is not None:
        return _field_text(source, "label")
    scope, source_id = _field_text(source, "scope"), _field_text(source, "id")
    return f"{scope} {source_id}" if source_id else scope


def _field_text(source: Mapping[str, Any], name: str) -> str:
    value = source.get(name)
    return "" if value is None or isinstance(value, (Mapping, list)) else js_text(value)


def _count(value: Any) -> Number:
    return plain(value) if is_number(value) else 0
