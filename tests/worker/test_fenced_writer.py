"""The writer of transactions: offsets follow messages that are there, and what was refused is rolled back."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaError

from tests.worker.fakes.kafka import FakeBatch, FakeBroker, FakeProducer
from worker.kafka import FencedWriter, Producer, TopicPartition

OUT = TopicPartition("out", 0)
IN = TopicPartition("in", 0)


class SlowProducer(FakeProducer):
    """One whose answers come when they are let come."""

    def __init__(self) -> None:
        super().__init__(FakeBroker(), "id")
        self.delivery: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.offsets_answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.steps: list[str] = []

    async def send_batch(self, batch: FakeBatch, topic: str, *, partition: int) -> asyncio.Future[None]:
        self.steps.append("send")
        await super().send_batch(batch, topic, partition=partition)
        return self.delivery

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        self.steps.append("offsets")
        await super().send_offsets_to_transaction(offsets, group)
        await self.offsets_answer

    async def commit_transaction(self) -> None:
        self.steps.append("commit")
        await super().commit_transaction()

    async def abort_transaction(self) -> None:
        self.steps.append("abort")
        await super().abort_transaction()


async def begun() -> tuple[SlowProducer, FencedWriter, "asyncio.Task[Any]"]:
    """Let a transaction begin until it waits for an answer."""
    producer = SlowProducer()
    await producer.start()
    writer = FencedWriter(cast("Producer", producer), "group")
    writer.append(*OUT, b"key", b"value")
    commit = asyncio.create_task(writer.commit({IN: 5}))
    await asyncio.sleep(0.01)
    assert producer.steps == ["send"]
    return producer, writer, commit


def test_offsets_follow_messages_that_are_there_and_the_transaction_ends_when_both_are() -> None:
    async def story() -> None:
        producer, writer, commit = await begun()
        producer.delivery.set_result(None)
        await asyncio.sleep(0.01)
        assert producer.steps == ["send", "offsets"]
        producer.offsets_answer.set_result(None)
        await commit
        assert producer.steps == ["send", "offsets", "commit"]
        assert producer.broker.committed["group"] == {IN: 5}
        assert [message.value for message in producer.broker.logs[OUT].messages] == [b"value"]
        assert writer.is_empty()

    asyncio.run(story())


@pytest.mark.parametrize("refused", ["messages", "offsets"])
def test_what_was_refused_is_rolled_back(refused: str) -> None:
    async def story() -> None:
        producer, writer, commit = await begun()
        if refused == "messages":
            producer.delivery.set_exception(KafkaError())
        else:
            producer.delivery.set_result(None)
            producer.offsets_answer.set_exception(KafkaError())
        with pytest.raises(KafkaError):
            await commit
        assert producer.steps[-1] == "abort"
        assert ("offsets" in producer.steps) == (refused == "offsets")
        assert not producer.broker.commits
        assert not producer.broker.logs[OUT].messages
        assert not writer.is_empty(), "the same call may be repeated"

    asyncio.run(story())
