"""One partition of a virtual topic: messages, markers, open transactions, compaction and retention."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aiokafka.errors import InvalidProducerEpoch, OffsetOutOfRangeError

from worker.kafka import Header, Message, TopicPartition

Row = tuple[bytes | None, bytes | None, Sequence[Header]]


class Writing:
    """What one transaction has written to one partition: invisible until its marker comes."""

    __slots__ = ("first_offset", "is_committed")

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        # None: open.
        self.is_committed: bool | None = None


@dataclass(slots=True)
class Entry:
    """One offset of a log; what the port calls a message, unless it is a marker."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    writing: Writing | None = None
    is_marker: bool = False

    @property
    def is_visible(self) -> bool:
        return not self.is_marker and (self.writing is None or self.writing.is_committed is True)


class PartitionLog:
    """Entries with rising offsets, gaps allowed, of which readers see what is committed."""

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.entries: list[Entry] = []
        self.beginning = 0
        self.end = 0
        self._open: dict[int, Writing] = {}
        self._epochs: dict[int, int] = {}

    @property
    def stable_end(self) -> int:
        """The offset up to which every transaction has ended; readers get no further."""
        return min((writing.first_offset for writing in self._open.values()), default=self.end)

    # -------------------------------------------------------------------------------------------------- writing

    def append(
        self,
        rows: Iterable[Row],
        timestamp: int,
        *,
        producer_id: int | None = None,
        epoch: int = 0,
        is_transaction: bool = False,
    ) -> None:
        """Append messages; raises InvalidProducerEpoch for a producer that a later one has replaced here."""
        writing = None
        if producer_id is not None:
            self._check_epoch(producer_id, epoch)
            self._epochs[producer_id] = epoch
            if is_transaction:
                writing = self._open.setdefault(producer_id, Writing(self.end))
        for key, value, headers in rows:
            self.entries.append(Entry(self.end, key, value, tuple(headers), timestamp, writing))
            self.end += 1

    def mark(self, producer_id: int, epoch: int, *, is_committed: bool) -> None:
        """Write the marker that ends a producer's transaction in this partition."""
        writing = self._open.pop(producer_id, None)
        if writing is not None:
            writing.is_committed = is_committed
        self._epochs[producer_id] = max(epoch, self._epochs.get(producer_id, 0))
        self.entries.append(Entry(self.end, None, None, (), 0, is_marker=True))
        self.end += 1

    def _check_epoch(self, producer_id: int, epoch: int) -> None:
        if epoch < self._epochs.get(producer_id, 0):
            raise InvalidProducerEpoch

    # -------------------------------------------------------------------------------------------------- reading

    def read(self, position: int, count_max: int) -> tuple[list[Message], int]:
        """Give visible messages from a position on, and the position after them, gaps and markers included."""
        if not self.beginning <= position <= self.end:
            raise OffsetOutOfRangeError({self.place: position})
        messages: list[Message] = []
        stable_end = self.stable_end
        for index in range(self._index(position), len(self.entries)):
            entry = self.entries[index]
            if entry.offset >= stable_end:
                break
            if entry.is_visible:
                if len(messages) == count_max:
                    return messages, entry.offset
                messages.append(entry)
        return messages, max(position, stable_end)

    def has_news(self, position: int) -> bool:
        """Say whether reading from a position would give something, an error included."""
        return not self.beginning <= position <= self.end or self.stable_end > position

    def visible(self) -> list[Entry]:
        """List everything that a reader of committed messages sees."""
        stable_end = self.stable_end
        return [entry for entry in self.entries if entry.is_visible and entry.offset < stable_end]

    def _index(self, offset: int) -> int:
        return bisect_left(self.entries, offset, key=lambda entry: entry.offset)

    # -------------------------------------------------------------------------------------------- housekeeping

    def compact(self, up_to: int, may_drop_tombstone: Callable[[Entry], bool]) -> None:
        """Keep, below an offset, the newest committed message of each key, as the log cleaner does."""
        limit = min(up_to, self.stable_end)
        newest: dict[bytes | None, int] = {
            entry.key: entry.offset for entry in self.entries if entry.is_visible and entry.offset < limit
        }
        self.entries = [entry for entry in self.entries if self._stays(entry, limit, newest, may_drop_tombstone)]

    def _stays(
        self,
        entry: Entry,
        limit: int,
        newest: dict[bytes | None, int],
        may_drop_tombstone: Callable[[Entry], bool],
    ) -> bool:
        if entry.offset >= limit:
            return True
        if not entry.is_visible or newest[entry.key] != entry.offset:
            return False
        return entry.value is not None or not may_drop_tombstone(entry)

    def delete_before(self, offset: int) -> None:
        """Move the beginning of the log, as retention does."""
        self.beginning = max(self.beginning, min(offset, self.end))
        del self.entries[: self._index(self.beginning)]


def compacted(entries: Sequence[Entry]) -> dict[bytes | None, Entry]:
    """What a reader of the whole log ends up with: per key, the newest message that is no tombstone."""
    newest = {entry.key: entry for entry in entries}
    return {key: entry for key, entry in newest.items() if entry.value is not None}
