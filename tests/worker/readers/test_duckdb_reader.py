"""Reading behind the DuckDB sink: files that are held, of another release, or of somebody else."""

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.worker.sinks.destinations import DuckDBDestination, run_record, upsert
from worker.readers import duckdb_file
from worker.record_reader import RecordsUnreadable, open_reader

_HOLD = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def file(tmp_path: Path) -> DuckDBDestination:
    made = DuckDBDestination(tmp_path)
    made.write([upsert(run_record("r1"), 1)])
    return made


def ids(file: DuckDBDestination) -> list[str]:
    return [record["id"] for record in open_reader(file.url).read(("run",))]


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_file_that_somebody_holds_is_waited_for(file: DuckDBDestination, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(file.path) as process:
        monkeypatch.setattr("time.sleep", lambda _: process.communicate("go\n"))
        assert ids(file) == ["r1"]


def test_a_file_that_nobody_lets_go_of_is_given_up(file: DuckDBDestination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_file, "BUSY_TIMEOUT_S", 0.1)
    with holder(file.path) as process:
        with pytest.raises(RecordsUnreadable, match="does not let go") as refused:
            ids(file)
        process.communicate("go\n")
    assert not refused.value.is_usage


def test_a_quote_in_the_path_is_part_of_the_path(tmp_path: Path) -> None:
    directory = tmp_path / "it's"
    directory.mkdir()
    made = DuckDBDestination(directory)
    made.write([upsert(run_record("r1"), 1)])
    assert ids(made) == ["r1"]


def test_a_file_of_a_newer_release_is_refused(file: DuckDBDestination) -> None:
    with duckdb.connect(str(file.path)) as connection:
        connection.execute("UPDATE trace_meta SET value = '99' WHERE name = 'schema_version'")
    with pytest.raises(RecordsUnreadable, match="from a newer release"):
        ids(file)


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "else.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
    with pytest.raises(RecordsUnreadable, match="not one of an export") as refused:
        list(open_reader(f"duckdb:{path}").read(("run",)))
    assert refused.value.is_usage


def test_an_error_of_the_database_says_nothing_of_what_is_in_it(file: DuckDBDestination) -> None:
    with duckdb.connect(str(file.path)) as connection:
        connection.execute("DROP VIEW trace_runs; DROP VIEW trace_attempts; DROP TABLE trace_run")
        connection.execute("CREATE VIEW trace_run AS SELECT error('ZZSECRETZZ') AS record, 'r' AS run_id")
    with pytest.raises(RecordsUnreadable, match=r"reading .* failed") as refused:
        ids(file)
    assert "ZZSECRETZZ" not in str(refused.value)


def test_reading_leaves_the_file_as_it_was(file: DuckDBDestination) -> None:
    before = file.path.read_bytes()
    assert ids(file) == ["r1"]
    assert file.path.read_bytes() == before
    assert list(file.directory.iterdir()) == [file.path]
