"""Shipped lines on their way: keyed partitions, whole batches, narrow topics, brokers that do not answer."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, OutOfOrderSequenceNumber
from aiokafka.partitioner import DefaultPartitioner

from tests.worker.fakes.kafka import FakeBatch, FakeBroker, FakeProducer
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.settings_sections import KafkaSettings
from worker.shipping.sender import Delivery, Outgoing, ShipSender, UndeliveredError

TOPIC = "transcripts"
PARTITIONS = [0, 1, 2]


class ShipProducer(FakeProducer):
    """A producer to a topic that takes batches of so many bytes; one refused batch spoils it, as it does in Kafka."""

    width_bytes = 1_000_000
    is_spoilt = False
    is_silent = False

    async def send_batch(self, batch: FakeBatch, topic: str, *, partition: int) -> asyncio.Future[Any]:
        delivery: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_silent:
            return delivery
        if self.is_spoilt:
            delivery.set_exception(OutOfOrderSequenceNumber())
        elif sum(len(value or b"") for _, value, _ in batch.rows) > self.width_bytes:
            self.is_spoilt = True
            delivery.set_exception(MessageSizeTooLargeError())
        else:
            offset = self.broker.logs[TopicPartition(topic, partition)].end
            written = await super().send_batch(batch, topic, partition=partition)
            if written.exception() is not None:
                return written
            delivery.set_result(SimpleNamespace(offset=offset))
        return delivery


class Quay:
    """A broker, and the producers that were made for it."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.producers: list[ShipProducer] = []
        self.prepare: Callable[[ShipProducer], None] = lambda _: None

    def make(self, _settings: Settings) -> ShipProducer:
        producer = ShipProducer(self.broker)
        self.prepare(producer)
        self.producers.append(producer)
        return producer

    def values(self) -> list[bytes | None]:
        return self.broker.values(TOPIC)


@pytest.fixture
def quay(monkeypatch: pytest.MonkeyPatch) -> Quay:
    made = Quay()
    monkeypatch.setattr("worker.shipping.sender.plain_producer", made.make)
    return made


def rows(*values: str, key: str = "k") -> list[Outgoing]:
    return [Outgoing(key.encode(), value.encode(), value) for value in values]


def deliver(*messages: list[Outgoing], **options: Any) -> list[Delivery]:
    async def scenario() -> list[Delivery]:
        sender = ShipSender(Settings(fencing="off", **options), TOPIC, PARTITIONS)
        try:
            return [await sender.deliver(some) for some in messages]
        finally:
            await sender.close()

    return asyncio.run(scenario())


def test_messages_go_to_the_partition_where_kafkas_own_clients_put_their_key(quay: Quay) -> None:
    keys = [f"conversation:codex:n:{number}" for number in range(30)]
    deliver([row for key in keys for row in rows(f"value of {key}", key=key)])
    partitioner = DefaultPartitioner()
    for key in keys:
        expected = partitioner(key.encode(), PARTITIONS, PARTITIONS)
        log = quay.broker.logs[TopicPartition(TOPIC, expected)]
        assert f"value of {key}".encode() in [message.value for message in log.messages]


def test_it_comes_back_with_an_offset_of_each_partition_that_acknowledged(quay: Quay) -> None:
    first, second = deliver(rows("a", "b", "c", "d"), rows("e"))
    (partition,) = first.acknowledged
    assert first == Delivery({partition: 3}, [])
    assert second == Delivery({partition: 4}, [])
    assert quay.values() == [b"a", b"b", b"c", b"d", b"e"]
    assert len(quay.producers) == 1


def test_nothing_to_send_is_delivered_without_a_producer(quay: Quay) -> None:
    assert deliver([]) == [Delivery({}, [])]
    assert quay.producers == []


def test_a_batch_that_is_too_large_is_sent_in_single_messages(quay: Quay) -> None:
    quay.prepare = lambda producer: setattr(producer, "width_bytes", 5)
    (delivery,) = deliver(rows("aaa", "bbb", "ccc", "ddd", "eee"))
    assert delivery.refused == []
    assert sorted(quay.values()) == [b"aaa", b"bbb", b"ccc", b"ddd", b"eee"]  # type: ignore[type-var]


def test_a_message_that_the_topic_is_too_narrow_for_is_refused_and_holds_up_no_other(quay: Quay) -> None:
    quay.prepare = lambda producer: setattr(producer, "width_bytes", 5)
    (delivery,) = deliver(rows("a", "x" * 6, "b", "y" * 7, "c"))
    assert sorted(row.place for row in delivery.refused) == ["x" * 6, "y" * 7]
    assert sorted(quay.values()) == [b"a", b"b", b"c"]  # type: ignore[type-var]
    # Each refusal spoils a producer; none is used any further.
    assert [producer.is_abandoned for producer in quay.producers] == [True] * len(quay.producers)


def test_what_is_not_acknowledged_is_undelivered_and_the_producer_let_go(quay: Quay) -> None:
    quay.prepare = lambda producer: producer.errors.append(KafkaTimeoutError())
    with pytest.raises(UndeliveredError, match=r"^KafkaTimeoutError$"):
        deliver(rows("a"))
    assert [producer.is_abandoned for producer in quay.producers] == [True]


def test_a_broker_that_never_answers_is_not_waited_for_for_ever(quay: Quay) -> None:
    quay.prepare = lambda producer: setattr(producer, "is_silent", True)
    with pytest.raises(UndeliveredError, match=r"^TimeoutError$"):
        deliver(rows("a"), kafka=KafkaSettings(request_timeout_s=0.01))
    assert [producer.is_abandoned for producer in quay.producers] == [True]


def test_after_a_failure_it_goes_on_with_another_producer(quay: Quay) -> None:
    async def scenario() -> None:
        sender = ShipSender(Settings(fencing="off"), TOPIC, PARTITIONS)
        quay.prepare = lambda producer: producer.errors.append(KafkaTimeoutError())
        with pytest.raises(UndeliveredError):
            await sender.deliver(rows("a"))
        quay.prepare = lambda _: None
        await sender.deliver(rows("a"))
        await sender.close()

    asyncio.run(scenario())
    assert quay.values() == [b"a"]


@pytest.mark.parametrize(("fencing", "asked"), [("on", False), ("off", False), ("auto", True)])
@pytest.mark.parametrize("has_ids", [True, False])
def test_the_producer_is_idempotent_where_the_broker_allows_it(
    quay: Quay, monkeypatch: pytest.MonkeyPatch, fencing: str, *, asked: bool, has_ids: bool
) -> None:
    made, probes = [], []

    def idempotent(settings: Settings) -> ShipProducer:
        made.append("idempotent")
        return quay.make(settings)

    async def probe(_settings: Settings) -> bool:
        probes.append("asked")
        return has_ids

    monkeypatch.setattr("worker.shipping.sender.idempotent_producer", idempotent)
    monkeypatch.setattr("worker.shipping.sender.has_transactions", probe)

    async def scenario() -> None:
        sender = ShipSender(Settings.model_validate({"fencing": fencing}), TOPIC, PARTITIONS)
        await sender.deliver(rows("a"))
        await sender.close()

    asyncio.run(scenario())
    assert bool(probes) is asked
    assert bool(made) is (fencing == "on" or (fencing == "auto" and has_ids))
