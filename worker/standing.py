"""Notices that messages come in and a committed offset does not move: the sign of a fault that raises no error."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from worker.kafka import GroupConsumer, TopicPartition
from worker.lanes import Slot

_log = structlog.get_logger(__name__)

_LOOK_S = 1.0


class _Seen(NamedTuple):
    committed: int
    since_s: float


class CommitWatch:
    """Knows since when each partition has had something to read without its committed offset moving.

    Partitions are looked at now and then; times are those of any clock that only goes forward.
    """

    def __init__(self, role: str, standstill_s: float) -> None:
        self._standstill_s = standstill_s
        self._seen: dict[TopicPartition, _Seen] = {}
        self._told: set[TopicPartition] = set()
        self._look_at = 0.0
        self._log = _log.bind(role=role)

    def look(self, consumer: GroupConsumer, slots: Sequence[Slot], now: float) -> None:
        """See, at most once a second, whether committed offsets move; what stands by decision is told elsewhere."""
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            committed = {
                place: offset
                for slot in slots
                for place, offset in slot.committed.items()
                if place in slot.running_partitions and place in consumer.assignment()
            }
            self.compare(committed, {place: consumer.highwater(place) for place in committed}, now)

    def compare(
        self, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int | None], now: float
    ) -> None:
        """Compare committed offsets with the ends of their logs; an end of None is one that no fetch has told yet."""
        self._seen = {
            place: self._seen_now(self._seen.get(place), offset, ends.get(place), now)
            for place, offset in committed.items()
        }
        standing = self._standing(now)
        for place in sorted(standing - self._told):
            self._log.warning("commit_stands_still", topic=place.topic, partition=place.partition)
        self._told = standing

    def _seen_now(self, seen: _Seen | None, committed: int, end: int | None, now: float) -> _Seen:
        has_moved = seen is None or seen.committed != committed
        is_at_end = end is not None and end <= committed
        return _Seen(committed, now) if seen is None or has_moved or is_at_end else seen

    def _standing(self, now: float) -> set[TopicPartition]:
        return {place for place, seen in self._seen.items() if now - seen.since_s >= self._standstill_s}

    def longest_s(self, now: float) -> float:
        """Give for how long the partition that stands longest has stood; 0 when there is none."""
        return max((now - seen.since_s for seen in self._seen.values()), default=0.0)

    def standing_partitions(self) -> int:
        """Count the partitions that stood too long when they were last looked at."""
        return len(self._told)
