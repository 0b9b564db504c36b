"""The records of a place in ClickHouse, read from the bytes that stand beside the typed columns."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import urllib3
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from projections.decode import decode_json
from projections.text import storable_text
from worker.record_queries import Answered, Row, Tables
from worker.record_reader import Record, RecordsUnreadable, read_from_server
from worker.sink import SinkRefused
from worker.stores.clickhouse import SCHEMA_VERSION, Place, kind_columns, place_of, read_meta
from worker.stores.clickhouse_server import connected, told
from worker.stores.columns import COLUMNS
from worker.stores.views import CLICKHOUSE

_OF_RUN: Final = """
    AND (run_id = %(run_id)s OR kind = 'cost' AND conversation IN (
        SELECT conversation FROM {table} FINAL WHERE kind = 'cost' AND run_id = %(run_id)s))
"""


_ERRORS: Final = (ClickHouseError, urllib3.exceptions.HTTPError, OSError)
# Nobody waits for a page for so long. In an aggregate a name is that of a column, not of what the query calls so.
_SETTINGS: Final = {"max_execution_time": 60, "prefer_column_name_to_alias": 1}


class ClickHouseReader:
    """Read the records of a place that ``ClickHouseSink`` keeps; each query as of one moment, which is that of a read.

    Of several queries each has its own, since there are no transactions; all of them are asked of one table.
    """

    def __init__(self, location: str) -> None:
        try:
            self._place = place_of(location)
        except SinkRefused as error:
            raise RecordsUnreadable(str(error), is_usage=True) from None

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        rows = _rows(self._place, [kind for kind in COLUMNS if kind in kinds], run_id)
        return read_from_server(self._place.name, rows, _ERRORS)

    def answer(self, work: Callable[[Tables], Answered]) -> Answered:
        [(answered,)] = read_from_server(self._place.name, _answers(self._place, work), _ERRORS)
        return answered


def _rows(place: Place, kinds: Collection[str], run_id: str | None) -> Iterator[Record]:
    if not kinds:
        return
    with connected(place.server) as client:
        query, parameters = told(place.server, lambda: _query(client, place, kinds, run_id))
        with client.query_rows_stream(query, parameters=parameters) as rows:
            for (record,) in rows:
                yield decode_json(record.encode())


def _answers(place: Place, work: Callable[[Tables], Answered]) -> Iterator[tuple[Answered]]:
    with connected(place.server) as client:
        table = told(place.server, lambda: _table(client, place))

        def ask(query: str, parameters: Mapping[str, Any]) -> list[Row]:
            # What fails is told by its class alone, and an error of the driver repeats the query.
            found = told(place.server, lambda: client.query(query, parameters=dict(parameters), settings=_SETTINGS))
            return [tuple(row) for row in found.result_rows]

        names = {kind: _rows_of(table, kind) for kind in COLUMNS}
        yield (work(Tables(names, CLICKHOUSE, ask)),)


def _rows_of(table: str, kind: str) -> str:
    names = ", ".join(["id", *kind_columns(kind)])
    return f"(SELECT {names} FROM {table} FINAL WHERE kind = '{kind}')"  # noqa: S608 - our own names


def _table(client: Client, place: Place) -> str:
    meta = read_meta(client, place)
    if meta is None:
        raise SinkRefused(f"there is no {place.name}")
    if meta.schema_version > SCHEMA_VERSION:
        raise SinkRefused(f"{place.name} is from a newer release than this one")
    return place.at(meta.table)


def _query(client: Client, place: Place, kinds: Collection[str], run_id: str | None) -> tuple[str, dict[str, Any]]:
    table = _table(client, place)
    query = f"SELECT record FROM {table} FINAL WHERE kind IN %(kinds)s"  # noqa: S608 - our own name
    parameters: dict[str, Any] = {"kinds": tuple(kinds)}
    if run_id is not None:
        query += _OF_RUN.format(table=table)
        parameters["run_id"] = storable_text(run_id)
    return query, parameters
