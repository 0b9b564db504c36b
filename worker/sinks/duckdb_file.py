"""One local DuckDB file: a table per record kind, the record beside its typed columns, and views to start from.

Rules for editing: the file is attached for one write and let go of, because DuckDB lets no second process open a file
that is held. What a write did is durable once it has been checkpointed into the file; no record goes into a write-ahead
log, which would be a second file that everybody may read.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import duckdb

from projections.text import storable_text
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert
from worker.stores.columns import PRICING_COLUMNS, storable_copy
from worker.stores.duckdb_tables import (
    INSERT,
    PASS_OVER_DELETED,
    REMEMBER_DELETIONS,
    REMOVE_OLDER,
    SCHEMA_VERSION,
    TABLES,
    VIEWS,
    is_empty,
    migrate,
    stage_sql,
)
from worker.stores.files import check_directory, other_policy, sync_directory
from worker.threaded_sink import ThreadedSink

_Result = TypeVar("_Result")

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
_ROW_GROUP_ROWS: Final = 8_192
# Within its limit DuckDB keeps every block that it has read, and all that a write took; setting the limit, to what it
# is, lets go of that. What does not fit is tried again with twice the limit, and then with DuckDB's own, most of the
# machine.
_MEMORY_MIB_FIRST: Final = 40
_MEMORY_MIB_MAX: Final = 160
_NO_PRICING: Final = (None,) * len(PRICING_COLUMNS)


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
            return is_empty(connection)

    def _create(self) -> None:
        """Make the file where nobody else can look and put it in place whole, readable for its owner alone."""
        check_directory(self._path)
        directory = Path(tempfile.mkdtemp(prefix=".trace-projector-", dir=self._path.parent))
        try:
            fresh = directory / "new.duckdb"
            with self._attached(fresh, may_create=True) as connection:
                connection.execute("BEGIN")
                connection.execute(TABLES)
                connection.execute(VIEWS)
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
            migrate(connection)

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
            connection.execute(stage_sql(columns), columns)
            connection.execute("BEGIN")
            connection.execute(PASS_OVER_DELETED)
            for kind in sorted({item.kind for item in batch}):
                connection.execute(REMOVE_OLDER[kind])
            for kind in sorted({item.kind for item in batch if item.record is not None}):
                connection.execute(INSERT[kind])
            for kind in sorted({item.kind for item in batch if item.record is None}):
                connection.execute(REMEMBER_DELETIONS[kind])
            connection.execute("COMMIT")
            connection.execute("DROP TABLE incoming")
            connection.execute("CHECKPOINT sink")

    def _with_memory(self, work: Callable[[], _Result]) -> _Result:
        """Do what has no effect when it fails, with as much memory as it needs."""
        while True:
            try:
                done = work()
            except _MemoryShort:
                self._memory_mib *= 2
            else:
                # What comes next may need less, and fails once if it does not.
                self._memory_mib = max(self._memory_mib // 2, _MEMORY_MIB_FIRST)
                return done

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
            if _is_short_of_memory(error) and self._memory_mib <= _MEMORY_MIB_MAX:
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


def _is_short_of_memory(error: duckdb.Error) -> bool:
    """Whether the limit was too little; where that happens in a commit or a checkpoint, only the text says so."""
    text = str(error)
    return isinstance(error, duckdb.OutOfMemoryException) or "could not allocate" in text or "Out of Memory" in text


def _failure(error: duckdb.Error, path: Path) -> Exception:
    """What another error means: the file is no database, or a failure that may pass."""
    text = str(error)
    if "not a valid DuckDB database" in text:
        return SinkRefused(f"{path} is no DuckDB file")
    # DuckDB repeats values and keys in its messages; only those about the file itself can hold none.
    reason = text if isinstance(error, duckdb.IOException) else type(error).__name__
    return SinkFailed(f"writing {path} failed: {reason}")
