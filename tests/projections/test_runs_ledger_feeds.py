"""A run's trace does not depend on how its ledger is told: by transitions, by records, by both, whole or in part."""

import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from projections.canonical import encode_record
from projections.decode import decode_json
from projections.facts import Fact
from projections.lifecycle import fold_execution
from projections.lifecycle.phases import TRANSITION_KINDS
from projections.sources import SOURCES, project_message
from tests.projections.test_runs_golden import NAMES, RUNS, facts_of, trace_of

Json = dict[str, Any]

LEDGER = "ledger-changes"
LEDGER_PARTITION = list(SOURCES).index(LEDGER)
TOLD_BY_TRANSITIONS = ["cancellation-unknown", "ended", "example", "fork", "handoff", "recovery", "retries"]


def transitions_of(name: str) -> list[Json]:
    rows: list[Json] = [decode_json(line) for line in (RUNS / name / f"{LEDGER}.jsonl").read_bytes().splitlines()]
    assert all("expectedRevision" in row for row in rows)
    return rows


def with_records(transitions: list[Json]) -> list[tuple[Json, Json]]:
    """Give each transition with the record right after it, as the ledger wrote them together."""
    before: dict[str, dict[int, Json]] = {}
    pairs = []
    for transition in transitions:
        known = before.setdefault(transition["executionId"], {})
        known[transition["expectedRevision"]] = transition
        record = fold_execution(None, known).record
        assert record is not None
        assert record["revision"] == len(known)
        pairs.append((transition, record))
    return pairs


def trace_with(name: str, ledger: list[Json]) -> bytes:
    facts: list[Fact] = []
    for partition, source in enumerate(SOURCES):
        path = RUNS / name / f"{source}.jsonl"
        if source != LEDGER and path.exists():
            for offset, line in enumerate(path.read_bytes().splitlines()):
                facts += project_message(source, None, line, partition, offset).facts
    for offset, row in enumerate(ledger):
        facts += project_message(LEDGER, None, orjson.dumps(row), LEDGER_PARTITION, offset).facts
    return trace_of(facts, 7)


def golden(name: str) -> bytes:
    return (RUNS / name / "trace.jsonl").read_bytes()


@pytest.mark.parametrize("name", TOLD_BY_TRANSITIONS)
def test_transitions_and_records_give_the_same_trace(name: str) -> None:
    pairs = with_records(transitions_of(name))
    assert trace_with(name, [transition for transition, _record in pairs]) == golden(name)
    assert trace_with(name, [record for _transition, record in pairs]) == golden(name)
    assert trace_with(name, [{"transition": one, "record": after} for one, after in pairs]) == golden(name)


@pytest.mark.parametrize("name", TOLD_BY_TRANSITIONS)
def test_the_last_record_of_each_execution_is_enough(name: str) -> None:
    last = {record["execution"]["executionId"]: record for _transition, record in with_records(transitions_of(name))}
    assert trace_with(name, list(last.values())) == golden(name)


@pytest.mark.parametrize("name", TOLD_BY_TRANSITIONS)
@pytest.mark.parametrize("seed", range(3))
def test_mixed_shuffled_and_repeated_rows_give_the_same_trace(name: str, seed: int) -> None:
    chance = random.Random(seed)
    rows = []
    for transition, record in with_records(transitions_of(name)):
        shapes: list[Json] = [transition, record, {"transition": transition, "record": record}]
        rows += chance.sample(shapes, chance.randint(1, 3))
    rows += chance.sample(rows, len(rows) // 3)
    chance.shuffle(rows)
    assert trace_with(name, rows) == golden(name)


@pytest.mark.parametrize("name", TOLD_BY_TRANSITIONS)
def test_without_its_first_transition_an_execution_is_nobodys_and_its_attempt_says_nothing_of_it(name: str) -> None:
    rows = [row for row in transitions_of(name) if row["kind"] != "prepare"]
    attempts = [
        record for record in map(decode_json, trace_with(name, rows).splitlines()) if record["kind"] == "attempt"
    ]
    assert not any("executionId" in record or "phase" in record for record in attempts)


def test_the_fixtures_show_every_transition_end_and_target_of_an_execution() -> None:
    rows = [row for name in TOLD_BY_TRANSITIONS for row in transitions_of(name)]
    outcomes = {row["terminal"]["outcome"] for row in rows if row["kind"] == "finish"}
    assert outcomes == {"succeeded", "failed", "cancelled", "cancellation_unknown", "ended"}
    assert {row["target"]["kind"] for row in rows if row["kind"] == "prepare"} == {"fresh", "resume", "fork", "handoff"}
    assert {row["kind"] for row in rows} == set(TRANSITION_KINDS)


def attempt(name: str, attempt_id: str) -> Json:
    (found,) = [record for record in map(decode_json, golden(name).splitlines()) if record["id"] == attempt_id]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("name", "attempt_id", "expected"),
    [
        (
            "retries",
            "workflow:run-retries:implement:0:0",
            {"outcome": "failed", "retryable": True, "error": "synthetic: harness exited with 1"},
        ),
        ("retries", "workflow:run-retries:implement:0:1", {"outcome": "succeeded", "signal": "done"}),
        (
            "recovery",
            "workflow:run-recovery:check:0:1",
            {"outcome": "recovery_required", "recovery": {"kind": "unknown", "observedAt": "2026-09-15T10:12:00.000Z"}},
        ),
        ("recovery", "workflow:run-recovery:draft:0:0", {"phase": "succeeded", "outcome": "succeeded"}),
        (
            "cancellation-unknown",
            "workflow:run-cancel:left:0:0",
            {"phase": "cancellation_unknown", "outcome": "cancellation_unknown"},
        ),
        (
            "ended",
            "workflow:run-ended:implement:0:0",
            {"phase": "ended", "outcome": "failed", "retryable": False, "executionId": "ended-exec-e"},
        ),
        (
            "handoff",
            "workflow:run-handoff:build:1:0",
            {"agentId": "agent-b", "conversation": "conversation:claude-code:host-b:handoff-c-2"},
        ),
        (
            "fork",
            "workflow:run-fork:plan-b:0:0",
            {"usage": {"costUsd": 0, "inputTokens": 50, "outputTokens": 5}},
        ),
    ],
)
def test_what_each_run_is_there_to_show(name: str, attempt_id: str, expected: Json) -> None:
    record = attempt(name, attempt_id)
    assert {field: record[field] for field in expected} == expected
    assert encode_record(record) in golden(name)


def test_a_run_directory_holds_topics_and_its_trace() -> None:
    names = {path.name for name in TOLD_BY_TRANSITIONS for path in Path(RUNS / name).iterdir()}
    assert names <= {"trace.jsonl", *(f"{source}.jsonl" for source in SOURCES)}


def test_all_runs_told_in_one_stream_stay_apart() -> None:
    """The sample runs share no id, so the demo and the tests may read all of them as the messages of one place."""
    together = trace_of([fact for name in NAMES for fact in facts_of(RUNS / name)], 11)
    apart = [line for name in NAMES for line in golden(name).splitlines()]
    assert sorted(together.splitlines()) == sorted(apart)
