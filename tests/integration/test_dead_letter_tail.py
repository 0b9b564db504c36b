"""The newest dead letters, read off the end of a real topic: what stands there, and not more than was asked for."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.brokers.broker import Broker
from worker.dead_letters.letter import DeadLetter, encode_dead_letter
from worker.dead_letters.tail import read_tail
from worker.settings import Settings
from worker.topic_scan import BrokerFailed
from worker.topics import own_topics, prepare_topics

pytestmark = pytest.mark.integration

Entry = tuple[int, DeadLetter, bool]
"""A partition of the topic of dead letters, a letter, and whether it stands or is taken back."""


def letter(offset: int, reason: str = "invalid_json") -> DeadLetter:
    return DeadLetter("runs", 0, offset, 1_000, reason, None, 10, 1, is_partial=False)


async def publish(settings: Settings, *entries: Entry) -> None:
    topic = own_topics(settings).dead_letters
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers) as producer:
        for number, (partition, told, stands) in enumerate(entries):
            key, value = encode_dead_letter(told)
            await producer.send_and_wait(
                topic, value if stands else None, key, partition=partition, timestamp_ms=2_000 + number
            )


def run(kafka: Broker, app_id: str, *entries: Entry, entries_max: int) -> Any:
    settings = Settings(app_id=app_id, bootstrap_servers=kafka.bootstrap_servers, partitions=2)

    async def story() -> Any:
        await prepare_topics(settings, ())
        await publish(settings, *entries)
        return await read_tail(settings, entries_max)

    return asyncio.run(asyncio.wait_for(story(), 60))


def test_letters_that_stand_are_read_the_newest_first_and_those_taken_back_are_not(
    kafka: Broker, fresh_app_id: str
) -> None:
    entries = [
        (0, letter(1), True),
        (1, letter(2), True),
        (0, letter(3), True),
        (0, letter(1, "invalid_field"), True),
        (1, letter(2), False),
    ]
    tail = run(kafka, fresh_app_id, *entries, entries_max=100)
    assert [(kept.letter.offset, kept.letter.reason, kept.written_ms) for kept in tail.letters] == [
        (1, "invalid_field", 2_003),
        (3, "invalid_json", 2_002),
    ]
    assert (tail.entries_read, tail.entries) == (5, 5)


def test_of_a_long_topic_only_the_end_is_read_and_a_short_partition_leaves_its_share_to_the_others(
    kafka: Broker, fresh_app_id: str
) -> None:
    entries = [(1, letter(100), True), *((0, letter(number), True) for number in range(40))]
    tail = run(kafka, fresh_app_id, *entries, entries_max=10)
    assert sorted(kept.letter.offset for kept in tail.letters) == [*range(31, 40), 100]
    assert (tail.entries_read, tail.entries) == (10, 41)


def test_an_empty_topic_has_no_letters(kafka: Broker, fresh_app_id: str) -> None:
    assert run(kafka, fresh_app_id, entries_max=10) == ((), 0, 0)


def test_a_broker_that_is_not_there_is_said() -> None:
    with pytest.raises(BrokerFailed, match="no Kafka broker answers"):
        asyncio.run(read_tail(Settings(bootstrap_servers="127.0.0.1:1"), 10))
