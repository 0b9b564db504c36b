"""The records of a DuckDB file, read from the bytes that stand beside the typed columns."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb

from projections.decode import decode_json
from projections.text import storable_text
from worker.record_queries import Answered, Row, Tables
from worker.record_reader import Record, RecordsUnreadable
from worker.stores.columns import COLUMNS
from worker.stores.duckdb_tables import SCHEMA_VERSION
from worker.stores.views import DUCKDB

BUSY_TIMEOUT_S: Final = 15.0
_BUSY_DELAY_S: Final = 0.05
_ROWS_PER_FETCH: Final = 10_000
# What does not fit into so much memory fails by itself, and not the worker beside it.
_CONFIG: Final[dict[str, Any]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": "1GiB",
    "temp_directory": "",
    "threads": 1,
}

_COSTS_OF_RUN: Final = "conversation IN (SELECT conversation FROM trace_cost WHERE run_id = $run_id)"


class DuckDBReader:
    """Read the records of a file that ``DuckDBSink`` keeps.

    A write that goes on is waited for. The file is held until everything is read, and a writer waits for that.
    """

    def __init__(self, location: str) -> None:
        self._path = Path(location)

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        with self._attached() as connection:
            for kind in COLUMNS:
                if kind in kinds:
                    yield from _records(connection, kind, run_id)

    def answer(self, work: Callable[[Tables], Answered]) -> Answered:
        with self._attached() as connection:

            def ask(query: str, parameters: Mapping[str, Any]) -> list[Row]:
                return connection.execute(query, dict(parameters)).fetchall()

            return work(Tables({kind: f"trace_{kind}" for kind in COLUMNS}, DUCKDB, ask))

    @contextmanager
    def _attached(self) -> Iterator[duckdb.DuckDBPyConnection]:
        if not self._path.is_file():
            raise RecordsUnreadable(f"there is no file {self._path}", is_usage=True)
        connection = duckdb.connect(":memory:", config=_CONFIG)
        try:
            self._attach(connection)
            self._admit(connection)
            yield connection
        except duckdb.Error as error:
            # DuckDB repeats values and keys in its messages.
            raise RecordsUnreadable(f"reading {self._path} failed ({type(error).__name__})") from None
        finally:
            connection.close()

    def _attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        quoted = str(self._path.absolute()).replace("'", "''")
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                connection.execute(f"ATTACH '{quoted}' AS sink (READ_ONLY)")
                connection.execute("USE sink")
            except duckdb.Error as error:
                text = str(error)
                if "not a valid DuckDB database" in text:
                    raise RecordsUnreadable(f"{self._path} is no DuckDB file", is_usage=True) from None
                if "Could not set lock" not in text and "already attached" not in text:
                    raise
                if time.monotonic() >= deadline:
                    raise RecordsUnreadable(f"{self._path} is held by a writer that does not let go") from None
                time.sleep(_BUSY_DELAY_S)
            else:
                return

    def _admit(self, connection: duckdb.DuckDBPyConnection) -> None:
        tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'sink'").fetchall()
        if ("trace_meta",) not in tables:
            raise RecordsUnreadable(f"{self._path} is a DuckDB file, but not one of an export", is_usage=True)
        row = connection.execute("SELECT value FROM trace_meta WHERE name = 'schema_version'").fetchone()
        if row is None or int(row[0]) > SCHEMA_VERSION:
            raise RecordsUnreadable(f"{self._path} is from a newer release than this one")


def _records(connection: duckdb.DuckDBPyConnection, kind: str, run_id: str | None) -> Iterator[Record]:
    # The bytes of a record are there in every version of the schema.
    query = f"SELECT record FROM trace_{kind}"  # noqa: S608 - our own table names
    parameters = {}
    if run_id is not None:
        query += f" WHERE {_COSTS_OF_RUN if kind == 'cost' else 'run_id = $run_id'}"
        parameters["run_id"] = storable_text(run_id)
    cursor = connection.execute(query, parameters)
    while rows := cursor.fetchmany(_ROWS_PER_FETCH):
        for (record,) in rows:
            yield decode_json(record.encode())
