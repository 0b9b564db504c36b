"""A cluster without Kafka: partitions, logs and folds, driven by a seeded schedule.

The schedule chooses the order of the topics (keeping, per key, the order around tombstones), duplicates, batch
borders, partition counts, and when a worker loses its state and restores it from the compacted log.
"""

from random import Random

from projections.errors import ProjectionError
from projections.facts import Fact, decode_fact, encode_fact, partition_of
from projections.fold import Change, Fold
from projections.sources import project_message
from tests.worlds.world import SourceMessage

Placed = tuple[str, bytes | None, bytes | None, int, int]


def place(messages: list[SourceMessage], random: Random | None, partition_count: int) -> list[Placed]:
    """Give messages their partitions and offsets: shuffled, except that keys with a tombstone keep their order."""
    order = list(messages)
    if random is not None:
        random.shuffle(order)
        fixed = {(message.topic, message.key) for message in messages if message.value is None}
        for name in fixed:
            slots = [index for index, message in enumerate(order) if (message.topic, message.key) == name]
            kept = [message for message in messages if (message.topic, message.key) == name]
            for slot, message in zip(slots, kept, strict=True):
                order[slot] = message
    offsets: dict[tuple[str, int], int] = {}
    placed = []
    for message in order:
        partition = partition_of((message.key or b"").decode(), partition_count)
        if message.key is None and random is not None:
            partition = random.randrange(partition_count)
        offset = offsets.get((message.topic, partition), 0)
        offsets[(message.topic, partition)] = offset + 1
        placed.append((message.topic, message.key, message.value, partition, offset))
    return placed


def said(fold: Fold) -> dict[str, tuple[object, object]]:
    """Give what each aggregate of a fold takes for said: its records and its derived facts, as digests."""
    emitters = {name: fold._primed(name).emit() for name in list(fold._aggregates)}
    return {name: (emitter._records, emitter._facts) for name, emitter in emitters.items()}


class Cluster:
    """Some partitions of the facts log, each with its fold, and the records they emitted."""

    def __init__(self, partition_count: int, *, unbound: str = "hold") -> None:
        self.count = partition_count
        self.unbound = unbound
        self.logs: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(partition_count)]
        self.folds = [self._fold() for _ in range(partition_count)]
        self.read = [0] * partition_count
        self.records: dict[str, bytes] = {}
        self.history: list[Change] = []
        self.dead: list[str] = []

    def _fold(self) -> Fold:
        return Fold(generation=1, unbound="standalone" if self.unbound == "standalone" else "hold")

    def project(self, message: Placed) -> None:
        """Project one message into the facts log."""
        try:
            projected = project_message(*message)
        except ProjectionError as error:
            self.dead.append(error.reason)
            return
        for fact in projected.facts:
            self._append(fact)

    def _append(self, fact: Fact) -> None:
        self.logs[partition_of(fact.aggregate, self.count)].append(encode_fact(fact))

    def fold(self, partition: int, batch: int) -> None:
        """Fold the next facts of a partition."""
        log, start = self.logs[partition], self.read[partition]
        rows = [
            (offset, decode_fact(key, value))
            for offset, (key, value) in enumerate(log[start : start + batch], start)
            if value is not None
        ]
        self.read[partition] = min(start + batch, len(log))
        if not rows:
            return
        result = self.folds[partition].apply(rows)
        for change in result.changes:
            self.history.append(change)
            if change.record is None:
                self.records.pop(change.id, None)
            else:
                self.records[change.id] = change.record
        for fact in result.facts:
            self._append(fact)
        for key in result.superseded:
            log.append((key, None))

    def crash(self, partition: int) -> None:
        """Lose the state of a partition and restore it from its log, compacted up to what was read."""
        read = self.logs[partition][: self.read[partition]]
        newest = {key: index for index, (key, _value) in enumerate(read)}
        rows = [(index, key, value) for index, (key, value) in enumerate(read) if newest[key] == index]
        lost = self.folds[partition]
        self.folds[partition] = self._fold()
        self.folds[partition].restore(
            (index, decode_fact(key, value)) for index, key, value in rows if value is not None
        )
        assert said(self.folds[partition]) == said(lost), "a restored fold takes for said what the lost one had said"

    def drain(self) -> None:
        """Fold everything that is left."""
        while any(self.read[partition] < len(self.logs[partition]) for partition in range(self.count)):
            for partition in range(self.count):
                self.fold(partition, 1_000_000)


def clean_pass(messages: list[SourceMessage], *, unbound: str = "hold") -> Cluster:
    """Project everything once, in the order in which it was made, in one partition."""
    cluster = Cluster(1, unbound=unbound)
    for message in place(messages, None, 1):
        cluster.project(message)
    cluster.drain()
    return cluster


def random_pass(
    messages: list[SourceMessage], seed: int, *, unbound: str = "hold", crash_chance: float = 0.02
) -> Cluster:
    """Project everything by a random schedule: order, duplicates, batches, partitions and crashes."""
    random = Random(seed)
    cluster = Cluster(random.randrange(1, 5), unbound=unbound)
    placed = place(messages, random, random.randrange(1, 4))
    arrivals = placed + random.sample(placed, random.randrange(len(placed) // 2 + 1))
    random.shuffle(arrivals)
    for message in arrivals:
        cluster.project(message)
        while random.random() < 0.3:
            cluster.fold(random.randrange(cluster.count), random.choice([1, 2, 5, 50]))
        if random.random() < crash_chance:
            cluster.crash(random.randrange(cluster.count))
    cluster.drain()
    return cluster
