"""Delta tables: writers beside each other, crashes, maintenance under readers, and what others left there."""

import asyncio
import itertools
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.worker.sinks.destinations import DOC_RUN, POLICY, REPOSITORY, DeltaDestination, deletion, run_record, upsert
from tests.worker.sinks.killed_writer import assert_whole, batches_of_a_killed_writer, rows_by_batch
from worker.record_reader import RecordsUnreadable, open_reader
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sinks import delta_table
from worker.stores.delta import POLICY_PROPERTY, TABLES, VERSION_PROPERTY
from worker.stores.directory import META_NAME

RUN = ("run", "r1")


@pytest.fixture
def tables(tmp_path: Path) -> DeltaDestination:
    return DeltaDestination(tmp_path)


def doc_run() -> list[Upsert]:
    return [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]


def table(destination: DeltaDestination, name: str = "trace_run") -> DeltaTable:
    return DeltaTable(destination.path / name)


# ------------------------------------------------------------------------------------------------------ many writers


async def patiently(sink: Any, batch: list[Upsert]) -> None:
    while True:
        try:
            await sink.write(batch)
        except SinkBusy:
            await asyncio.sleep(0.01)
        else:
            return


BESIDE = """
import asyncio, sys
from tests.worker.sinks.destinations import deletion, run_record, upsert
from tests.worker.sinks.test_delta import patiently
from worker.sink import open_sink

async def main():
    sink = open_sink(sys.argv[1], "policy-a")
    await sink.open()
    print("open", flush=True)
    sys.stdin.readline()
    for offset in range(int(sys.argv[2]), 40, 2):
        records = [run_record(f"r{number}", error=str(offset)) for number in range(10)]
        batch = [upsert(record, offset) for record in records]
        batch[offset % 10] = deletion(records[offset % 10], offset)
        await patiently(sink, batch)

asyncio.run(main())
"""


def test_two_processes_on_one_place_leave_the_newest_of_each_record_once(tables: DeltaDestination) -> None:
    tables.write([])
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", BESIDE, tables.url, str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        for first in (0, 1)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    for writer in writers:
        writer.communicate()
    # The last version of all, 39, deletes r9.
    rows = tables.query("SELECT id, error FROM trace_run ORDER BY id")
    assert rows == [(f"r{number}", "39") for number in range(9)]


def write_beside(tables: DeltaDestination, batch: list[Upsert]) -> None:
    """Write as another worker does, on the thread that this is called on."""
    sink = delta_table.DeltaSink(str(tables.path), POLICY)
    sink._open()
    sink._write(batch)


def between(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None], times: int) -> None:
    """Let somebody else write between what a writer reads and its commit, so many times."""
    merge = delta_table._merge
    left = itertools.count(times, -1)

    def interrupted(target: DeltaTable, source: Any, predicate: str) -> Any:
        merger = merge(target, source, predicate)
        if threading.current_thread().name != "beside" and "kind" not in predicate and next(left) > 0:
            beside = threading.Thread(target=work, name="beside")
            beside.start()
            beside.join()
        return merger

    monkeypatch.setattr(delta_table, "_merge", interrupted)


@pytest.mark.parametrize("known", [[], [upsert(run_record("r1"), 1)]], ids=["absent", "present"])
def test_a_deletion_that_comes_between_reading_and_writing_is_not_undone(
    tables: DeltaDestination, monkeypatch: pytest.MonkeyPatch, known: list[Upsert]
) -> None:
    tables.write(known)

    def delete() -> None:
        write_beside(tables, [deletion(run_record("r1"), 7)])

    between(monkeypatch, delete, 1)
    assert tables.write([upsert(run_record("r1", status="failed"), 3)]) == {}
    assert tables.write([upsert(run_record("r1", status="failed"), 8)]).keys() == {RUN}


def test_a_newer_version_that_comes_between_reading_and_writing_stays(
    tables: DeltaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write([upsert(run_record("r1"), 1)])
    newer = upsert(run_record("r1", status="completed"), 9)

    def write() -> None:
        write_beside(tables, [newer])

    between(monkeypatch, write, 1)
    assert tables.write([upsert(run_record("r1", status="failed"), 3)]) == {RUN: newer.json}


def test_a_writer_that_others_are_always_before_is_put_off_and_loses_nothing(
    tables: DeltaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = itertools.count(100)
    mine = upsert(run_record("mine"), 3)

    def write() -> None:
        write_beside(tables, [upsert(run_record("theirs"), next(offsets))])

    async def work(sink: Any) -> None:
        with pytest.raises(SinkBusy) as caught:
            await sink.write([mine])
        assert caught.value.delay_s > 0
        await sink.write([mine])

    between(monkeypatch, write, delta_table.TRIES_MAX)
    assert tables.run(work).keys() == {("run", "mine"), ("run", "theirs")}


# ------------------------------------------------------------------------------------------------------------ crashes


@pytest.mark.parametrize("delay_s", [0.21, 0.57, 1.13])
def test_a_killed_writer_leaves_whole_batches_and_every_one_that_it_had_acknowledged(
    tables: DeltaDestination, delay_s: float
) -> None:
    acknowledged = batches_of_a_killed_writer(tables.url, delay_s)
    assert_whole(rows_by_batch(tables.write([])), acknowledged)


def test_a_deletion_that_was_remembered_and_not_applied_is_applied_when_it_comes_again(
    tables: DeltaDestination,
) -> None:
    tables.write([upsert(run_record("r1"), 1)])

    async def work(sink: Any) -> None:
        sink._change("trace_deletions", lambda target: sink._remember([deletion(run_record("r1"), 5)], target))
        await sink.write([deletion(run_record("r1"), 5)])

    assert tables.run(work) == {}


def test_what_the_driver_says_of_a_value_is_not_repeated(tables: DeltaDestination) -> None:
    async def work(sink: Any) -> None:
        with pytest.raises(SinkFailed) as caught:
            await sink.write([upsert(run_record("r1"), 1, json_bytes=b"ZZSECRETZZ \xff")])
        assert "ZZSECRETZZ" not in str(caught.value)
        assert caught.value.__context__ is None
        await sink.write([upsert(run_record("r2"), 2)])

    assert tables.run(work).keys() == {("run", "r2")}


# --------------------------------------------------------------------------------------------------------- the tables


def test_a_readers_table_holds_living_records_and_nothing_else(tables: DeltaDestination) -> None:
    tables.write(doc_run(), [deletion(DOC_RUN[0], 100)])
    assert table(tables).to_pyarrow_table().num_rows == 0
    assert table(tables, "trace_deletions").to_pyarrow_table().num_rows == 1


def test_a_repeated_batch_is_no_commit(tables: DeltaDestination) -> None:
    tables.write(doc_run())
    before = table(tables).version()
    tables.write(doc_run(), doc_run())
    assert table(tables).version() == before


def test_the_log_of_a_table_repeats_nothing_of_a_record(tables: DeltaDestination) -> None:
    tables.write([upsert(run_record("r1", error="ZZSECRETZZ"), 1)])
    logs = [path.read_bytes() for path in tables.path.rglob("*.json")]
    assert logs
    assert not any(b"ZZSECRETZZ" in data for data in logs)


def test_nobody_else_gets_into_the_directory(tables: DeltaDestination) -> None:
    umask = os.umask(0)
    try:
        tables.write(doc_run())
    finally:
        os.umask(umask)
    assert stat.S_IMODE(tables.path.stat().st_mode) == 0o700


def test_every_table_says_under_which_policy_it_was_written(tables: DeltaDestination) -> None:
    tables.write([])
    assert {table(tables, path.name).metadata().configuration[POLICY_PROPERTY] for path in tables.path.glob("t*")} == {
        POLICY
    }
    # What the tables say counts, whatever stands beside them.
    meta = json.loads((tables.path / META_NAME).read_bytes())
    (tables.path / META_NAME).write_text(json.dumps(meta | {"policy_digest": "policy-b"}), encoding="utf-8")
    with pytest.raises(SinkRefused, match="another policy"):
        asyncio.run(open_sink(tables.url, "policy-b").open())


def test_small_files_are_put_together_and_a_reader_of_an_older_version_reads_on(
    tables: DeltaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "COMMITS_PER_MAINTENANCE", 8)
    tables.write(*([upsert(run_record(f"r{number}"), number)] for number in range(6)))
    reader = table(tables)
    orphans = [tables.path / "trace_run" / f"part-{name}.parquet" for name in ("old", "new")]
    for path in orphans:
        path.write_bytes(b"of a writer that was killed")
    ten_days_ago = time.time() - 10 * 86_400
    os.utime(orphans[0], (ten_days_ago, ten_days_ago))
    kept = tables.write(*([upsert(run_record(f"r{number}"), number)] for number in range(6, 9)))
    assert len(kept) == 9
    assert len(table(tables).file_uris()) < 4
    assert [path.exists() for path in orphans] == [False, True]
    assert len(reader.file_uris()) == 6
    assert reader.to_pyarrow_table().num_rows == 6


def test_flushes_without_and_with_values_are_one_table(tables: DeltaDestination) -> None:
    tables.write([upsert(run_record("r1"), 1)], [upsert(run_record("r2", error="late"), 2)])
    found = table(tables).to_pyarrow_table()
    assert not any(pa.types.is_null(field.type) for field in found.schema)
    assert sorted(found["error"].to_pylist(), key=str) == [None, "late"]


def test_tables_of_an_older_release_get_the_columns_they_lack_filled_from_their_records(
    tables: DeltaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = TABLES["trace_run"]
    fewer = pa.schema([field for field in schema if field.name not in ("error", "completed_at")])
    with monkeypatch.context() as patch:
        patch.setitem(TABLES, "trace_run", fewer)
        for module in ("worker.stores.delta", "worker.sinks.delta_table"):
            patch.setattr(f"{module}.SCHEMA_VERSION", 0)
        delta_table.DeltaSink(str(tables.path), POLICY)._open()
    records = [upsert(DOC_RUN[0], 1), upsert(run_record("r1", error="why"), 2)]
    source = delta_table._source("run", records, []).drop_columns(["error", "completed_at", "_is_gone"])
    delta_table._merge(table(tables), source, "s.id = t.id").when_not_matched_insert_all().execute()
    assert table(tables).metadata().configuration[VERSION_PROPERTY] == "0"
    assert tables.write([]) == {item.key: item.json for item in records}
    rows = table(tables).to_pyarrow_table().sort_by("id").select(["id", "error"]).to_pylist()
    assert {"id": "r1", "error": "why"} in rows
    assert tables.query("SELECT count(*) FROM trace_run WHERE completed_at IS NOT NULL") == [(1,)]
    assert table(tables).metadata().configuration[VERSION_PROPERTY] == "1"
    assert tables.write([upsert(run_record("r3", error="new"), 3)]).keys() == {
        *(item.key for item in records),
        ("run", "r3"),
    }


def test_tables_of_a_newer_release_are_refused(tables: DeltaDestination) -> None:
    tables.write([])
    table(tables).alter.set_table_properties({VERSION_PROPERTY: "999"}, raise_if_not_exists=False)
    with pytest.raises(SinkRefused, match="newer release"):
        tables.write([])
    with pytest.raises(RecordsUnreadable, match="newer release"):
        list(open_reader(tables.url).read(("run",)))


def test_somebody_elses_directory_is_refused_and_left_as_it_is(tables: DeltaDestination) -> None:
    DeltaTable.create(str(tables.path / "trace_run"), pa.schema([("x", pa.int64())]))
    before = {path: path.read_bytes() for path in tables.path.rglob("*") if path.is_file()}
    with pytest.raises(SinkRefused, match="not of an export"):
        tables.write([upsert(run_record("r1"), 1)])
    assert {path: path.read_bytes() for path in tables.path.rglob("*") if path.is_file()} == before


def test_a_directory_that_was_replaced_is_not_written(tables: DeltaDestination, tmp_path: Path) -> None:
    tables.write([upsert(run_record("r1"), 1)])

    async def work(sink: Any) -> None:
        tables.path.rename(tmp_path / "moved")
        with pytest.raises(SinkRefused, match="moved or replaced"):
            await sink.write([upsert(run_record("r2"), 2)])
        other = open_sink(tables.url, POLICY)
        await other.open()
        with pytest.raises(SinkRefused, match="moved or replaced"):
            await sink.write([upsert(run_record("r2"), 2)])

    assert tables.run(work) == {}


def test_maintenance_that_others_come_before_is_left_to_a_later_time(
    tables: DeltaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "COMMITS_PER_MAINTENANCE", 2)
    vacuum = DeltaTable.vacuum
    calls = itertools.count()

    def interrupted(target: DeltaTable, *arguments: Any, **options: Any) -> Any:
        if next(calls) == 0:
            raise CommitFailedError
        return vacuum(target, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "vacuum", interrupted)
    held = tables.write(*([upsert(run_record(f"r{number}"), number)] for number in range(6)))
    assert len(held) == 6
    assert next(calls) > 1
