"""One local DuckDB file: a table per record kind, the record beside its typed columns, and views to start from.

Rules for editing: the file is attached for one write and let go of, because DuckDB lets no second process open a file
that is held. What a write did is durable once it has been checkpointed into the file; no record goes into a write-ahead
log, which would be a second file that everybody may read. A change of columns or views is a new ``SCHEMA_VERSION``.
"""

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import duckdb

from projections.text import storable_text
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert
from worker.stores.columns import COLUMNS, PRICING_COLUMNS, Column, storable_copy
from worker.stores.files import check_directory, other_policy, sync_directory
from worker.stores.views import DUCKDB, view_queries
from worker.threaded_sink import ThreadedSink

_Result = TypeVar("_Result")

SCHEMA_VERSION: Final = 4
# Most who hold the file let go of it within a few milliseconds; for one who does not it is tried ever more rarely.
_BUSY_DELAY_FIRST_S: Final = 0.02
_BUSY_DELAY_MAX_S: Final = 0.5

# Nothing is downloaded or spilled beside the file. A write is a row of small statements, which more threads only make
# dearer: measured on two cores, one takes a sixth less processor time and no longer.
_CONFIG: Final[dict[str, Any]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
    "threads": 1,
}
# Planning a statement of many columns costs as much as running it on a small batch. What these are needed for: joining
# a small batch with a large table, and reading each JSON once.
_OPTIMIZERS: Final = frozenset(
    {
        "build_side_probe_side",
        "column_lifetime",
        "common_subexpressions",
        "deliminator",
        "filter_pushdown",
        "statistics_propagation",
        "unused_columns",
    }
)
# Checkpointing reads and writes the last group of rows as a whole, records included: with DuckDB's own 122,880 rows
# that takes 150 MiB and more. Groups that are there already stay as they are.
_ROW_GROUP_ROWS: Final = 4_096
# Within its limit DuckDB keeps every block that it has read, and all that a write took; setting the limit, to what it
# is, lets go of that. What does not fit is tried again with twice the limit, up to DuckDB's own, most of the machine.
_MEMORY_MIB_FIRST: Final = 40
_MEMORY_MIB_MAX: Final = 1_024
_SQL_TYPES: Final = {
    "text": "VARCHAR",
    "count": "BIGINT",
    "number": "DOUBLE",
    "flag": "BOOLEAN",
    "time": "TIMESTAMPTZ",
    "json": "JSON",
}

# A record is text and not JSON: DuckDB's JSON refuses escapes of lone surrogates, and one such row would take its batch
# down. The operators of JSON (record ->> '$.error') work on it all the same.
#
# No table of records has an index: DuckDB reads the whole index of a table with every attach and writes it with every
# checkpoint. Rows are found by joining the batch with a column of digests instead, which takes 16 bytes a row: with
# 200,000 records a write of 100 scattered ones took 0.6 of the time, and memory does not grow with the tables.
_KEY_COLUMNS: Final = "id VARCHAR NOT NULL, _key UUID NOT NULL, _generation BIGINT NOT NULL, _offset BIGINT NOT NULL"
_KEY: Final = "sha256(id)[1:32]::UUID"
_BESIDE: Final[dict[str, tuple[str, ...]]] = {"cost": PRICING_COLUMNS}
_DELETIONS: Final = f"CREATE TABLE IF NOT EXISTS trace_deletions (kind VARCHAR NOT NULL, {_KEY_COLUMNS});"
_TABLES: Final = "\n".join(
    [
        *(
            f"CREATE TABLE IF NOT EXISTS trace_{kind} ({_KEY_COLUMNS}, record VARCHAR NOT NULL, "
            f"{', '.join(f'{column.name} {_SQL_TYPES[column.type]}' for column in columns)}"
            f"{''.join(f', {name} VARCHAR' for name in _BESIDE.get(kind, ()))});"
            for kind, columns in COLUMNS.items()
        ),
        _DELETIONS,
        "CREATE TABLE IF NOT EXISTS trace_meta (name VARCHAR PRIMARY KEY, value VARCHAR NOT NULL);",
    ]
)

_VIEWS: Final = "".join(f"CREATE OR REPLACE VIEW {name} AS {query};" for name, query in view_queries(DUCKDB).items())

_IS_NEWER: Final = "(incoming._generation, incoming._offset) > ({0}._generation, {0}._offset)"
_IS_SAME_DELETED: Final = "incoming.kind = trace_deletions.kind AND incoming._key = trace_deletions._key"
# What an equal or a newer deletion has outlived; what is left outlives every deletion of its record.
_PASS_OVER_DELETED: Final = f"""
DELETE FROM incoming USING trace_deletions WHERE {_IS_SAME_DELETED} AND NOT {_IS_NEWER.format("trace_deletions")};
DELETE FROM trace_deletions USING incoming WHERE {_IS_SAME_DELETED};
"""  # noqa: S608 - every part is a constant of this module


def _shape(columns: Iterable[Column]) -> str:
    """What DuckDB is to read out of a record's JSON for these columns: their keys, nested as they are there."""
    shape: dict[str, Any] = {}
    for column in columns:
        level = shape
        for key in column.path[:-1]:
            level = level.setdefault(key, {})
        read_as = "VARCHAR" if column.type == "time" else _SQL_TYPES[column.type]
        assert level.setdefault(column.path[-1], read_as) == read_as, "a key is read in one way, whatever the kind"
    return json.dumps(shape)


def _parsed(columns: Iterable[Column], text: str) -> str:
    """What a text gives for these columns; one that DuckDB's JSON refuses gives NULL in every column."""
    return f"json_transform(CASE WHEN json_valid({text}) THEN {text} END, '{_shape(columns)}')"


def _values(columns: Iterable[Column]) -> str:
    return ", ".join(f"{_value(column)} AS {column.name}" for column in columns)


def _value(column: Column) -> str:
    value = ".".join(["parsed", *(f'"{key}"' for key in column.path)])
    return f"TRY_CAST({value} AS TIMESTAMPTZ)" if column.type == "time" else value


# One shape for the columns of all kinds: planning a statement that reads JSON costs more than running it on a small
# batch, so there is one such statement a write and not one for each kind.
_STAGE: Final = f"""
CREATE OR REPLACE TEMP TABLE incoming AS
SELECT *, {_KEY} AS _key,
    {_parsed(itertools.chain.from_iterable(COLUMNS.values()), "coalesce(storable, record)")} AS parsed
FROM (
    SELECT unnest($kind::VARCHAR[]) AS kind, unnest($id::VARCHAR[]) AS id, unnest($generation::BIGINT[]) AS _generation,
        unnest($offset::BIGINT[]) AS _offset, unnest($record::VARCHAR[]) AS record,
        {{beside}}
)
"""  # noqa: S608 - every part is a constant of this module


def _stage_sql(given: Container[str]) -> str:
    names = ("storable", *PRICING_COLUMNS)
    # A list costs as much when all of it is NULL, and most batches have nothing to say in these columns.
    sources = {name: f"unnest(${name}::VARCHAR[])" if name in given else "NULL::VARCHAR" for name in names}
    return _STAGE.replace("{beside}", ", ".join(f"{source} AS {name}" for name, source in sources.items()))


def _remove_older_sql(kind: str) -> str:
    return f"""
    DELETE FROM trace_{kind} USING incoming
    WHERE incoming.kind = '{kind}' AND incoming._key = trace_{kind}._key AND {_IS_NEWER.format(f"trace_{kind}")}
    """  # noqa: S608 - every part is a constant of this module


def _of_kind(kind: str, *, is_deletion: bool) -> str:
    """Say which of a batch are to be stored: those whose record has no row, which were new or have had it removed."""
    return f"""
    incoming WHERE kind = '{kind}' AND record IS {"NULL" if is_deletion else "NOT NULL"}
        AND NOT EXISTS (SELECT 1 FROM trace_{kind} WHERE trace_{kind}._key = incoming._key)
    """  # noqa: S608 - every part is a constant of this module


def _insert_sql(kind: str) -> str:
    names = ["id", "_key", "_generation", "_offset", "record", _values(COLUMNS[kind]), *_BESIDE.get(kind, ())]
    return f"INSERT INTO trace_{kind} BY NAME SELECT {', '.join(names)} FROM {_of_kind(kind, is_deletion=False)}"  # noqa: S608


def _remember_deletions_sql(kind: str) -> str:
    return (
        "INSERT INTO trace_deletions BY NAME SELECT kind, id, _key, _generation, _offset "  # noqa: S608
        f"FROM {_of_kind(kind, is_deletion=True)}"
    )


_NO_PRICING: Final = (None,) * len(PRICING_COLUMNS)
_REMOVE_OLDER: Final = {kind: _remove_older_sql(kind) for kind in COLUMNS}
_INSERT: Final = {kind: _insert_sql(kind) for kind in COLUMNS}
_REMEMBER_DELETIONS: Final = {kind: _remember_deletions_sql(kind) for kind in COLUMNS}


class _MemoryShort(Exception):  # noqa: N818  (not a fault: there is more)
    """Something did not fit into the memory that it had."""


class DuckDBSink(ThreadedSink):
    """Keep the newest version of every record in one local file, one table per record kind."""

    single_writer: ClassVar[bool] = True
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        super().__init__()
        if not location:
            raise SinkRefused("a DuckDB sink needs a path, as in duckdb:traces.duckdb")
        self._path = Path(location).absolute()
        self._policy_digest = policy_digest
        # DuckDB itself, without the file: starting it costs more than a small write.
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._busy_delay_s = _BUSY_DELAY_FIRST_S
        self._memory_mib = _MEMORY_MIB_FIRST

    def _close(self) -> None:
        # Between writes the file is not held, so there is nothing to wait for but a write that is still going on.
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _open(self) -> bool:
        return self._with_memory(self._opened)

    def _opened(self) -> bool:
        if not self._path.exists():
            self._create()
        with self._attached(self._path) as connection:
            self._admit(connection)
            return _is_empty(connection)

    def _create(self) -> None:
        """Make the file where nobody else can look and put it in place whole, readable for its owner alone."""
        check_directory(self._path)
        directory = Path(tempfile.mkdtemp(prefix=".trace-projector-", dir=self._path.parent))
        try:
            fresh = directory / "new.duckdb"
            with self._attached(fresh, may_create=True) as connection:
                connection.execute("BEGIN")
                connection.execute(_TABLES)
                connection.execute(_VIEWS)
                meta = [("schema_version", str(SCHEMA_VERSION)), ("policy_digest", self._policy_digest)]
                connection.executemany("INSERT INTO trace_meta VALUES (?, ?)", meta)
                connection.execute("COMMIT")
                connection.execute("CHECKPOINT sink")
            fresh.chmod(0o600)
            _put_in_place(fresh, self._path)
        finally:
            shutil.rmtree(directory)
        sync_directory(self._path.parent)

    def _admit(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Check that the file is ours and of our policy; bring an older schema up to date."""
        tables = connection.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'sink'").fetchall()
        if ("trace_meta",) not in tables:
            raise SinkRefused(f"{self._path} is a DuckDB file, but not one of an export; give the export another path")
        version = int(self._checked_meta(connection)["schema_version"])
        if version > SCHEMA_VERSION:
            raise SinkRefused(f"{self._path} has schema version {version}, from a newer release than this one")
        if version < SCHEMA_VERSION:
            _migrate(connection)

    def _checked_meta(self, connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
        meta = dict(connection.execute("SELECT name, value FROM trace_meta").fetchall())
        if meta["policy_digest"] != self._policy_digest:
            raise other_policy(self._path)
        return meta

    def _write(self, batch: Sequence[Upsert]) -> None:
        self._with_memory(lambda: self._apply(batch))

    def _apply(self, batch: Sequence[Upsert]) -> None:
        if not self._path.exists():
            raise SinkRefused(f"{self._path} is gone; start again, and everything is read into a new file")
        with self._attached(self._path) as connection:
            # Between two writes another file may have been put in this one's place.
            self._checked_meta(connection)
            columns = _staged(batch)
            connection.execute(_stage_sql(columns), columns)
            connection.execute("BEGIN")
            connection.execute(_PASS_OVER_DELETED)
            for kind in sorted({item.kind for item in batch}):
                connection.execute(_REMOVE_OLDER[kind])
            for kind in sorted({item.kind for item in batch if item.record is not None}):
                connection.execute(_INSERT[kind])
            for kind in sorted({item.kind for item in batch if item.record is None}):
                connection.execute(_REMEMBER_DELETIONS[kind])
            connection.execute("COMMIT")
            connection.execute("DROP TABLE incoming")
            connection.execute("CHECKPOINT sink")

    def _with_memory(self, work: Callable[[], _Result]) -> _Result:
        """Do what has no effect when it fails, with as much memory as it needs."""
        while True:
            try:
                return work()
            except _MemoryShort:
                self._memory_mib *= 2

    @property
    def _memory_limit(self) -> str:
        is_bounded = self._memory_mib <= _MEMORY_MIB_MAX
        return f"SET memory_limit = '{self._memory_mib}MiB'" if is_bounded else "RESET memory_limit"

    @contextmanager
    def _attached(self, path: Path, *, may_create: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        """Hold a file as the database ``sink`` for a moment; after an error, what was not committed is dropped."""
        assert may_create or path.exists(), "attaching makes a file that is not there, readable for everybody"
        engine, self._engine = self._engine, None
        try:
            engine = engine or _engine()
            engine.execute(self._memory_limit)
            quoted = str(path).replace("'", "''")
            options = f"RECOVERY_MODE no_wal_writes, ROW_GROUP_SIZE {_ROW_GROUP_ROWS}"
            engine.execute(f"ATTACH '{quoted}' AS sink ({options})")
            self._busy_delay_s = _BUSY_DELAY_FIRST_S
            engine.execute("USE sink")
            yield engine
            engine.execute("USE memory")
            engine.execute("DETACH sink")
            engine.execute(self._memory_limit)
            self._engine = engine
        except duckdb.Error as error:
            if _is_held(error):
                delay_s, self._busy_delay_s = self._busy_delay_s, min(self._busy_delay_s * 2, _BUSY_DELAY_MAX_S)
                raise SinkBusy(f"{path} is held by another reader or writer", delay_s) from None
            if isinstance(error, duckdb.OutOfMemoryException) and self._memory_mib <= _MEMORY_MIB_MAX:
                raise _MemoryShort from None
            raise _failure(error, path) from None
        finally:
            # Only one that is known to hold nothing is used again.
            if engine is not None and self._engine is not engine:
                engine.close()


def _engine() -> duckdb.DuckDBPyConnection:
    """Start DuckDB without a file."""
    engine = duckdb.connect(":memory:", config=_CONFIG)
    names = {name for (name,) in engine.execute("SELECT name FROM duckdb_optimizers()").fetchall()}
    engine.execute(f"SET disabled_optimizers = '{','.join(sorted(names - _OPTIMIZERS))}'")
    return engine


def _staged(batch: Sequence[Upsert]) -> dict[str, list[Any]]:
    """Columns of the staging table; lists, because one statement with lists is what DuckDB takes in fastest."""
    columns: dict[str, list[Any]] = {
        "kind": [item.kind for item in batch],
        "id": [storable_text(item.id) for item in batch],
        "generation": [item.generation for item in batch],
        "offset": [item.offset for item in batch],
        "record": [None if item.json is None else item.json.decode() for item in batch],
    }
    storable = [_storable(item) for item in batch]
    if any(storable):
        columns["storable"] = storable
    if any(item.pricing for item in batch):
        pricing = [item.pricing or _NO_PRICING for item in batch]
        columns |= {name: [row[number] for row in pricing] for number, name in enumerate(PRICING_COLUMNS)}
    return columns


def _storable(item: Upsert) -> str | None:
    if item.record is None or item.json is None:
        return None
    copy = storable_copy(item.record, item.json)
    return None if copy is None else copy.decode()


def _is_empty(connection: duckdb.DuckDBPyConnection) -> bool:
    tables = [*(f"trace_{kind}" for kind in COLUMNS), "trace_deletions"]
    rows = " UNION ALL ".join(f"(SELECT 1 FROM {table} LIMIT 1)" for table in tables)  # noqa: S608 - our own names
    return connection.execute(rows).fetchone() is None


def _migrate(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables and views of an older file anew; what it lacks is filled from its records."""
    connection.execute("BEGIN")
    older: dict[str, set[str]] = {}
    for name in [*(f"trace_{kind}" for kind in COLUMNS), "trace_deletions"]:
        older[name] = {column for column, *_ in connection.execute(f"DESCRIBE {name}").fetchall()}
        connection.execute(f"ALTER TABLE {name} RENAME TO older_{name}")
    connection.execute(_TABLES)
    for kind, columns in COLUMNS.items():
        table = f"trace_{kind}"
        names = ["id", "_generation", "_offset", "record", *(column.name for column in columns), *_BESIDE.get(kind, ())]
        kept = [name for name in names if name in older[table]]
        added = [column for column in columns if column.name not in older[table]]
        connection.execute(f"""
            INSERT INTO {table} BY NAME SELECT {", ".join([*kept, f"{_KEY} AS _key", *filter(None, [_values(added)])])}
            FROM (SELECT *, {_parsed(added, "record") if added else "NULL"} AS parsed FROM older_{table})
        """)  # noqa: S608 - our own names
    connection.execute(f"""
        INSERT INTO trace_deletions BY NAME
        SELECT kind, id, {_KEY} AS _key, _generation, _offset FROM older_trace_deletions
    """)  # noqa: S608 - our own names
    for name in older:
        connection.execute(f"DROP TABLE older_{name}")
    connection.execute(_VIEWS)
    connection.execute("UPDATE trace_meta SET value = ? WHERE name = 'schema_version'", [str(SCHEMA_VERSION)])
    connection.execute("COMMIT")
    connection.execute("CHECKPOINT sink")


def _put_in_place(fresh: Path, path: Path) -> None:
    """Give a finished file its name, unless somebody else made one meanwhile, which is then looked at as any other."""
    try:
        os.link(fresh, path)
    except FileExistsError:
        return
    except OSError:
        # Not every file system has links. Renaming would replace a file, but a sink has one writer.
        fresh.rename(path)


def _is_held(error: duckdb.Error) -> bool:
    """Whether somebody else has the file."""
    text = str(error)
    return "Could not set lock" in text or "already attached" in text


def _failure(error: duckdb.Error, path: Path) -> Exception:
    """What another error means: the file is no database, or a failure that may pass."""
    text = str(error)
    if "not a valid DuckDB database" in text:
        return SinkRefused(f"{path} is no DuckDB file")
    # DuckDB repeats values and keys in its messages; only those about the file itself can hold none.
    reason = text if isinstance(error, duckdb.IOException) else type(error).__name__
    return SinkFailed(f"writing {path} failed: {reason}")
