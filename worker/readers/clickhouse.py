"""The records of a place in ClickHouse, read from the bytes that stand beside the typed columns."""

from collections.abc import Collection, Iterator
from typing import Any, Final

import urllib3
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from projections.decode import decode_json
from projections.text import storable_text
from worker.clickhouse_place import SCHEMA_VERSION, Place, place_of, read_meta
from worker.clickhouse_server import connected, told
from worker.record_reader import Record, RecordsUnreadable, records_of_server
from worker.sink import SinkRefused
from worker.sink_columns import COLUMNS

_OF_RUN: Final = """
    AND (run_id = %(run_id)s OR kind = 'cost' AND conversation IN (
        SELECT conversation FROM {table} FINAL WHERE kind = 'cost' AND run_id = %(run_id)s))
"""


class ClickHouseReader:
    """Read the records of a place that ``ClickHouseSink`` keeps; one query, so as of one moment."""

    def __init__(self, location: str) -> None:
        try:
            self._place = place_of(location)
        except SinkRefused as error:
            raise RecordsUnreadable(str(error), is_usage=True) from None

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        rows = _rows(self._place, [kind for kind in COLUMNS if kind in kinds], run_id)
        return records_of_server(self._place.name, rows, (ClickHouseError, urllib3.exceptions.HTTPError, OSError))


def _rows(place: Place, kinds: Collection[str], run_id: str | None) -> Iterator[Record]:
    if not kinds:
        return
    with connected(place.server) as client:
        query, parameters = told(place.server, lambda: _query(client, place, kinds, run_id))
        with client.query_rows_stream(query, parameters=parameters) as rows:
            for (record,) in rows:
                yield decode_json(record.encode())


def _query(client: Client, place: Place, kinds: Collection[str], run_id: str | None) -> tuple[str, dict[str, Any]]:
    meta = read_meta(client, place)
    if meta is None:
        raise SinkRefused(f"there is no {place.name}")
    if meta.schema_version > SCHEMA_VERSION:
        raise SinkRefused(f"{place.name} is from a newer release than this one")
    table = place.at(meta.table)
    query = f"SELECT record FROM {table} FINAL WHERE kind IN %(kinds)s"  # noqa: S608 - our own name
    parameters: dict[str, Any] = {"kinds": tuple(kinds)}
    if run_id is not None:
        query += _OF_RUN.format(table=table)
        parameters["run_id"] = storable_text(run_id)
    return query, parameters
