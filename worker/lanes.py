"""What a role gives the batch loop: lanes of partitions that are handled, flushed, committed and retried together."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from worker.kafka import GroupConsumer, Message, TopicPartition

# What a message costs in memory beside its key and value.
_MESSAGE_OVERHEAD_BYTES = 200


class CorruptBatch(NamedTuple):
    """Offsets of a partition that no client can read, given up; the last of them is the one before ``next_offset``."""

    first_offset: int
    next_offset: int
    size_bytes: int


class Batch(NamedTuple):
    """Messages of one partition in offset order, and the offset to read on from once they are durable.

    Instead of messages there may be a corrupt batch that was given up: it becomes one dead letter.
    """

    partition: TopicPartition
    messages: Sequence[Message]
    next_offset: int
    corrupt: CorruptBatch | None = None


class RetryLater(Exception):  # noqa: N818  (backpressure, not an error)
    """A lane asks that its next try comes not before this delay."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        super().__init__()


class SpoiltLaneError(Exception):
    """A lane's state is not what it should be; what it took is abandoned, and it is closed and opened again."""


class StopWorkerError(Exception):
    """Going on would lose or corrupt something; the text is for the operator and says what to do."""


class MissingOffsetsError(StopWorkerError):
    """Logs do not hold what is to be read next; `places` gives, per partition, that offset and the log's beginning."""

    def __init__(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.places = places
        lost = "; ".join(_missing_text(place, *offsets) for place, offsets in sorted(places.items()))
        super().__init__(
            f"{lost}. Look for the messages elsewhere and publish them again; to go on without them, set "
            "kafka.on_missing_offsets to skip, or move this group's offsets"
        )


def _missing_text(place: TopicPartition, wanted: int, begins: int) -> str:
    where = f"topic {place.topic} partition {place.partition}"
    if wanted < begins:
        lost = f"{begins - wanted} offsets, {wanted} to {begins - 1}, were deleted before they were read"
        return f"{where} begins at offset {begins} and {wanted} is to be read next: {lost}"
    return (
        f"{where} begins at offset {begins} and ends before {wanted}, which is to be read next: it was cut or made anew"
    )


class Lane(Protocol):
    """Partitions of one role with one order of work; one task at a time calls it.

    A lane is made when its partitions are assigned and closed when they are revoked.
    """

    partitions: frozenset[TopicPartition]

    @property
    def stopped_at(self) -> Mapping[TopicPartition, int]:
        """The partitions that are to stand still, and the offset of the first message that was not taken of each."""

    @property
    def rest_until(self) -> float:
        """When the next batch may be taken, in the event loop's time: messages gather where that makes it cheaper."""

    async def open(self, consumer: GroupConsumer) -> Mapping[TopicPartition, int]:
        """Get ready (restore state, open a sink) and give the offset to read on from for every partition.

        Repeated after a failure, and called again after `close` when the lane was lost and its partitions were not.
        """

    def accepted(self, batches: Sequence[Batch]) -> None:
        """Account for messages that were polled; each is settled or abandoned later."""

    def handle(self, batch: Batch) -> None:
        """Turn messages into output that waits to be flushed; no IO.

        Nothing that a message holds may raise, but for SpoiltLaneError, after which the lane knows to avoid it. A lane
        that stops a partition leaves the messages from `stopped_at` on.
        """

    async def flush(self) -> None:
        """Make all waiting output durable; after a failure it is repeated and then sends everything again."""

    async def commit(self, consumer: GroupConsumer, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets; PartitionLostError when the partitions are no longer ours."""

    def settled(self, batches: Sequence[Batch]) -> None:
        """Account for messages whose offsets were committed."""

    def abandoned(self, batches: Sequence[Batch]) -> None:
        """Account for messages that another worker, or a later try of this one, reads again."""

    async def close(self) -> None:
        """Let go of what `open` took and forget waiting output; also called in the middle of a flush."""


class Role(Protocol):
    """What a role tells the batch loop: its topics, its group's consumer, and how its partitions share lanes."""

    name: str
    topics: tuple[str, ...]

    def make_consumer(self) -> GroupConsumer: ...
    def make_lanes(self, partitions: frozenset[TopicPartition]) -> Sequence[Lane]: ...


@dataclass(eq=False)
class Slot:
    """A lane and what the loop knows of it."""

    lane: Lane
    task: asyncio.Task[None] | None = None
    is_open: bool = False
    is_resting: bool = False
    waiting: list[list[Batch]] = field(default_factory=list)
    in_flight_bytes: int = 0
    busy_since: float | None = None
    retry_count: int = 0
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    idle_commit_at: float = 0.0
    # Partitions that stand still before a corrupt batch, and where.
    corrupt_at: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return self.is_open and self.task is None and not self.is_resting

    @property
    def is_settled(self) -> bool:
        """Whether nothing is in flight: what was read and not handed over has to be read again from `committed`."""
        return self.is_open and self.busy_since is None

    @property
    def running_partitions(self) -> frozenset[TopicPartition]:
        return self.lane.partitions - self.stopped_partitions

    @property
    def stopped_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that stand still until the worker is started again."""
        return frozenset(self.lane.stopped_at) | frozenset(self.corrupt_at)

    @property
    def is_working(self) -> bool:
        return self.is_open and self.task is not None and not self.retry_count

    def rest(self, wake: Callable[[], None]) -> None:
        """Take nothing for as long as the lane wants to rest, then wake whoever waits for it."""
        loop, until = asyncio.get_running_loop(), self.lane.rest_until

        def end() -> None:
            self.is_resting = False
            wake()

        if until > loop.time():
            self.is_resting = True
            loop.call_at(until, end)


async def committed_positions(
    consumer: GroupConsumer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Give the offset to read on from for every partition: the committed one, else the beginning of the log.

    Raises MissingOffsetsError when a log no longer reaches back to its committed offset: messages would be lost in
    silence.
    (A log that ends before it is refused by the broker at the first fetch; what brokers list as the end is not exact.)
    """
    names = sorted(partitions)
    committed = dict(zip(names, await asyncio.gather(*map(consumer.committed, names)), strict=True))
    beginnings = await consumer.beginning_offsets(names)
    positions = {name: beginnings[name] if offset is None else offset for name, offset in committed.items()}
    missing = {name: (offset, beginnings[name]) for name, offset in positions.items() if offset < beginnings[name]}
    if missing:
        raise MissingOffsetsError(missing)
    return positions


def message_bytes(message: Message) -> int:
    """Estimate what a message takes in memory."""
    return len(message.key or b"") + len(message.value or b"") + _MESSAGE_OVERHEAD_BYTES


def split(batches: Sequence[Batch], bytes_max: int) -> Iterator[list[Batch]]:
    """Cut batches into parts of at most so many bytes, in order; one message above the limit is a part of its own."""
    part: list[Batch] = []
    part_bytes = 0
    for batch in batches:
        start = 0
        for index, message in enumerate(batch.messages):
            size = message_bytes(message)
            if part_bytes and part_bytes + size > bytes_max:
                if index > start:
                    cut = batch.messages[start:index]
                    part.append(Batch(batch.partition, cut, cut[-1].offset + 1))
                    start = index
                yield part
                part, part_bytes = [], 0
            part_bytes += size
        # The rest carries the exact next position, gaps after the last message included.
        part.append(batch._replace(messages=batch.messages[start:]))
    if part:
        yield part
