"""The records of a JSONL file: one that a sink keeps (``PATH.state`` then says what counts), or any file of records."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from projections.decode import decode_json
from projections.errors import ProjectionError
from worker.record_reader import Record, RecordsUnreadable
from worker.record_shapes import is_readable_record
from worker.sink import RecordKey

LINE_BYTES_MAX: Final = 64 * 1024 * 1024

_TRIES_MAX: Final = 100
_STATE_FORMAT: Final = b"trace-projector jsonl 1"


class JsonlReader:
    """Read the records of a file of one record a line; of one id the last line counts.

    Nothing is locked: a writer only appends behind what it has committed, or puts another file in the place of this.
    """

    def __init__(self, location: str) -> None:
        self._path = Path(location)

    def read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        try:
            with _opened(self._path) as (file, committed):
                found = _newest(_lines(file, self._path, committed), frozenset(kinds), self._path)
        except OSError as error:
            raise RecordsUnreadable(f"cannot read {self._path}: {error.strerror or type(error).__name__}") from error
        if committed is not None:
            found = _living(found, committed.living, frozenset(kinds), self._path)
        mine = {record.get("conversation") for record in found.values() if record["runId"] == run_id}
        for record in found.values():
            is_beside = record["kind"] == "cost" and record["conversation"] in mine
            if run_id is None or record["runId"] == run_id or is_beside:
                yield record


class _Committed(NamedTuple):
    """What a sink's state says: how many bytes of the file count, and whether each record lives."""

    size: int
    living: dict[RecordKey, bool]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], _Committed | None]]:
    """Open the file and what its state says of it, both of one moment; None if there is no state."""
    if not path.is_file():
        raise RecordsUnreadable(f"there is no file {path}", is_usage=True)
    state_path = path.with_name(f"{path.name}.state")
    for _ in range(_TRIES_MAX):
        with path.open("rb") as file:
            committed, state = None, None
            with suppress(FileNotFoundError), state_path.open("rb") as opened:
                committed, state = _read_state(opened, state_path), os.fstat(opened.fileno())
            # A compaction puts new files in their places; what was read of the old ones does not fit together.
            if _is_same(path, os.fstat(file.fileno())) and _is_same(state_path, state):
                yield file, committed
                return
    raise RecordsUnreadable(f"{path} is replaced all the time")


def _is_same(path: Path, opened: os.stat_result | None) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return opened is None
    return opened is not None and os.path.samestat(now, opened)


def _read_state(file: IO[bytes], path: Path) -> _Committed:
    """Take in what was committed; a torn end, which never was, is left alone."""
    header = file.readline()
    size = 0
    living: dict[RecordKey, bool] = {}
    if header.endswith(b"\n") and _STATE_FORMAT not in header:
        raise RecordsUnreadable(f"{path} is no state of a JSONL export of this release")
    pending: list[list[Any]] = []
    for line in file:
        match _parsed(line) if line.endswith(b"\n") else None:
            case list(version):
                pending.append(version)
            case {"bytes": int(size)}:
                living |= {(kind, record_id): lives for kind, record_id, _, _, lives in pending}
                pending = []
            case _:
                break
    return _Committed(size, living)


def _lines(file: IO[bytes], path: Path, committed: _Committed | None) -> Iterator[tuple[int, bytes]]:
    """Number the lines that count, from 1."""
    position = number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        position += len(line)
        if committed is not None and position > committed.size:
            return
        if len(line) > LINE_BYTES_MAX:
            raise RecordsUnreadable(f"{path}:{number}: no record is that long", is_usage=True)
        if line.strip():
            yield number, line


def _newest(lines: Iterator[tuple[int, bytes]], kinds: frozenset[str], path: Path) -> dict[RecordKey, Record]:
    found: dict[RecordKey, Record] = {}
    for number, line in lines:
        record = _parsed(line)
        if not is_readable_record(record):
            raise RecordsUnreadable(f"{path}:{number}: this is no trace record", is_usage=True)
        if record["kind"] in kinds:
            found[record["kind"], record["id"]] = record
    return found


def _living(
    found: dict[RecordKey, Record], living: dict[RecordKey, bool], kinds: frozenset[str], path: Path
) -> dict[RecordKey, Record]:
    wanted = [key for key, lives in living.items() if lives and key[0] in kinds]
    if not found.keys() >= set(wanted):
        raise RecordsUnreadable(f"{path} is not what {path.name}.state says: it was changed by something else")
    return {key: found[key] for key in wanted}


def _parsed(line: bytes) -> Any:
    try:
        return decode_json(line)
    except ProjectionError:
        return None
