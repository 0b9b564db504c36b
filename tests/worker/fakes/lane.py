"""A lane that writes down what the batch loop does with it."""

import asyncio
from collections.abc import Mapping, Sequence

from worker.kafka import GroupConsumer, TopicPartition
from worker.lanes import Batch, CorruptBatch, committed_positions


class FakeLane:
    """Output is the values it handled; `durable` holds what a flush has got through."""

    def __init__(self, partitions: frozenset[TopicPartition]) -> None:
        self.partitions = partitions
        self.steps: list[str] = []
        self.durable: list[bytes | None] = []
        self.waiting: list[bytes | None] = []
        self.open_errors: list[Exception] = []
        self.handle_errors: list[Exception] = []
        self.flush_errors: list[Exception] = []
        self.commit_errors: list[Exception] = []
        self.gate: asyncio.Event | None = None
        self.accepted_messages = 0
        self.settled_messages = 0
        self.abandoned_messages = 0
        self.corrupt: list[tuple[TopicPartition, CorruptBatch]] = []
        self.stopped_at: Mapping[TopicPartition, int] = {}
        self.rest_until = 0.0

    async def open(self, consumer: GroupConsumer) -> Mapping[TopicPartition, int]:
        self.steps.append("open")
        if self.open_errors:
            raise self.open_errors.pop(0)
        return await committed_positions(consumer, self.partitions)

    def accepted(self, batches: Sequence[Batch]) -> None:
        self.accepted_messages += _count(batches)

    def handle(self, batch: Batch) -> None:
        self.steps.append("handle")
        if self.handle_errors:
            raise self.handle_errors.pop(0)
        if batch.corrupt is not None:
            self.corrupt.append((batch.partition, batch.corrupt))
        self.waiting += [message.value for message in batch.messages]

    async def flush(self) -> None:
        self.steps.append("flush")
        if self.gate is not None:
            await self.gate.wait()
        if self.flush_errors:
            raise self.flush_errors.pop(0)
        self.durable += self.waiting
        self.waiting = []

    async def commit(self, consumer: GroupConsumer, positions: Mapping[TopicPartition, int]) -> None:
        self.steps.append("commit")
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        await consumer.commit(positions)

    def settled(self, batches: Sequence[Batch]) -> None:
        self.settled_messages += _count(batches)

    def abandoned(self, batches: Sequence[Batch]) -> None:
        self.abandoned_messages += _count(batches)

    async def close(self) -> None:
        self.steps.append("close")
        self.waiting = []


class FakeRole:
    """A role of fake lanes: one for all partitions, or one each."""

    def __init__(self, consumer: GroupConsumer, *, is_one_lane: bool = True) -> None:
        self.name = "fake"
        self.topics: tuple[str, ...] = ("topic",)
        self.lanes: list[FakeLane] = []
        self.made_consumers = 0
        self.prepare: Mapping[str, list[Exception]] = {}
        self._consumer = consumer
        self._is_one_lane = is_one_lane

    def make_consumer(self) -> GroupConsumer:
        self.made_consumers += 1
        return self._consumer

    def make_lanes(self, partitions: frozenset[TopicPartition]) -> Sequence[FakeLane]:
        shares = [partitions] if self._is_one_lane else [frozenset((partition,)) for partition in sorted(partitions)]
        self.lanes = [FakeLane(share) for share in shares if share]
        for lane in self.lanes:
            lane.open_errors = list(self.prepare.get("open", ()))
        return self.lanes


def _count(batches: Sequence[Batch]) -> int:
    return sum(len(batch.messages) for batch in batches)
