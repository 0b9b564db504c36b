"""A database of workflows as the example of Debezium has it, and what happens in it: the sample runs, row by row."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any, LiteralString, NamedTuple

from tests.projections.test_runs_golden import RUNS
from tests.projections.test_runs_ledger_feeds import transitions_of, with_records

Json = dict[str, Any]

NAMES = ("example", "retries")
BIG = "run-big"
LEAN = "run-lean"
GONE = "run-gone"


class Statement(NamedTuple):
    """One statement, which is one transaction."""

    sql: LiteralString
    values: tuple[Any, ...] = ()


_RUN: LiteralString = (
    "INSERT INTO workflow_run VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET"
    " status = excluded.status, step_results = excluded.step_results, active_steps = excluded.active_steps,"
    " revision = excluded.revision, completed_at = excluded.completed_at, error = excluded.error"
)
_EVENT: LiteralString = "INSERT INTO agent_execution_event VALUES (%s, %s, %s, %s, %s)"
_GATE: LiteralString = "INSERT INTO hitl_gate VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"


def sample_rows(name: str, source: str) -> Iterator[Json]:
    """Give the messages that a sample run has of a source."""
    path = RUNS / name / f"{source}.jsonl"
    if path.exists():
        for line in path.read_bytes().splitlines():
            yield json.loads(line)


def course() -> Iterator[Statement]:
    """Tell the sample runs, a run whose parameters are large, and rows that are deleted."""
    for name in NAMES:
        yield from _sample(name)
    yield from _run_of_large_values(BIG)
    begun = json.dumps(transitions_of("retries")[:2]).replace("retries-exec-i0", "exec-gone")
    for move, record in with_records(json.loads(begun)):
        yield _event(move, record)
    yield Statement("DELETE FROM agent_execution_event WHERE execution_id = 'exec-gone'")
    yield from _run_of_large_values(GONE)
    yield Statement("DELETE FROM workflow_run WHERE id = %s", (GONE,))


def course_without_old_rows() -> Iterator[Statement]:
    """Tell a run of large values and its gate, and delete both, where the log holds no more than keys of old rows."""
    yield Statement("ALTER TABLE workflow_run REPLICA IDENTITY DEFAULT")
    yield Statement("ALTER TABLE hitl_gate REPLICA IDENTITY DEFAULT")
    yield from _run_of_large_values(LEAN)
    prompt = _incompressible()
    gate = (f"{LEAN}/review", prompt, "pending", None, None, "2026-10-01T09:00:00Z", None, None, None, None)
    yield Statement(_GATE, gate)
    yield Statement(
        "UPDATE hitl_gate SET status = 'cancelled', resolved_at = '2026-10-01T09:01:00Z' WHERE id = %s", (gate[0],)
    )
    yield Statement("DELETE FROM hitl_gate WHERE id = %s", (gate[0],))
    yield Statement("DELETE FROM workflow_run WHERE id = %s", (LEAN,))


def _sample(name: str) -> Iterator[Statement]:
    for move, record in with_records(transitions_of(name)):
        yield _event(move, record)
    for row in sample_rows(name, "workflow-runs"):
        objects = [json.dumps(row.get(column) or {}) for column in ("params", "stepResults", "activeSteps")]
        head = (row["id"], row["workflowName"], objects[0], row["status"], *objects[1:], row["revision"])
        yield Statement(_RUN, (*head, row["startedAt"], row.get("completedAt"), row.get("error")))
    for row in sample_rows(name, "gate-decisions"):
        texts = [None if row.get(column) is None else json.dumps(row[column]) for column in ("payload", "resolvedBy")]
        head = (row["id"], row["prompt"], row["status"], texts[0], row.get("reason"), row["createdAt"])
        yield Statement(_GATE, (*head, row.get("resolvedAt"), row.get("expiresAt"), texts[1], None))


def _event(move: Json, record: Json) -> Statement:
    ids = (move["executionId"], move["eventId"])
    return Statement(_EVENT, (*ids, record["revision"], json.dumps(move), json.dumps(record)))


def _run_of_large_values(run_id: str) -> Iterator[Statement]:
    params = json.dumps({"task": _incompressible()})
    row = (run_id, "w", params, "running", "{}", "{}", 1, "2026-10-01T11:00:00.5+02", None, None)
    yield Statement(_RUN, row)
    yield Statement(
        "UPDATE workflow_run SET status = 'completed', revision = 2, completed_at = '2026-10-01T10:00:00.123456Z'"
        " WHERE id = %s",
        (run_id,),
    )


def _incompressible() -> str:
    """Give a text that PostgreSQL keeps outside of its row."""
    random = Random(7)
    return "".join(
        random.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") for _ in range(3_000)
    )
