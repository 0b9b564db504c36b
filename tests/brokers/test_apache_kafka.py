"""Kafka from jars: a cluster that outlives one of its nodes, and messages for what is missing."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.brokers.apache_kafka import KafkaCluster
from tests.brokers.broker import BrokerUnavailableError
from tests.brokers.kafka_jars import fetch_jars, java_program

TIMEOUT_S = 60


async def create_replicated_topic(servers: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("words", num_partitions=3, replication_factor=3)])
    finally:
        await admin.close()


async def publish(servers: str, values: set[bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
        await asyncio.gather(*[await producer.send("words", value) for value in sorted(values)])


async def read(servers: str, count: int) -> set[bytes]:
    async with AIOKafkaConsumer("words", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        return {(await consumer.getone()).value for _ in range(count)}


@pytest.mark.integration
@pytest.mark.slow
def test_a_cluster_of_three_loses_no_message_with_a_killed_node() -> None:
    before = {b"before-%d" % number for number in range(20)}
    after = {b"after-%d" % number for number in range(20)}

    with KafkaCluster(3) as cluster:
        servers = cluster.bootstrap_servers
        asyncio.run(asyncio.wait_for(create_replicated_topic(servers), TIMEOUT_S))
        asyncio.run(asyncio.wait_for(publish(servers, before), TIMEOUT_S))
        cluster.nodes[0].kill()
        asyncio.run(asyncio.wait_for(publish(servers, after), TIMEOUT_S))
        cluster.nodes[0].start()
        assert cluster.wait_until_ready()
        seen = asyncio.run(asyncio.wait_for(read(servers, len(before | after)), TIMEOUT_S))

    assert seen == before | after
    assert not any(node.is_running for node in cluster.nodes)


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerUnavailableError, match="no java"):
        java_program()


def test_a_java_that_is_too_old_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BrokerUnavailableError, match="is not Java 17 or later"):
        java_program()


def test_jars_that_nobody_can_fetch_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerUnavailableError, match="no mvn"):
        fetch_jars()
