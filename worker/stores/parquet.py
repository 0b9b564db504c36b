"""The Parquet files of one table: each row in one file, and each file replaced whole by the next state of its rows.

A file is named by the generation and offset at which its range begins, ``g1-00000000000000000042.parquet``; its range
ends where it is full. A row stays in the file in which its key first appeared, and a newer version of it replaces that
file under the same name. So at any moment, between any two replacements, a reader of all files has every key once.

Rules for editing: bytes follow from rows, columns and the version of the library alone (no clock, no host, rows in the
order of their ids); a file is written under a name that no reader's pattern matches, made durable, and then renamed.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from worker.sink import SinkFailed, SinkRefused, Version
from worker.stores.arrow_schemas import file_schema, file_table
from worker.stores.files import sync_directory

_Result = TypeVar("_Result")

FILE_BYTES: Final = 16 * 1024 * 1024
"""So many bytes of columns, before compression, make a file full."""

GROUP_ROWS: Final = 20_000
"""Rows of one row group of a file of an export."""

SCHEMA_FILE: Final = "schema.parquet"
"""Holds no rows, so that a reader of a table without rows has its columns."""

_ROW_OVERHEAD_BYTES: Final = 100
_LONG_COLUMNS: Final = frozenset({"record", "id"})


def write_table(file: IO[bytes] | Any, table: Any) -> int:
    """Write a table as one Parquet file of one row group; gives its bytes before compression."""
    with parquet_writer(file, table.schema) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
    metadata = writer.writer.metadata
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def parquet_writer(file: IO[bytes] | Any, schema: Any) -> Any:
    """Make a writer whose bytes depend on the rows and on the library's version alone."""
    short = [name for name in schema.names if name not in _LONG_COLUMNS]
    return pq.ParquetWriter(
        file,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=short,
        # Bounds of a whole record would only repeat its beginning in the footer.
        write_statistics=[name for name in schema.names if name != "record"],
        store_schema=False,
    )


def write_rows(file: Any, kind: str, rows: Iterable[tuple[str, bytes]]) -> int:
    """Write ids and bytes of records of one kind as a Parquet file, a bounded number of rows at a time; gives how many.

    ``file`` need only have ``write``. Raises SinkFailed and OSError.
    """
    return without_values(lambda: _write_groups(file, kind, rows))


def _write_groups(file: Any, kind: str, rows: Iterable[tuple[str, bytes]]) -> int:
    count = 0
    with parquet_writer(pa.PythonFile(_Written(file), mode="w"), file_schema(kind)) as writer:
        for group in _groups(rows):
            writer.write_table(file_table(kind, group), row_group_size=len(group))
            count += len(group)
    return count


def _groups(rows: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    group: list[tuple[str, bytes]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row[1])
        if len(group) >= GROUP_ROWS or size >= FILE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


class _Written:
    """What Arrow asks of a file that it writes and somebody else closes."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return int(self._file.write(bytes(data)))

    def flush(self) -> None:
        """Do nothing: whoever closes the file makes it durable."""


def without_values(work: Callable[[], _Result]) -> _Result:
    """Do some work and turn an error of Arrow, which repeats values, into one that may be logged; OSErrors pass.

    Raises SinkFailed.
    """
    try:
        return work()
    except pa.ArrowException as error:
        if isinstance(error, OSError):
            raise
        failure = type(error).__name__
    # Not inside of the handler, where Arrow's error would be the context of ours.
    raise SinkFailed(f"Arrow failed ({failure})")


class Entry(NamedTuple):
    """The version of a row and the file it is in."""

    version: Version
    file: str


class Change(NamedTuple):
    """A file's next state, durable under another name; ``entries`` are of its rows that are new or newer."""

    name: str
    partial: Path
    size: int
    entries: dict[Any, Entry]
    removed: frozenset[Any]


class Segments:
    """The files of one table, and in memory which of them each key is in.

    ``key`` names the columns that tell rows apart; a key of one column is its value, of several a tuple.
    """

    def __init__(self, directory: Path, schema: Any, key: tuple[str, ...]) -> None:
        self._directory = directory
        self.schema = schema
        self._key = key
        self.entries: dict[Any, Entry] = {}
        self._sizes: dict[str, int] = {}

    def load(self) -> None:
        """Learn what the files hold; what an interrupted write left goes. Raises SinkRefused for altered files."""
        for partial in self._directory.glob(".*.partial"):
            partial.unlink()
        for path in sorted(self._directory.glob("*.parquet")):
            if path.name == SCHEMA_FILE:
                continue
            try:
                metadata = pq.read_metadata(path)
                table = pq.read_table(path, columns=[*self._key, "_generation", "_offset"], partitioning=None)
            except (pa.ArrowException, OSError) as error:
                raise SinkRefused(f"{path} is no file that a sink wrote ({type(error).__name__})") from None
            self._sizes[path.name] = _size(metadata)
            self._take(path, table)

    def _take(self, path: Path, table: Any) -> None:
        versions = zip(table["_generation"].to_pylist(), table["_offset"].to_pylist(), strict=True)
        for key, version in zip(self._keys(table), versions, strict=True):
            if key in self.entries:
                raise SinkRefused(f"{path} holds a record that stands in another file too: it was changed by others")
            self.entries[key] = Entry(version, path.name)

    def _keys(self, table: Any) -> list[Any]:
        columns = [table[name].to_pylist() for name in self._key]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    # ------------------------------------------------------------------------------------------------------- changing

    def stage(self, rows: Any, removed: Collection[Any] = ()) -> list[Change]:
        """Write the next state of every file that rows go into or away from, under other names.

        ``rows`` has each key once and is newer than what is here. Nothing is in effect before ``commit``.
        """
        changes: list[Change] = []
        try:
            for name, (indexes, gone) in self._placed(rows, removed).items():
                changes.append(self._write(name, rows.take(pa.array(indexes, pa.int64())), frozenset(gone)))
        except BaseException:
            self.abandon(changes)
            raise
        return changes

    def commit(self, changes: Sequence[Change]) -> None:
        """Give what was staged its names, file by file, and make that durable."""
        for change in changes:
            change.partial.replace(self._directory / change.name)
            self._sizes[change.name] = change.size
            for key in change.removed:
                del self.entries[key]
            self.entries.update(change.entries)
        if changes:
            sync_directory(self._directory)

    def abandon(self, changes: Sequence[Change]) -> None:
        """Remove what was staged and is not to be."""
        for change in changes:
            change.partial.unlink(missing_ok=True)

    def _placed(self, rows: Any, removed: Collection[Any]) -> dict[str, tuple[list[int], list[Any]]]:
        """Say which rows go into which file, by their numbers, and which keys leave it."""
        placed: dict[str, tuple[list[int], list[Any]]] = {}
        fresh: list[int] = []
        for number, key in enumerate(self._keys(rows)):
            entry = self.entries.get(key)
            if entry is None:
                fresh.append(number)
            else:
                placed.setdefault(entry.file, ([], []))[0].append(number)
        for key in removed:
            placed.setdefault(self.entries[key].file, ([], []))[1].append(key)
        if fresh:
            self._place_fresh(rows, fresh, placed)
        return placed

    def _place_fresh(self, rows: Any, fresh: list[int], placed: dict[str, tuple[list[int], list[Any]]]) -> None:
        versions = list(zip(rows["_generation"].to_pylist(), rows["_offset"].to_pylist(), strict=True))
        fresh.sort(key=lambda number: (versions[number], number))
        lengths = pc.binary_length(rows["record"]).to_pylist() if "record" in rows.column_names else [0] * rows.num_rows
        taken = set(self._sizes)
        size, name = min(((size, name) for name, size in self._sizes.items()), default=(FILE_BYTES, ""))
        for number in fresh:
            if size >= FILE_BYTES:
                name, size = _new_name(versions[number], taken), 0
                taken.add(name)
            placed.setdefault(name, ([], []))[0].append(number)
            size += lengths[number] + _ROW_OVERHEAD_BYTES

    def _write(self, name: str, rows: Any, removed: frozenset[Any]) -> Change:
        path = self._directory / name
        keys = self._keys(rows)
        table = rows
        if name in self._sizes:
            before = pq.read_table(path, partitioning=None).cast(self.schema)
            outdated = removed.union(keys)
            kept = pa.array([key not in outdated for key in self._keys(before)], pa.bool_())
            table = pa.concat_tables([before.filter(kept), rows])
        table = table.sort_by([(column, "ascending") for column in self._key])
        partial = path.with_name(f".{name}.partial")
        size = write_durably(partial, table)
        versions = zip(rows["_generation"].to_pylist(), rows["_offset"].to_pylist(), strict=True)
        entries = {key: Entry(version, name) for key, version in zip(keys, versions, strict=True)}
        return Change(name, partial, size, entries, removed)

    def rewrite(self, upgrade: Any) -> None:
        """Replace every file by what ``upgrade`` makes of its table, as after a change of columns."""
        for name in [*sorted(self._sizes), SCHEMA_FILE]:
            path = self._directory / name
            table = upgrade(pq.read_table(path, partitioning=None))
            partial = path.with_name(f".{name}.partial")
            size = write_durably(partial, table)
            partial.replace(path)
            if name != SCHEMA_FILE:
                self._sizes[name] = size
        sync_directory(self._directory)


def write_durably(path: Path, table: Any) -> int:
    """Write a table to a new file for its owner alone; nothing of it is left when that fails."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            size = write_table(file, table)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return size


def _size(metadata: Any) -> int:
    return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def _new_name(version: Version, taken: Collection[str]) -> str:
    generation, offset = version
    stem = f"g{generation}-{offset:020d}"
    # Two partitions may have the same offset, each in a range of its own.
    name, number = f"{stem}.parquet", 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}.parquet"
    return name
