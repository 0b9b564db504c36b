"""The directory of Parquet files: a row per id at any moment, names, bytes, crashes, and what others left there."""

import asyncio
import json
import os
import random
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.worker.sinks.destinations import (
    DOC_RUN,
    POLICY,
    ParquetDestination,
    deletion,
    run_record,
    upsert,
)
from tests.worker.sinks.killed_writer import BATCH_ROWS, batches_of_a_killed_writer, rows_by_batch
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.stores import parquet as parquet_segments
from worker.stores.directory import META_NAME
from worker.stores.parquet import Segments

EMPTY = "schema.parquet"


@pytest.fixture
def directory(tmp_path: Path) -> ParquetDestination:
    return ParquetDestination(tmp_path)


def doc_run() -> list[Upsert]:
    return [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]


def files(destination: ParquetDestination, table: str = "trace_run") -> list[str]:
    return sorted(path.name for path in (destination.path / table).iterdir() if path.name != EMPTY)


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def runs(first: int, count: int, **fields: Any) -> list[Upsert]:
    return [upsert(run_record(f"r{number}", **fields), number) for number in range(first, first + count)]


def incompressible(seed: int, length: int) -> str:
    return random.Random(seed).randbytes(length // 2).hex()


# --------------------------------------------------------------------------------------------------- plain readers


def test_a_plain_reader_has_one_row_per_id_at_any_moment(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_segments, "FILE_BYTES", 4_000)
    pattern = f"{directory.path}/trace_run/*.parquet"
    seen: set[tuple[Any, ...]] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            with duckdb.connect() as connection:
                query = f"SELECT count(*), count(DISTINCT id) FROM '{pattern}'"  # noqa: S608
                seen.update(connection.execute(query).fetchall())

    async def work(sink: Any) -> None:
        await sink.write(runs(0, 200))
        reader = threading.Thread(target=look)
        reader.start()
        try:
            for number in range(1, 30):
                batch = [item._replace(offset=item.offset + 1_000 * number) for item in runs(0, 200, error=str(number))]
                await sink.write(batch)
        finally:
            is_over.set()
            reader.join()

    directory.run(work)
    assert len(files(directory)) > 5
    assert seen == {(200, 200)}


def test_a_table_without_rows_has_its_columns_for_a_plain_reader(directory: ParquetDestination) -> None:
    directory.write()
    with duckdb.connect() as connection:
        query = f"SELECT count(status) FROM '{directory.path}/trace_gate/*.parquet'"  # noqa: S608
        assert connection.execute(query).fetchall() == [(0,)]


def test_flushes_without_and_with_values_are_one_data_set(directory: ParquetDestination) -> None:
    directory.write(runs(0, 2), [upsert(run_record("r9", error="late", completedAt="2026-09-28T11:00:00Z"), 9)])
    query = f"SELECT id, error FROM '{directory.path}/trace_run/*.parquet' ORDER BY id"  # noqa: S608
    with duckdb.connect() as connection:
        assert connection.execute(query).fetchall() == [("r0", None), ("r1", None), ("r9", "late")]


def test_no_reader_takes_deletions_or_what_is_being_written_for_rows(directory: ParquetDestination) -> None:
    directory.write(doc_run(), [deletion(DOC_RUN[0], 100)])
    (directory.path / "trace_run" / ".g1-00000000000000000000.parquet.partial").write_bytes(b"half")
    with duckdb.connect() as connection:
        query = f"SELECT count(*) FROM '{directory.path}/trace_run/*.parquet'"  # noqa: S608
        assert connection.execute(query).fetchall() == [(0,)]
    assert pq.read_table(directory.path / "trace_run", partitioning=None).num_rows == 0


def test_everything_is_for_its_owner_alone(directory: ParquetDestination) -> None:
    umask = os.umask(0)
    try:
        directory.write(doc_run(), [deletion(DOC_RUN[0], 100)])
    finally:
        os.umask(umask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [directory.path, *directory.path.rglob("*")]}
    assert modes == {0o700, 0o600}


# --------------------------------------------------------------------------------------------------- names and bytes


def test_a_file_is_named_by_where_its_range_begins_and_takes_rows_until_it_is_full(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_segments, "FILE_BYTES", 10_000)
    directory.write(runs(5, 2))
    assert files(directory) == ["g1-00000000000000000005.parquet"]
    directory.write(runs(20, 2))
    assert files(directory) == ["g1-00000000000000000005.parquet"]
    directory.write([upsert(run_record("big", error=incompressible(1, 20_000)), 31)], runs(40, 2))
    assert files(directory) == ["g1-00000000000000000005.parquet", "g1-00000000000000000040.parquet"]
    directory.write([upsert(run_record("other", error=incompressible(2, 20_000)), 41, generation=2)])
    directory.write([upsert(run_record("next"), 7, generation=2)])
    assert files(directory)[-1] == "g2-00000000000000000007.parquet"


def test_ranges_of_two_partitions_that_begin_at_one_offset_have_two_names(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_segments, "FILE_BYTES", 1)
    assert len(directory.write([upsert(run_record("a"), 3)], [upsert(run_record("b"), 3)])) == 2
    assert files(directory) == ["g1-00000000000000000003-2.parquet", "g1-00000000000000000003.parquet"]


def test_the_same_batch_twice_leaves_the_files_as_they_are(directory: ParquetDestination) -> None:
    batch = [*doc_run(), deletion(run_record("gone"), 77)]
    directory.write(batch)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in directory.path.rglob("*.parquet")}
    directory.write(batch, batch)
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in directory.path.rglob("*.parquet")} == before


def test_the_same_batches_make_the_same_files(tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        destination = ParquetDestination(tmp_path / name)
        destination.write(doc_run(), runs(100, 50), [deletion(DOC_RUN[3], 200)], runs(140, 20, error="x"))
        written.append(content(destination.path))
    assert written[0] == written[1]


def test_a_write_replaces_only_the_files_whose_rows_it_changes(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_segments, "FILE_BYTES", 2_000)
    directory.write(runs(0, 100))
    before = {path.name: path.stat().st_ino for path in (directory.path / "trace_run").iterdir()}
    directory.write([upsert(run_record("r50", error="x"), 1_000)])
    after = {path.name: path.stat().st_ino for path in (directory.path / "trace_run").iterdir()}
    assert len(before) > 3
    assert after.keys() == before.keys()
    assert sum(after[name] != before[name] for name in before) == 1


# ------------------------------------------------------------------------------------------------------------ crashes


@pytest.mark.parametrize("delay_s", [0.21, 0.57, 1.13])
def test_a_killed_writer_leaves_whole_files_and_everything_that_it_had_acknowledged(
    directory: ParquetDestination, delay_s: float
) -> None:
    acknowledged = batches_of_a_killed_writer(directory.url, delay_s)
    with duckdb.connect() as connection:
        pattern = f"{directory.path}/trace_run/*.parquet"
        (counts,) = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM '{pattern}'").fetchall()  # noqa: S608
    assert counts[0] == counts[1]
    held = rows_by_batch(directory.write([]))
    assert set(acknowledged) <= {number for number, rows in held.items() if rows == BATCH_ROWS}
    assert sum(held.values()) <= BATCH_ROWS * (len(acknowledged) + 1)
    assert not list(directory.path.rglob("*.partial"))
    again = [upsert(run_record(f"0-{part}", error="x" * 2_000), 0) for part in range(50)]
    assert directory.write(again).keys() >= {item.key for item in again}


class CrashError(Exception):
    """Stands for the end of the process."""


def crash_before_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Segments.commit

    def crash(self: Segments, changes: Any) -> None:
        if "record" in self.schema.names and changes:
            raise CrashError
        commit(self, changes)

    monkeypatch.setattr(Segments, "commit", crash)


def test_a_deletion_that_a_crash_interrupted_is_finished_when_the_directory_is_opened(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write(runs(0, 3))
    with monkeypatch.context() as patch:
        crash_before_rows(patch)
        with pytest.raises(CrashError):
            directory.write([deletion(run_record("r1"), 10)])
    assert directory.write([]).keys() == {("run", "r0"), ("run", "r2")}
    assert directory.write([upsert(run_record("r1"), 9)]).keys() == {("run", "r0"), ("run", "r2")}


def test_a_crash_while_a_deleted_record_comes_back_forgets_neither(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write([deletion(run_record("r1"), 10)])
    with monkeypatch.context() as patch:
        crash_before_rows(patch)
        with pytest.raises(CrashError):
            directory.write([upsert(run_record("r1"), 11), deletion(run_record("r2"), 12)])
    assert directory.write([upsert(run_record("r1"), 9)]) == {}
    assert directory.write([upsert(run_record("r1"), 11)]).keys() == {("run", "r1")}


def test_a_deletion_that_a_newer_version_outlives_goes_with_a_later_deletion(directory: ParquetDestination) -> None:
    one, two, three = (run_record(f"r{number}") for number in (1, 2, 3))
    directory.write([deletion(one, 1), deletion(two, 2)], [upsert(one, 3)], [deletion(three, 4)])
    remembered = pq.read_table(directory.path / "_deletions", partitioning=None)["id"].to_pylist()
    assert sorted(remembered) == ["r2", "r3"]


def test_a_write_that_fails_while_files_take_their_names_can_be_done_again(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = doc_run()

    async def work(sink: Any) -> None:
        with monkeypatch.context() as patch:
            crash_before_rows(patch)
            with pytest.raises(CrashError):
                await sink.write(batch)
        assert not list(directory.path.rglob("*.partial"))
        await sink.write(batch)

    assert directory.run(work) == {item.key: item.json for item in batch}


def test_what_arrow_says_of_a_value_is_not_repeated(directory: ParquetDestination) -> None:
    bad = upsert(run_record("r1"), 1, json_bytes=b"ZZSECRETZZ \xff")

    async def work(sink: Any) -> None:
        with pytest.raises(SinkFailed) as caught:
            await sink.write([bad])
        assert "ZZSECRETZZ" not in str(caught.value)
        assert caught.value.__context__ is None
        await sink.write(runs(5, 1))

    assert directory.run(work).keys() == {("run", "r5")}


# ------------------------------------------------------------------------------------------------- others, releases


def test_a_second_writer_waits(directory: ParquetDestination) -> None:
    async def work(sink: Any) -> None:
        await sink.write(runs(0, 1))
        other = open_sink(directory.url, POLICY)
        with pytest.raises(SinkBusy) as caught:
            await other.open()
        assert caught.value.delay_s > 0

    directory.run(work)
    assert directory.write(runs(1, 1)).keys() == {("run", "r0"), ("run", "r1")}


def test_a_directory_that_was_moved_away_is_not_written(directory: ParquetDestination) -> None:
    moved = directory.path.with_name("moved")

    async def work(sink: Any) -> None:
        await sink.write(runs(0, 1))
        directory.path.rename(moved)
        with pytest.raises(SinkRefused, match="moved or replaced"):
            await sink.write(runs(1, 1))
        moved.rename(directory.path)

    assert directory.run(work).keys() == {("run", "r0")}


@pytest.mark.parametrize("is_file", [True, False])
def test_what_is_somebody_elses_is_refused_and_left_as_it_is(directory: ParquetDestination, is_file: bool) -> None:
    if is_file:
        directory.path.write_text("mine", encoding="utf-8")
    else:
        directory.path.mkdir()
        (directory.path / "mine.parquet").write_text("mine", encoding="utf-8")
    with pytest.raises(SinkRefused, match="of an export"):
        directory.write(runs(0, 1))
    paths = [directory.path] if is_file else list(directory.path.rglob("*"))
    assert [path.read_text(encoding="utf-8") for path in paths] == ["mine"]


def test_an_empty_directory_is_taken(directory: ParquetDestination) -> None:
    directory.path.mkdir()
    assert directory.write(runs(0, 1)).keys() == {("run", "r0")}


def test_a_directory_that_is_not_there_is_not_made_with_its_parents(tmp_path: Path) -> None:
    with pytest.raises(SinkRefused, match="there is no directory"):
        asyncio.run(open_sink(f"parquet:{tmp_path}/a/b", POLICY).open())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("location", ["", "s3://bucket/traces"])
def test_a_location_that_is_no_local_directory_is_refused(location: str) -> None:
    with pytest.raises(SinkRefused, match="directory"):
        open_sink(f"parquet:{location}", POLICY)


def test_files_that_were_changed_by_others_are_refused(directory: ParquetDestination) -> None:
    directory.write(runs(0, 1))
    table = directory.path / "trace_run"
    (table / "broken.parquet").write_bytes(b"ZZSECRETZZ")
    with pytest.raises(SinkRefused, match="no file that a sink wrote") as caught:
        directory.write([])
    assert "ZZSECRETZZ" not in str(caught.value)
    shutil.copy(table / files(directory)[-1], table / "broken.parquet")
    with pytest.raises(SinkRefused, match="another file"):
        directory.write([])


def set_meta(directory: ParquetDestination, **changes: Any) -> None:
    path = directory.path / META_NAME
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes), encoding="utf-8")


def test_a_directory_of_a_newer_release_is_refused(directory: ParquetDestination) -> None:
    directory.write([])
    set_meta(directory, schema_version=999)
    with pytest.raises(SinkRefused, match="newer release"):
        directory.write([])


def test_files_of_an_older_release_get_the_columns_they_lack_filled_from_their_records(
    directory: ParquetDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_segments, "FILE_BYTES", 1_000)
    before = directory.write([*doc_run(), *runs(100, 20, error="why")], [deletion(DOC_RUN[1], 500)])
    for path in (directory.path / "trace_run").glob("*.parquet"):
        pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["error", "completed_at"]), path)
    set_meta(directory, schema_version=0)
    assert directory.write([]) == before
    assert directory.query("SELECT count(*) FROM trace_run WHERE error = 'why'") == [(20,)]
    assert directory.query("SELECT count(*) FROM trace_run WHERE completed_at IS NOT NULL") == [(1,)]
    assert json.loads((directory.path / META_NAME).read_bytes())["schema_version"] == 1
    assert directory.write([upsert(DOC_RUN[1], 499)]) == before


def test_every_file_has_the_types_of_the_schema_whatever_is_in_it(directory: ParquetDestination) -> None:
    directory.write(doc_run())
    for table in directory.path.glob("trace_*"):
        schemas = [pq.read_schema(path) for path in table.glob("*.parquet")]
        assert all(schema.equals(schemas[0]) for schema in schemas)
        assert not any(pa.types.is_null(field.type) for field in schemas[0])
