"""What every reader promises, for every reader in the table, against the sink it reads behind."""

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.projections.reports.cost_records import call, cost, delta, snapshot
from tests.worker.sinks.destinations import DESTINATIONS, DOC_RUN, POLICY, Destination, deletion, run_record, upsert
from worker.record_reader import READERS, Record, RecordsUnreadable, is_sink_url, open_reader
from worker.sink import SINKS, Sink, SinkBusy, open_sink
from worker.stores.columns import COLUMNS

KINDS = tuple(COLUMNS)
FILES = [name for name in READERS if DESTINATIONS[name].is_file]
BATCHES = 12


@pytest.fixture(params=list(READERS))
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    return DESTINATIONS[request.param](tmp_path)


def found(destination: Destination, kinds: Collection[str] = KINDS, run_id: str | None = None) -> list[Record]:
    records = open_reader(destination.url).read(kinds, run_id)
    return sorted(records, key=lambda record: (record["kind"], record["id"]))


def in_order(*records: dict[str, Any]) -> list[Record]:
    return sorted(records, key=lambda record: (record["kind"], record["id"]))


def test_every_reader_reads_behind_a_sink() -> None:
    assert READERS.keys() <= SINKS.keys()


def test_what_was_written_is_read_back(destination: Destination) -> None:
    destination.write([upsert(record, offset) for offset, record in enumerate(DOC_RUN)])
    assert found(destination) == in_order(*DOC_RUN)


def test_only_the_kinds_that_were_asked_for_are_read(destination: Destination) -> None:
    destination.write([upsert(record, offset) for offset, record in enumerate(DOC_RUN)])
    for kind in KINDS:
        assert found(destination, (kind,)) == in_order(*(record for record in DOC_RUN if record["kind"] == kind))


def test_deleted_and_older_records_are_not_read(destination: Destination) -> None:
    newer = run_record("r1", status="completed")
    destination.write([upsert(run_record("r1"), 1), upsert(run_record("r2"), 2)], [upsert(newer, 3)])
    destination.write([deletion(run_record("r2"), 4)])
    assert found(destination) == [newer]


def test_a_sink_that_is_open_is_read_as_of_its_last_write(destination: Destination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(run_record("r1"), 1), upsert(run_record("r2"), 2)])
        assert found(destination) == [run_record("r1"), run_record("r2")]
        await sink.write([upsert(run_record("r1", status="failed"), 3), deletion(run_record("r2"), 4)])
        assert found(destination) == [run_record("r1", status="failed")]

    destination.run(work)


def test_an_empty_sink_has_no_records(destination: Destination) -> None:
    destination.write()
    assert found(destination) == []


def test_texts_that_utf8_does_not_hold_come_back_as_they_were(destination: Destination) -> None:
    record = run_record("r1", error="a\x00b\ud800c")
    json_bytes = upsert(run_record("r1", error="@"), 1).json
    assert json_bytes is not None
    destination.write([upsert(record, 1, json_bytes=json_bytes.replace(b"@", b"a\\u0000b\\ud800c"))])
    assert found(destination) == [record]
    assert found(destination, run_id="r1") == [record]


def test_of_one_run_its_records_are_read_and_all_costs_of_its_conversations(destination: Destination) -> None:
    mine = [
        run_record("r1"),
        call("a", run="r1"),
        cost(snapshot("turn", "t", input=1), "shared", run="r1"),
        cost(delta("x", input=2), "shared", run="r2"),
    ]
    others = [run_record("r2"), call("b", run="r2"), cost(delta("y", input=3), "other", run="r2")]
    destination.write([upsert(record, offset) for offset, record in enumerate(mine + others)])
    assert found(destination, run_id="r1") == in_order(*mine)
    assert found(destination, run_id="none") == []


def test_a_reader_never_sees_half_of_a_batch(destination: Destination) -> None:
    destination.write([upsert(run_record(name, error="0"), 0) for name in ("r1", "r2")])
    seen: list[set[str]] = []
    finished = threading.Event()

    def write() -> None:
        async def work() -> None:
            sink = open_sink(destination.url, POLICY)
            for number in range(1, BATCHES + 1):
                batch = [upsert(run_record(name, error=str(number)), number) for name in ("r1", "r2")]
                await _patiently(sink.open)
                await _patiently(lambda batch=batch: sink.write(batch))
                if number % 3 == 0:
                    # Closing is when a JSONL file is put in its order, under the reader's hands.
                    await sink.close()
            await sink.close()

        try:
            asyncio.run(work())
        finally:
            finished.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not finished.is_set():
        seen.append({record["error"] for record in found(destination)})
    writer.join()
    assert {len(errors) for errors in seen} == {1}
    assert [record["error"] for record in found(destination)] == [str(BATCHES)] * 2


async def _patiently(step: Any) -> None:
    while True:
        try:
            await step()
        except SinkBusy:
            await asyncio.sleep(0.01)
        else:
            return


@pytest.mark.parametrize("scheme", FILES)
def test_a_file_that_is_not_there_is_a_wrong_place(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(RecordsUnreadable, match=r"there is no (file|directory)") as refused:
        list(open_reader(f"{scheme}:{tmp_path / 'none'}").read(KINDS))
    assert refused.value.is_usage
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", FILES)
def test_a_file_of_something_else_is_refused_without_a_word_of_it(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "else"
    path.write_text("ZZSECRETZZ " * 1_000)
    with pytest.raises(RecordsUnreadable) as refused:
        list(open_reader(f"{scheme}:{path}").read(KINDS))
    assert refused.value.is_usage
    assert "ZZSECRETZZ" not in str(refused.value)
    assert path.read_text() == "ZZSECRETZZ " * 1_000


@pytest.mark.parametrize("url", ["stdout:", "memory:x", "-", "jsonl:-", "duckdb:", "mysql://me:ZZSECRETZZ@host/db"])
def test_what_cannot_be_read_back_is_refused_without_its_address(url: str) -> None:
    with pytest.raises(RecordsUnreadable, match="duckdb:PATH, jsonl:PATH") as refused:
        open_reader(url)
    assert refused.value.is_usage
    assert "ZZSECRETZZ" not in str(refused.value)


@pytest.mark.parametrize(
    ("place", "is_url"),
    [("duckdb:x", True), ("stdout:", True), ("-", True), ("runs/demo", False), ("a:b", False), ("./duckdb:x", False)],
)
def test_sinks_are_told_from_paths_by_their_scheme(place: str, is_url: bool) -> None:
    assert is_sink_url(place) is is_url
