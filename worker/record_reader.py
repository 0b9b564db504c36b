"""The port to a destination's other side: reading back the records that a sink holds, and the table of readers.

Rules for editing: a sink whose records can be read back is one module under ``worker/readers`` and one line in
``READERS``; being in the table is being tested by the one contract test, which fails until it has a fixture there.
"""

import importlib
from collections.abc import Collection, Iterator
from typing import Any, Final, Protocol, TypeVar

from worker.sink import SINKS, SinkBusy, SinkFailed, SinkRefused

Record = dict[str, Any]
Read = TypeVar("Read")

READERS: Final[dict[str, str]] = {
    "clickhouse": "worker.readers.clickhouse:ClickHouseReader",
    "delta": "worker.readers.delta_table:DeltaReader",
    "duckdb": "worker.readers.duckdb_file:DuckDBReader",
    "jsonl": "worker.readers.jsonl:JsonlReader",
    "parquet": "worker.readers.parquet_files:ParquetReader",
    "postgresql": "worker.readers.postgresql:PostgreSQLReader",
}
"""URL scheme, that of the sink, to ``module:class``, as text, so that a driver loads only when a URL names it."""

_SERVERS: Final = frozenset({"clickhouse", "postgresql"})


class RecordsUnreadable(Exception):  # noqa: N818  (a state of the destination, not a fault of the program)
    """The records cannot be read; the text says why in one line and holds nothing of a record.

    ``is_usage`` tells a place that is the wrong one from one that cannot be read as it is now.
    """

    def __init__(self, message: str, *, is_usage: bool = False) -> None:
        super().__init__(message)
        self.is_usage = is_usage


class RecordReader(Protocol):
    """Reads what a sink holds, as it stood at one moment, whether or not somebody writes it meanwhile."""

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        """Yield the living records of some kinds, each once, in any order.

        With ``run_id`` records of other runs may be left out; but of a conversation in which this run has a cost all
        costs are given, because only all of them together tell which count. Raises ``RecordsUnreadable``.
        """
        ...


def read_from_server(name: str, rows: Iterator[Read], driver_errors: tuple[type[Exception], ...]) -> Iterator[Read]:
    """Yield what a server gives, and tell what goes wrong meanwhile as ``RecordsUnreadable``.

    ``name`` is what to call the place. A driver's errors repeat values, so only their class is told.
    """
    while True:
        # The driver's error must not be the context of ours either.
        failure = None
        try:
            read = next(rows, None)
        except SinkRefused as error:
            raise RecordsUnreadable(str(error), is_usage=True) from None
        except (SinkBusy, SinkFailed) as error:
            raise RecordsUnreadable(str(error)) from None
        except driver_errors as error:
            read, failure = None, type(error).__name__
        if failure is not None:
            raise RecordsUnreadable(f"reading {name} failed ({failure})")
        if read is None:
            return
        yield read


def is_sink_url(place: str) -> bool:
    """Whether a text is the URL of a sink, whether or not it can be read back, rather than a path."""
    scheme, colon, _ = place.partition(":")
    return place == "-" or (bool(colon) and scheme in SINKS)


def open_reader(url: str) -> RecordReader:
    """Make the reader that a sink's URL names. Raises ``RecordsUnreadable`` for one that cannot be read back."""
    scheme, _, location = url.partition(":")
    if scheme not in READERS or location in ("", "-"):
        # The URL itself may hold a password, so only its scheme is repeated.
        known = ", ".join(f"{name}:{'//…' if name in _SERVERS else 'PATH'}" for name in READERS)
        raise RecordsUnreadable(f"no records can be read back from {scheme}: (but from {known})", is_usage=True)
    module, _, name = READERS[scheme].partition(":")
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        message = f"the driver of {scheme}: is missing; install trace-projector[{scheme}]"
        raise RecordsUnreadable(message, is_usage=True) from None
    reader: RecordReader = getattr(loaded, name)(location)
    return reader
