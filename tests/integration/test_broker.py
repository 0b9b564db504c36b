"""What the worker takes for granted about a broker holds on the one that the tests found."""

import asyncio
import socket
from collections import Counter

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from tests.brokers.broker import LOOPBACK, Broker

pytestmark = [pytest.mark.integration, pytest.mark.broker_smoke]

TIMEOUT_S = 60


async def create_topic(kafka: Broker, topic: str, partition_count: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partition_count, replication_factor=1)])
    finally:
        await admin.close()


async def read_values(kafka: Broker, topic: str, count: int) -> list[bytes | None]:
    """Read the first ``count`` committed values of a topic of one partition."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with consumer:
        return [(await consumer.getone()).value for _ in range(count)]


def transactional_producer(kafka: Broker, name: str) -> AIOKafkaProducer:
    if not kafka.supports_transactions:
        pytest.skip(f"{kafka.name} has no transactions")
    return AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=name)


def test_a_group_of_two_reads_every_message_once(kafka: Broker, fresh_app_id: str) -> None:
    async def read_as_member(seen: Counter[bytes], count: int) -> None:
        consumer = AIOKafkaConsumer(
            fresh_app_id,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=fresh_app_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with consumer:
            while seen.total() < count:
                batches = await consumer.getmany(timeout_ms=100)
                seen.update(message.value for messages in batches.values() for message in messages)
                await consumer.commit()

    async def scenario() -> Counter[bytes]:
        await create_topic(kafka, fresh_app_id, 4)
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            for number in range(500):
                await producer.send(fresh_app_id, key=b"%d" % number, value=b"value-%d" % number)
        seen: Counter[bytes] = Counter()
        await asyncio.gather(read_as_member(seen, 500), read_as_member(seen, 500))
        return seen

    seen = asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))

    assert seen == Counter(b"value-%d" % number for number in range(500))


def test_a_transaction_shows_its_messages_and_offsets_together_or_not_at_all(kafka: Broker, fresh_app_id: str) -> None:
    partition = TopicPartition(fresh_app_id, 0)

    async def committed_offset() -> int | None:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=fresh_app_id)
        consumer.assign([partition])
        async with consumer:
            offset: int | None = await consumer.committed(partition)
            return offset

    async def scenario() -> None:
        producer = transactional_producer(kafka, fresh_app_id)
        await create_topic(kafka, fresh_app_id, 1)
        async with producer:
            await producer.begin_transaction()
            await producer.send_and_wait(fresh_app_id, b"aborted")
            await producer.send_offsets_to_transaction({partition: OffsetAndMetadata(7, "")}, fresh_app_id)
            await producer.abort_transaction()
            assert await committed_offset() is None

            await producer.begin_transaction()
            await producer.send_and_wait(fresh_app_id, b"kept")
            await producer.send_offsets_to_transaction({partition: OffsetAndMetadata(3, "")}, fresh_app_id)
            await producer.commit_transaction()
        # The coordinator answers before its markers are written; until then the offset shows the older value.
        while await committed_offset() != 3:
            await asyncio.sleep(0.05)
        assert await read_values(kafka, fresh_app_id, 1) == [b"kept"]

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


def test_a_second_producer_of_one_name_fences_the_first(kafka: Broker, fresh_app_id: str) -> None:
    async def scenario() -> None:
        older = transactional_producer(kafka, fresh_app_id)
        newer = transactional_producer(kafka, fresh_app_id)
        await create_topic(kafka, fresh_app_id, 1)
        async with older:
            await older.begin_transaction()
            await older.send_and_wait(fresh_app_id, b"from a worker that lost its partition")
            async with newer:
                async with newer.transaction():
                    await newer.send_and_wait(fresh_app_id, b"from its successor")
                with pytest.raises(ProducerFenced):
                    await older.commit_transaction()
        assert await read_values(kafka, fresh_app_id, 1) == [b"from its successor"]

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_S))


def test_it_is_reached_on_the_loopback_address_only(kafka: Broker) -> None:
    host, _, port = kafka.bootstrap_servers.rpartition(":")
    if host != LOOPBACK:
        pytest.skip("a broker that these tests did not start")
    # A broker that listened on every address would answer on this one too.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=2)
