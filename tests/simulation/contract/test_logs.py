"""Logs: what compaction and retention leave, and what readers make of it."""

import asyncio

import pytest
from aiokafka.errors import OffsetOutOfRangeError

from tests.simulation.contract.sites import (
    Site,
    joined,
    poll,
    producing,
    publish,
    read_all,
    send,
    until_ended,
    values_of,
)
from worker.kafka import TopicPartition
from worker.lanes import StopWorkerError, committed_positions


def zero_of(site: Site) -> TopicPartition:
    return TopicPartition(site.topic, 0)


def test_compaction_leaves_the_newest_of_each_key_at_its_offset_tombstones_too(site: Site) -> None:
    async def story() -> None:
        zero = zero_of(site)
        await publish(site, zero, {b"k1": b"one", b"k2": b"one", b"k3": b"one"})
        async with producing(site, "writer") as producer:
            await producer.begin_transaction()
            await send(producer, zero, b"never")
            await producer.abort_transaction()
        await until_ended(site, "writer")
        await publish(site, zero, {b"k1": b"two", b"k2": None})
        # The newest segment is never cleaned, and begins after a pause.
        await asyncio.sleep(1)
        await publish(site, zero, {b"k9": b"newest"})
        await site.compact(zero, 4)
        left = await read_all(site, zero)
        assert [(message.offset, message.key, message.value) for message in left] == [
            (2, b"k3", b"one"),
            (5, b"k1", b"two"),
            (6, b"k2", None),
            (7, b"k9", b"newest"),
        ]
        # Reading from an offset that is gone goes on with the next one that is there.
        assert values_of(await read_all(site, zero, start=3)) == [b"two", None, b"newest"]
        async with joined(site, 2) as member:
            member.consumer.seek(zero, 0)
            assert len(await poll(member.consumer, zero, count=4)) == 4
            assert await member.consumer.position(zero) == 8 == member.consumer.highwater(zero)

    site.run(story, is_compacted=True)


def test_retention_moves_the_beginning_and_what_was_before_it_is_out_of_range(site: Site) -> None:
    async def story() -> None:
        zero = zero_of(site)
        await publish(site, zero, [b"a", b"b", b"c", b"d"])
        await site.delete_before(zero, 2)
        async with joined(site, 2) as member:
            consumer = member.consumer
            assert await consumer.beginning_offsets([zero]) == {zero: 2}
            consumer.seek(zero, 1)
            with pytest.raises(OffsetOutOfRangeError) as error:
                await poll(consumer, zero, count=1)
            assert error.value.args[0] == {zero: 1}
            consumer.seek(zero, 2)
            assert values_of(await poll(consumer, zero, count=2)) == [b"c", b"d"]

    site.run(story)


def test_a_committed_offset_that_retention_has_passed_is_not_skipped(site: Site) -> None:
    async def story() -> None:
        zero = zero_of(site)
        await publish(site, zero, [b"a", b"b", b"c", b"d"])
        async with joined(site, 2) as member:
            await member.consumer.commit({zero: 1})
            assert await committed_positions(member.consumer, [zero]) == {zero: 1}
            await site.delete_before(zero, 2)
            with pytest.raises(StopWorkerError, match="begins at offset 2 and 1 is to be read next"):
                await committed_positions(member.consumer, [zero])
            await member.consumer.commit({zero: 2})
            assert await committed_positions(member.consumer, [zero]) == {zero: 2}

    site.run(story)


def test_a_position_at_the_end_waits_and_one_beyond_it_is_out_of_range(site: Site) -> None:
    async def story() -> None:
        zero = zero_of(site)
        await publish(site, zero, [b"a"])
        async with joined(site, 2) as member:
            consumer = member.consumer
            consumer.seek(zero, 1)
            assert await consumer.getmany(zero, timeout_ms=300, max_records=10) == {}
            await publish(site, zero, [b"b"])
            assert values_of(await poll(consumer, zero, count=1)) == [b"b"]
            consumer.seek(zero, 3)
            with pytest.raises(OffsetOutOfRangeError):
                await poll(consumer, zero, count=1)

    site.run(story)
