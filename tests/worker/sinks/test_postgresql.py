"""PostgreSQL: several writers, lost connections and answers, locks, schemas of other releases and of somebody else."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.stores import postgresql
from tests.stores.severing_proxy import SeveringProxy
from tests.worker.sinks.destinations import (
    DOC_RUN,
    POLICY,
    REPOSITORY,
    PostgreSQLDestination,
    deletion,
    run_record,
    upsert,
)
from worker.sink import Sink, SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sink_place import Serving, SinkPlace
from worker.sink_switch import beside, discard, policy_of, switch
from worker.sinks.postgresql import SCHEMA_VERSION
from worker.stores import postgresql as postgresql_place

KEY = ("run", "r1")
RUNNING, DONE = run_record("r1"), run_record("r1", status="completed")


@pytest.fixture
def store(tmp_path: Path) -> PostgreSQLDestination:
    return PostgreSQLDestination(tmp_path)


def execute(store: PostgreSQLDestination, statement: str) -> None:
    with store.server.connect(store.schema) as connection:
        connection.execute(statement)


def told(error: BaseException) -> str:
    """Everything that an error says, and whatever stands behind it."""
    return f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"


# ------------------------------------------------------------------------------------------------------ several writers

WRITER = """
import asyncio, random, sys
from tests.worker.sinks.destinations import POLICY
from tests.worker.sinks.test_postgresql import versions
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


def start_writer(store: PostgreSQLDestination, seed: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, store.url, str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


def test_two_workers_on_the_same_partitions_one_of_them_killed_leave_one_row_per_id_and_the_newest(
    store: PostgreSQLDestination,
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
    assert store.query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


def test_writers_that_make_the_schema_together_make_it_once(store: PostgreSQLDestination) -> None:
    async def story() -> None:
        sinks = [open_sink(store.url, POLICY) for _ in range(4)]
        assert await asyncio.gather(*(sink.open() for sink in sinks)) == [True] * 4
        await asyncio.gather(*(sink.write([upsert(run_record(f"r{n}"), n)]) for n, sink in enumerate(sinks)))
        await asyncio.gather(*(sink.close() for sink in sinks))

    asyncio.run(story())
    assert store.records().keys() == {("run", f"r{n}") for n in range(4)}


@pytest.mark.parametrize("is_deleted_first", [True, False])
def test_a_write_that_waited_for_another_obeys_what_that_one_wrote(
    store: PostgreSQLDestination, is_deleted_first: bool
) -> None:
    first, second = (
        (deletion(DONE, 7), upsert(RUNNING, 3)) if is_deleted_first else (upsert(DONE, 7), deletion(DONE, 3))
    )

    async def work(sink: Sink) -> None:
        with store.server.connect(store.schema) as holder, holder.transaction():
            # As a writer that has written and not yet committed.
            holder.execute(
                "INSERT INTO stored_run (_key, id, _generation, _offset, record) VALUES (sha256('r1'), 'r1', 1, 7, %s)",
                [None if first.json is None else first.json.decode()],
            )
            writing = asyncio.ensure_future(sink.write([second]))
            await until(lambda: is_waiting(store))
        await writing

    assert store.run(work) == ({} if is_deleted_first else {KEY: first.json})


def is_waiting(store: PostgreSQLDestination) -> bool:
    statement = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'trace-projector'"
    return bool(store.query(statement))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(is_so):
            await asyncio.sleep(0.01)


def test_any_number_of_members_of_a_group_may_write_at_a_place_of_a_generation(store: PostgreSQLDestination) -> None:
    assert not open_sink(store.url, POLICY).single_writer
    assert not SinkPlace(store.url, POLICY, 1, Serving(1)).single_writer


# -------------------------------------------------------------------------------------------- failures and backpressure


def test_a_lost_connection_fails_the_write_and_the_batch_is_written_with_the_next_one(
    store: PostgreSQLDestination,
) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        execute(store, END_ALL)
        with pytest.raises(SinkFailed) as caught:
            await sink.write([upsert(DONE, 2)])
        assert postgresql.PASSWORD not in told(caught.value)
        await sink.write([upsert(DONE, 2)])

    assert store.run(work) == {KEY: upsert(DONE, 2).json}


END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'trace-projector'"


def test_a_connection_lost_in_the_middle_of_a_write_leaves_nothing_of_it(store: PostgreSQLDestination) -> None:
    gate = next(record for record in DOC_RUN if record["kind"] == "gate")
    batch = [upsert(DONE, 2), upsert(gate, 3)]

    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        # The runs are written after the gates, or before: either way the write stands still half done.
        with store.server.connect(store.schema) as holder, holder.transaction():
            holder.execute("LOCK TABLE stored_gate IN ACCESS EXCLUSIVE MODE")
            writing = asyncio.ensure_future(sink.write(batch))
            await until(lambda: is_waiting(store))
            execute(store, END_ALL)
            with pytest.raises(SinkFailed):
                await writing
        assert store.records() == {KEY: upsert(RUNNING, 1).json}
        await sink.write(batch)

    assert store.run(work) == {item.key: item.json for item in batch}


def test_a_write_whose_success_was_never_heard_of_is_done_again_without_a_trace(store: PostgreSQLDestination) -> None:
    store.write([upsert(RUNNING, 1)])
    proxy = SeveringProxy(store.server.port)
    batch = [upsert(DONE, 2), upsert(run_record("r2"), 3), deletion(run_record("r3"), 4)]

    async def story() -> None:
        sink = open_sink(store.server.url(store.schema, port=proxy.port), POLICY)
        await sink.open()
        # The statement itself: "ON COMMIT" stands in others.
        proxy.sever_after(b"COMMIT\x00")
        with pytest.raises(SinkFailed):
            await sink.write(batch)
        assert store.records().keys() == {KEY, ("run", "r2")}, "it had been done"
        before = store.query("SELECT id, xmin::text FROM stored_run ORDER BY id")
        await sink.write(batch)
        assert store.query("SELECT id, xmin::text FROM stored_run ORDER BY id") == before, "and changes nothing more"
        await sink.close()

    try:
        asyncio.run(story())
    finally:
        proxy.close()
    assert proxy.severed == 1
    assert store.write([upsert(run_record("r3"), 3)]).keys() == {KEY, ("run", "r2")}


def test_what_somebody_else_holds_is_put_off_with_a_delay_and_not_lost(
    store: PostgreSQLDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_place, "_LOCK_TIMEOUT", "100ms")

    async def work(sink: Sink) -> None:
        with store.server.connect(store.schema) as holder, holder.transaction():
            holder.execute("LOCK TABLE stored_run IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(SinkBusy) as caught:
                await sink.write([upsert(DONE, 2)])
            assert caught.value.delay_s > 0
        await sink.write([upsert(DONE, 2)])

    assert store.run(work) == {KEY: upsert(DONE, 2).json}


def test_a_conflict_of_serializable_transactions_is_backpressure() -> None:
    place = postgresql_place.place_of("//host/db")

    def conflict() -> None:
        raise psycopg.errors.SerializationFailure("ZZSECRETZZ")

    with pytest.raises(SinkBusy) as caught:
        postgresql_place.told(place, conflict)
    assert "ZZSECRETZZ" not in told(caught.value)


def test_a_server_that_is_away_or_refuses_the_password_is_a_failure_that_may_pass(
    store: PostgreSQLDestination,
) -> None:
    wrong = store.url.replace(postgresql.PASSWORD, "ZZOTHERZZ")
    for url in (store.server.url(store.schema, port=1), wrong):
        with pytest.raises(SinkFailed, match="cannot be reached") as caught:
            asyncio.run(open_sink(url, POLICY).open())
        assert not {"ZZOTHERZZ", postgresql.PASSWORD} & set(told(caught.value).replace(":", " ").split())
        assert "ZZOTHERZZ" not in told(caught.value)
        assert postgresql.PASSWORD not in told(caught.value)


def test_the_password_may_come_from_the_environment(
    store: PostgreSQLDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgresql.PASSWORD)
    sink = open_sink(store.url.replace(f":{postgresql.PASSWORD}", ""), POLICY)
    assert asyncio.run(sink.open())
    asyncio.run(sink.close())


def test_an_error_of_the_database_is_named_without_its_text(store: PostgreSQLDestination) -> None:
    store.write([])
    execute(store, "ALTER TABLE stored_run ADD CHECK (workflow_name NOT LIKE 'ZZ%')")
    with pytest.raises(SinkFailed, match="CheckViolation 23514") as caught:
        store.write([upsert(run_record("r1", workflowName="ZZSECRETZZ"), 1)])
    assert "ZZSECRETZZ" not in told(caught.value)


# --------------------------------------------------------------------------------- schemas of others and other releases


def test_a_schema_of_an_older_release_gets_a_column_filled_from_its_records_and_keeps_what_people_made_of_it(
    store: PostgreSQLDestination,
) -> None:
    record = run_record("r1", paramsSha256="0" * 64)
    before = store.write([upsert(record, 5), deletion(run_record("r2"), 6)])
    columns = [name for name in store.row("SELECT * FROM trace_run") if name != "params_sha256"]
    (definition,) = store.row("SELECT pg_get_viewdef('trace_runs'::regclass)").values()
    execute(
        store,
        f"""
        DROP VIEW trace_runs; DROP VIEW trace_run; ALTER TABLE stored_run DROP COLUMN params_sha256;
        CREATE VIEW trace_run AS SELECT {", ".join(columns)} FROM stored_run WHERE record IS NOT NULL;
        CREATE VIEW trace_runs AS {definition};
        CREATE VIEW public.{store.schema}_mine AS SELECT id, status FROM trace_run;
        GRANT SELECT ON trace_runs TO PUBLIC;
        UPDATE trace_meta SET value = '0' WHERE name = 'schema_version'
        """,  # noqa: S608
    )
    assert store.write([]) == before
    assert store.row("SELECT id, params_sha256 FROM trace_run") == {"id": "r1", "params_sha256": "0" * 64}
    assert list(store.row("SELECT * FROM trace_run")) == [*columns, "params_sha256"]
    assert store.query(f"SELECT * FROM public.{store.schema}_mine") == [("r1", "running")]  # noqa: S608
    assert store.query("SELECT has_table_privilege('pg_monitor', 'trace_runs', 'SELECT')") == [(True,)]
    assert store.query("SELECT value FROM trace_meta WHERE name = 'schema_version'") == [(str(SCHEMA_VERSION),)]
    assert store.write([upsert(run_record("r2"), 5), upsert(RUNNING, 4)]) == before


def test_a_schema_of_a_newer_release_is_refused_before_and_between_writes(store: PostgreSQLDestination) -> None:
    async def work(sink: Sink) -> None:
        execute(store, "UPDATE trace_meta SET value = '999' WHERE name = 'schema_version'")
        with pytest.raises(SinkRefused, match="newer release"):
            await sink.write([upsert(RUNNING, 1)])

    assert store.run(work) == {}
    with pytest.raises(SinkRefused, match="newer release"):
        store.write([])


def test_somebody_elses_schema_is_refused_and_left_as_it_is(store: PostgreSQLDestination) -> None:
    execute(store, f"CREATE SCHEMA {store.schema}; CREATE TABLE {store.schema}.mine (x int)")
    with pytest.raises(SinkRefused, match="not of an export"):
        store.write([upsert(RUNNING, 1)])
    assert store.query("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()") == [(1,)]


def test_a_schema_that_was_removed_is_not_taken_for_the_one_that_another_writer_made_in_its_stead(
    store: PostgreSQLDestination,
) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUNNING, 1)])
        execute(store, f"DROP SCHEMA {store.schema} CASCADE")
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


@pytest.mark.parametrize(
    "location",
    [
        "traces",
        "//h/d?schema=public",
        "//h/d?schema=pg_x",
        "//h/d?schema=",
        f"//h/d?schema={'x' * 41}",
        "//u:ZZSECRETZZ@h/d?no_such=1",
        "//u:ZZSECRETZZ@h:port/d",
    ],
)
def test_a_location_that_is_no_place_of_ours_is_refused_without_being_repeated(location: str) -> None:
    with pytest.raises((SinkRefused, SinkFailed)) as caught:
        asyncio.run(open_sink(f"postgresql:{location}", POLICY).open())
    assert "ZZSECRETZZ" not in told(caught.value)


# --------------------------------------------------------------------------------------------------- put into its place


@contextmanager
def reader_role(store: PostgreSQLDestination) -> Iterator[str]:
    name = f"reader_{store.schema}"
    execute(store, f"CREATE ROLE {name}")
    try:
        yield name
    finally:
        for schema in (store.schema, f"{store.schema}.g1"):
            execute(store, f'REVOKE ALL ON ALL TABLES IN SCHEMA "{schema}" FROM {name}')
            execute(store, f'REVOKE ALL ON SCHEMA "{schema}" FROM {name}')
        execute(store, f"DROP ROLE {name}")


def fill(url: str, policy: str, *batch: Upsert) -> None:
    async def story() -> None:
        sink = open_sink(url, policy)
        await sink.open()
        await sink.write(batch)
        await sink.close()

    asyncio.run(story())


def test_who_could_read_the_old_rows_can_read_the_new_ones(store: PostgreSQLDestination) -> None:
    fill(store.url, "old", upsert(RUNNING, 1))
    with reader_role(store) as reader:
        execute(store, f"GRANT USAGE ON SCHEMA {store.schema} TO {reader}; GRANT SELECT ON trace_runs TO {reader}")
        fill(beside(store.url, "g2"), "new", upsert(DONE, 1, generation=2))
        switch(store.url, "g2", "new", keep="g1")
        with store.server.connect(store.schema) as connection:
            connection.execute(f"SET ROLE {reader}")
            assert connection.execute("SELECT status FROM trace_runs").fetchall() == [("completed",)]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("SELECT * FROM stored_run")


def test_a_reader_sees_the_old_rows_or_the_new_ones_while_they_are_switched(store: PostgreSQLDestination) -> None:
    fill(store.url, "p1", upsert(run_record("old-1"), 1), upsert(run_record("old-2"), 1))
    seen: set[frozenset[str]] = set()
    is_over = threading.Event()

    def look() -> None:
        with store.server.connect(store.schema) as connection:
            while not is_over.is_set():
                seen.add(frozenset(str(name) for (name,) in connection.execute("SELECT run_id FROM trace_runs")))

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


def test_what_somebody_made_something_of_is_not_removed_under_them(store: PostgreSQLDestination) -> None:
    fill(beside(store.url, "g2"), "new", upsert(DONE, 1))
    execute(store, f'CREATE VIEW public.{store.schema}_mine AS SELECT id FROM "{store.schema}.g2".trace_run')  # noqa: S608
    with pytest.raises(SinkRefused, match="depends on"):
        discard(store.url, "g2")
    assert policy_of(beside(store.url, "g2")) == "new"
    execute(store, f"DROP VIEW public.{store.schema}_mine")
    assert discard(store.url, "g2")
    assert policy_of(beside(store.url, "g2")) is None


def test_a_switch_waits_for_a_write_and_a_later_write_of_the_old_generation_is_refused(
    store: PostgreSQLDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(beside(store.url, "g2"), "new", upsert(DONE, 1, generation=2))

    async def work(sink: Sink) -> None:
        with store.server.connect(store.schema) as holder, holder.transaction():
            holder.execute("LOCK TABLE stored_run IN ACCESS EXCLUSIVE MODE")
            writing = asyncio.ensure_future(sink.write([upsert(RUNNING, 1)]))
            await until(lambda: is_waiting(store))
            with monkeypatch.context() as patched:
                patched.setattr(postgresql_place, "_LOCK_TIMEOUT", "100ms")
                with pytest.raises(SinkBusy):
                    await asyncio.to_thread(switch, store.url, "g2", "new", "g1")
        await writing
        switch(store.url, "g2", "new", "g1")
        with pytest.raises(SinkRefused, match="another policy"):
            await sink.write([upsert(run_record("late"), 1)])

    assert store.run(work) == {KEY: upsert(DONE, 1).json}


def test_places_are_told_without_their_passwords() -> None:
    place: Any = postgresql_place.place_of("//u:ZZSECRETZZ@host:5432/db?schema=traces.g2&sslmode=require")
    assert (repr(place), place.schema) == ("Place(schema traces.g2 in PostgreSQL at host)", "traces.g2")
    assert beside("postgresql://u@host/db?sslmode=require", "g2") == (
        "postgresql://u@host/db?sslmode=require&schema=traces.g2"
    )
    assert beside("postgresql://u@host/db?schema=x.g2", "resync") == "postgresql://u@host/db?schema=x.g2.resync"
