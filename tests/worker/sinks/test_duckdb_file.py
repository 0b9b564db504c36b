"""The DuckDB file: its columns and views, its readers, its permissions, and what a crash or another release left."""

import asyncio
import itertools
import json
import math
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from projections.ids import ConversationIdentity, conversation_ref, cost_id
from projections.usage import fold_usage
from tests.worker.sinks.destinations import (
    DESTINATIONS,
    DOC_RUN,
    POLICY,
    REPOSITORY,
    DuckDBDestination,
    deletion,
    run_record,
    upsert,
)
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sink_columns import COLUMNS, Column
from worker.sinks import duckdb_file

RUN_ID = DOC_RUN[0]["id"]


@pytest.fixture
def file(tmp_path: Path) -> DuckDBDestination:
    return DuckDBDestination(tmp_path)


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


def test_every_column_holds_what_the_record_says(file: DuckDBDestination) -> None:
    file.write(doc_run())
    for record in DOC_RUN:
        row = file.row(f"SELECT * FROM trace_{record['kind']} WHERE id = '{record['id']}'")  # noqa: S608
        for column in COLUMNS[record["kind"]]:
            expected = value_at(record, column)
            found = json.loads(row[column.name]) if column.type == "json" and expected else row[column.name]
            assert found == expected, column.name


def test_a_redacted_number_and_an_unredacted_one_share_a_column(file: DuckDBDestination) -> None:
    pull = next(record for record in DOC_RUN if record.get("artifactKind") == "pr")
    digest = "hmac-sha256:" + "0" * 64
    file.write([upsert(pull, 1), upsert({**pull, "id": digest, "number": digest}, 2)])
    assert {number for (number,) in file.query("SELECT number FROM trace_artifact")} == {str(pull["number"]), digest}


def test_a_time_beyond_microseconds_is_cut_in_its_column_and_whole_in_the_record(file: DuckDBDestination) -> None:
    at = "2026-09-28T23:59:59.123456789+02:00"
    file.write([upsert(run_record("r1", at=at), 1)])
    row = file.row("SELECT started_at, record FROM trace_run")
    assert row["started_at"] == datetime(2026, 9, 28, 21, 59, 59, 123456, tzinfo=UTC)
    assert at in row["record"]


def test_columns_of_a_text_that_json_functions_refuse_are_filled_all_the_same(file: DuckDBDestination) -> None:
    record = {**run_record("r1"), "error": "cut \ud83d and \x00"}
    file.write([upsert(record, 1, json_bytes=json.dumps(record, separators=(",", ":")).encode())])
    row = file.row("SELECT error, workflow_name FROM trace_run")
    assert row == {"error": "cut \ufffdd83d and \ufffd0000", "workflow_name": "doc-change"}


def test_trace_runs_of_the_documentation_run(file: DuckDBDestination) -> None:
    file.write(doc_run())
    assert file.row("SELECT * FROM trace_runs") == {
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


def test_trace_runs_counts_what_is_open_and_what_failed(file: DuckDBDestination) -> None:
    gate = next(record for record in DOC_RUN if record.get("gateKind") == "human")
    call = next(record for record in DOC_RUN if record["kind"] == "call")
    more = [
        {**gate, "id": gate["id"] + ":7", "status": "pending"},
        {**call, "id": call["id"] + "a", "isError": True},
        {**call, "id": call["id"] + "b", "isError": None},
        {**call, "id": call["id"] + "c", "callKind": "model", "isError": True},
    ]
    file.write([*doc_run(), *(upsert(record, 100 + n) for n, record in enumerate(more))])
    counts = "open_gates, calls, tool_calls, tool_errors"
    assert file.query(f"SELECT {counts} FROM trace_runs") == [(1, 4, 3, 1)]  # noqa: S608


def test_a_run_of_which_nothing_else_is_known_has_zero_counts_and_unknown_sums(file: DuckDBDestination) -> None:
    file.write([upsert(run_record("r1"), 1)])
    row = file.row("SELECT * FROM trace_runs")
    assert {row[name] for name in ("attempts", "retries", "open_gates", "calls", "costs_unknown")} == {0}
    assert {row[name] for name in ("duration_s", "input_tokens", "total_tokens", "cost_usd", "known_cost_usd")} == {
        None
    }


def test_trace_attempts_has_a_row_for_every_attempt(file: DuckDBDestination) -> None:
    file.write(doc_run())
    attempts = [record for record in DOC_RUN if record["kind"] == "attempt"]
    assert len(file.query("SELECT * FROM trace_attempts")) == len(attempts)
    retried = file.row("SELECT * FROM trace_attempts WHERE step_id = 'draft' AND iteration = 0 AND attempt = 1")
    assert (retried["outcome"], retried["calls"], retried["cost_usd"], retried["duration_s"]) == (
        "succeeded",
        1,
        0.31,
        330.0,
    )
    review = file.row("SELECT * FROM trace_attempts WHERE step_id = 'owner-review' AND iteration = 0")
    assert review["gate_wait_s"] == pytest.approx(807.9)


def test_the_day_of_spend_is_that_of_utc(file: DuckDBDestination) -> None:
    cost = next(record for record in DOC_RUN if record["kind"] == "cost")
    file.write([upsert({**cost, "at": "2026-09-29T00:30:00.000+02:00"}, 1)])
    with duckdb.connect(str(file.path), read_only=True) as connection:
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        assert connection.execute("SELECT CAST(day AS VARCHAR) FROM trace_spend").fetchall() == [("2026-09-28",)]


def test_only_what_is_deleted_now_stands_among_the_deletions(file: DuckDBDestination) -> None:
    one, two = run_record("r1"), run_record("r2")
    file.write([deletion(one, 1), deletion(two, 2)], [upsert(one, 3)])
    assert file.query("FROM trace_deletions") == [("run", "r2", 1, 2)]


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


def test_spend_follows_the_fold_of_usage_and_an_unknown_part_makes_a_sum_unknown(file: DuckDBDestination) -> None:
    records: list[dict[str, Any]] = []
    folded: dict[str, list[Any]] = {}
    for run, identity, measurements in _conversations(seed=7):
        folded.setdefault(run, []).extend(fold_usage(measurements).measurements)
        for record_id, measurement in _newest_per_record(identity, measurements):
            head = {"schema": "titan.trace/v1", "kind": "cost", "id": record_id, "runId": run}
            times = {"at": "2026-09-28T10:00:40.000Z", "conversation": conversation_ref(identity)}
            records.append({**head, **times, "measurement": measurement})
    runs = [run_record(run) for run in folded]
    file.write([upsert(record, offset) for offset, record in enumerate([*records, *runs])])

    rows = file.query("SELECT run_id, input_tokens, output_tokens, cost_usd, costs_unknown FROM trace_runs")
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


# -------------------------------------------------------------------------------------------- readers, locks, crashes


def python(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def test_another_process_reads_the_file_between_flushes(file: DuckDBDestination) -> None:
    count = "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).sql('FROM trace_runs').fetchall())"

    async def work(sink: Any) -> None:
        for number in range(2):
            await sink.write([upsert(run_record(f"r{number}"), number)])
            reader = python(count, str(file.path))
            out, _ = await asyncio.to_thread(reader.communicate, timeout=60)
            assert reader.returncode == 0
            assert out.count("doc-change") == number + 1

    file.run(work)


def test_while_another_process_holds_the_file_a_write_is_put_off_and_not_lost(file: DuckDBDestination) -> None:
    file.write([upsert(run_record("r1"), 1)])
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print('held', flush=True); input()"

    async def work(sink: Any) -> None:
        reader = python(hold, str(file.path))
        assert reader.stdout is not None
        assert await asyncio.to_thread(reader.stdout.readline) == "held\n"
        with pytest.raises(SinkBusy) as caught:
            await sink.write([upsert(run_record("r2"), 2)])
        assert caught.value.delay_s > 0
        await asyncio.to_thread(reader.communicate, "\n", timeout=60)
        await sink.write([upsert(run_record("r2"), 2)])

    assert file.run(work).keys() == {("run", "r1"), ("run", "r2")}


def test_opening_a_file_that_is_held_is_put_off_too(file: DuckDBDestination) -> None:
    file.write([upsert(run_record("r1"), 1)])
    with duckdb.connect(str(file.path), read_only=True), pytest.raises(SinkBusy):
        asyncio.run(open_sink(file.url, POLICY).open())


def test_what_others_may_read_while_a_batch_is_written_holds_nothing_of_it(file: DuckDBDestination) -> None:
    open_to_others: set[tuple[str, bytes]] = set()

    async def work(sink: Any) -> None:
        for number in range(5):
            batch = [upsert(run_record(f"ZZSECRETZZ-{number}-{part}"), number) for part in range(500)]
            writing = asyncio.ensure_future(sink.write(batch))
            while not writing.done():
                for path in file.directory.iterdir():
                    with suppress(FileNotFoundError):
                        if path.lstat().st_mode & 0o077:
                            open_to_others.add((path.name, path.read_bytes()))
                await asyncio.sleep(0)
            await writing

    umask = os.umask(0o022)
    try:
        file.run(work)
    finally:
        os.umask(umask)
    # DuckDB marks a checkpoint that is going on in a file of its own.
    assert {name for name, _ in open_to_others} <= {"traces.duckdb.wal"}
    assert all(len(data) < 200 and b"ZZSECRET" not in data for _, data in open_to_others)
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in file.directory.iterdir()] == [
        ("traces.duckdb", 0o600)
    ]


WRITER = """
import asyncio, sys
from tests.worker.sinks.destinations import POLICY, run_record, upsert
from worker.sink import open_sink

async def main():
    sink = open_sink(sys.argv[1], POLICY)
    await sink.open()
    for number in range(10_000):
        await sink.write([upsert(run_record(f"{number}-{part}", error="x" * 2_000), number) for part in range(50)])
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["duckdb", "jsonl"])
@pytest.mark.parametrize("delay_s", [0.31, 0.57, 1.13])
def test_a_killed_writer_leaves_whole_batches_and_every_one_that_it_had_acknowledged(
    tmp_path: Path, name: str, delay_s: float
) -> None:
    destination = DESTINATIONS[name](tmp_path)
    writer = python(WRITER, destination.url)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "0\n"
    time.sleep(delay_s)
    writer.send_signal(signal.SIGKILL)
    out, _ = writer.communicate()
    acknowledged = [0, *map(int, out.split())]
    held = sorted(int(record_id.partition("-")[0]) for _, record_id in destination.write([]))
    counts = {number: len(list(group)) for number, group in itertools.groupby(held)}
    assert set(counts.values()) == {50}
    assert list(counts) == list(range(len(counts)))
    assert len(acknowledged) <= len(counts) <= len(acknowledged) + 1


# --------------------------------------------------------------------------------------------- files that are not ours


def test_a_file_of_an_older_release_gets_the_columns_it_lacks_filled_from_its_records(file: DuckDBDestination) -> None:
    file.write([*doc_run(), deletion(DOC_RUN[1], 50)])
    with duckdb.connect(str(file.path)) as connection:
        for name in ("trace_runs", "trace_attempts", "trace_spend"):
            connection.execute(f"DROP VIEW {name}")
        connection.execute("ALTER TABLE trace_cost DROP COLUMN cost_usd")
        connection.execute("ALTER TABLE trace_run DROP COLUMN completed_at")
        connection.execute("UPDATE trace_meta SET value = '0' WHERE name = 'schema_version'")
    before = file.records()
    assert file.write([]) == before
    row = file.row("SELECT cost_usd, completed_at FROM trace_runs")
    assert row == {"cost_usd": 0.35, "completed_at": datetime(2026, 9, 28, 11, 2, 41, tzinfo=UTC)}
    assert file.query("SELECT value FROM trace_meta WHERE name = 'schema_version'") == [
        (str(duckdb_file.SCHEMA_VERSION),)
    ]
    assert file.write([upsert(DOC_RUN[1], 49)]) == before


def test_a_file_of_a_newer_release_is_refused(file: DuckDBDestination) -> None:
    file.write([])
    with duckdb.connect(str(file.path)) as connection:
        connection.execute("UPDATE trace_meta SET value = '999' WHERE name = 'schema_version'")
    with pytest.raises(SinkRefused, match="newer release"):
        file.write([])


def test_somebody_elses_database_is_refused_and_left_as_it_is(file: DuckDBDestination) -> None:
    with duckdb.connect(str(file.path)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    with pytest.raises(SinkRefused, match="not one of an export"):
        file.write([upsert(run_record("r1"), 1)])
    assert file.query("SELECT table_name FROM duckdb_tables()") == [("mine",)]


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(file: DuckDBDestination) -> None:
    file.path.write_text("hello")
    with pytest.raises(SinkRefused, match="no DuckDB file"):
        file.write([])
    assert file.path.read_text() == "hello"


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkRefused, match="no directory"):
        asyncio.run(open_sink(f"duckdb:{tmp_path}/missing/traces.duckdb", POLICY).open())


def test_a_file_that_was_removed_under_the_sink_is_not_made_anew_without_its_records(file: DuckDBDestination) -> None:
    async def work(sink: Any) -> None:
        await sink.write([upsert(run_record("r1"), 1)])
        file.path.unlink()
        with pytest.raises(SinkRefused, match="is gone"):
            await sink.write([upsert(run_record("r2"), 2)])
        assert not file.path.exists()
        assert await sink.open(), "made anew, it says that it holds nothing"

    assert file.run(work) == {}


def test_a_path_with_quotes_and_spaces_is_a_path(tmp_path: Path) -> None:
    directory = tmp_path / 'it\'s a "dir"; --'
    directory.mkdir()
    assert DuckDBDestination(directory).write([upsert(run_record("r1"), 1)]).keys() == {("run", "r1")}


def test_an_error_of_the_database_is_named_without_its_text(file: DuckDBDestination) -> None:
    file.write([])
    with duckdb.connect(str(file.path)) as connection:
        connection.execute(
            "DROP VIEW trace_runs; DROP TABLE trace_run; CREATE TABLE trace_run (id INTEGER PRIMARY KEY)"
        )
    with pytest.raises(SinkFailed) as caught:
        file.write([upsert(run_record("ZZSECRETZZ"), 1)])
    assert "ZZSECRETZZ" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
