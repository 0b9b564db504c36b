"""The records of Delta tables that a sink keeps, read from the bytes beside the typed columns."""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from projections.decode import decode_json
from projections.text import storable_text
from worker.record_reader import Record, RecordsUnreadable
from worker.sink import SinkFailed, SinkRefused
from worker.stores.columns import COLUMNS
from worker.stores.delta import DeltaPlace, delta_place, open_table, schema_version, told

_ROWS_AT_ONCE: Final = 10_000


class DeltaReader:
    """Read the records of tables that ``DeltaSink`` keeps, each table as of the moment the reading began."""

    def __init__(self, location: str) -> None:
        try:
            self._place = delta_place(location)
        except SinkRefused as error:
            raise RecordsUnreadable(str(error), is_usage=True) from None

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        place = self._place
        try:
            tables = told(place, lambda: {kind: _opened(place, kind) for kind in COLUMNS if kind in kinds})
            for kind, table in tables.items():
                rows = _records(table, kind, run_id)
                while (batch := told(place, partial(next, rows, None))) is not None:
                    yield from (decode_json(record.encode()) for record in batch)
        except SinkRefused as error:
            raise RecordsUnreadable(str(error), is_usage=True) from None
        except SinkFailed as error:
            raise RecordsUnreadable(str(error)) from None


def _opened(place: DeltaPlace, kind: str) -> DeltaTable:
    if place.is_local and not place.path.exists():
        raise SinkRefused(f"there is no directory {place.root}")
    table = open_table(place, f"trace_{kind}", place.options())
    if table is None:
        raise SinkRefused(f"{place.root} holds no tables of an export")
    schema_version(place, table)
    return table


def _records(table: DeltaTable, kind: str, run_id: str | None) -> Iterator[list[str]]:
    rows = table.to_pyarrow_dataset()
    column = "conversation" if kind == "cost" else "run_id"
    wanted = None if run_id is None else _wanted(rows, kind, storable_text(run_id))
    for batch in rows.to_batches(columns=["record", column], batch_size=_ROWS_AT_ONCE):
        records = batch["record"]
        if wanted is not None:
            # Some releases of the driver give texts another layout, which a filter of the dataset then refuses.
            records = records.filter(pc.is_in(batch[column].cast(pa.string()), value_set=wanted))
        yield records.to_pylist()


def _wanted(rows: Any, kind: str, run_id: str) -> Any:
    """Give the runs to be read, or for costs the conversations in which the run has one."""
    if kind != "cost":
        return pa.array([run_id], pa.string())
    found: set[str] = set()
    for batch in rows.to_batches(columns=["run_id", "conversation"], batch_size=_ROWS_AT_ONCE):
        mine = batch.filter(pc.equal(batch["run_id"].cast(pa.string()), run_id))
        found.update(name for name in mine["conversation"].to_pylist() if name is not None)
    return pa.array(sorted(found), pa.string())
