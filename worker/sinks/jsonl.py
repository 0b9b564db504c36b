"""A JSONL file: one record per line, in the order of the ids' UTF-8 once it was closed.

Two files. PATH holds records and nothing else: while the sink is open, newer lines are appended to it, and what they
supersede goes when it is compacted (at close, at open after a crash, and when most of it is superseded).
``PATH.state`` remembers versions, deletions and how many bytes of PATH count. Where costs are estimated, what each
amount rests on is in ``PATH.pricing`` (with a state of its own), a line {kind: pricing, id, basis, reason,
tableVersion} per cost, written before the record, so that no cost is ever without it.

Order of durability of a write: 1. lines appended to PATH and synced; 2. versions and the new length appended to
``PATH.state`` and synced, which is the commit: what stands behind the last commit, in either file, never happened.
Order of compaction: 1. a new PATH replaces the old; 2. a new state replaces the old. A crash in between is harmless:
both PATHs hold the newest line of every living record, and the old state still tells which are living.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from projections.decode import decode_json
from projections.errors import ProjectionError
from worker.sink import RecordKey, SinkBusy, SinkRefused, Upsert, Version
from worker.stores.files import check_directory, other_policy, sync_directory, write_all, write_at
from worker.threaded_sink import ThreadedSink

BUSY_DELAY_S: Final = 0.5
COMPACT_BYTES_MIN: Final = 64 * 1024 * 1024
"""Fewer bytes of superseded lines than this wait until the sink is closed."""

_FORMAT: Final = "trace-projector jsonl 1"
_NEWLINE: Final = b"\n"


class _Entry(NamedTuple):
    """The newest version of a record and where its line is; the line of a deletion has no bytes."""

    version: Version
    start: int
    length: int


class JsonlSink(ThreadedSink):
    """Keep the newest version of every record as a line of one local file."""

    single_writer: ClassVar[bool] = True
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        super().__init__()
        if not location:
            raise SinkRefused("a JSONL sink needs a path, as in jsonl:traces.jsonl")
        self._path = Path(location).absolute()
        self._policy_digest = policy_digest
        self._pricing_path = self._path.with_name(f"{self._path.name}.pricing")
        self._files: _Files | None = None
        self._pricing: _Files | None = None

    def _open(self) -> bool:
        if self._files is None:
            files = _Files.opened(self._path, self._policy_digest)
            try:
                if self._pricing_path.exists() or _state_path(self._pricing_path).exists():
                    self._pricing = _Files.opened(self._pricing_path, self._policy_digest)
            except BaseException:
                files.release()
                raise
            self._files = files
        return not self._files.entries

    def _write(self, batch: Sequence[Upsert]) -> None:
        assert self._files is not None, "a sink is opened before it is written"
        newer = self._files.newer(batch)
        if self._pricing is None and any(item.pricing is not None for item in newer):
            self._pricing = _Files.opened(self._pricing_path, self._policy_digest)
        if self._pricing is not None:
            self._pricing.append([_pricing_of(item) for item in newer if item.kind == "cost"])
        self._files.append(newer)

    def _close(self) -> None:
        held = [files for files in (self._pricing, self._files) if files is not None]
        self._pricing = self._files = None
        try:
            for files in held:
                files.compact()
        finally:
            for files in held:
                files.release()


def _pricing_of(item: Upsert) -> Upsert:
    """Give what an amount rests on as a line of its own, under the id and version of the cost."""
    if item.pricing is None:
        return item._replace(kind="pricing", record=None, json=None)
    basis, reason, table_version = item.pricing
    record: dict[str, Any] = {"kind": "pricing", "id": item.id, "basis": basis}
    if reason is not None:
        record["reason"] = reason
    if table_version is not None:
        record["tableVersion"] = table_version
    return item._replace(kind="pricing", record=record, json=orjson.dumps(record), pricing=None)


def _state_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")


class _Files:
    """The two files, held open and locked, and where the line of every record is."""

    def __init__(self, path: Path, policy_digest: str) -> None:
        check_directory(path)
        self._path = path
        self._state_path = _state_path(path)
        self._header = _line({"format": _FORMAT, "policy": policy_digest})
        self.entries: dict[RecordKey, _Entry] = {}
        self._lines_size = self._state_size = self._live_bytes = 0
        self._is_compact = True
        self._lines = -1
        self._state = _locked(self._state_path)

    @classmethod
    def opened(cls, path: Path, policy_digest: str) -> "_Files":
        """Open both files and learn what they hold."""
        files = cls(path, policy_digest)
        try:
            files.load()
        except BaseException:
            files.release()
            raise
        return files

    def release(self) -> None:
        """Close both files; the lock goes with them."""
        for descriptor in (self._lines, self._state):
            if descriptor >= 0:
                os.close(descriptor)

    # ----------------------------------------------------------------------------------------------- what is there

    def load(self) -> None:
        """Learn what the files hold, or make them; what a crash left behind is cleared away."""
        living = self._read_state()
        if living is None:
            self._start()
            return
        if not self._path.exists():
            raise SinkRefused(f"{self._path} is gone; remove {self._state_path.name} too, and everything is read again")
        self._lines = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._find_lines(living)
        self.compact()

    def _start(self) -> None:
        if self._path.exists() and self._path.stat().st_size:
            raise SinkRefused(f"{self._path} holds something already, and no {self._state_path.name} is beside it")
        self._lines = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._state, 0)
        self._append_state(self._header)
        sync_directory(self._path.parent)

    def _read_state(self) -> dict[RecordKey, bool] | None:
        """Take in the committed versions; whether each record lives, or None if the state was never begun."""
        living: dict[RecordKey, bool] = {}
        pending: list[list[Any]] = []
        lines = commits = 0
        is_torn = False
        with os.fdopen(os.dup(self._state), "rb") as file:
            file.seek(0)
            header = file.readline()
            if self._header.startswith(header) and not header.endswith(_NEWLINE):
                return None
            self._check_header(header)
            self._state_size = position = len(header)
            for line in file:
                position += len(line)
                value = _parsed(line)
                if isinstance(value, list):
                    pending.append(value)
                elif value is None:
                    is_torn = True
                elif is_torn:  # A write that was torn was never committed, and is the last one there is.
                    raise self._altered()
                else:
                    self._take_versions(pending, living)
                    lines, commits, pending = lines + len(pending), commits + 1, []
                    self._lines_size, self._state_size = value["bytes"], position
        self._is_compact = commits <= 1 and lines == len(living) and position == self._state_size
        return living

    def _take_versions(self, versions: Iterable[list[Any]], living: dict[RecordKey, bool]) -> None:
        for kind, record_id, generation, offset, is_living in versions:
            living[kind, record_id] = is_living
            self.entries[kind, record_id] = _Entry((generation, offset), 0, 0)

    def _check_header(self, header: bytes) -> None:
        if _FORMAT.encode() not in header:
            raise SinkRefused(f"{self._state_path} is no state of a JSONL export of this release")
        if header != self._header:
            raise other_policy(self._path)

    def _find_lines(self, living: dict[RecordKey, bool]) -> None:
        """Find the newest line of each living record; in PATH a later line of a record is a newer one."""
        position = lines = 0
        previous = ("", "")
        with os.fdopen(os.dup(self._lines), "rb") as file:
            file.seek(0)
            for line in file:
                if position + len(line) > self._lines_size:
                    break
                key = self._key_of(line)
                if living.get(key):
                    self.entries[key] = self.entries[key]._replace(start=position, length=len(line))
                self._is_compact &= previous <= (key[1], key[0])
                previous = key[1], key[0]
                lines, position = lines + 1, position + len(line)
        lengths = [self.entries[key].length for key in living if living[key]]
        if not all(lengths):
            raise self._altered()
        self._live_bytes = sum(lengths)
        self._is_compact &= lines == len(lengths) and position == self._lines_size == os.fstat(self._lines).st_size
        self._lines_size = position

    def _key_of(self, line: bytes) -> RecordKey:
        match _parsed(line):
            case {"kind": str(kind), "id": str(record_id)}:
                return kind, record_id
        raise self._altered()

    def _altered(self) -> SinkRefused:
        return SinkRefused(
            f"{self._path} is not what {self._state_path.name} says: it was changed by something else; remove both, "
            "and everything is read again"
        )

    # ----------------------------------------------------------------------------------------------------- writing

    def newer(self, batch: Sequence[Upsert]) -> list[Upsert]:
        """Give what is newer than what is here."""
        return [item for item in batch if item.key not in self.entries or item.version > self.entries[item.key].version]

    def append(self, batch: Sequence[Upsert]) -> None:
        """Append what is newer, in the order of durability that the module describes."""
        newer = self.newer(batch)
        if not newer:
            return
        self._check_names()
        # What a failed write left behind must not stand before the next commit.
        os.ftruncate(self._lines, self._lines_size)
        os.ftruncate(self._state, self._state_size)
        lines = [b"" if item.json is None else item.json + _NEWLINE for item in newer]
        assert all(line.count(_NEWLINE) <= 1 for line in lines), "a record's bytes are one line"
        data = b"".join(lines)
        write_at(self._lines, data, self._lines_size)
        os.fsync(self._lines)
        size = self._lines_size + len(data)
        versions = (_version_line(item.key, item.version, is_living=item.json is not None) for item in newer)
        self._append_state(b"".join(versions), size)
        start = self._lines_size
        for item, line in zip(newer, lines, strict=True):
            self._live_bytes += len(line) - (self.entries[item.key].length if item.key in self.entries else 0)
            self.entries[item.key] = _Entry(item.version, start, len(line))
            start += len(line)
        self._lines_size, self._is_compact = size, False
        if self._lines_size - self._live_bytes > max(self._live_bytes, COMPACT_BYTES_MIN):
            self.compact()

    def _append_state(self, data: bytes, lines_size: int = 0) -> None:
        data += _line({"bytes": lines_size})
        write_at(self._state, data, self._state_size)
        os.fsync(self._state)
        self._state_size += len(data)

    def _check_names(self) -> None:
        """Appending to a file that has lost its name (a log rotation, a clean-up) would lose records unseen."""
        for path, descriptor in ((self._path, self._lines), (self._state_path, self._state)):
            if not _has_name(descriptor, path):
                raise SinkRefused(f"{path} was moved or replaced while it was written; start again")

    def compact(self) -> None:
        """Leave one line per living record, in the order of their ids, and one version per record."""
        if self._is_compact:
            return
        self._check_names()
        # Text compares by code points, which is the order of UTF-8 bytes; a kind decides between equal ids.
        keys = sorted(self.entries, key=lambda key: (key[1], key[0]))
        with _replacing(self._path) as lines:
            entries = self._copy_lines(lines, keys)
        os.close(self._lines)
        self._lines, self.entries, self._lines_size = lines, entries, self._live_bytes
        with _replacing(self._state_path) as state:
            # Locked before it has the name, so that nobody can come in between.
            fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = write_all(state, self._state_lines())
        os.close(self._state)
        self._state, self._state_size, self._is_compact = state, size, True

    def _copy_lines(self, target: int, keys: Sequence[RecordKey]) -> dict[RecordKey, _Entry]:
        entries: dict[RecordKey, _Entry] = {}
        start = 0
        for key in keys:
            entries[key] = self.entries[key]._replace(start=start)
            start += entries[key].length
        living = (self.entries[key] for key in keys if self.entries[key].length)
        write_all(target, (os.pread(self._lines, entry.length, entry.start) for entry in living))
        return entries

    def _state_lines(self) -> Iterator[bytes]:
        yield self._header
        for key, entry in self.entries.items():
            yield _version_line(key, entry.version, is_living=entry.length > 0)
        yield _line({"bytes": self._lines_size})


def _parsed(line: bytes) -> Any:
    """The value of a line, None for what is no whole line of JSON."""
    if not line.endswith(_NEWLINE):
        return None
    try:
        return decode_json(line)
    except ProjectionError:
        return None


def _line(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def _version_line(key: RecordKey, version: Version, *, is_living: bool) -> bytes:
    return _line([*key, *version, is_living])


def _locked(path: Path) -> int:
    """Open the state file, made if need be, and hold its lock; ``SinkBusy`` while another process does."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise SinkBusy(f"{path} is held by another writer", BUSY_DELAY_S) from None
        # A compaction may have put another file in its place after it was opened here.
        if _has_name(descriptor, path):
            return descriptor
        os.close(descriptor)


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def _replacing(path: Path) -> Iterator[int]:
    """A new file, open, which takes the place of ``path`` at the end; closed and removed if something fails before."""
    temporary = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
        os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
