"""Reading topics outside of groups: ends, gaps, places that are gone, and topics that were made anew."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from tests.brokers.broker import Broker, create_topics
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.topic_ids import topic_identities
from worker.topic_scan import BrokerFailed, Original, Span, TopicScan, open_scan

pytestmark = pytest.mark.integration


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


async def admin_of(kafka: Broker) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    return admin


async def create(kafka: Broker, topic: str, partitions: int = 2) -> None:
    admin = await admin_of(kafka)
    await create_topics(admin, [NewTopic(topic, partitions, 1)])
    while topic not in await admin.list_topics():
        await asyncio.sleep(0.1)
    await admin.close()


async def publish(kafka: Broker, place: TopicPartition, count: int, **options: Any) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        for number in range(count):
            await producer.send(place.topic, b"%d" % number, partition=place.partition, timestamp_ms=1_000 + number)
        await producer.flush()


async def values(scan: TopicScan, spans: dict[TopicPartition, Span]) -> list[int]:
    return sorted([int(message.value or b"-1") async for _, batch in scan.read(spans) for message in batch])


def test_what_a_topic_holds_is_read_once_and_spans_keep_to_their_ends(kafka: Broker, fresh_app_id: str) -> None:
    settings = Settings(bootstrap_servers=kafka.bootstrap_servers)
    zero, one = (TopicPartition(fresh_app_id, number) for number in range(2))

    async def story() -> None:
        await create(kafka, fresh_app_id)
        await publish(kafka, zero, 50)
        async with open_scan(settings) as scan:
            assert await scan.partition_counts([fresh_app_id, "not-there"]) == {fresh_app_id: 2}
            assert await scan.partitions([fresh_app_id]) == [zero, one]
            spans = await scan.spans([zero, one])
            assert spans[one].length == 0
            assert await values(scan, spans) == list(range(50))
            assert await values(scan, {zero: Span(10, 13, is_exact=True)}) == [10, 11, 12]
            if kafka.supports_transactions:
                # The embedded broker knows the times of batches, and not what comes after the last one.
                found = await scan.offsets_at({zero: Span(0, 50), one: Span(0, 0)}, 1_030)
                assert found == {zero: 30, one: 0}
                assert await scan.offsets_at({zero: Span(0, 50)}, 9_000) == {zero: 50}

    run(story())


def test_a_place_that_is_gone_is_told_from_one_that_never_was(kafka: Broker, fresh_app_id: str) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker has no transactions and deletes no messages")
    settings = Settings(bootstrap_servers=kafka.bootstrap_servers)
    place = TopicPartition(fresh_app_id, 0)

    async def story() -> None:
        await create(kafka, fresh_app_id)
        await publish(kafka, place, 5)
        producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=fresh_app_id)
        await producer.start()
        await producer.begin_transaction()
        # Offset 5 is never committed, offset 6 is the marker that says so.
        await producer.send_and_wait(fresh_app_id, b"aborted", partition=0)
        await producer.abort_transaction()
        await producer.stop()
        async with open_scan(settings) as scan:
            # The broker answers an abort before its marker is in the log.
            while (await scan.spans([place]))[place].end < 7:
                await asyncio.sleep(0.05)
        await publish(kafka, place, 3)
        admin = await admin_of(kafka)
        await admin.delete_records({place: RecordsToDelete(before_offset=2)})
        await admin.close()
        async with open_scan(settings) as scan:
            found = [one async for one in scan.originals(place, [99, 0, 3, 5, 6, 8, 10])]
            assert [(one.offset, one.gone, None if one.message is None else one.message.value) for one in found] == [
                (0, "deleted", None),
                (3, None, b"3"),
                (5, "compacted", None),
                (6, "compacted", None),
                (8, None, b"1"),
                (10, "beyond", None),
                (99, "beyond", None),
            ]
            empty = TopicPartition(fresh_app_id, 1)
            assert [one async for one in scan.originals(empty, [0])] == [Original(0, None, "beyond")]

    run(story())


def test_what_retention_takes_while_originals_are_looked_for_is_told_as_deleted(
    kafka: Broker, fresh_app_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker deletes no messages")
    place = TopicPartition(fresh_app_id, 0)

    async def story() -> None:
        await create(kafka, fresh_app_id)
        await publish(kafka, place, 5)
        admin = await admin_of(kafka)
        async with open_scan(Settings(bootstrap_servers=kafka.bootstrap_servers)) as scan:
            asked = scan.spans

            async def spans_of_a_moment_ago(partitions: list[TopicPartition]) -> dict[TopicPartition, Span]:
                told = await asked(partitions)
                await admin.delete_records({place: RecordsToDelete(before_offset=3)})
                return told

            monkeypatch.setattr(scan, "spans", spans_of_a_moment_ago)
            found = [(one.offset, one.gone) async for one in scan.originals(place, [0, 2, 3, 7])]
            assert found == [(0, "deleted"), (2, "deleted"), (3, None), (7, "beyond")]
        await admin.close()

    run(story())


def test_a_topic_made_anew_has_another_id_and_asking_makes_none(kafka: Broker, fresh_app_id: str) -> None:
    async def story() -> None:
        await create(kafka, fresh_app_id, 3)
        admin = await admin_of(kafka)
        asked = [fresh_app_id, f"{fresh_app_id}-not-there"]
        first = await topic_identities(admin, asked)
        assert (set(first), first[fresh_app_id].partitions) == ({fresh_app_id}, 3)
        assert first[fresh_app_id].id
        assert await topic_identities(admin, asked) == first
        assert f"{fresh_app_id}-not-there" not in await admin.list_topics()
        await admin.delete_topics([fresh_app_id])
        while fresh_app_id in await admin.list_topics():
            await asyncio.sleep(0.1)
        await create(kafka, fresh_app_id, 3)
        assert (await topic_identities(admin, asked))[fresh_app_id].id != first[fresh_app_id].id
        await admin.close()

    run(story())


def test_no_broker_is_one_line() -> None:
    async def story() -> None:
        with pytest.raises(BrokerFailed, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
            async with open_scan(Settings(bootstrap_servers="127.0.0.1:1")):
                pass

    run(story())
