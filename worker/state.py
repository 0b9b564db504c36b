"""What a worker keeps of the partitions it folds: in memory between assignments, and on a disk between restarts.

A store may forget at any time: the facts log holds everything, and what is missing is read from there again.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
import structlog

from projections.facts import Fact, decode_fact, encode_fact
from projections.fold import Fold

_log = structlog.get_logger(__name__)

# Keys of facts begin with "[".
_META = b"\x00state"


class Held(NamedTuple):
    """The fold of one facts partition, and the offset up to which everything is joined, emitted and durable."""

    fold: Fold
    position: int


class StateFailedError(Exception):
    """Local state cannot be used; ``reason`` is a bounded word, and what the disk said is the cause."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Backend(Protocol):
    """One ordered map of bytes on a disk; every call may block, and raises StateFailedError."""

    def get(self, key: bytes) -> bytes | None:
        """Give the value of a key."""

    def read(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Give all rows whose key starts with a prefix, in key order."""

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Put (or, for None, delete) all of these rows, or none of them."""

    def close(self) -> None:
        """Let go of the disk, so that another may open what is there."""


class Shelves(Protocol):
    """Where each partition has its backend; raises StateFailedError."""

    def open(self, partition: int) -> Backend:
        """Open what is kept of a partition; what is not there is made."""

    def discard(self, partition: int) -> None:
        """Delete what is kept of a partition."""


class LocalState:
    """The facts of one partition by their keys in the log, and how far into the log they reach.

    It is a compacted copy of the log: the facts of one aggregate are one range, and every write moves the facts and
    the position together. One task writes; ``load`` may be called meanwhile.
    """

    def __init__(
        self, backend: Backend, about: Mapping[str, Any], meta: Mapping[str, Any], discard: Callable[[str], None]
    ) -> None:
        self._backend: Backend | None = backend
        self._about = about
        self._discard = discard
        # A write that was given up may still go on in its thread when the state is closed.
        self._lock = threading.Lock()
        self._fetched: dict[str, Sequence[tuple[bytes, bytes]]] = {}
        self._rows: dict[bytes, bytes | None] = {}
        self.position: int | None = meta.get("position")
        self.totals: Mapping[str, int] = meta.get("totals") or {}
        self.loaded_facts = 0
        self.has_failed = False

    # ----------------------------------------------------------------------------------------------------- read

    async def fetch(self, names: Collection[str]) -> None:
        """Read the facts of aggregates that are about to be loaded, off the event loop."""
        if names:
            self._fetched = await asyncio.to_thread(self._read_all, names)

    def load(self, name: str) -> Iterator[Fact]:
        """Give the facts of an aggregate; those that were not fetched are read now."""
        rows = self._fetched.pop(name, None)
        if rows is None:
            rows = self._read_all([name])[name]
        self.loaded_facts += len(rows)
        for key, value in rows:
            try:
                yield decode_fact(key, value)
            except (ValueError, TypeError) as error:
                self.has_failed = True
                raise StateFailedError("corrupt") from error

    def _read_all(self, names: Iterable[str]) -> dict[str, Sequence[tuple[bytes, bytes]]]:
        with self._lock:
            backend = self._opened()
            try:
                return {name: backend.read(_prefix_of(name)) for name in names}
            except StateFailedError:
                self.has_failed = True
                raise

    # ---------------------------------------------------------------------------------------------------- write

    def put(self, key: bytes, value: bytes, fact: Fact) -> None:
        """Let a fact, as it is in the log, wait for the next write."""
        # A foreign writer may spell a key in another way, and then it would not be in its aggregate's range.
        self._rows[key if key.startswith(_prefix_of(fact.aggregate)) else encode_fact(fact)[0]] = value

    def delete(self, key: bytes) -> None:
        """Let the deletion of a fact that was superseded wait for the next write."""
        self._rows[key] = None

    @property
    def waiting_rows(self) -> int:
        """How many rows wait for the next write."""
        return len(self._rows)

    async def write(self, position: int, totals: Mapping[str, int] | None) -> None:
        """Write in one batch what waits, and the position that it leads to.

        Without totals the state is unfinished: one that is found so is discarded.
        """
        rows, self._rows, self._fetched = self._rows, {}, {}
        meta = {**self._about, "position": position, "totals": totals}
        rows[_META] = orjson.dumps(meta)
        await asyncio.to_thread(self._write, rows)
        self.position = position

    def _write(self, rows: Mapping[bytes, bytes | None]) -> None:
        with self._lock:
            try:
                self._opened().write(rows)
            except StateFailedError:
                self.has_failed = True
                raise

    def _opened(self) -> Backend:
        if self._backend is None:
            raise StateFailedError("closed")
        return self._backend

    async def close(self) -> None:
        """Let go of the disk once nobody reads or writes any more; what has failed is discarded."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            backend, self._backend = self._backend, None
            if backend is not None:
                backend.close()
                if self.has_failed:
                    self._discard("failed")


def _prefix_of(aggregate: str) -> bytes:
    """Give what the log keys of an aggregate's facts begin with; see ``encode_fact``."""
    return b"[" + orjson.dumps(aggregate) + b","


class FoldStore(Protocol):
    """Where folds wait while their partition is not being worked on."""

    def take(self, partition: int) -> Held | None:
        """Hand out what is held of a partition, and hold it no longer."""

    def keep(self, partition: int, held: Held) -> None:
        """Hold a fold whose output is durable; one that is ahead of its output must never get here."""

    def forget_others(self, partitions: frozenset[int]) -> None:
        """Forget the partitions that went to other workers."""

    async def open_local(self, partition: int, committed: int) -> LocalState | None:
        """Open a partition's state on disk, if there is one: never beyond the committed offset.

        Raises StateFailedError when not even an empty one can be made.
        """


class MemoryFoldStore:
    """Folds in memory: a rebalance that gives a partition back costs nothing, a restart reads the facts log."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def take(self, partition: int) -> Held | None:
        return self._held.pop(partition, None)

    def keep(self, partition: int, held: Held) -> None:
        self._held[partition] = held

    def forget_others(self, partitions: frozenset[int]) -> None:
        for partition in self._held.keys() - partitions:
            del self._held[partition]

    async def open_local(self, partition: int, committed: int) -> LocalState | None:
        del partition, committed
        return None


class LocalFoldStore(MemoryFoldStore):
    """State on disk, bound to what it was made from; a partition whose disk another process holds stays in memory."""

    def __init__(self, shelves: Shelves, about: Mapping[str, Any]) -> None:
        super().__init__()
        self._shelves = shelves
        self._about = about

    async def open_local(self, partition: int, committed: int) -> LocalState | None:
        return await asyncio.to_thread(self._open, partition, committed)

    def _open(self, partition: int, committed: int) -> LocalState | None:
        about = {**self._about, "partition": partition}
        discard = functools.partial(self._discard, partition)
        backend: Backend | None = None
        try:
            backend = self._shelves.open(partition)
            meta = read_meta(backend, about, committed)
        except StateFailedError as error:
            if error.reason == "locked":
                # It is not ours to delete. What follows is as it would be without a disk.
                _log.warning("state_not_used", partition=partition, reason=error.reason)
                return None
            if backend is not None:
                backend.close()
            discard(error.reason)
            backend, meta = self._shelves.open(partition), {}
        return LocalState(backend, about, meta, discard)

    def _discard(self, partition: int, reason: str) -> None:
        _log.warning("state_discarded", partition=partition, reason=reason)
        self._shelves.discard(partition)


def read_meta(backend: Backend, about: Mapping[str, Any], committed: int) -> Mapping[str, Any]:
    """Read what a state says of itself. Raises StateFailedError when it must not be used.

    It may be another's, or half restored, or hold what is not durable downstream.
    """
    data = backend.get(_META)
    if data is None:
        return {}
    try:
        meta: Mapping[str, Any] = orjson.loads(data)
    except ValueError as error:
        raise StateFailedError("corrupt") from error
    if {name: meta.get(name) for name in about} != about:
        raise StateFailedError("foreign")
    if meta["totals"] is None:
        raise StateFailedError("unfinished")
    if meta["position"] > committed:
        raise StateFailedError("ahead")
    return meta
