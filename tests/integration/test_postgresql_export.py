"""An export into PostgreSQL on a real broker: two workers write it, and generations take its place in one step."""

from pathlib import Path

import pytest

from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, eventually, living_run, worlds
from tests.stores import postgresql
from tests.worker.sinks.destinations import PostgreSQLDestination

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GROUPS = ("project", "fold", "export-plain", "export-public", "export-warehouse")
SECOND = {"TRACE_PROJECTOR_GENERATION": "2"}


@pytest.fixture
def warehouse(pipeline: Pipeline, tmp_path: Path) -> PostgreSQLDestination:
    store = PostgreSQLDestination(tmp_path)
    export = f'\n[[exports]]\nname = "warehouse"\nsink = "{store.url}"\nredact = false\n'
    pipeline.config.write_text(pipeline.config.read_text() + export)
    return store


def rows(store: PostgreSQLDestination) -> set[tuple[str, str, str]]:
    return {(kind, record_id, data.decode()) for (kind, record_id), data in store.records().items()}


def test_two_workers_fill_it_and_it_is_verified_promoted_read_anew_and_dropped(
    pipeline: Pipeline, commands: Commands, warehouse: PostgreSQLDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.create_topics()
    pipeline.publish(worlds(range(140, 144)))
    workers = [pipeline.worker(name) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    pipeline.wait_settled(GROUPS)
    assert rows(warehouse) == set(pipeline.duckdb_records())
    code, _, err = commands.run("verify", "--export", "warehouse")
    assert (code, "equal" in err) == (0, True), err

    code, _, err = commands.run("rebuild")
    assert code == 0, err
    new = pipeline.worker("new", **SECOND)
    new.start()
    new.wait_ready()
    code, out, err = commands.run("promote", "2")
    assert code == 0, err
    assert "export warehouse: switched" in out.splitlines()
    assert {row[2] for row in warehouse.query("SELECT id, _offset, _generation FROM trace_run")} == {2}
    for worker in workers:
        assert worker.stop() == 0
    more = worlds([144])
    pipeline.publish(more)
    eventually(lambda: ("run", living_run(more)) in warehouse.records(), "the new generation goes on in place")
    code, out, err = commands.run("drop", "1")
    assert (code, "rows of export warehouse" in out) == (0, True), err
    assert new.stop() == 0

    with warehouse.server.connect(warehouse.schema) as connection:
        connection.execute("UPDATE stored_run SET record = replace(record, 'running', 'failed')")
        connection.execute("DELETE FROM stored_gate")
    monkeypatch.setenv(*next(iter(SECOND.items())))
    code, out, err = commands.run("verify", "--export", "warehouse")
    assert (code, "gate" in out) == (1, True), err
    code, _, err = commands.run("export", "resync", "warehouse")
    assert (code, "export warehouse is read anew from" in err) == (0, True), err
    code, _, err = commands.run("verify", "--export", "warehouse")
    assert (code, "equal" in err) == (0, True), err
    assert postgresql.PASSWORD not in "".join(path.read_text() for path in pipeline.directory.glob("*.log"))
