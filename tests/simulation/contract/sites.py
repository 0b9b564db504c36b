"""The two places where the contract is tried: the virtual broker, and aiokafka on the broker that the tests found."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.protocol.group import LeaveGroupRequest

from tests.brokers.broker import Broker
from tests.simulation.broker import VirtualBroker
from tests.simulation.consumer import VirtualConsumer, VirtualReader
from tests.simulation.loop import Process, new_loop
from tests.simulation.producer import VirtualProducer
from worker.kafka import (
    BatchWriter,
    GroupConsumer,
    Message,
    TopicPartition,
    admin_client,
    group_consumer,
    idempotent_producer,
    log_reader,
    quiet_abandoned_futures,
    transactional_producer,
)
from worker.settings import Settings
from worker.settings_sections import KafkaSettings

PARTITIONS = 2
TIMEOUT_S = 90
_COMPACTION_S = 60
# Every message after a pause begins a segment, and everything before it may be cleaned at once.
_COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0"}
_SESSION_S, _HEARTBEAT_S = 6.0, 0.5

Step = Callable[[], Awaitable[None]]


class Listener:
    """Remembers what it was told, and does what the test wants when partitions are taken."""

    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[TopicPartition]]] = []
        self.when_revoked: Step | None = None
        self._heard = asyncio.Event()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.told.append(("revoked", frozenset(revoked)))
        if self.when_revoked is not None:
            await self.when_revoked()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.told.append(("assigned", frozenset(assigned)))
        self._heard.set()

    async def assigned(self, count: int) -> frozenset[TopicPartition]:
        """Wait until exactly so many partitions are assigned."""
        while not self.told or self.told[-1][0] != "assigned" or len(self.told[-1][1]) != count:
            self._heard.clear()
            await self._heard.wait()
        return self.told[-1][1]


class RealListener(Listener, ConsumerRebalanceListener):  # type: ignore[misc]
    """The same, of the class that aiokafka asks for."""


class Member:
    """A member of the group, and its listener."""

    def __init__(self, consumer: Any, listener: Listener) -> None:
        self.consumer: GroupConsumer = consumer
        self.listener = listener


class Site(Protocol):
    """A broker with one topic of two partitions, and one group."""

    topic: str
    group: str

    def run(self, story: Callable[[], Awaitable[None]], *, is_compacted: bool = False) -> None: ...
    def make_member(self, assignor: Any = None) -> Member: ...
    def make_reader(self) -> Any: ...
    def make_producer(self, name: str | None = None) -> Any: ...
    async def forget(self, member: Member) -> None:
        """Let the group forget a member, which does not know it."""

    def age(self, member: Member) -> None:
        """Let a member believe that it is still in the generation before."""

    async def compact(self, place: TopicPartition, count: int) -> None:
        """Let the log cleaner go over a partition, until so many messages are left."""

    async def delete_before(self, place: TopicPartition, offset: int) -> None:
        """Let retention take what comes before an offset."""


class VirtualSite:
    """The virtual broker."""

    topic = "topic"
    group = "group"

    def __init__(self) -> None:
        self.loop = new_loop()
        self.broker = VirtualBroker(self.loop, Random(1))
        self.broker.create_topic(self.topic, PARTITIONS)

    def run(self, story: Callable[[], Awaitable[None]], *, is_compacted: bool = False) -> None:
        # Here the log cleaner comes when it is called.
        del is_compacted

        async def bounded() -> None:
            await asyncio.wait_for(story(), TIMEOUT_S)

        process = Process("test")
        task = process.context.run(self.loop.create_task, bounded())
        try:
            self.loop.run_until_complete(task)
        finally:
            self.loop.bury()
        assert self.loop.complaints == []

    def make_member(self, assignor: Any = None) -> Member:
        chosen = assignor or RoundRobinPartitionAssignor
        consumer = VirtualConsumer(self.broker, self.group, chosen, session_s=_SESSION_S, heartbeat_s=_HEARTBEAT_S)
        return Member(consumer, Listener())

    def make_reader(self) -> VirtualReader:
        return VirtualReader(self.broker)

    def make_producer(self, name: str | None = None) -> VirtualProducer:
        return VirtualProducer(self.broker, is_idempotent=True, name=name)

    async def forget(self, member: Member) -> None:
        consumer: Any = member.consumer
        self.broker.groups.leave(self.group, consumer.member_id)

    def age(self, member: Member) -> None:
        consumer: Any = member.consumer
        consumer._generation -= 1

    async def compact(self, place: TopicPartition, count: int) -> None:
        del count
        log = self.broker.logs[place]
        # All but the newest message, as if that had begun a new segment.
        log.compact(log.end - 1, lambda _tombstone: False)

    async def delete_before(self, place: TopicPartition, offset: int) -> None:
        self.broker.logs[place].delete_before(offset)


class RealSite:
    """aiokafka on a real broker."""

    def __init__(self, kafka: Broker, name: str) -> None:
        self.topic = name
        self.group = f"{name}-group"
        self._settings = Settings(
            bootstrap_servers=kafka.bootstrap_servers,
            kafka=KafkaSettings(session_timeout_s=_SESSION_S, heartbeat_interval_s=_HEARTBEAT_S),
        )

    def run(self, story: Callable[[], Awaitable[None]], *, is_compacted: bool = False) -> None:
        async def bounded() -> None:
            quiet_abandoned_futures(asyncio.get_running_loop())
            await self._create_topic(_COMPACTED if is_compacted else {})
            await asyncio.wait_for(story(), TIMEOUT_S)

        asyncio.run(bounded())

    async def _create_topic(self, configs: dict[str, str]) -> None:
        async with self._admin() as admin:
            await admin.create_topics([NewTopic(self.topic, PARTITIONS, 1, topic_configs=configs)])

    @contextlib.asynccontextmanager
    async def _admin(self) -> Any:
        admin = admin_client(self._settings)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    def make_member(self, assignor: Any = None) -> Member:
        assignors = None if assignor is None else [assignor]
        return Member(group_consumer(self._settings, self.group, assignors), RealListener())

    def make_reader(self) -> Any:
        return log_reader(self._settings)

    def make_producer(self, name: str | None = None) -> Any:
        if name is None:
            return idempotent_producer(self._settings)
        return transactional_producer(self._settings, f"{self.topic}-{name}")

    async def forget(self, member: Member) -> None:
        consumer: Any = member.consumer
        coordinator = consumer._coordinator
        await coordinator._send_req(LeaveGroupRequest(self.group, coordinator.member_id))

    def age(self, member: Member) -> None:
        consumer: Any = member.consumer
        consumer._coordinator.generation -= 1

    async def compact(self, place: TopicPartition, count: int) -> None:
        for _ in range(_COMPACTION_S * 2):
            await asyncio.sleep(0.5)
            if len(await read_all(self, place)) <= count:
                return
        raise AssertionError("the log cleaner does not come")

    async def delete_before(self, place: TopicPartition, offset: int) -> None:
        async with self._admin() as admin:
            await admin.delete_records({place: RecordsToDelete(before_offset=offset)})


# ------------------------------------------------------------------------------------------------ what stories do


@contextlib.asynccontextmanager
async def joined(site: Site, count: int, assignor: Any = None) -> Any:
    """Give a member of the group that has so many partitions; it leaves at the end."""
    member = await join(site, assignor)
    await member.listener.assigned(count)
    try:
        yield member
    finally:
        await member.consumer.stop()


async def join(site: Site, assignor: Any = None) -> Member:
    """Give a member that has joined the group."""
    member = site.make_member(assignor)
    member.consumer.subscribe([site.topic], listener=member.listener)
    await member.consumer.start()
    return member


@contextlib.asynccontextmanager
async def producing(site: Site, name: str | None = None) -> Any:
    """Give a started producer."""
    producer = site.make_producer(name)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.abandon()


async def until_ended(site: Site, name: str) -> None:
    """Wait until the markers of a producer's last transaction are in the logs: its next namesake starts only then."""
    async with producing(site, name):
        pass


async def publish(site: Site, place: TopicPartition, rows: Mapping[bytes, bytes | None] | Sequence[bytes]) -> None:
    """Publish values, or values by key."""
    keyed = rows if isinstance(rows, Mapping) else {f"key-{value!r}".encode(): value for value in rows}
    async with producing(site) as producer:
        writer = BatchWriter(producer)
        for key, value in keyed.items():
            writer.append(*place, key, value)
        await writer.flush()


async def send(producer: Any, place: TopicPartition, value: bytes) -> None:
    """Send one message and wait until it is stored; what it raises may come at once or with the delivery."""
    batch = producer.create_batch()
    batch.append(timestamp=None, key=b"key", value=value, headers=[])
    await (await producer.send_batch(batch, place.topic, partition=place.partition))


async def read_all(site: Site, place: TopicPartition, start: int | None = None) -> list[Message]:
    """Read a partition to where readers get, without a group."""
    reader = site.make_reader()
    reader.assign([place])
    await reader.start()
    try:
        beginning = (await reader.beginning_offsets([place]))[place]
        reader.seek(place, beginning if start is None else start)
        messages: list[Message] = []
        for _ in range(2):
            # Nothing twice in a row: there is no more to come.
            while polled := await reader.getmany(timeout_ms=400, max_records=100):
                messages += polled[place]
        return messages
    finally:
        await reader.stop()


async def poll(consumer: GroupConsumer, *places: TopicPartition, count: int) -> list[Message]:
    """Poll until so many messages have come."""
    messages: list[Message] = []
    while len(messages) < count:
        polled = await consumer.getmany(*places, timeout_ms=200, max_records=100)
        messages += [message for batch in polled.values() for message in batch]
    return messages


def values_of(messages: Iterable[Message]) -> list[bytes | None]:
    return [message.value for message in messages]
