"""The records of a directory of Parquet files that a sink keeps, read from the bytes beside the typed columns."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from projections.decode import decode_json
from projections.text import storable_text
from worker.record_reader import Record, RecordsUnreadable
from worker.sink import SinkRefused
from worker.sinks.parquet_files import FORMAT, SCHEMA_VERSION
from worker.stores.columns import COLUMNS
from worker.stores.directory import admit, read_meta

_ROWS_AT_ONCE: Final = 10_000


class ParquetReader:
    """Read the records of a directory that ``ParquetSink`` keeps; nobody waits for anybody.

    A file is one state of its rows, and each row is in one file: a batch that is being written may be seen in part.
    """

    def __init__(self, location: str) -> None:
        self._path = Path(location).absolute()

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        self._admit()
        try:
            for kind in COLUMNS:
                if kind in kinds:
                    yield from self._records(kind, run_id)
        except (pa.ArrowException, OSError) as error:
            # Arrow repeats values in its messages.
            raise RecordsUnreadable(f"reading {self._path} failed ({type(error).__name__})") from None

    def _admit(self) -> None:
        try:
            meta = read_meta(self._path)
            if meta is None:
                raise RecordsUnreadable(f"there is no directory {self._path}", is_usage=True)
            policy = meta["policy_digest"]
            admit(self._path, meta, {"format": FORMAT, "schema_version": SCHEMA_VERSION, "policy_digest": policy})
        except SinkRefused as error:
            raise RecordsUnreadable(str(error), is_usage=True) from None

    def _records(self, kind: str, run_id: str | None) -> Iterator[Record]:
        paths = sorted((self._path / f"trace_{kind}").glob("*.parquet"))
        wanted = None if run_id is None else _values(paths, kind, storable_text(run_id))
        column = "conversation" if kind == "cost" else "run_id"
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=["record", column]):
                    mask = None if wanted is None else pc.is_in(batch[column], value_set=wanted)
                    records = batch["record"] if mask is None else batch["record"].filter(mask)
                    for record in records.to_pylist():
                        yield decode_json(record.encode())


def _values(paths: Collection[Path], kind: str, run_id: str) -> Any:
    """Give the runs to be read, or for costs the conversations in which the run has one."""
    if kind != "cost":
        return pa.array([run_id], pa.string())
    found: set[str] = set()
    for path in paths:
        table = pq.read_table(path, columns=["run_id", "conversation"], partitioning=None)
        mine = table.filter(pc.equal(table["run_id"], run_id))["conversation"].to_pylist()
        found.update(name for name in mine if name is not None)
    return pa.array(sorted(found), pa.string())
