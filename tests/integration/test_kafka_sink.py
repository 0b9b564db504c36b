"""The Kafka sink on a broker with transactions: fencing, whole batches, compaction, and a worker that exports to it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.brokers.broker import Broker, create_topics
from tests.integration.pipeline import Pipeline, worlds
from tests.worker.sinks.destinations import DOC_RUN, POLICY, deletion, run_record, topic_messages, upsert
from worker.sink import Sink, SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sinks.kafka_topic import KafkaTopicSink

pytestmark = pytest.mark.integration

DAY_MS = 24 * 60 * 60 * 1000
Holding = dict[bytes, bytes | None]


@pytest.fixture
def url(kafka: Broker, fresh_app_id: str) -> str:
    """Give the URL of a topic that is not there yet."""
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker has no transactions; the contract test has it")
    return f"kafka:{fresh_app_id}-traces?bootstrap_servers={kafka.bootstrap_servers}&partitions=3"


def topic_of(url: str) -> str:
    return url.removeprefix("kafka:").partition("?")[0]


def held(kafka: Broker, url: str) -> Holding:
    """Give what each key's last committed message says."""
    messages = asyncio.run(topic_messages(kafka.bootstrap_servers, topic_of(url)))
    return {message.key or b"": message.value for message in messages}


async def use(url: str, work: Callable[[Sink], Awaitable[Any]], policy: str = POLICY) -> None:
    sink = open_sink(url, policy)
    await sink.open()
    try:
        await work(sink)
    finally:
        await sink.close()


def write(url: str, *batches: Sequence[Upsert]) -> None:
    async def work(sink: Sink) -> None:
        for batch in batches:
            await sink.write(batch)

    asyncio.run(use(url, work))


def test_the_newest_version_stays_across_openings(kafka: Broker, url: str) -> None:
    batch = [upsert(record, offset) for offset, record in enumerate(DOC_RUN)]
    old, new = run_record("r1"), run_record("r1", status="failed")
    write(url, batch, batch, [upsert(new, 7), deletion(run_record("r2"), 9)])
    before = held(kafka, url)
    write(url, batch, [upsert(old, 3), upsert(run_record("r2"), 8)])
    assert held(kafka, url) == before
    assert before[b"run:r1"] == upsert(new, 7).json
    assert before[b"run:r2"] is None
    assert {key.partition(b":")[0].decode() for key in before} == {record["kind"] for record in DOC_RUN}
    write(url, [upsert(run_record("r2"), 10)])
    assert held(kafka, url)[b"run:r2"] == upsert(run_record("r2"), 10).json


def test_the_topic_is_made_to_be_compacted_and_to_remember_deletions(kafka: Broker, url: str) -> None:
    write(url)
    configs = asyncio.run(_configs(kafka, topic_of(url)))
    assert configs["cleanup.policy"] == "compact"
    assert int(configs["delete.retention.ms"]) == 30 * DAY_MS
    assert int(configs["max.message.bytes"]) > 8 * 1024 * 1024


async def _configs(kafka: Broker, topic: str) -> dict[str, str]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {row[0]: row[1] for row in answer.resources[0][4]}
    finally:
        await admin.close()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_forgets_is_refused(kafka: Broker, url: str, policy: str) -> None:
    asyncio.run(_create(kafka, topic_of(url), {"cleanup.policy": policy}))
    with pytest.raises(SinkRefused, match="must be compact"):
        write(url)


async def _create(kafka: Broker, topic: str, configs: dict[str, str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await create_topics(admin, [NewTopic(topic, 2, 1, topic_configs=configs)])
    finally:
        await admin.close()


def test_another_policy_is_refused_and_nothing_is_written(kafka: Broker, url: str) -> None:
    write(url, [upsert(run_record("r1"), 1)])
    before = held(kafka, url)

    async def work(sink: Sink) -> None:
        await sink.write([upsert(run_record("r1"), 2)])

    with pytest.raises(SinkRefused, match="another policy"):
        asyncio.run(use(url, work, "policy-b"))
    assert held(kafka, url) == before
    write(url, [upsert(run_record("r2"), 3)])
    assert held(kafka, url).keys() == {b"run:r1", b"run:r2"}


def test_a_writer_that_was_replaced_cannot_put_an_older_version_after_a_newer(kafka: Broker, url: str) -> None:
    old, new = run_record("r1"), run_record("r1", status="failed")

    async def work(late: Sink) -> None:
        async def replace(sink: Sink) -> None:
            await sink.write([upsert(new, 7)])
            with pytest.raises(SinkBusy, match="another writer"):
                await late.write([upsert(old, 3)])
            # It may come back, and then it knows what the other one wrote.
            await late.write([upsert(old, 3), upsert(run_record("r2"), 4)])

        await use(url, replace)

    asyncio.run(use(url, work))
    assert held(kafka, url) == {b"run:r1": upsert(new, 7).json, b"run:r2": upsert(run_record("r2"), 4).json}


def test_a_batch_that_was_not_committed_is_not_seen_and_the_next_writer_is_not_held_up(kafka: Broker, url: str) -> None:
    async def work(sink: Sink) -> None:
        assert isinstance(sink, KafkaTopicSink)
        connection = await sink._connected()
        await connection.producer.begin_transaction()
        await connection.producer.send_and_wait(topic_of(url), key=b"run:r1", value=b"{}", partition=0)

    asyncio.run(use(url, work))
    write(url, [upsert(run_record("r2"), 1)])
    assert held(kafka, url).keys() == {b"run:r2"}


def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(kafka: Broker, url: str) -> None:
    async def work(sink: Sink) -> None:
        assert isinstance(sink, KafkaTopicSink)
        producer = (await sink._connected()).producer
        commit = producer.commit_transaction

        async def committed_but_unknown() -> None:
            await commit()
            raise TimeoutError

        producer.commit_transaction = committed_but_unknown
        with pytest.raises(SinkFailed):
            await sink.write([upsert(run_record("r1"), 1)])
        await sink.write([upsert(run_record("r1"), 1)])

    asyncio.run(use(url, work))
    assert len(asyncio.run(topic_messages(kafka.bootstrap_servers, topic_of(url)))) == 1


def test_a_record_that_the_topic_does_not_take_is_for_a_person(kafka: Broker, url: str) -> None:
    asyncio.run(_create(kafka, topic_of(url), {"cleanup.policy": "compact", "max.message.bytes": "2000"}))
    with pytest.raises(SinkRefused, match=r"max\.message\.bytes"):
        write(url, [upsert(run_record("r1", error="".join(map(str, range(5_000)))), 1)])


def test_a_redacted_export_holds_what_file_mode_gives(pipeline: Pipeline, kafka: Broker) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker has no transactions")
    pipeline.create_topics()
    topic = f"{pipeline.app_id}-exported"
    text = pipeline.config.read_text()
    text = text.replace(f'"jsonl:{pipeline.jsonl_path}"', f'"kafka:{topic}?partitions=2"')
    assert topic in text
    pipeline.config.write_text(text)
    pipeline.publish(worlds(range(140, 142)))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0
    found = asyncio.run(topic_messages(kafka.bootstrap_servers, topic))
    newest = {message.key: message.value for message in found}
    living = {key: value for key, value in newest.items() if value is not None}
    _, lines = pipeline.file_mode()
    assert sorted(living.values()) == sorted(lines.split(b"\n")[:-1])
    assert living.keys() == {f"{record['kind']}:{record['id']}".encode() for record in map(json.loads, living.values())}


def test_readers_of_committed_messages_need_nothing_else(kafka: Broker, url: str) -> None:
    write(url, [upsert(run_record("r1"), 1)])
    assert asyncio.run(_first_value(kafka, topic_of(url))) == upsert(run_record("r1"), 1).json


async def _first_value(kafka: Broker, topic: str) -> bytes:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        value: bytes = (await consumer.getone()).value
        return value
    finally:
        await consumer.stop()
