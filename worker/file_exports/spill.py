"""What an export to files sorts on disk: the newest version of every record, whatever the order they were read in."""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import orjson

from worker.sink import Upsert

SPILL_NAME: Final = "newest.partial"
PRICING_KIND: Final = "pricing"

_SPILL_CACHE_KIB: Final = 64 * 1024
_ROWS_AT_ONCE: Final = 1_000


class FilesRefused(Exception):  # noqa: N818  (a state of the directory, not a fault of the program)
    """A directory that must not be written or cannot be read as it is; the text is one line for a person."""


class Row(NamedTuple):
    """One living record: the id that left and its bytes on one line."""

    id: str
    json: bytes


class Spill:
    """The newest version of every record, on disk and in the order of ids; memory is bounded by a page cache.

    SQLite, because one tree by kind and id is both what keeps the newest version and what gives rows in order: nothing
    is sorted at the end, and no row is ever in memory with all the others. The file has no name as soon as it is open,
    so that whatever ends the program leaves nothing of it.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / SPILL_NAME
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        # Threads take turns; whoever closes it waits for a write whose caller was cancelled.
        self._mutex = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with _said():
                for statement in _SPILL_SETUP:
                    self._connection.execute(statement)
        except BaseException:
            self._connection.close()
            raise
        finally:
            path.unlink()

    def add(self, upserts: Iterable[Upsert]) -> None:
        """Take in versions, in any order and any number of times."""
        rows = [
            (item.kind, _sortable(item.id), item.generation, item.offset, item.json, _pricing_line(item))
            for item in upserts
        ]
        with self._mutex, _said():
            self._connection.executemany(_SPILL_UPSERT, rows)

    def rows(self, kind: str) -> Iterator[Row]:
        """Yield the living records of a kind in the order of their ids' UTF-8."""
        return self._select("SELECT id, json FROM newest WHERE kind = ? AND json IS NOT NULL ORDER BY id", kind)

    def pricing_rows(self) -> Iterator[Row]:
        """Yield what the amounts of the living costs rest on, in the order of their ids."""
        return self._select("SELECT id, pricing FROM newest WHERE kind = ? AND pricing IS NOT NULL ORDER BY id", "cost")

    def _select(self, query: str, kind: str) -> Iterator[Row]:
        with _said():
            cursor = self._connection.execute(query, (kind,))
        while rows := self._fetched(cursor):
            for sortable, data in rows:
                yield Row(sortable.decode("utf-8", "surrogatepass"), data)

    def _fetched(self, cursor: sqlite3.Cursor) -> list[tuple[bytes, bytes]]:
        with _said():
            return cursor.fetchmany(_ROWS_AT_ONCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._connection.close()


_SPILL_SETUP: Final = (
    # It is worth nothing after a crash.
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    f"PRAGMA cache_size = -{_SPILL_CACHE_KIB}",
    """
    CREATE TABLE newest (
        kind TEXT, id BLOB, generation INTEGER, at_offset INTEGER, json BLOB, pricing BLOB, UNIQUE (kind, id)
    )
    """,
    # Never committed: whoever wrote it reads it, and a commit would write every page that a batch has touched.
    "BEGIN",
)
_SPILL_UPSERT: Final = (
    "INSERT INTO newest VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET generation = excluded.generation, "
    "at_offset = excluded.at_offset, json = excluded.json, pricing = excluded.pricing "
    "WHERE (excluded.generation, excluded.at_offset) > (generation, at_offset)"
)


def _sortable(record_id: str) -> bytes:
    return record_id.encode("utf-8", "surrogatepass")


def _pricing_line(item: Upsert) -> bytes | None:
    if item.pricing is None:
        return None
    basis, reason, table_version = item.pricing
    line: dict[str, Any] = {"kind": PRICING_KIND, "id": item.id, "basis": basis}
    if reason is not None:
        line["reason"] = reason
    if table_version is not None:
        line["tableVersion"] = table_version
    return orjson.dumps(line)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        # Its text names no value, but promises nothing either.
        raise FilesRefused(
            f"cannot sort records on disk: {getattr(error, 'sqlite_errorname', type(error).__name__)}"
        ) from None
