"""Delta tables under one directory or object store prefix: a table per record kind, merged by id.

What was deleted is remembered in a table of its own, so that readers of a kind have its living records and nothing
else. Any number of writers may write, each commit on top of what it read or not at all. Order of a write, per kind:
1. deletions are merged into ``trace_deletions``; 2. the kind's table is read; 3. deletions are read; 4. the table is
merged, or, when a deletion changed nothing in it, gets an empty commit. So whoever read the table before a deletion
that it does not know of finds its own commit refused, and reads again. Refused commits are tried again a few times,
and then the batch is put off. Each kind is a commit of its own: a batch that fails between two is written in part, and
comes again.

Every ``COMMITS_PER_MAINTENANCE`` commits a table's small files are put together, and files that no version of the last
seven days has (``delta.deletedFileRetentionDuration``) are removed: a reader has that long to read what it opened.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema, WriterProperties
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableMerger

from projections.text import storable_text
from worker.sink import RecordKey, SinkRefused, Upsert, Version
from worker.stores.arrow_schemas import DELETIONS, deletions_of, table_of, table_schema, with_typed_columns
from worker.stores.columns import COLUMNS
from worker.stores.delta import (
    FORMAT,
    ON_TOP,
    POLICY_PROPERTY,
    SCHEMA_VERSION,
    TABLES,
    VERSION_PROPERTY,
    DeltaPlace,
    delta_place,
    make_table,
    open_table,
    properties_of,
    schema_version,
    told,
)
from worker.stores.directory import admit, held, make_directory, read_meta, write_meta
from worker.threaded_sink import ThreadedSink

TRIES_MAX: Final = 5
COMMITS_PER_MAINTENANCE: Final = 100
FILE_BYTES: Final = 64 * 1024 * 1024

_IS_GONE: Final = "_is_gone"
_NEWER: Final = 's."_generation" > t."_generation" OR (s."_generation" = t."_generation" AND s."_offset" > t."_offset")'
_DELETIONS_TABLE: Final = f"trace_{DELETIONS}"
_WRITER: Final = WriterProperties(compression="ZSTD", compression_level=3)


class DeltaSink(ThreadedSink):
    """Keep the newest version of every record as a row of a Delta table."""

    single_writer: ClassVar[bool] = False
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        super().__init__()
        self._place = delta_place(location)
        self._meta = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "policy_digest": policy_digest}
        self._policy_digest = policy_digest
        self._tables: dict[str, DeltaTable] = {}
        self._directory: os.stat_result | None = None
        self._deleted: dict[RecordKey, Version] = {}
        self._deleted_at = -1
        self._eras: dict[str, int] = {}

    def _close(self) -> None:
        self._tables, self._deleted, self._deleted_at = {}, {}, -1

    # --------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> bool:
        self._directory = None
        if self._place.is_local and read_meta(self._place.path) is None:
            make_directory(self._place.path, self._meta, lambda path: self._make_tables(delta_place(str(path))))
        with self._held():
            self._tables = told(self._place, self._opened)
            self._eras = {name: _era(table) for name, table in self._tables.items()}
            return told(self._place, lambda: not any(table.count() for table in self._tables.values()))

    def _make_tables(self, place: DeltaPlace) -> None:
        options = place.options()
        for name in TABLES:
            told(place, partial(make_table, place, name, options, self._policy_digest))

    def _opened(self) -> dict[str, DeltaTable]:
        """Open the tables, made or brought up to date if need be; all of one policy. Raises SinkRefused."""
        place, options = self._place, self._place.options()
        if place.is_local:
            admit(place.path, read_meta(place.path), self._meta)
        tables: dict[str, DeltaTable] = {}
        for name in TABLES:
            table = open_table(place, name, options)
            if table is None:
                make_table(place, name, options, self._policy_digest)
                table = DeltaTable(place.table_uri(name), storage_options=options)
            version = schema_version(place, table)
            if properties_of(table).get(POLICY_PROPERTY) != self._policy_digest:
                raise SinkRefused(
                    f"{place.root} was written under another policy (redaction, key, filter, public_repos, price "
                    "table, or another application): make a new export with another name and place"
                )
            if version < SCHEMA_VERSION:
                self._on_top(table, partial(_migrate, table, name))
            tables[name] = table
        if place.is_local and read_meta(place.path) != self._meta:
            write_meta(place.path, self._meta)
        return tables

    # --------------------------------------------------------------------------------------------------------- writing

    def _write(self, batch: Sequence[Upsert]) -> None:
        assert self._tables, "a sink is opened before it is written"
        with self._held():
            deleted = [item for item in batch if item.json is None]
            if deleted:
                self._change(_DELETIONS_TABLE, partial(self._remember, deleted))
            for kind in sorted({item.kind for item in batch}):
                items = [item for item in batch if item.kind == kind]
                self._change(f"trace_{kind}", partial(self._apply, kind, items))

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep a local directory from being moved meanwhile. Raises SinkRefused when it was since it was opened."""
        if not self._place.is_local:
            yield
            return
        with held(self._place.path, shared=True) as descriptor:
            now = None if descriptor is None else os.fstat(descriptor)
            if now is None or (self._directory is not None and not os.path.samestat(now, self._directory)):
                raise SinkRefused(f"{self._place.root} was moved or replaced while it was written; start again")
            self._directory = now
            yield

    def _change(self, name: str, work: Callable[[DeltaTable], None]) -> None:
        table = self._tables[name]
        told(self._place, partial(self._on_top, table, partial(work, table)))
        told(self._place, partial(self._maintain, name, table))

    @staticmethod
    def _on_top(table: DeltaTable, work: Callable[[], None]) -> None:
        """Do what ends in a commit on top of the table's newest version, again if somebody else's came first."""
        for _ in range(TRIES_MAX - 1):
            table.update_incremental()
            try:
                work()
            except CommitFailedError:
                continue
            return
        # Refused once more, it is for the caller to say so.
        table.update_incremental()
        work()

    def _remember(self, deleted: Sequence[Upsert], table: DeltaTable) -> None:
        self._learn_deletions()
        newer = [item for item in deleted if item.version > self._deleted.get(_key(item), (-1, -1))]
        if newer:
            merge = _merge(table, deletions_of(newer), "s.kind = t.kind AND s.id = t.id")
            merge.when_matched_update_all(_NEWER).when_not_matched_insert_all().execute()
            # Nothing came in between what was known and this commit, or it would have been refused.
            self._deleted.update((_key(item), item.version) for item in newer)
            self._deleted_at = table.version()

    def _apply(self, kind: str, items: Sequence[Upsert], table: DeltaTable) -> None:
        before = table.version()
        self._tables[_DELETIONS_TABLE].update_incremental()
        self._learn_deletions()
        living = [item for item in items if item.json is not None and item.version > self._deleted_version(item)]
        gone = [item for item in items if item.json is None]
        if living or gone:
            merge = _merge(table, _source(kind, living, gone), "s.id = t.id")
            merge = merge.when_matched_delete(f"s.{_IS_GONE} AND ({_NEWER})")
            merge = merge.when_matched_update_all(f"NOT s.{_IS_GONE} AND ({_NEWER})", except_cols=[_IS_GONE])
            merge.when_not_matched_insert_all(f"NOT s.{_IS_GONE}", except_cols=[_IS_GONE]).execute()
        if gone and table.version() == before:
            table.create_write_transaction([], "append", table.schema(), commit_properties=ON_TOP)

    def _deleted_version(self, item: Upsert) -> Version:
        return self._deleted.get(_key(item), (-1, -1))

    def _learn_deletions(self) -> None:
        """Read what was deleted, unless nothing was since it was read last."""
        table = self._tables[_DELETIONS_TABLE]
        if table.version() == self._deleted_at:
            return
        columns = table.to_pyarrow_table(columns=["kind", "id", "_generation", "_offset"]).to_pydict()
        keys = zip(columns["kind"], columns["id"], strict=True)
        versions = zip(columns["_generation"], columns["_offset"], strict=True)
        self._deleted = dict(zip(keys, versions, strict=True))
        self._deleted_at = table.version()

    def _maintain(self, name: str, table: DeltaTable) -> None:
        if _era(table) <= self._eras[name]:
            return
        self._eras[name] = _era(table)
        try:
            table.optimize.compact(target_size=FILE_BYTES, writer_properties=_WRITER, commit_properties=ON_TOP)
            table.create_checkpoint()
            table.vacuum(dry_run=False, full=True)
        except CommitFailedError:
            # Somebody else wrote meanwhile, and what was put together is out of date. A later era tries again.
            table.update_incremental()


def _key(item: Upsert) -> RecordKey:
    return item.kind, storable_text(item.id)


def _era(table: DeltaTable) -> int:
    return table.version() // COMMITS_PER_MAINTENANCE


def _merge(table: DeltaTable, source: Any, predicate: str) -> TableMerger:
    return table.merge(
        source,
        predicate,
        source_alias="s",
        target_alias="t",
        writer_properties=_WRITER,
        commit_properties=ON_TOP,
    )


def _source(kind: str, living: Sequence[Upsert], gone: Sequence[Upsert]) -> Any:
    """Rows to be merged, those that are to go with their key and version alone."""
    rows = table_of(kind, living)
    deletions = deletions_of(gone).drop_columns(["kind"])
    lacking = [(field.name, field.type) for field in rows.schema if field.name not in deletions.column_names]
    for name, type_ in lacking:
        values = pa.array([""] * len(gone), type_) if name == "record" else pa.nulls(len(gone), type_)
        deletions = deletions.append_column(rows.schema.field(name), values)
    rows = pa.concat_tables([rows, deletions.select(rows.column_names).cast(rows.schema)])
    return rows.append_column(_IS_GONE, pa.array([False] * len(living) + [True] * len(gone), pa.bool_()))


def _migrate(table: DeltaTable, name: str) -> None:
    """Add the columns that a table of an older release lacks, filled from the records."""
    kind = name.removeprefix("trace_")
    if kind in COLUMNS:
        known = {field.name for field in table.schema().fields}
        missing = [field for field in table_schema(kind) if field.name not in known]
        if missing:
            table.alter.add_columns(list(Schema.from_arrow(pa.schema(missing)).fields), commit_properties=ON_TOP)
        _fill(table, kind, [field.name for field in missing])
    table.alter.set_table_properties(
        {VERSION_PROPERTY: str(SCHEMA_VERSION)}, raise_if_not_exists=False, commit_properties=ON_TOP
    )


def _fill(table: DeltaTable, kind: str, names: Iterable[str]) -> None:
    rows = table.to_pyarrow_table()
    filled = with_typed_columns(kind, rows.drop_columns(list(names)))
    same = 's."_generation" = t."_generation" AND s."_offset" = t."_offset"'
    updates = {f'"{name}"': f's."{name}"' for name in names}
    if updates and rows.num_rows:
        _merge(table, filled, "s.id = t.id").when_matched_update(updates, same).execute()
