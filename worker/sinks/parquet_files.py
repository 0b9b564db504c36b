"""A directory of Parquet files: a subdirectory per record kind, one row per id in its files at any moment.

``PATH/trace_run/*.parquet`` and its siblings can be read at any time by anything that reads Parquet; ``PATH/views.sql``
has the views for DuckDB. Deletions are remembered in ``PATH/_deletions``, the policy in ``PATH/_trace_projector.json``.

The trade: a file is rewritten whole for each flush that changes a row of it, which is what keeps a plain reader from
ever seeing two versions of a record; files are small (16 MiB before compression) so that this stays cheap, and a record
that no longer changes lies in a file that no longer changes. Which file each id is in is kept in memory.

Order of durability of a write: 1. the next state of every file is written under another name and synced; 2. what was
deleted takes its names; 3. the rows take theirs, file by file. A failure in 1 has no effect. A crash within 3 leaves
some rows of the batch new and some old, each once; the batch comes again, as it was not acknowledged.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from projections.text import storable_text
from worker.sink import RecordKey, SinkRefused, Upsert, Version
from worker.stores.arrow_schemas import DELETIONS_SCHEMA, deletions_of, table_of, table_schema, with_typed_columns
from worker.stores.columns import COLUMNS
from worker.stores.directory import admit, has_name, lock_directory, make_directory, read_meta, replace_file, write_meta
from worker.stores.parquet import SCHEMA_FILE, Change, Segments, without_values, write_durably
from worker.stores.views import DUCKDB, view_queries
from worker.threaded_sink import ThreadedSink

SCHEMA_VERSION: Final = 1
FORMAT: Final = "trace-projector parquet"
VIEWS_NAME: Final = "views.sql"

_DELETIONS: Final = "_deletions"


def views_sql() -> str:
    """Give the tables and views of an export for DuckDB, over the files of the directory it runs in."""
    tables = []
    for kind, columns in COLUMNS.items():
        json_columns = [f"CAST({column.name} AS JSON) AS {column.name}" for column in columns if column.type == "json"]
        replaced = f" REPLACE ({', '.join(json_columns)})" if json_columns else ""
        source = f"read_parquet('trace_{kind}/*.parquet')"
        tables.append(f"CREATE OR REPLACE VIEW trace_{kind} AS SELECT *{replaced} FROM {source};\n")  # noqa: S608
    views = [f"CREATE OR REPLACE VIEW {name} AS {query.strip()};\n" for name, query in view_queries(DUCKDB).items()]
    return "-- In this directory: duckdb -init views.sql\n" + "".join([*tables, *views])


class ParquetSink(ThreadedSink):
    """Keep the newest version of every record as a row of the Parquet files of its kind."""

    single_writer: ClassVar[bool] = True
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        super().__init__()
        if not location:
            raise SinkRefused("a Parquet sink needs the path of a directory, as in parquet:traces")
        if "://" in location:
            raise SinkRefused("a Parquet sink is a local directory; delta: takes the URL of an object store")
        self._path = Path(location).absolute()
        self._meta = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "policy_digest": policy_digest}
        self._descriptor = -1
        self._kinds: dict[str, Segments] = {}
        self._deletions = _segments(self._path, _DELETIONS)
        self._outlived: set[RecordKey] = set()

    # --------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> bool:
        if self._descriptor < 0:
            if read_meta(self._path) is None:
                make_directory(self._path, self._meta, _fill)
            self._descriptor = lock_directory(self._path)
            try:
                self._load()
            except BaseException:
                self._release()
                raise
        return not self._deletions.entries and not any(table.entries for table in self._kinds.values())

    def _load(self) -> None:
        meta = admit(self._path, read_meta(self._path), self._meta)
        self._kinds = {kind: _segments(self._path, f"trace_{kind}", kind) for kind in COLUMNS}
        self._deletions = _segments(self._path, _DELETIONS)
        for table in (self._deletions, *self._kinds.values()):
            table.load()
        if meta["schema_version"] < SCHEMA_VERSION:
            self._migrate()
        self._outlived = {key for key in self._deletions.entries if self._outlives(key)}
        self._finish_deletions()

    def _migrate(self) -> None:
        """Give the files of an older release the columns of now, which are read from the records."""
        for kind, table in self._kinds.items():
            without_values(partial(table.rewrite, partial(with_typed_columns, kind)))
        replace_file(self._path / VIEWS_NAME, views_sql().encode())
        write_meta(self._path, self._meta)

    def _finish_deletions(self) -> None:
        """Remove rows whose deletion was remembered before a crash kept them from going."""
        for (kind, record_id), deletion in self._deletions.entries.items():
            living = self._kinds[kind].entries.get(record_id)
            if living is not None and living.version < deletion.version:
                table = self._kinds[kind]
                table.commit(table.stage(table.schema.empty_table(), [record_id]))

    # --------------------------------------------------------------------------------------------------------- writing

    def _write(self, batch: Sequence[Upsert]) -> None:
        assert self._descriptor >= 0, "a sink is opened before it is written"
        if not has_name(self._descriptor, self._path):
            raise SinkRefused(f"{self._path} was moved or replaced while it was written; start again")
        newer = [item for item in batch if item.version > self._version((item.kind, storable_text(item.id)))]
        staged: list[tuple[Segments, list[Change]]] = []
        try:
            without_values(partial(self._stage, newer, staged))
            for table, changes in staged:
                table.commit(changes)
            self._note_outlived(newer)
        except BaseException:
            for table, changes in staged:
                table.abandon(changes)
            raise

    def _version(self, key: RecordKey) -> Version:
        """Give the version that is here, deletions included; one before all versions if there is none."""
        kind, record_id = key
        found = (self._kinds[kind].entries.get(record_id), self._deletions.entries.get(key))
        return max((entry.version for entry in found if entry is not None), default=(-1, -1))

    def _stage(self, newer: Sequence[Upsert], staged: list[tuple[Segments, list[Change]]]) -> None:
        deleted = [item for item in newer if item.json is None]
        if deleted:
            keys = {(item.kind, storable_text(item.id)) for item in deleted}
            # What lives again by an earlier write goes here, and not with that write: a crash between the two would
            # have forgotten both.
            outlived = self._outlived - keys
            staged.append((self._deletions, self._deletions.stage(deletions_of(deleted), outlived)))
        for kind in sorted({item.kind for item in newer}):
            table = self._kinds[kind]
            living = [item for item in newer if item.kind == kind and item.json is not None]
            gone = [storable_text(item.id) for item in deleted if item.kind == kind]
            removed = [record_id for record_id in gone if record_id in table.entries]
            staged.append((table, table.stage(table_of(kind, living), removed)))

    def _note_outlived(self, newer: Sequence[Upsert]) -> None:
        keys = {(item.kind, storable_text(item.id)) for item in newer}
        known = (self._outlived | keys) & self._deletions.entries.keys()
        self._outlived = {key for key in known if self._outlives(key)}

    def _outlives(self, key: RecordKey) -> bool:
        living = self._kinds[key[0]].entries.get(key[1])
        return living is not None and living.version > self._deletions.entries[key].version

    def _close(self) -> None:
        self._release()

    def _release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._kinds = {}


def _segments(path: Path, name: str, kind: str | None = None) -> Segments:
    if kind is None:
        return Segments(path / name, DELETIONS_SCHEMA, ("kind", "id"))
    return Segments(path / name, table_schema(kind), ("id",))


def _fill(directory: Path) -> None:
    schemas: dict[str, Any] = {f"trace_{kind}": table_schema(kind) for kind in COLUMNS}
    for name, schema in {**schemas, _DELETIONS: DELETIONS_SCHEMA}.items():
        (directory / name).mkdir(mode=0o700)
        write_durably(directory / name / SCHEMA_FILE, schema.empty_table())
    replace_file(directory / VIEWS_NAME, views_sql().encode())
