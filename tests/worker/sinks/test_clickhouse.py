"""ClickHouse: several writers, repeated inserts, lost servers and answers, generations, databases of somebody else."""

import asyncio
import itertools
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from tests.stores import clickhouse
from tests.stores.severing_proxy import SeveringProxy
from tests.worker.sinks.destinations import (
    DOC_RUN,
    POLICY,
    REPOSITORY,
    ClickHouseDestination,
    deletion,
    run_record,
    upsert,
)
from worker.record_reader import RecordsUnreadable, open_reader
from worker.sink import Pricing, Sink, SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sink_place import Serving, SinkPlace
from worker.sink_switch import beside, discard, policy_of, switch
from worker.stores import clickhouse as clickhouse_place
from worker.stores import clickhouse_server

KEY = ("run", "r1")
RUNNING, DONE = run_record("r1"), run_record("r1", status="completed")


@pytest.fixture
def store(tmp_path: Path) -> ClickHouseDestination:
    return ClickHouseDestination(tmp_path)


def execute(store: ClickHouseDestination, *statements: str) -> None:
    with store.server.connect(store.database) as client:
        for statement in statements:
            client.command(statement)


def tables(store: ClickHouseDestination) -> list[str]:
    names = store.query(
        f"SELECT name FROM system.tables WHERE database = '{store.database}' AND name LIKE 'trace_stored%'"  # noqa: S608
    )
    return [name for (name,) in names]


def table(store: ClickHouseDestination) -> str:
    (name,) = tables(store)
    return name


def rows_inserted(store: ClickHouseDestination) -> int:
    """All rows that are there, versions that are not merged yet included."""
    (count,) = store.row(f"SELECT count() FROM {table(store)}").values()  # noqa: S608
    return int(count)


def told(error: BaseException) -> str:
    """Everything that an error says, and whatever stands behind it."""
    return f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"


# ------------------------------------------------------------------------------------------------------ several writers

WRITER = """
import asyncio, random, sys
from tests.worker.sinks.destinations import POLICY
from tests.worker.sinks.test_clickhouse import versions
from worker.sink import open_sink

async def main():
    sink = open_sink(sys.argv[1], POLICY)
    await sink.open()
    items = versions()
    random.Random(int(sys.argv[2])).shuffle(items)
    for start in range(0, len(items), 40):
        await sink.write(items[start : start + 40])
        print(start, flush=True)
    await sink.close()

asyncio.run(main())
"""


def versions() -> list[Upsert]:
    """Many versions of a few records of two kinds, some of them deletions, the last of each known."""
    gate = next(record for record in DOC_RUN if record["kind"] == "gate")
    items = []
    for number in range(60):
        for offset in range(12):
            run = run_record(f"r{number}", error=str(offset))
            record = run if number % 2 else {**gate, "id": f"g{number}/review", "reason": str(offset)}
            is_deleted = (number + offset) % 5 == 0
            items.append(deletion(record, offset) if is_deleted else upsert(record, offset))
    return items


def newest(items: list[Upsert]) -> dict[tuple[str, str], bytes]:
    last = {item.key: item for item in sorted(items, key=lambda item: item.version)}
    return {key: item.json for key, item in last.items() if item.json is not None}


def start_writer(store: ClickHouseDestination, seed: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, store.url, str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


def test_two_workers_on_the_same_partitions_one_of_them_killed_leave_one_row_per_id_and_the_newest(
    store: ClickHouseDestination,
) -> None:
    writers = [start_writer(store, seed) for seed in (1, 2)]
    killed = writers[0]
    assert killed.stdout is not None
    assert [killed.stdout.readline() for _ in range(2)] == ["0\n", "40\n"]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    # Whoever takes over reads everything since the last commit again, while the other goes on.
    writers[0] = start_writer(store, 3)
    for writer in writers:
        writer.communicate(timeout=120)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert store.records() == newest(versions())
    execute(store, f"OPTIMIZE TABLE {table(store)} FINAL")
    assert store.records() == newest(versions()), "merged as it was read"


def test_writers_that_make_the_place_together_make_it_once(store: ClickHouseDestination) -> None:
    async def story() -> None:
        sinks = [open_sink(store.url, POLICY) for _ in range(4)]
        assert await asyncio.gather(*(sink.open() for sink in sinks)) == [True] * 4
        await asyncio.gather(*(sink.write([upsert(run_record(f"r{n}"), n)]) for n, sink in enumerate(sinks)))
        await asyncio.gather(*(sink.close() for sink in sinks))

    asyncio.run(story())
    assert store.records().keys() == {("run", f"r{n}") for n in range(4)}
    assert len(tables(store)) == 1


def test_any_number_of_members_of_a_group_may_write_at_a_place_of_a_generation(store: ClickHouseDestination) -> None:
    assert not open_sink(store.url, POLICY).single_writer
    assert not SinkPlace(store.url, POLICY, 1, Serving(1)).single_writer


# --------------------------------------------------------------------------------- versions, tokens, replays and sums


def test_versions_of_a_record_whose_times_fall_in_two_months_are_one_row(store: ClickHouseDestination) -> None:
    times = ["2026-03-31T23:59:59.999900Z", "2026-04-01T00:00:00.000100Z", "2026-04-01T00:00:00.000Z"]
    batches = [[upsert(run_record("c1", at=at), offset)] for offset, at in enumerate(times)]
    store.write(*batches, batches[1])
    assert store.records() == {("run", "c1"): batches[2][0].json}
    execute(store, f"OPTIMIZE TABLE {table(store)} FINAL")
    assert rows_inserted(store) == 1
    assert store.write(batches[0]) == {("run", "c1"): batches[2][0].json}


def test_a_deletion_guards_after_rows_were_merged(store: ClickHouseDestination) -> None:
    store.write([upsert(RUNNING, 1)], [deletion(RUNNING, 7)])
    execute(store, f"OPTIMIZE TABLE {table(store)} FINAL")
    assert store.write([upsert(RUNNING, 3)]) == {}
    assert store.write([upsert(DONE, 8)]).keys() == {KEY}


def test_generation_and_offset_have_room_for_any_number(store: ClickHouseDestination) -> None:
    greatest = 2**63 - 1
    assert store.write([upsert(RUNNING, greatest, generation=1)], [upsert(DONE, 0, generation=greatest)]) == {
        KEY: upsert(DONE, 0).json
    }


def test_a_batch_that_is_repeated_adds_no_rows(store: ClickHouseDestination) -> None:
    batch = [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]
    store.write(batch)
    assert rows_inserted(store) == len(batch)
    store.write(batch, batch[::-1])
    assert rows_inserted(store) == len(batch)


def test_batches_of_two_partitions_with_the_same_offsets_are_two_batches(store: ClickHouseDestination) -> None:
    assert store.write([upsert(RUNNING, 7)], [upsert(run_record("r2"), 7)]).keys() == {KEY, ("run", "r2")}


def test_what_was_truncated_is_filled_by_the_same_batches_again(store: ClickHouseDestination) -> None:
    batches = [[upsert(record, offset)] for offset, record in enumerate(DOC_RUN)]
    before = store.write(*batches)
    for statement in ("TRUNCATE TABLE {}", "ALTER TABLE {} DROP PARTITION tuple()"):
        execute(store, statement.format(table(store)))
        assert store.records() == {}
        assert store.write(*batches) == before


def test_a_generation_that_is_built_from_the_same_batches_has_all_rows(store: ClickHouseDestination) -> None:
    batch = [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]
    before = store.write(batch)
    fill(beside(store.url, "g2"), "new", *batch)
    switch(store.url, "g2", "new", keep=None)
    assert store.records() == before


SUMS = "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cost_usd) FROM trace_spend"
RUN_SUMS = "SELECT input_tokens, output_tokens, cost_usd, calls, attempts FROM trace_runs"


def test_sums_do_not_double_when_everything_is_replayed_in_other_batches(store: ClickHouseDestination) -> None:
    items = [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]
    store.write(items)
    before = store.query(SUMS), store.query(RUN_SUMS)
    assert before[0][0][0] > 0
    for size in (1, 3, 7):
        store.write(*(items[start : start + size] for start in range(0, len(items), size)))
        assert rows_inserted(store) > len(items), "these are not dropped as retries"
        assert (store.query(SUMS), store.query(RUN_SUMS)) == before
    execute(store, f"OPTIMIZE TABLE {table(store)} FINAL")
    assert rows_inserted(store) == len(items)
    assert (store.query(SUMS), store.query(RUN_SUMS)) == before


def test_what_is_known_of_a_price_stands_beside_its_cost(store: ClickHouseDestination) -> None:
    cost = next(record for record in DOC_RUN if record["kind"] == "cost")
    store.write([upsert(cost, 1)._replace(pricing=Pricing("unavailable", "model_unknown", "v1"))])
    columns = "price_basis, price_reason, price_table_version"
    assert store.query(f"SELECT {columns} FROM trace_spend") == [("unavailable", "model_unknown", "v1")]  # noqa: S608


def test_times_that_no_column_holds_are_null_and_stand_in_the_record(store: ClickHouseDestination) -> None:
    times = ["1899-12-31T23:59:59Z", "1900-01-01T00:00:00Z", "2299-12-31T23:59:59.999999Z", "2300-01-01T00:00:00Z"]
    store.write([upsert(run_record(str(number), at=at), number) for number, at in enumerate(times)])
    rows = store.query("SELECT toString(started_at) FROM trace_run ORDER BY id")
    assert [at for (at,) in rows] == [None, "1900-01-01 00:00:00.000000", "2299-12-31 23:59:59.999999", None]


# -------------------------------------------------------------------------------------------- failures and backpressure


def test_a_server_that_lost_its_power_has_what_it_acknowledged_and_the_batch_is_written_when_it_is_back() -> None:
    server = clickhouse.start()

    async def story() -> None:
        sink = open_sink(server.url("traces"), POLICY)
        await sink.open()
        await sink.write([upsert(RUNNING, 1)])
        server.kill()
        for _ in range(2):
            with pytest.raises(SinkFailed) as caught:
                await sink.write([upsert(DONE, 2)])
            assert clickhouse.PASSWORD not in told(caught.value)
        again = clickhouse.start(server.directory, server.port)
        with again.connect("traces") as client:
            assert client.query("SELECT status FROM trace_runs").result_rows == [("running",)]
            await sink.write([upsert(DONE, 2)])
            assert client.query("SELECT status FROM trace_runs").result_rows == [("completed",)]
        await sink.close()
        again.kill()

    asyncio.run(story())


def test_a_write_whose_success_was_never_heard_of_is_done_again_without_a_trace(store: ClickHouseDestination) -> None:
    store.write([upsert(RUNNING, 1)])
    proxy = SeveringProxy(store.server.port)
    batch = [upsert(DONE, 2), upsert(run_record("r2"), 3), deletion(run_record("r3"), 4)]

    async def story() -> None:
        sink = open_sink(store.server.url(store.database, port=proxy.port), POLICY)
        await sink.open()
        proxy.sever_after(b"INSERT INTO")
        # The driver sends it again by itself, and the sink's caller may as well.
        await sink.write(batch)
        assert rows_inserted(store) == 4
        await sink.write(batch)
        await sink.close()

    try:
        asyncio.run(story())
    finally:
        proxy.close()
    assert proxy.severed == 1
    assert rows_inserted(store) == 4
    assert store.records().keys() == {KEY, ("run", "r2")}


def test_a_batch_with_a_row_that_the_server_refuses_leaves_nothing_and_is_told_without_its_text(
    store: ClickHouseDestination, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gate = next(record for record in DOC_RUN if record["kind"] == "gate")
    before = store.write([upsert(RUNNING, 1)])
    execute(store, f"ALTER TABLE {table(store)} ADD CONSTRAINT c CHECK coalesce(workflow_name, '') NOT LIKE 'ZZ%'")
    batch = [upsert(gate, 2), upsert(DONE, 3), upsert(run_record("r2", workflowName="ZZSECRETZZ"), 4)]
    with pytest.raises(SinkFailed, match="469 VIOLATED_CONSTRAINT") as caught:
        store.write(batch)
    assert "ZZSECRETZZ" not in told(caught.value) + caplog.text
    assert store.records() == before
    assert store.write(batch[:2]).keys() == {KEY, ("gate", gate["id"])}


def test_a_table_with_too_many_parts_is_backpressure_with_a_delay(store: ClickHouseDestination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        name = table(store)
        execute(store, f"SYSTEM STOP MERGES {name}", f"ALTER TABLE {name} MODIFY SETTING parts_to_throw_insert = 1")
        with pytest.raises(SinkBusy, match="TOO_MANY_PARTS") as caught:
            await sink.write([upsert(DONE, 2)])
        assert caught.value.delay_s > 0
        execute(store, f"ALTER TABLE {name} RESET SETTING parts_to_throw_insert", f"SYSTEM START MERGES {name}")
        await sink.write([upsert(DONE, 2)])

    assert store.run(work) == {KEY: upsert(DONE, 2).json}


@pytest.mark.parametrize(
    ("code", "expected"),
    [(241, SinkBusy), (202, SinkBusy), (60, SinkRefused), (497, SinkRefused), (999, SinkFailed), (None, SinkFailed)],
)
def test_an_error_of_the_server_is_told_by_its_code(code: int | None, expected: type[Exception]) -> None:
    server, _ = clickhouse_server.split_location("//host/db")

    def fail() -> None:
        raise DatabaseError("ZZSECRETZZ", code=code)

    with pytest.raises(expected) as caught:
        clickhouse_server.told(server, fail)
    assert "ZZSECRETZZ" not in told(caught.value)


def test_a_server_that_is_away_or_refuses_the_password_is_a_failure_that_may_pass(
    store: ClickHouseDestination, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    wrong = store.url.replace(clickhouse.PASSWORD, "ZZOTHERZZ")
    for url in (store.server.url(store.database, port=1), wrong):
        with pytest.raises(SinkFailed, match="cannot be reached") as caught:
            asyncio.run(open_sink(url, POLICY).open())
        with pytest.raises(SinkBusy, match="cannot be reached"):
            policy_of(url)
        with pytest.raises(RecordsUnreadable, match="cannot be reached"):
            next(open_reader(url).read(["run"]))
        said = told(caught.value) + caplog.text
        assert not any(secret in said for secret in ("ZZOTHERZZ", clickhouse.PASSWORD, "ZZDETAILZZ"))


def test_the_password_may_come_from_the_environment_or_from_a_file(
    store: ClickHouseDestination, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = store.url.replace(f":{clickhouse.PASSWORD}", "")
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", clickhouse.PASSWORD)
    assert policy_of(url) is None
    (tmp_path / "password").write_text(f"{clickhouse.PASSWORD}\n")
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "wrong")
    monkeypatch.setenv("CLICKHOUSE_PASSWORD_FILE", str(tmp_path / "password"))
    assert policy_of(url) is None
    monkeypatch.setenv("CLICKHOUSE_PASSWORD_FILE", str(tmp_path / "ZZNOTHINGZZ"))
    with pytest.raises(SinkRefused, match="cannot be read") as caught:
        open_sink(url, POLICY)
    assert "ZZNOTHINGZZ" not in str(caught.value)


# ------------------------------------------------------------------------------- databases of others and other releases


def comment_of(store: ClickHouseDestination, name: str) -> str:
    return str(
        store.row(
            f"SELECT comment FROM system.tables WHERE database = '{store.database}' AND name = '{name}'"  # noqa: S608
        )["comment"]
    )


def be_of_release(store: ClickHouseDestination, version: int, without: str = "") -> None:
    """Let a place look as another release made it."""
    comment = comment_of(store, "trace_records").replace('"schema": 1', f'"schema": {version}')
    names = [name for name in store.row("SELECT * FROM trace_records LIMIT 1") if name != without]
    execute(
        store,
        f"CREATE OR REPLACE VIEW trace_records AS SELECT {', '.join(names)} FROM {table(store)} FINAL "  # noqa: S608
        f"COMMENT '{comment}'",
        *([f"ALTER TABLE {table(store)} DROP COLUMN {without}"] if without else []),
        f"ALTER TABLE trace_run MODIFY COMMENT 'trace-projector views {version}'",
    )


def test_a_place_of_an_older_release_gets_a_column_filled_from_its_records(store: ClickHouseDestination) -> None:
    record = run_record("r1", paramsSha256="0" * 64)
    odd = run_record("odd", paramsSha256="1" * 64, error="a\x00b")
    before = store.write([upsert(record, 5), upsert(odd, 5), deletion(run_record("r2"), 6)])
    be_of_release(store, 0, without="params_sha256")
    assert store.write([]) == before
    assert store.query("SELECT id, params_sha256 FROM trace_run ORDER BY id") == [("odd", "1" * 64), ("r1", "0" * 64)]
    assert '"schema": 1' in comment_of(store, "trace_records")
    assert store.write([upsert(run_record("r2"), 5), upsert(RUNNING, 4)]) == before


def test_a_place_of_a_newer_release_is_refused_before_and_between_writes(store: ClickHouseDestination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(run_record("r0"), 1)])
        be_of_release(store, 999)
        with pytest.raises(SinkRefused, match="newer release"):
            await sink.write([upsert(RUNNING, 1)])

    assert store.run(work).keys() == {("run", "r0")}
    with pytest.raises(SinkRefused, match="newer release"):
        store.write([])
    with pytest.raises(RecordsUnreadable, match="newer release"):
        next(open_reader(store.url).read(["run"]))


@pytest.mark.parametrize("name", ["trace_records", "trace_run", "trace_spend"])
@pytest.mark.parametrize("what", ["TABLE {} (x Int8) ENGINE = MergeTree ORDER BY x", "VIEW {} AS SELECT 1 AS x"])
def test_somebody_elses_table_or_view_is_refused_and_left_as_it_is(
    store: ClickHouseDestination, name: str, what: str
) -> None:
    with store.server.connect() as client:
        client.command(f"CREATE DATABASE {store.database}")
    execute(store, f"CREATE {what.format(name)}")
    with pytest.raises(SinkRefused, match="not of an export"):
        store.write([upsert(RUNNING, 1)])
    assert list(store.row(f"SELECT count(x) AS n FROM {name}")) == ["n"]  # noqa: S608


def test_a_place_that_was_removed_is_not_taken_for_the_one_that_another_writer_made_in_its_stead(
    store: ClickHouseDestination,
) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        with store.server.connect() as client:
            client.command(f"DROP DATABASE {store.database} SYNC")
        with pytest.raises(SinkRefused, match="is gone"):
            await sink.write([upsert(DONE, 2)])
        other = open_sink(store.url, POLICY)
        assert await other.open(), "made anew, it says that it holds nothing"
        await other.close()
        with pytest.raises(SinkRefused, match="is gone"):
            await sink.write([upsert(DONE, 2)])
        assert await sink.open()
        await sink.write([upsert(DONE, 2)])

    assert store.run(work) == {KEY: upsert(DONE, 2).json}


def test_a_table_that_was_dropped_under_a_writer_is_gone(store: ClickHouseDestination) -> None:
    async def work(sink: Sink) -> None:
        execute(store, f"DROP TABLE {table(store)} SYNC")
        with pytest.raises(SinkRefused, match="is gone"):
            await sink.write([upsert(DONE, 2)])
        with pytest.raises(SinkRefused, match="is gone"):
            await sink.open()
        await asyncio.to_thread(fill, beside(store.url, "fresh"), POLICY, upsert(DONE, 2))
        switch(store.url, "fresh", POLICY, keep=None)
        assert not await sink.open()

    assert store.run(work) == {KEY: upsert(DONE, 2).json}


@pytest.mark.parametrize(
    "location",
    [
        "traces",
        "//h",
        "//h/",
        "//u:ZZSECRETZZ@h:port/d",
        "//u:ZZSECRETZZ@h/d?no_such=1",
        "//u:ZZSECRETZZ@h/d?secure=yes",
        "//u:ZZSECRETZZ@h/d?place=a`b",
        "//u:ZZSECRETZZ@h/d#x",
        "//u:ZZSECRETZZ@[h/d",
    ],
)
def test_a_location_that_is_no_place_of_ours_is_refused_without_being_repeated(location: str) -> None:
    with pytest.raises(SinkRefused) as caught:
        open_sink(f"clickhouse:{location}", POLICY)
    assert "ZZSECRETZZ" not in told(caught.value)


def test_places_are_told_without_their_passwords() -> None:
    place: Any = clickhouse_place.place_of("//u:ZZSECRETZZ@host/db?secure=true&place=g2")
    assert "ZZSECRETZZ" not in f"{place!r} {place} {place.name} {place.server}"
    assert (place.pointer, place.server.port, place.server.password) == ("trace_records.g2", 8443, "ZZSECRETZZ")
    assert beside("clickhouse://u@host/db?secure=true", "g2") == "clickhouse://u@host/db?secure=true&place=g2"
    assert beside("clickhouse://u@host/db?place=g2", "resync") == "clickhouse://u@host/db?place=g2.resync"


def test_a_database_may_have_any_name(tmp_path: Path) -> None:
    store = ClickHouseDestination(tmp_path)
    url = store.url.replace(store.database, f"{store.database}%20%27%5c-x")
    fill(url, POLICY, upsert(RUNNING, 1))
    assert [record["id"] for record in open_reader(url).read(["run"])] == ["r1"]


# --------------------------------------------------------------------------------------------------- put into its place


def fill(url: str, policy: str, *batch: Upsert) -> None:
    async def story() -> None:
        sink = open_sink(url, policy)
        await sink.open()
        await sink.write(batch)
        await sink.close()

    asyncio.run(story())


def test_a_reader_sees_the_old_rows_or_the_new_ones_while_they_are_switched(store: ClickHouseDestination) -> None:
    fill(store.url, "p1", upsert(run_record("old-1"), 1), upsert(run_record("old-2"), 1))
    seen: set[frozenset[str]] = set()
    is_over = threading.Event()

    def look() -> None:
        with store.server.connect(store.database) as client:
            while not is_over.is_set():
                seen.add(frozenset(str(name) for (name,) in client.query("SELECT run_id FROM trace_runs").result_rows))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(2, 6):
            names = [f"{number}-{part}" for part in range(2)]
            fill(beside(store.url, f"g{number}"), f"p{number}", *(upsert(run_record(name), 1) for name in names))
            switch(store.url, f"g{number}", f"p{number}", keep=f"g{number - 1}")
    finally:
        is_over.set()
        looking.join()
    assert {len(names) for names in seen} == {2}
    assert len(seen) > 1


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], type[Exception]]:
    """Statements after so many of them are not sent: as when the process was killed there."""
    drivers: Any = clickhouse_connect
    get_client = drivers.get_client

    class Stopped(Exception):  # noqa: N818
        pass

    def stop_after(statements: int) -> type[Stopped]:
        sent = itertools.count()

        def client_that_stops(**parameters: Any) -> Any:
            client = get_client(**parameters)
            command = client.command

            def counted(*arguments: Any, **more: Any) -> Any:
                if next(sent) >= statements:
                    raise Stopped
                return command(*arguments, **more)

            client.command = counted
            return client

        monkeypatch.setattr(clickhouse_connect, "get_client", client_that_stops)
        return Stopped

    return stop_after


@pytest.mark.parametrize("keep", ["g1", None])
def test_a_switch_that_was_interrupted_anywhere_is_finished_by_doing_it_once_more(
    store: ClickHouseDestination,
    stopping: Callable[[int], type[Exception]],
    monkeypatch: pytest.MonkeyPatch,
    keep: str | None,
) -> None:
    for statements in range(20):
        with store.server.connect() as client:
            client.command(f"DROP DATABASE IF EXISTS {store.database} SYNC")
        fill(store.url, "old", upsert(RUNNING, 1))
        fill(beside(store.url, "g2"), "new", upsert(DONE, 1, generation=2))
        stopped = stopping(statements)
        try:
            switch(store.url, "g2", "new", keep=keep)
        except stopped:
            is_over = False
        else:
            is_over = True
        monkeypatch.undo()
        assert len(store.records()) == 1, "a reader has one or the other"
        switch(store.url, "g2", "new", keep=keep)
        assert store.records() == {KEY: upsert(DONE, 1).json}
        assert (policy_of(store.url), policy_of(beside(store.url, "g2"))) == ("new", None)
        assert policy_of(beside(store.url, "g1")) == ("old" if keep else None)
        assert len(tables(store)) == (2 if keep else 1)
        if is_over:
            assert statements > 2
            return
    pytest.fail("it never came to its end")


def test_discarding_one_of_two_views_of_a_table_leaves_the_table(
    store: ClickHouseDestination, stopping: Callable[[int], type[Exception]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(beside(store.url, "g2"), "new", upsert(DONE, 1))
    with pytest.raises(stopping(1)):
        switch(store.url, "g2", "new", keep=None)
    monkeypatch.undo()
    assert policy_of(store.url) == policy_of(beside(store.url, "g2")) == "new"
    assert discard(store.url, "g2")
    assert [record["id"] for record in open_reader(store.url).read(["run"])] == ["r1"]


def test_a_later_write_of_the_old_generation_is_refused_after_a_switch(store: ClickHouseDestination) -> None:
    fill(beside(store.url, "g2"), "new", upsert(DONE, 1, generation=2))

    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        switch(store.url, "g2", "new", "g1")
        with pytest.raises(SinkRefused, match="another policy"):
            await sink.write([upsert(run_record("late"), 1)])

    assert store.run(work) == {KEY: upsert(DONE, 1).json}
