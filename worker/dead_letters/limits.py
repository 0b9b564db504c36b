"""The limits at which a partition stops rather than go on into the dead letters.

A stop is a matter of this process: it stands until the worker is started again, and costs at most one more run of
letters then. The committed offset of a stopped partition is that of the first message that was not looked at.
"""

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

import structlog

from worker.kafka import Message, TopicPartition
from worker.settings_sections import LimitSettings

_log = structlog.get_logger(__name__)

_WAY_OUT = (
    "look at `trace-projector dead-letters stats`; once the messages can be projected, or the limits are raised, start "
    "the worker again and redrive them"
)


class Stop(NamedTuple):
    """Where a partition stands still, and which limit it reached."""

    offset: int
    limit: Literal["in_row", "percentage"]


class PartitionGuard:
    """Counts what became of the messages of one partition, and stops it when too many were dead letters.

    The percentage counts from the first full window on; before that a few messages would make any percentage.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self._in_row_max = limits.dead_letters_in_row_max
        self._window = limits.dead_letters_window_messages
        self._window_max = limits.dead_letters_window_messages * limits.dead_letters_window_percent_max / 100
        self._next_offset = 0
        self._seen = 0
        self._in_row = 0
        self._dead: deque[int] = deque()
        self.stop: Stop | None = None

    def admitted(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Give the messages before the stop, all of them where there is none."""
        if self.stop is None or not messages or messages[-1].offset < self.stop.offset:
            return messages
        return [message for message in messages if message.offset < self.stop.offset]

    def note(self, offset: int, *, is_dead: bool) -> bool:
        """Count one message, unless it was counted before (a batch that was read again); whether to stop behind it."""
        if offset < self._next_offset:
            return False
        self._next_offset = offset + 1
        self._seen += 1
        if not is_dead:
            self._in_row = 0
            return False
        self._in_row += 1
        self._dead.append(self._seen)
        while self._dead[0] <= self._seen - self._window:
            self._dead.popleft()
        if self._in_row >= self._in_row_max:
            self.stop = Stop(offset + 1, "in_row")
        elif self._seen >= self._window and len(self._dead) >= self._window_max:
            self.stop = Stop(offset + 1, "percentage")
        return self.stop is not None


class DeadLetterLimits:
    """The guards of all partitions that this process has read; they outlive a rebalance."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._guards: dict[TopicPartition, PartitionGuard] = {}
        self._told: dict[TopicPartition, Stop] = {}

    def guard(self, partition: TopicPartition) -> PartitionGuard:
        """Give the guard of a partition."""
        guard = self._guards.get(partition)
        if guard is None:
            guard = self._guards[partition] = PartitionGuard(self._limits)
        return guard

    def opened(self, partition: TopicPartition, position: int) -> None:
        """Begin anew with a partition that was moved, by another worker or by a person, beyond where it stopped."""
        stop = self.guard(partition).stop
        if stop is not None and position > stop.offset:
            del self._guards[partition]

    def stops(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, Stop]:
        """Give the stops of some partitions."""
        guards = ((partition, self._guards.get(partition)) for partition in partitions)
        return {partition: guard.stop for partition, guard in guards if guard is not None and guard.stop is not None}

    def tell_new(self, partitions: frozenset[TopicPartition]) -> None:
        """Say loudly, once, that partitions stand still, and what to do."""
        for partition, stop in self.stops(partitions).items():
            if self._told.get(partition) != stop:
                self._told[partition] = stop
                self._tell(partition, stop)

    def _tell(self, partition: TopicPartition, stop: Stop) -> None:
        limits = self._limits
        reached = (
            f"{limits.dead_letters_in_row_max} dead letters in a row"
            if stop.limit == "in_row"
            else f"{limits.dead_letters_window_percent_max:g} % of the last {limits.dead_letters_window_messages}"
        )
        _log.error(
            "partition_stopped",
            topic=partition.topic,
            partition=partition.partition,
            offset=stop.offset,
            problem=f"{reached} messages were dead letters" if stop.limit == "percentage" else reached,
            way_out=_WAY_OUT,
        )
