"""Drives one lane over a fake group the way the batch loop does, without its timing."""

from collections.abc import Mapping
from typing import Any

from tests.worker.fakes.kafka import FakeBroker, FakeConsumer
from worker.kafka import TopicPartition
from worker.lanes import Batch, Lane


class LaneDriver:
    """Open a lane, then settle whatever its partitions hold, batch by batch."""

    def __init__(self, broker: FakeBroker, lane: Lane, group: str = "group") -> None:
        self.lane = lane
        self.consumer = FakeConsumer(broker, group)
        self._positions: dict[TopicPartition, int] = {}

    async def open(self) -> Mapping[TopicPartition, int]:
        class Deaf:
            async def on_partitions_assigned(self, _partitions: Any) -> None: ...

        self.consumer.listener = Deaf()
        await self.consumer.give(*self.lane.partitions)
        self._positions = dict(await self.lane.open(self.consumer))
        for partition, offset in self._positions.items():
            self.consumer.seek(partition, offset)
        return self._positions

    async def poll(self, messages_max: int = 1_000) -> list[Batch]:
        polled = await self.consumer.getmany(*self.lane.partitions, timeout_ms=0, max_records=messages_max)
        return [
            Batch(partition, messages, await self.consumer.position(partition))
            for partition, messages in sorted(polled.items())
        ]

    async def settle(self, messages_max: int = 1_000) -> int:
        """Settle one batch and give how many messages it had."""
        batches = await self.poll(messages_max)
        if not batches:
            return 0
        self.lane.accepted(batches)
        for batch in batches:
            self.lane.handle(batch)
        await self.lane.flush()
        await self.lane.commit(self.consumer, {batch.partition: batch.next_offset for batch in batches})
        self.lane.settled(batches)
        return sum(len(batch.messages) for batch in batches)

    async def settle_all(self, messages_max: int = 1_000) -> int:
        """Settle batches until nothing is left, and give how many messages there were."""
        total = 0
        while count := await self.settle(messages_max):
            total += count
        return total
