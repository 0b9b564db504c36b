"""The fakes that unit tests run on do what a real broker and aiokafka do, as far as the worker rests on it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import pytest
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.admin import NewTopic
from aiokafka.errors import IllegalStateError, OffsetOutOfRangeError

from tests.brokers.broker import Broker
from tests.worker.fakes.kafka import FakeBroker, FakeConsumer, FakeProducer
from worker.kafka import (
    BatchWriter,
    FencedWriter,
    GroupConsumer,
    Message,
    PartitionLostError,
    TopicPartition,
    admin_client,
    group_consumer,
    plain_producer,
    quiet_abandoned_futures,
    transactional_producer,
)
from worker.settings import Settings
from worker.settings_sections import KafkaSettings

pytestmark = pytest.mark.integration

GROUP = "group"
TIMEOUT_S = 60


class Listener:
    """Remembers what it was given; both kinds of consumer call it."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.heard = asyncio.Event()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assigned = set(assigned)
        self.heard.set()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None: ...


class RealListener(Listener, ConsumerRebalanceListener):  # type: ignore[misc]
    """The same, of the class that aiokafka asks for."""


class Site(Protocol):
    """A broker with one topic of two partitions, real or fake."""

    topic: str
    has_transactions: bool

    async def prepare(self) -> None: ...
    async def member(self) -> tuple[GroupConsumer, Listener]: ...
    async def producer(self, transactional_id: str | None = None) -> Any: ...


class FakeSite:
    """The fakes."""

    topic = "topic"
    has_transactions = True

    def __init__(self) -> None:
        self.broker = FakeBroker()

    async def prepare(self) -> None: ...

    async def member(self) -> tuple[GroupConsumer, Listener]:
        consumer, listener = FakeConsumer(self.broker, GROUP), Listener()
        consumer.subscribe([self.topic], listener=listener)
        await consumer.start()
        await consumer.give(TopicPartition(self.topic, 0), TopicPartition(self.topic, 1))
        return consumer, listener

    async def producer(self, transactional_id: str | None = None) -> Any:
        producer = FakeProducer(self.broker, transactional_id, group=GROUP)
        await producer.start()
        return producer


class RealSite:
    """aiokafka on the broker that the tests found."""

    def __init__(self, kafka: Broker, topic: str) -> None:
        self.topic = topic
        self.has_transactions = kafka.supports_transactions
        self._settings = Settings(
            bootstrap_servers=kafka.bootstrap_servers,
            kafka=KafkaSettings(
                session_timeout_s=6.0 if kafka.supports_transactions else 2.0, heartbeat_interval_s=0.5
            ),
        )

    async def prepare(self) -> None:
        admin = admin_client(self._settings)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.topic, 2, 1)])
        finally:
            await admin.close()

    async def member(self) -> tuple[GroupConsumer, Listener]:
        consumer, listener = group_consumer(self._settings, f"{self.topic}-{GROUP}"), RealListener()
        consumer.subscribe([self.topic], listener=listener)
        await consumer.start()
        # A member that starts is assigned before its listener has heard of it.
        await listener.heard.wait()
        return consumer, listener

    async def producer(self, transactional_id: str | None = None) -> Any:
        if transactional_id is None:
            producer = plain_producer(self._settings)
        else:
            producer = transactional_producer(self._settings, f"{self.topic}-{transactional_id}")
        await producer.start()
        return producer


@pytest.fixture(params=["fake", "real"])
def site(request: pytest.FixtureRequest, fresh_app_id: str) -> Site:
    if request.param == "fake":
        return FakeSite()
    return RealSite(request.getfixturevalue("kafka"), fresh_app_id)


def group_of(site: Site) -> str:
    return GROUP if isinstance(site, FakeSite) else f"{site.topic}-{GROUP}"


def run(site: Site, story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        quiet_abandoned_futures(asyncio.get_running_loop())
        await site.prepare()
        await asyncio.wait_for(story(), TIMEOUT_S)

    asyncio.run(bounded())


async def publish(site: Site, partition: int, *values: bytes) -> None:
    producer = await site.producer()
    writer = BatchWriter(producer)
    for value in values:
        writer.append(site.topic, partition, b"key", value, [("kind", b"run")])
    await writer.flush()
    await producer.abandon()


async def poll(
    consumer: GroupConsumer, *partitions: TopicPartition, count: int = 1, max_records: int = 1_000
) -> list[Message]:
    """Poll until so many messages have come."""
    messages: list[Message] = []
    while len(messages) < count:
        polled = await consumer.getmany(*partitions, timeout_ms=200, max_records=max_records)
        messages += [message for batch in polled.values() for message in batch]
    return messages


async def see_committed(consumer: GroupConsumer, partition: TopicPartition, offset: int) -> None:
    """Wait until an offset that a transaction carried shows: its markers are written after the commit is answered."""
    async with asyncio.timeout(TIMEOUT_S):
        while await consumer.committed(partition) != offset:
            await asyncio.sleep(0.02)


def values_of(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


@pytest.mark.broker_smoke
def test_reading_begins_where_it_is_told_and_the_position_follows_what_was_handed_over(site: Site) -> None:
    async def story() -> None:
        zero = TopicPartition(site.topic, 0)
        await publish(site, 0, b"a", b"b", b"c", b"d")
        consumer, listener = await site.member()
        assert listener.assigned == {zero, TopicPartition(site.topic, 1)} == consumer.assignment()
        assert await consumer.beginning_offsets([zero]) == {zero: 0}
        consumer.seek(zero, 1)
        assert await consumer.position(zero) == 1
        first = await poll(consumer, zero, count=2, max_records=2)
        assert values_of(first) == [b"b", b"c"]
        assert [(message.offset, message.key, list(message.headers)) for message in first] == [
            (1, b"key", [("kind", b"run")]),
            (2, b"key", [("kind", b"run")]),
        ]
        assert await consumer.position(zero) == 3
        assert values_of(await poll(consumer, zero)) == [b"d"]
        assert consumer.highwater(zero) == 4
        await consumer.stop()

    run(site, story)


@pytest.mark.broker_smoke
def test_only_the_partitions_that_are_asked_for_and_not_paused_are_handed_over(site: Site) -> None:
    async def story() -> None:
        zero, one = TopicPartition(site.topic, 0), TopicPartition(site.topic, 1)
        consumer, _ = await site.member()
        consumer.seek(zero, 0)
        consumer.seek(one, 0)
        await publish(site, 0, b"a")
        await publish(site, 1, b"b")
        assert values_of(await poll(consumer, one)) == [b"b"]
        consumer.pause(zero)
        assert await consumer.getmany(zero, one, timeout_ms=500, max_records=10) == {}
        consumer.resume(zero)
        assert values_of(await poll(consumer, zero, one)) == [b"a"]
        await consumer.stop()

    run(site, story)


@pytest.mark.broker_smoke
def test_a_committed_offset_is_what_the_next_member_finds(site: Site) -> None:
    async def story() -> None:
        zero, one = TopicPartition(site.topic, 0), TopicPartition(site.topic, 1)
        consumer, _ = await site.member()
        assert await consumer.committed(zero) is None
        await consumer.commit({zero: 3})
        with pytest.raises(IllegalStateError):
            await consumer.commit({TopicPartition(site.topic, 7): 1})
        await consumer.stop()
        consumer, _ = await site.member()
        assert (await consumer.committed(zero), await consumer.committed(one)) == (3, None)
        await consumer.stop()

    run(site, story)


def test_a_position_beyond_the_log_is_an_error_that_names_it(site: Site) -> None:
    async def story() -> None:
        zero = TopicPartition(site.topic, 0)
        await publish(site, 0, b"a")
        consumer, _ = await site.member()
        consumer.seek(zero, 9)
        with pytest.raises(OffsetOutOfRangeError) as error:
            await poll(consumer, zero)
        assert error.value.args[0] == {zero: 9}
        await consumer.stop()

    run(site, story)


def need_transactions(site: Site) -> None:
    if not site.has_transactions:
        pytest.skip("this broker has no transactions")


def test_a_transaction_shows_its_messages_and_its_offset_together(site: Site) -> None:
    need_transactions(site)

    async def story() -> None:
        zero, one = TopicPartition(site.topic, 0), TopicPartition(site.topic, 1)
        consumer, _ = await site.member()
        consumer.seek(zero, 0)
        consumer.seek(one, 0)
        producer = await site.producer("writer")
        writer = FencedWriter(producer, group_of(site))
        for value in (b"a", b"b", b"c", b"d"):
            writer.append(*zero, b"key", value)
        await writer.commit({one: 5})
        assert values_of(await poll(consumer, zero, one, count=4)) == [b"a", b"b", b"c", b"d"]
        await see_committed(consumer, one, 5)
        # A transaction without messages commits offsets all the same.
        await writer.commit({one: 6})
        await see_committed(consumer, one, 6)
        await producer.abandon()
        await consumer.stop()

    run(site, story)


def test_a_newer_producer_of_the_same_name_fences_the_older(site: Site) -> None:
    need_transactions(site)

    async def story() -> None:
        zero = TopicPartition(site.topic, 0)
        older = await site.producer("writer")
        newer = await site.producer("writer")
        writers = [FencedWriter(producer, group_of(site)) for producer in (older, newer)]
        for writer, value in zip(writers, (b"old", b"new"), strict=True):
            writer.append(*zero, b"key", value)
        with pytest.raises(PartitionLostError):
            await writers[0].commit({zero: 1})
        await writers[1].commit({zero: 2})
        await older.abandon()
        await newer.abandon()
        consumer, _ = await site.member()
        await see_committed(consumer, zero, 2)
        consumer.seek(zero, 0)
        assert values_of(await poll(consumer, zero)) == [b"new"]
        await consumer.stop()

    run(site, story)


def test_an_open_transaction_is_rolled_back_when_its_producer_is_replaced(site: Site) -> None:
    need_transactions(site)

    async def story() -> None:
        zero = TopicPartition(site.topic, 0)
        killed = await site.producer("writer")
        await killed.begin_transaction()
        batch = killed.create_batch()
        batch.append(timestamp=None, key=b"key", value=b"lost", headers=[])
        await (await killed.send_batch(batch, site.topic, partition=0))
        producer = await site.producer("writer")
        writer = FencedWriter(producer, group_of(site))
        writer.append(*zero, b"key", b"kept")
        await writer.commit({zero: 1})
        consumer, _ = await site.member()
        consumer.seek(zero, 0)
        assert values_of(await poll(consumer, zero)) == [b"kept"]
        for client in (killed, producer):
            await client.abandon()
        await consumer.stop()

    run(site, story)


def test_the_end_of_a_transaction_moves_the_position_without_a_message(site: Site) -> None:
    need_transactions(site)

    async def story() -> None:
        zero = TopicPartition(site.topic, 0)
        producer = await site.producer("writer")
        writer = FencedWriter(producer, group_of(site))
        writer.append(*zero, b"key", b"a")
        await writer.commit({TopicPartition(site.topic, 1): 0})
        if isinstance(site, FakeSite):
            # What the marker of a real broker does.
            site.broker.logs[zero].end += 1
        consumer, _ = await site.member()
        consumer.seek(zero, 0)
        assert values_of(await poll(consumer, zero)) == [b"a"]
        while await consumer.position(zero) < 2:
            assert await consumer.getmany(zero, timeout_ms=200, max_records=10) == {}
        assert consumer.highwater(zero) == 2
        await producer.abandon()
        await consumer.stop()

    run(site, story)


def test_a_batch_above_every_size_is_delivered_whole(site: Site) -> None:
    async def story() -> None:
        zero = TopicPartition(site.topic, 0)
        values = [bytes([number]) * 700_000 for number in range(3)]
        await publish(site, 0, *values)
        consumer, _ = await site.member()
        consumer.seek(zero, 0)
        assert values_of(await poll(consumer, zero, count=3)) == values
        await consumer.stop()

    run(site, story)
