"""Rows of titan/usage_fold.jsonl, titan/step_usage.jsonl and titan/transcript_usage.jsonl."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from projections.usage import add_usage, claude_usage, fold_usage, usage_from_measurements, usage_summary
from tests.conformance.rows import Row, assert_rows, differs, load_rows

STEP_USAGE: dict[str, Callable[[Row], Any]] = {
    "add_usage": lambda row: add_usage(row["a"], row["b"]),
    "usage_from_measurements": lambda row: usage_from_measurements(row["measurements"]),
    "usage_summary": lambda row: usage_summary(row["measurements"]),
}
READERS: dict[str, Callable[[Row], Any]] = {
    "claude_usage": lambda row: claude_usage(row["usage"]),
}
# Rows of these functions belong to another test; a function in neither table fails.
CHECKED_ELSEWHERE = frozenset({"codex_usage"})


def folded(row: Row) -> dict[str, Any]:
    basis, kept = fold_usage(row["measurements"])
    positions = {id(measurement): index for index, measurement in enumerate(row["measurements"])}
    return {"basis": basis, "indices": [positions[id(measurement)] for measurement in kept]}


def test_the_fold_keeps_the_measurements_of_each_row_in_its_order(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/usage_fold.jsonl")
    assert_rows(rows, lambda row: differs(folded(row), row["expected"]))


def test_sums_and_summaries_are_those_of_each_row(vectors: Path) -> None:
    rows = load_rows(vectors, "titan/step_usage.jsonl")
    assert_rows(rows, lambda row: differs(STEP_USAGE[row["fn"]](row), row["expected"]))


def test_usage_blocks_of_transcripts_read_as_in_each_row(vectors: Path) -> None:
    rows = [row for row in load_rows(vectors, "titan/transcript_usage.jsonl") if row["fn"] not in CHECKED_ELSEWHERE]
    assert rows
    assert_rows(rows, lambda row: differs(READERS[row["fn"]](row), row["expected"]))
