"""The disk of a machine: the worker's own store of state over a map that outlives the worker and may be lost."""

from collections.abc import Mapping, Sequence

from tests.simulation.loop import Process
from worker.state import LocalFoldStore

Rows = dict[bytes, bytes]


class Disk:
    """What was written, by partition, and how to undo it: power that fails takes the newest writes with it."""

    def __init__(self) -> None:
        self.rows: dict[int, Rows] = {}
        self._undo: list[tuple[int, dict[bytes, bytes | None]]] = []

    def store(self, process: Process) -> LocalFoldStore:
        """Give a worker the store that it keeps here."""
        return LocalFoldStore(_Shelves(self, process), {"format": 1})

    def write(self, partition: int, rows: Mapping[bytes, bytes | None]) -> None:
        """Put or delete all of these rows."""
        held = self.rows.setdefault(partition, {})
        self._undo.append((partition, {key: held.get(key) for key in rows}))
        _apply(held, rows)

    def discard(self, partition: int) -> None:
        """Delete a partition, for good."""
        self.rows.pop(partition, None)
        self._undo = [one for one in self._undo if one[0] != partition]

    def lose_newest(self, count: int) -> None:
        """Be as it was so many writes ago."""
        for _ in range(min(count, len(self._undo))):
            partition, rows = self._undo.pop()
            _apply(self.rows.setdefault(partition, {}), rows)


def _apply(held: Rows, rows: Mapping[bytes, bytes | None]) -> None:
    for key, value in rows.items():
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value


class _Shelves:
    """A disk as one process sees it; nothing of a dead process reaches it."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self.process = process

    def open(self, partition: int) -> "_Backend":
        return _Backend(self, partition)

    def discard(self, partition: int) -> None:
        if not self.process.is_dead:
            self.disk.discard(partition)


class _Backend:
    def __init__(self, shelves: _Shelves, partition: int) -> None:
        self._shelves = shelves
        self._partition = partition

    @property
    def _rows(self) -> Rows:
        return self._shelves.disk.rows.get(self._partition, {})

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def read(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        return sorted(row for row in self._rows.items() if row[0].startswith(prefix))

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        if not self._shelves.process.is_dead:
            self._shelves.disk.write(self._partition, rows)

    def close(self) -> None: ...
