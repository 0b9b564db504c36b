"""An in-memory broker with the parts of Kafka that the worker rests on: logs, one group, producers, fencing."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import (
    CommitFailedError,
    CorruptRecordException,
    IllegalStateError,
    OffsetOutOfRangeError,
    ProducerFenced,
)

from worker.kafka import Header, Message, TopicPartition


@dataclass
class FakeMessage:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp: int = 0


@dataclass
class FakeLog:
    """One partition: messages with rising offsets, gaps allowed, and where the log begins and ends."""

    messages: list[FakeMessage] = field(default_factory=list)
    beginning: int = 0
    end: int = 0
    corrupt: frozenset[int] = frozenset()
    corrupt_error: Exception = field(default_factory=CorruptRecordException)

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        offset: int | None = None,
        headers: Iterable[Header] = (),
    ) -> None:
        place = self.end if offset is None else offset
        self.messages.append(FakeMessage(place, key, value, tuple(headers)))
        self.end = place + 1


class FakeBroker:
    """Logs, committed offsets of one group per name, and producer epochs per transactional id."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, FakeLog] = defaultdict(FakeLog)
        self.committed: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        self.commits: list[dict[TopicPartition, int]] = []
        self.epochs: dict[str, int] = defaultdict(int)

    def values(self, topic: str) -> list[bytes | None]:
        return [
            message.value
            for place, log in sorted(self.logs.items())
            if place.topic == topic
            for message in log.messages
        ]

    def newest(self, topic: str) -> dict[bytes | None, bytes]:
        """What a compacted topic comes down to."""
        newest = {
            message.key: message.value
            for place, log in sorted(self.logs.items())
            if place.topic == topic
            for message in log.messages
        }
        return {key: value for key, value in newest.items() if value is not None}


class FakeConsumer:
    """A group consumer whose rebalances the test drives: `give` and `take`."""

    def __init__(self, broker: FakeBroker, group: str = "group") -> None:
        self.broker = broker
        self.group = group
        self.listener: Any = None
        self.topics: frozenset[str] = frozenset()
        self.paused: set[TopicPartition] = set()
        self.is_member = True
        self.is_stopped = False
        self.commit_errors: list[Exception] = []
        self.poll_errors: list[Exception] = []
        self.start_errors: list[Exception] = []
        self.polled_partitions: list[frozenset[TopicPartition]] = []
        self._positions: dict[TopicPartition, int | None] = {}
        self._waiting: list[asyncio.Future[None]] = []

    # --------------------------------------------------------------------------------------- what the test does

    async def give(self, *partitions: TopicPartition) -> None:
        self.is_member = True
        self._positions = dict.fromkeys(partitions)
        self.paused.clear()
        await self.listener.on_partitions_assigned(set(partitions))

    async def take(self) -> None:
        await self.listener.on_partitions_revoked(set(self._positions))
        self._positions = {}

    # -------------------------------------------------------------------------------------------------- the port

    def subscribe(self, topics: Iterable[str], *, listener: Any) -> None:
        self.topics, self.listener = frozenset(topics), listener

    async def start(self) -> None:
        await asyncio.sleep(0)
        if self.start_errors:
            raise self.start_errors.pop(0)

    async def stop(self) -> None:
        self.is_stopped = True

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Message]]:
        assert partitions, "aiokafka takes no partitions to mean all of them"
        self.polled_partitions.append(frozenset(partitions))
        if self.poll_errors:
            raise self.poll_errors.pop(0)
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            if polled := self._drain(partitions, max_records):
                return polled
            if asyncio.get_running_loop().time() >= deadline:
                return {}
            await self._wait()

    async def _wait(self) -> None:
        """Wait for a millisecond, or until a position changes: a poll is as quick as it can be with what lies there."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        loop.call_later(0.001, _end, waiting)
        await waiting

    def _drain(self, partitions: Iterable[TopicPartition], max_records: int) -> dict[TopicPartition, list[Message]]:
        polled: dict[TopicPartition, list[Message]] = {}
        for partition in partitions:
            position = self._positions.get(partition)
            if position is None or partition in self.paused or max_records <= 0:
                continue
            log = self.broker.logs[partition]
            if not log.beginning <= position <= log.end:
                raise OffsetOutOfRangeError({partition: position})
            ahead = [message for message in log.messages if message.offset >= position]
            messages: list[Message] = [*ahead[:max_records]]
            if not log.corrupt.isdisjoint(message.offset for message in messages):
                # As aiokafka does: what was drained of other partitions goes down with the error.
                raise log.corrupt_error
            max_records -= len(messages)
            self._positions[partition] = messages[-1].offset + 1 if len(messages) < len(ahead) else log.end
            if messages:
                polled[partition] = messages
        return polled

    async def position(self, partition: TopicPartition) -> int:
        position = self._position(partition)
        assert position is not None, "aiokafka would wait here"
        return position

    def _position(self, partition: TopicPartition) -> int | None:
        if partition not in self._positions:
            raise IllegalStateError(f"Partition {partition} is not assigned")
        return self._positions[partition]

    async def committed(self, partition: TopicPartition) -> int | None:
        return self.broker.committed[self.group].get(partition)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition in offsets:
            self._position(partition)
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        if not self.is_member:
            raise CommitFailedError
        self.broker.committed[self.group] |= offsets
        self.broker.commits.append(dict(offsets))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.broker.logs[partition].beginning for partition in partitions}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.broker.logs[partition].end for partition in partitions}

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._position(partition)
        self._positions[partition] = offset
        while self._waiting:
            _end(self._waiting.pop())

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused -= set(partitions)

    def highwater(self, partition: TopicPartition) -> int | None:
        self._position(partition)
        return self.broker.logs[partition].end


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class FakeBatch:
    """A batch builder that takes so many messages."""

    def __init__(self, room: int) -> None:
        self.rows: list[tuple[bytes, bytes | None, list[Header]]] = []
        self._room = room

    def append(self, *, timestamp: int | None, key: bytes, value: bytes | None, headers: list[Header]) -> object | None:
        assert timestamp is None
        # What aiokafka's compiled builder insists on.
        assert type(headers) is list
        if len(self.rows) >= self._room:
            return None
        self.rows.append((key, value, headers))
        return object()


class FakeProducer:
    """A producer of one broker; with a transactional id it fences its predecessors when started."""

    def __init__(
        self, broker: FakeBroker, transactional_id: str | None = None, *, room: int = 3, group: str = "group"
    ) -> None:
        self.broker = broker
        self.errors: list[Exception] = []
        self.is_abandoned = False
        self._id = transactional_id
        self._room = room
        self._group = group
        self._epoch = 0
        self._sent: list[tuple[TopicPartition, FakeBatch]] = []
        self._offsets: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        if self._id is not None:
            self.broker.epochs[self._id] += 1
            self._epoch = self.broker.epochs[self._id]

    async def abandon(self) -> None:
        self.is_abandoned = True

    def create_batch(self) -> FakeBatch:
        return FakeBatch(self._room)

    async def send_batch(self, batch: FakeBatch, topic: str, *, partition: int) -> asyncio.Future[None]:
        delivery: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.errors:
            delivery.set_exception(self.errors.pop(0))
            return delivery
        self._check_epoch()
        self._sent.append((TopicPartition(topic, partition), batch))
        if self._id is None:
            self._write()
        delivery.set_result(None)
        return delivery

    async def begin_transaction(self) -> None:
        assert not self._sent, "the last transaction has not ended"

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        assert group
        self._check_epoch()
        self._offsets = dict(offsets)

    async def commit_transaction(self) -> None:
        self._check_epoch()
        self._write()
        self.broker.committed[self._group] |= self._offsets
        self.broker.commits.append(self._offsets)
        self._offsets = {}

    async def abort_transaction(self) -> None:
        self._check_epoch()
        self._sent, self._offsets = [], {}

    def _check_epoch(self) -> None:
        if self._id is not None and self._epoch != self.broker.epochs[self._id]:
            raise ProducerFenced

    def _write(self) -> None:
        for partition, batch in self._sent:
            for key, value, headers in batch.rows:
                self.broker.logs[partition].append(value, key=key, headers=headers)
        self._sent = []
