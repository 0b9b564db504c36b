"""The DuckDB file: its columns and views, its readers, its permissions, and what a crash or another release left."""

import asyncio
import os
import stat
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

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
from tests.worker.sinks.killed_writer import assert_whole, batches_of_a_killed_writer, rows_by_batch
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sinks import duckdb_file
from worker.sinks.duckdb_file import DuckDBSink
from worker.stores import duckdb_tables
from worker.stores.columns import COLUMNS

RUN_ID = DOC_RUN[0]["id"]


@pytest.fixture
def file(tmp_path: Path) -> DuckDBDestination:
    return DuckDBDestination(tmp_path)


def doc_run() -> list[Upsert]:
    return [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]


def test_only_what_is_deleted_now_stands_among_the_deletions(file: DuckDBDestination) -> None:
    one, two = run_record("r1"), run_record("r2")
    file.write([deletion(one, 1), deletion(two, 2)], [upsert(one, 3)])
    assert file.query("SELECT kind, id, _generation, _offset FROM trace_deletions") == [("run", "r2", 1, 2)]


def test_what_does_not_fit_into_memory_is_written_with_more_of_it(
    file: DuckDBDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [upsert(run_record(f"r{number}") | {"error": "x" * 100_000}, number) for number in range(50)]
    monkeypatch.setattr(duckdb_file, "_MEMORY_MIB_FIRST", 8)
    assert len(file.write(batch)) == 50
    # It was needed: a limit that stays is too little.
    monkeypatch.setattr(duckdb_file, "_MEMORY_MIB_MAX", 0)
    monkeypatch.setattr(DuckDBSink, "_memory_limit", "SET memory_limit = '8MiB'")
    with pytest.raises(SinkFailed, match="OutOfMemory"):
        file.write(batch)


@pytest.mark.parametrize("first_mib", [1, 2, 3, 5, 7, 11])
def test_memory_that_falls_short_anywhere_in_a_write_or_a_migration_is_given(
    file: DuckDBDestination, monkeypatch: pytest.MonkeyPatch, first_mib: int
) -> None:
    batch = [upsert(run_record(f"r{number}") | {"error": f"{number}" * 500}, number) for number in range(3_000)]
    monkeypatch.setattr(duckdb_file, "_MEMORY_MIB_FIRST", first_mib)
    assert len(file.write(batch, [upsert(item.record or {}, item.offset + 5_000) for item in batch[::7]])) == 3_000
    with duckdb.connect(str(file.path)) as connection:
        connection.execute("UPDATE trace_meta SET value = '0' WHERE name = 'schema_version'")
    before = file.records()
    assert file.write([]) == before


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
        for _ in range(2):
            reader = python(hold, str(file.path))
            assert reader.stdout is not None
            assert await asyncio.to_thread(reader.stdout.readline) == "held\n"
            delays_s = []
            for _ in range(7):
                with pytest.raises(SinkBusy) as caught:
                    await sink.write([upsert(run_record("r2"), 2)])
                delays_s.append(caught.value.delay_s)
            # Soon at first, and no more often than needed when somebody stays.
            assert delays_s == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
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


@pytest.mark.parametrize("name", ["duckdb", "jsonl"])
@pytest.mark.parametrize("delay_s", [0.31, 0.57, 1.13])
def test_a_killed_writer_leaves_whole_batches_and_every_one_that_it_had_acknowledged(
    tmp_path: Path, name: str, delay_s: float
) -> None:
    destination = DESTINATIONS[name](tmp_path)
    acknowledged = batches_of_a_killed_writer(destination.url, delay_s)
    assert_whole(rows_by_batch(destination.write([])), acknowledged)


# --------------------------------------------------------------------------------------------- files that are not ours


def test_a_file_of_an_older_release_gets_the_columns_it_lacks_filled_from_its_records(file: DuckDBDestination) -> None:
    file.write([*doc_run(), deletion(DOC_RUN[1], 50)])
    with duckdb.connect(str(file.path)) as connection:
        for name in ("trace_runs", "trace_attempts", "trace_spend"):
            connection.execute(f"DROP VIEW {name}")
        # Before the fourth version, rows were found by indexes.
        for table, key in {**{f"trace_{kind}": "id" for kind in COLUMNS}, "trace_deletions": "kind, id"}.items():
            connection.execute(f"ALTER TABLE {table} DROP COLUMN _key")
            connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({key})")
        connection.execute("ALTER TABLE trace_cost DROP COLUMN cost_usd")
        connection.execute("ALTER TABLE trace_run DROP COLUMN completed_at")
        # What is somebody's own is not in the way.
        connection.execute("CREATE INDEX mine ON trace_run (workflow_name)")
        connection.execute('ALTER TABLE trace_run ADD COLUMN "my note" DECIMAL(9, 2) DEFAULT 1.5')
        connection.execute("UPDATE trace_meta SET value = '0' WHERE name = 'schema_version'")
    before = file.records()
    assert file.write([]) == before
    row = file.row("SELECT cost_usd, completed_at FROM trace_runs")
    assert row == {"cost_usd": 0.35, "completed_at": datetime(2026, 9, 28, 11, 2, 41, tzinfo=UTC)}
    assert file.query('SELECT "my note"::DOUBLE FROM trace_run') == [(1.5,)]
    assert file.query("SELECT value FROM trace_meta WHERE name = 'schema_version'") == [
        (str(duckdb_tables.SCHEMA_VERSION),)
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
