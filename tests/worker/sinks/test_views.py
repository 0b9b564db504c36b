"""Typed columns and views of every destination with SQL: they say what the records say, in all of them alike."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from projections.decode import decode_json
from projections.ids import ConversationIdentity, conversation_ref, cost_id
from projections.usage import fold_usage, sum_or_null
from tests.worker.sinks.destinations import DESTINATIONS, DOC_RUN, SqlDestination, run_record, upsert
from tests.worlds.cluster import clean_pass
from tests.worlds.world import World
from worker.sink import Upsert
from worker.stores.columns import COLUMNS, Column, row_values

RUN_ID = DOC_RUN[0]["id"]
WITH_SQL = [name for name, destination in DESTINATIONS.items() if issubclass(destination, SqlDestination)]


@pytest.fixture(params=WITH_SQL)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SqlDestination:
    destination = DESTINATIONS[request.param](tmp_path)
    assert isinstance(destination, SqlDestination)
    return destination


def store_bytes(name: str) -> bytes | None:
    return upsert(run_record(name), 2).json


def doc_run() -> list[Upsert]:
    return [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]


# -------------------------------------------------------------------------------------------------- columns and views


def value_at(record: dict[str, Any], column: Column) -> Any:
    value: Any = record
    for key in column.path:
        value = value.get(key) if isinstance(value, dict) else None
    if value is None or column.type == "json":
        return value
    if column.type == "time":
        return datetime.fromisoformat(value)
    return str(value) if column.type == "text" else value


def test_every_column_holds_what_the_record_says(store: SqlDestination) -> None:
    store.write(doc_run())
    for record in DOC_RUN:
        row = store.row(f"SELECT * FROM trace_{record['kind']} WHERE id = '{record['id']}'")  # noqa: S608
        for column in COLUMNS[record["kind"]]:
            expected = value_at(record, column)
            assert row[column.name] == expected, column.name


def test_values_for_destinations_that_read_no_json_are_those_of_the_others(store: SqlDestination) -> None:
    store.write(doc_run())
    for record in DOC_RUN:
        row = store.row(f"SELECT * FROM trace_{record['kind']} WHERE id = '{record['id']}'")  # noqa: S608
        for column, value in zip(COLUMNS[record["kind"]], row_values(record["kind"], record), strict=True):
            read = {"time": datetime.fromisoformat, "json": json.loads}.get(column.type, lambda value: value)
            assert row[column.name] == (None if value is None else read(value)), column.name


@pytest.mark.parametrize(
    "changes",
    [
        {"at": "0000-01-01T00:00:00Z"},
        {"at": "9999-12-31T23:59:59-23:59"},
        {"at": "2026-09-28T10:00+23:59"},
        {"correlations": {"a\x00b": "\ud800", "n": 2**53}},
        {"workflowName": 7, "status": True, "error": ["x"]},
    ],
    ids=["no year", "beyond the calendar", "a long way east", "texts no database takes", "other types"],
)
def test_what_fits_no_column_stands_in_the_record_and_takes_nothing_else_down(
    store: SqlDestination, changes: dict[str, Any]
) -> None:
    record = run_record("r1", **changes)
    odd = upsert(record, 1, json_bytes=json.dumps(record, separators=(",", ":")).encode())
    assert store.write([odd, upsert(run_record("r2"), 2)]) == {odd.key: odd.json, ("run", "r2"): store_bytes("r2")}
    assert store.query("SELECT count(*) FROM trace_runs") == [(2,)]


def test_a_redacted_number_and_an_unredacted_one_share_a_column(store: SqlDestination) -> None:
    pull = next(record for record in DOC_RUN if record.get("artifactKind") == "pr")
    digest = "hmac-sha256:" + "0" * 64
    store.write([upsert(pull, 1), upsert({**pull, "id": digest, "number": digest}, 2)])
    assert {number for (number,) in store.query("SELECT number FROM trace_artifact")} == {str(pull["number"]), digest}


def test_a_time_beyond_microseconds_is_cut_in_its_column_and_whole_in_the_record(store: SqlDestination) -> None:
    at = "2026-09-28T23:59:59.123456789+02:00"
    store.write([upsert(run_record("r1", at=at), 1)])
    row = store.row("SELECT started_at, record FROM trace_run")
    assert row["started_at"] == datetime(2026, 9, 28, 21, 59, 59, 123456, tzinfo=UTC)
    assert at in row["record"]


def test_columns_of_a_text_that_json_functions_refuse_are_filled_all_the_same(store: SqlDestination) -> None:
    record = {**run_record("r1"), "error": "cut \ud83d and \x00"}
    store.write([upsert(record, 1, json_bytes=json.dumps(record, separators=(",", ":")).encode())])
    row = store.row("SELECT error, workflow_name FROM trace_run")
    assert row == {"error": "cut \ufffdd83d and \ufffd0000", "workflow_name": "doc-change"}


def test_trace_runs_of_the_documentation_run(store: SqlDestination) -> None:
    store.write(doc_run())
    assert store.row("SELECT * FROM trace_runs") == {
        "run_id": RUN_ID,
        "workflow_name": "doc-change",
        "status": "completed",
        "started_at": datetime(2026, 9, 28, 10, tzinfo=UTC),
        "completed_at": datetime(2026, 9, 28, 11, 2, 41, tzinfo=UTC),
        "duration_s": 3761.0,
        "error": None,
        "attempts": 7,
        "retries": 1,
        "failed_attempts": 1,
        "open_gates": 0,
        "calls": 1,
        "tool_calls": 1,
        "tool_errors": 0,
        "input_tokens": 10_300,
        "output_tokens": 2_700,
        "cached_input_tokens": 0,
        "total_tokens": 13_000,
        "cost_usd": 0.35,
        "known_cost_usd": 0.35,
        "costs_unknown": 0,
    }


def test_trace_runs_counts_what_is_open_and_what_failed(store: SqlDestination) -> None:
    gate = next(record for record in DOC_RUN if record.get("gateKind") == "human")
    call = next(record for record in DOC_RUN if record["kind"] == "call")
    more = [
        {**gate, "id": gate["id"] + ":7", "status": "pending"},
        {**call, "id": call["id"] + "a", "isError": True},
        {**call, "id": call["id"] + "b", "isError": None},
        {**call, "id": call["id"] + "c", "callKind": "model", "isError": True},
    ]
    store.write([*doc_run(), *(upsert(record, 100 + n) for n, record in enumerate(more))])
    counts = "open_gates, calls, tool_calls, tool_errors"
    assert store.query(f"SELECT {counts} FROM trace_runs") == [(1, 4, 3, 1)]  # noqa: S608


def test_a_run_of_which_nothing_else_is_known_has_zero_counts_and_unknown_sums(store: SqlDestination) -> None:
    store.write([upsert(run_record("r1"), 1)])
    row = store.row("SELECT * FROM trace_runs")
    assert {row[name] for name in ("attempts", "retries", "open_gates", "calls", "costs_unknown")} == {0}
    assert {row[name] for name in ("duration_s", "input_tokens", "total_tokens", "cost_usd", "known_cost_usd")} == {
        None
    }


def test_trace_attempts_has_a_row_for_every_attempt(store: SqlDestination) -> None:
    store.write(doc_run())
    attempts = [record for record in DOC_RUN if record["kind"] == "attempt"]
    assert len(store.query("SELECT * FROM trace_attempts")) == len(attempts)
    retried = store.row("SELECT * FROM trace_attempts WHERE step_id = 'draft' AND iteration = 0 AND attempt = 1")
    assert (retried["outcome"], retried["calls"], retried["cost_usd"], retried["duration_s"]) == (
        "succeeded",
        1,
        0.31,
        330.0,
    )
    review = store.row("SELECT * FROM trace_attempts WHERE step_id = 'owner-review' AND iteration = 0")
    assert review["gate_wait_s"] == pytest.approx(807.9)


def test_the_day_of_spend_is_that_of_utc(store: SqlDestination) -> None:
    cost = next(record for record in DOC_RUN if record["kind"] == "cost")
    store.write([upsert({**cost, "at": "2026-09-29T00:30:00.000+02:00"}, 1)])
    assert store.query("SELECT day FROM trace_spend", time_zone="Asia/Tokyo") == [(date(2026, 9, 28),)]


# ------------------------------------------------------------------------------- spend: sums never double, null is null


def _measurement(rng: random.Random, *, delta: bool) -> dict[str, Any]:
    counts = ["input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total"]
    body = {
        "model": rng.choice([None, "m-1", "m-2"]),
        "tokens": {name: rng.choice([None, *range(1, 9)]) if rng.random() < 0.2 else 7 for name in counts},
        "cost": None if rng.random() < 0.1 else {"usd": rng.randrange(1_000) / 1_000, "kind": "estimate"},
        "source": "s",
    }
    if delta:
        return {"kind": "delta", "responseId": f"msg-{rng.randrange(4)}", **body}
    return {
        "kind": "snapshot",
        "scope": rng.choice(["turn", "conversation"]),
        "scopeId": f"scope-{rng.randrange(2)}",
        "epoch": f"epoch-{rng.randrange(2)}",
        "sequence": rng.randrange(5),
        **body,
    }


def _conversations(seed: int) -> Iterator[tuple[str, ConversationIdentity, list[dict[str, Any]]]]:
    """Run, conversation, and measurements in source order; two conversations to a run."""
    rng = random.Random(seed)
    for number in range(120):
        kinds = rng.choice([(True,), (False,), (True, False)])
        measurements = [_measurement(rng, delta=rng.choice(kinds)) for _ in range(rng.randrange(1, 9))]
        yield f"run-{number // 2}", ConversationIdentity("codex", "host", f"conv-{number}"), measurements


def _newest_per_record(
    identity: ConversationIdentity, measurements: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cost records that are left of measurements: one per id, with the last report of the highest sequence."""
    newest: dict[str, dict[str, Any]] = {}
    for measurement in measurements:
        record_id = cost_id(identity, measurement)
        known = newest.get(record_id)
        if known is None or measurement.get("sequence", 0) >= known.get("sequence", 0):
            newest[record_id] = measurement
    yield from newest.items()


def _sum(values: Sequence[Any]) -> Any:
    return None if not values or None in values else sum(values)


def test_spend_follows_the_fold_of_usage_and_an_unknown_part_makes_a_sum_unknown(store: SqlDestination) -> None:
    records: list[dict[str, Any]] = []
    folded: dict[str, list[Any]] = {}
    for run, identity, measurements in _conversations(seed=7):
        folded.setdefault(run, []).extend(fold_usage(measurements).measurements)
        for record_id, measurement in _newest_per_record(identity, measurements):
            head = {"schema": "titan.trace/v1", "kind": "cost", "id": record_id, "runId": run}
            times = {"at": "2026-09-28T10:00:40.000Z", "conversation": conversation_ref(identity)}
            records.append({**head, **times, "measurement": measurement})
    runs = [run_record(run) for run in folded]
    store.write([upsert(record, offset) for offset, record in enumerate([*records, *runs])])

    rows = store.query("SELECT run_id, input_tokens, output_tokens, cost_usd, costs_unknown FROM trace_runs")
    found = {run: values for run, *values in rows}
    assert len(found) == 60
    for run, parts in folded.items():
        costs = [part["cost"] and part["cost"]["usd"] for part in parts]
        expected_cost = _sum(costs)
        input_tokens, output_tokens, cost, unknown = found[run]
        assert input_tokens == _sum([part["tokens"]["input"] for part in parts])
        assert output_tokens == _sum([part["tokens"]["output"] for part in parts])
        assert unknown == costs.count(None)
        assert cost is None if expected_cost is None else math.isclose(cost, expected_cost)
    known = [values for values in found.values() if values[2] is not None]
    assert known, "some sums are known"
    assert len(known) < len(found), "and some are not"


def _costs_that_count(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The costs that the fold of usage leaves, conversation by conversation."""
    conversations: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["kind"] == "cost":
            conversations.setdefault(record["conversation"], []).append(record)
    counting = []
    for costs in conversations.values():
        folded = {id(measurement) for measurement in fold_usage(cost["measurement"] for cost in costs).measurements}
        counting += [cost for cost in costs if id(cost["measurement"]) in folded]
    return counting


@pytest.mark.parametrize("name", WITH_SQL)
def test_in_generated_worlds_spend_is_what_the_fold_of_usage_leaves(name: str, tmp_path: Path) -> None:
    spent = 0
    for seed in range(6):
        (tmp_path / str(seed)).mkdir()
        store = DESTINATIONS[name](tmp_path / str(seed))
        assert isinstance(store, SqlDestination)
        said = list(clean_pass(World(seed).messages, unbound="standalone").records.values())
        records = [decode_json(data) for data in said]
        store.write([upsert(record, offset, json_bytes=said[offset]) for offset, record in enumerate(records)])
        costs = _costs_that_count(records)
        spent += len(costs)
        assert {cost_id for (cost_id,) in store.query("SELECT cost_id FROM trace_spend")} == {c["id"] for c in costs}
        rows = store.query("SELECT run_id, input_tokens, output_tokens, total_tokens, known_cost_usd FROM trace_runs")
        assert rows
        for run_id, *tokens, usd in rows:
            parts = [cost["measurement"] for cost in costs if cost["runId"] == run_id]
            expected = [
                sum_or_null([part["tokens"][field] for part in parts]) for field in ("input", "output", "total")
            ]
            assert tokens == (expected if parts else [None] * 3)
            known = [part["cost"]["usd"] for part in parts if part["cost"] is not None]
            assert usd is None if not known else math.isclose(usd, sum(known))
    assert spent > 50
