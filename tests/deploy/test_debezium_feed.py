"""The example of Debezium on PostgreSQL: its tables, what the log says of their rows, and the traces that come of it.

`fixtures/feeds` holds what a connector of Debezium 3.6.1 with the example's configuration sent when the statements of
`tests/stores/workflows.py` were carried out; here they are carried out again, and the log is read by its plugin.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.sources import project_message
from tests.projections.test_runs_golden import RUNS
from tests.stores import postgresql, row_changes, workflows
from worker.cli import run
from worker.settings import Settings
from worker.source_files import tombstone_key

Json = dict[str, Any]
Connection = psycopg.Connection[tuple[Any, ...]]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "feeds" / "debezium-postgresql"
FEEDS = ROOT / "fixtures" / "feeds"
PREFIX = "workflows.public."
TOPICS = {
    "ledger-changes": f"{PREFIX}agent_execution_event",
    "workflow-runs": f"{PREFIX}workflow_run",
    "gate-decisions": f"{PREFIX}hitl_gate",
}
SLOT = "trace_projector_test"


@pytest.fixture
def database() -> Iterator[Connection]:
    """A database of its own on the session's server, as empty as a new one."""
    server = postgresql.server()
    name = "workflows_of_debezium"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        with psycopg.connect(
            host="127.0.0.1",
            port=server.port,
            user=postgresql.USER,
            password=postgresql.PASSWORD,
            dbname=name,
            autocommit=True,
        ) as connection:
            yield connection
    finally:
        with server.connect() as connection:
            for (slot,) in connection.execute(
                "SELECT slot_name FROM pg_replication_slots WHERE database = %s", (name,)
            ).fetchall():
                row_changes.drop_slot(connection, slot)
            connection.execute(f"DROP DATABASE {name}")


def statements_of(name: str) -> str:
    return (EXAMPLE / name).read_text(encoding="utf-8")


def config_of(name: str) -> dict[str, str]:
    config: dict[str, str] = json.loads((EXAMPLE / name).read_bytes())["config"]
    return config


def recorded(directory: str) -> dict[str, bytes]:
    """Give the recorded messages of each table, as lines of topic files."""
    return {path.name.removeprefix(PREFIX).removesuffix(".jsonl"): path.read_bytes() for path in lines_of(directory)}


def lines_of(directory: str) -> list[Path]:
    return sorted((FEEDS / directory).glob("*.jsonl"))


def essence(lines: bytes) -> list[Json]:
    """Give what a reader takes of messages: rows, operations and tombstones, without when and where they were read."""
    taken = ("before", "after", "op", "key", "value")
    return [{name: value for name, value in json.loads(line).items() if name in taken} for line in lines.splitlines()]


def told(database: Connection, *, without_old_rows: bool = False) -> dict[str, bytes]:
    """Carry out the example's DDL and the recorded statements, and read the log."""
    database.execute(statements_of("tables.sql"))
    row_changes.open_slot(database, SLOT)
    course = workflows.course_without_old_rows() if without_old_rows else workflows.course()
    for statement in course:
        database.execute(statement.sql, statement.values)
    return row_changes.topic_lines(row_changes.read_changes(database, SLOT, "trace_projector"))


# ------------------------------------------------------------------------------------------------ the shape of it


@pytest.mark.parametrize(
    ("directory", "without_old_rows"),
    [("debezium-postgresql", False), ("debezium-postgresql-keys-only", True)],
)
def test_the_log_of_the_example_tells_what_debezium_told(
    database: Connection, directory: str, without_old_rows: bool
) -> None:
    found = told(database, without_old_rows=without_old_rows)
    expected = recorded(directory)
    assert found.keys() == expected.keys()
    for table, lines in found.items():
        assert essence(lines) == essence(expected[table])


def test_the_configuration_captures_the_tables_of_the_ddl_into_the_topics_that_it_says() -> None:
    config = config_of("connector.json")
    tables = re.findall(r"CREATE TABLE (\w+)", statements_of("tables.sql"))
    assert config["table.include.list"].split(",") == [f"public.{table}" for table in tables]
    assert sorted(TOPICS.values()) == sorted(f"{config['topic.prefix']}.public.{table}" for table in tables)
    assert f"CREATE PUBLICATION {config['publication.name']} FOR TABLE {', '.join(tables)};" in statements_of(
        "tables.sql"
    )
    # What arrives is the envelope itself: nothing transforms it.
    assert "transforms" not in config
    (block,) = re.findall(r"```toml\n(.+?)```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert {name.replace("_", "-"): topic for name, topic in tomllib.loads(block)["topics"].items()} == TOPICS
    assert int(config["topic.creation.default.max.message.bytes"]) > Settings().limits.message_bytes_max


# --------------------------------------------------------------------------------------------- the traces of it


def projected(directory: Path, tmp_path: Path) -> dict[str, Json]:
    """Run `trace-projector project` over topic files of the example and the transcripts of the sample runs."""
    config = tmp_path / "trace-projector.toml"
    topics = "".join(f'{source.replace("-", "_")} = "{topic}"\n' for source, topic in TOPICS.items())
    config.write_text(f"[topics]\n{topics}")
    transcripts = tmp_path / "transcripts.jsonl"
    transcripts.write_bytes(
        b"".join(path.read_bytes() for name in workflows.NAMES if (path := RUNS / name / "transcripts.jsonl").exists())
    )
    target = tmp_path / "traces.jsonl"
    paths = [str(directory), str(transcripts)]
    code = run(["--config", str(config), "project", *paths, "--to", f"jsonl:{target}", "--no-redact"])
    assert code == 0, "there is no dead letter"
    rows = [decode_json(line) for line in target.read_bytes().splitlines()]
    return {row["id"]: row for row in rows}


# The fields of records that come from columns for times; all others come out of JSON, where they are as they were.
OF_COLUMNS = {
    ("run", None): ("at", "completedAt"),
    ("gate", "human"): ("at", "resolvedAt", "expiresAt"),
    # An attempt that a person makes begins when its gate is opened.
    ("attempt", "assisted"): ("at",),
}


def in_microseconds(record: Json) -> Json:
    """Give the record that there is when the times of runs and gates come from columns of PostgreSQL."""
    kind = record.get("gateKind", record.get("stepKind"))
    fields = OF_COLUMNS.get((record["kind"], kind), ())
    texts = {name: f"{record[name].removesuffix('Z')}000Z" for name in fields if record.get(name) is not None}
    return {**record, **texts}


def goldens() -> dict[str, Json]:
    rows = [
        decode_json(line)
        for name in workflows.NAMES
        for line in (RUNS / name / "trace.jsonl").read_bytes().splitlines()
    ]
    return {row["id"]: in_microseconds(row) for row in rows}


@pytest.mark.parametrize("feed", ["debezium-postgresql", "debezium-cloudevents"])
def test_what_debezium_told_gives_the_traces_of_the_sample_runs(feed: str, tmp_path: Path) -> None:
    found = projected(FEEDS / feed, tmp_path)
    big = found.pop(workflows.BIG)
    assert found == goldens()
    # Its parameters were told once and left alone by the update that ended it.
    assert (big["status"], big["completedAt"]) == ("completed", "2026-10-01T10:00:00.123456Z")
    assert big["at"] == "2026-10-01T09:00:00.500000Z"
    assert re.fullmatch(r"[0-9a-f]{64}", big["paramsSha256"])


def test_what_the_log_tells_now_gives_the_same_traces(database: Connection, tmp_path: Path) -> None:
    directory = tmp_path / "topics"
    directory.mkdir()
    for table, lines in told(database).items():
        (directory / f"{PREFIX}{table}.jsonl").write_bytes(lines)
    (tmp_path / "recorded").mkdir()
    assert projected(directory, tmp_path) == projected(FEEDS / "debezium-postgresql", tmp_path / "recorded")


def outcomes(directory: str, table: str, source: str) -> list[str]:
    """Say of each recorded message what becomes of it."""
    found = []
    for offset, line in enumerate(recorded(directory)[table].splitlines()):
        key = tombstone_key(line)
        try:
            facts = project_message(source, key, line if key is None else None, 0, offset).facts
        except ProjectionError as error:
            found.append(f"{error.reason}: {error.field}")
        else:
            found.append(facts[0].key.partition(":")[0])
    return found


def test_without_the_old_row_a_value_that_was_left_alone_is_missed_and_a_deletion_goes_by_its_key() -> None:
    keys_only = "debezium-postgresql-keys-only"
    runs = outcomes(keys_only, "workflow_run", "workflow-runs")
    assert runs == ["snapshot", "unavailable_value: params", "tombstone", "tombstone"]
    gates = outcomes(keys_only, "hitl_gate", "gate-decisions")
    assert gates == ["gate", "unavailable_value: prompt", "tombstone-gate", "tombstone-gate"]


def test_a_deletion_is_told_by_the_old_row_where_the_log_holds_it_and_by_its_key_else() -> None:
    assert outcomes("debezium-postgresql", "workflow_run", "workflow-runs")[-2:] == ["deletion", "tombstone"]
    events = outcomes("debezium-postgresql", "agent_execution_event", "ledger-changes")
    assert events[-4:] == ["tombstone-event"] * 4


# ---------------------------------------------------------------------------------------------------- the outbox


def test_a_row_of_the_outbox_is_the_message_as_the_program_wrote_it(database: Connection) -> None:
    database.execute(statements_of("outbox.sql"))
    row_changes.open_slot(database, SLOT)
    written = [
        (source, row.get("id") or row["executionId"], json.dumps(row, indent=1))
        for name in workflows.NAMES
        for source in TOPICS
        for row in workflows.sample_rows(name, source)
    ]
    for values in written:
        database.execute("INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES (%s, %s, %s)", values)
    database.execute("INSERT INTO outbox (aggregatetype, aggregateid) VALUES ('workflow-runs', 'run-7')")
    database.execute("DELETE FROM outbox")
    changes = row_changes.read_changes(database, SLOT, "trace_projector_outbox")
    rows = [change.envelope["after"] for change in changes if change.envelope is not None]
    assert [(row["aggregatetype"], row["aggregateid"], row["payload"]) for row in rows[:-1]] == written
    assert rows[-1]["payload"] is None
    assert len(changes) == len(rows)
    with pytest.raises(psycopg.errors.CheckViolation):
        database.execute("INSERT INTO outbox (aggregatetype, aggregateid) VALUES ('workflow-run', 'run-7')")


def test_the_outbox_goes_to_the_topics_that_its_rows_name() -> None:
    config = config_of("outbox-connector.json")
    assert f"CREATE PUBLICATION {config['publication.name']} FOR TABLE outbox" in statements_of("outbox.sql")
    assert config["transforms.outbox.route.topic.replacement"] == "${routedByValue}"
    # The payload is the value: a converter of JSON would put it into quotes.
    assert config["value.converter"] == config["key.converter"] == "org.apache.kafka.connect.storage.StringConverter"
    assert re.fullmatch(config["predicates.isOutbox.pattern"], f"{config['topic.prefix']}.public.outbox")
