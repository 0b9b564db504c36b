"""What a worker keeps of the partitions it folds between one assignment and the next.

A store may forget at any time: the facts log holds everything, and what is missing is read from there again.
"""

from typing import NamedTuple, Protocol

from projections.fold import Fold


class Held(NamedTuple):
    """The fold of one facts partition, and the offset up to which everything is joined, emitted and durable."""

    fold: Fold
    position: int


class FoldStore(Protocol):
    """Where folds wait while their partition is not being worked on."""

    def take(self, partition: int) -> Held | None:
        """Hand out what is held of a partition, and hold it no longer."""

    def keep(self, partition: int, held: Held) -> None:
        """Hold a fold whose output is durable; one that is ahead of its output must never get here."""

    def forget_others(self, partitions: frozenset[int]) -> None:
        """Forget the partitions that went to other workers."""


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
