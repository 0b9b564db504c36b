"""The records of a schema in PostgreSQL, read from the bytes that stand beside the typed columns."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from projections.decode import decode_json
from projections.text import storable_text
from worker.record_queries import Answered, Row, Tables
from worker.record_reader import Record, RecordsUnreadable, read_from_server
from worker.sink import SinkRefused
from worker.sinks.postgresql import SCHEMA_VERSION
from worker.stores.columns import COLUMNS
from worker.stores.postgresql import Connection, Place, connect, place_of, read_meta
from worker.stores.views import POSTGRESQL

_ROWS_PER_FETCH: Final = 10_000
_ANSWER_TIMEOUT_S: Final = 60
_TIMEOUT: Final = "SELECT set_config('statement_timeout', %s, true)"
_COSTS_OF_RUN: Final = "conversation IN (SELECT conversation FROM {}.trace_cost WHERE run_id = %(run_id)s)"


class PostgreSQLReader:
    """Read the records of a schema that ``PostgreSQLSink`` keeps, as of one moment; nobody waits for anybody."""

    def __init__(self, location: str) -> None:
        try:
            self._place = place_of(location)
        except SinkRefused as error:
            raise RecordsUnreadable(str(error), is_usage=True) from None

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        rows = _rows(self._place, [kind for kind in COLUMNS if kind in kinds], run_id)
        return read_from_server(self._place.name, rows, (psycopg.Error,))

    def answer(self, work: Callable[[Tables], Answered]) -> Answered:
        [(answered,)] = read_from_server(self._place.name, _answers(self._place, work), (psycopg.Error,))
        return answered


def _rows(place: Place, kinds: Collection[str], run_id: str | None) -> Iterator[Record]:
    with _connected(place) as connection:
        for kind in kinds:
            yield from _records(connection, place, kind, run_id)


def _answers(place: Place, work: Callable[[Tables], Answered]) -> Iterator[tuple[Answered]]:
    with _connected(place) as connection:
        names = {kind: sql.Identifier(place.schema, f"trace_{kind}").as_string(connection) for kind in COLUMNS}
        # Nobody waits for a page for so long, and a query that nobody waits for must not keep a worker from its end.
        connection.execute(_TIMEOUT, [f"{_ANSWER_TIMEOUT_S}s"])

        def ask(query: str, parameters: Mapping[str, Any]) -> list[Row]:
            return connection.execute(query.encode(), parameters).fetchall()

        yield (work(Tables(names, POSTGRESQL, ask)),)


@contextmanager
def _connected(place: Place) -> Iterator[Connection]:
    """One transaction, which sees what there was at its beginning."""
    with connect(place) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with connection.transaction():
            _admit(connection, place)
            yield connection


def _admit(connection: Connection, place: Place) -> None:
    meta = read_meta(connection, place.schema)
    if not meta:
        raise SinkRefused(f"there is no {place.name}")
    if int(meta["schema_version"]) > SCHEMA_VERSION:
        raise SinkRefused(f"{place.name} is from a newer release than this one")


def _records(connection: Connection, place: Place, kind: str, run_id: str | None) -> Iterator[Record]:
    schema = sql.Identifier(place.schema)
    query = sql.SQL("SELECT record FROM {}").format(sql.Identifier(place.schema, f"trace_{kind}"))
    parameters: dict[str, Any] = {}
    if run_id is not None:
        condition = sql.SQL(_COSTS_OF_RUN).format(schema) if kind == "cost" else sql.SQL("run_id = %(run_id)s")
        query = sql.SQL("{} WHERE {}").format(query, condition)
        parameters["run_id"] = storable_text(run_id)
    with connection.cursor(name="records") as cursor:
        cursor.itersize = _ROWS_PER_FETCH
        for (record,) in cursor.execute(query, parameters):
            yield decode_json(record.encode())
