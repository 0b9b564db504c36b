"""Codex rows of titan/transcript_usage.jsonl: the measurements that usage rows of a rollout give."""

from pathlib import Path
from typing import Any

from projections.formats.codex_usage import CodexEvent, codex_usage
from tests.conformance.rows import load_rows

OVERRULED = "codex/compaction-new-epoch"


def _read(row: dict[str, Any]) -> list[dict[str, Any]]:
    events = [
        CodexEvent(
            kind=event["event"],
            sequence=event.get("sequence", 0),
            payload=event.get("payload"),
            model=event.get("model"),
            active_turn=event.get("activeTurn"),
        )
        for event in row["events"]
    ]
    return [
        {"epoch": epoch, "measurements": [{"measurement": one, "turnId": turn} for one, turn in found]}
        for found, epoch in codex_usage(row["sourceId"], row["conversationId"], events)
    ]


def test_codex_usage_rows_hold_except_that_a_compaction_resets_nothing(vectors: Path) -> None:
    rows = [row for row in load_rows(vectors, "titan/transcript_usage.jsonl") if row["fn"] == "codex_usage"]
    assert rows
    overruled = [row for row in rows if row["name"].startswith(OVERRULED)]
    failing = [row["name"] for row in rows if row not in overruled and _read(row) != row["expected"]]
    assert failing == []
    for row in overruled:
        # decisions.md, "Codex cumulative counters": real files would count 32.4 instead of 14.4 million tokens.
        assert _read(row) != row["expected"]
        assert {found["epoch"] for found in _read(row)} == {f"{row['sourceId']}:usage:0"}
        assert [len(found["measurements"]) for found in _read(row)] == [1, 0, 0]
