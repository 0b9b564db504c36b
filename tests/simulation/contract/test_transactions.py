"""Transactions: what readers see of them, who is fenced, and the offsets inside."""

import pytest
from aiokafka.errors import KafkaError

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
from worker.kafka import BrokenProducerError, FencedWriter, PartitionLostError, TopicPartition


def places(site: Site) -> tuple[TopicPartition, TopicPartition]:
    return TopicPartition(site.topic, 0), TopicPartition(site.topic, 1)


def test_an_open_transaction_hides_itself_and_all_that_comes_after_it(site: Site) -> None:
    async def story() -> None:
        zero, one = places(site)
        await publish(site, zero, [b"before"])
        async with producing(site, "writer") as producer:
            await producer.begin_transaction()
            await send(producer, zero, b"inside")
            await publish(site, zero, [b"after"])
            await publish(site, one, [b"elsewhere"])
            assert values_of(await read_all(site, zero)) == [b"before"]
            assert values_of(await read_all(site, one)) == [b"elsewhere"]
            await producer.commit_transaction()
        async with joined(site, 2) as member:
            member.consumer.seek(zero, 0)
            assert values_of(await poll(member.consumer, zero, count=3)) == [b"before", b"inside", b"after"]

    site.run(story)


def test_what_a_transaction_wrote_is_nothing_once_it_is_rolled_back(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with producing(site, "writer") as producer:
            await producer.begin_transaction()
            await send(producer, zero, b"no")
            await producer.abort_transaction()
            await producer.begin_transaction()
            await send(producer, zero, b"yes")
            await producer.commit_transaction()
        async with joined(site, 2) as member:
            consumer = member.consumer
            consumer.seek(zero, 0)
            [message] = await poll(consumer, zero, count=1)
            # no, its marker, yes, its marker
            assert (message.value, message.offset) == (b"yes", 2)
            while await consumer.position(zero) < 4:
                assert await consumer.getmany(zero, timeout_ms=200, max_records=10) == {}
            assert consumer.highwater(zero) == 4

    site.run(story)


def test_two_transactions_in_one_partition_show_when_both_have_ended(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with producing(site, "one") as one, producing(site, "other") as other:
            for producer, value in ((one, b"one"), (other, b"other")):
                await producer.begin_transaction()
                await send(producer, zero, value)
            await other.commit_transaction()
            assert await read_all(site, zero) == []
            await one.abort_transaction()
            async with joined(site, 2) as member:
                member.consumer.seek(zero, 0)
                assert values_of(await poll(member.consumer, zero, count=1)) == [b"other"]

    site.run(story)


def test_offsets_in_a_transaction_count_when_it_is_committed_and_not_before(site: Site) -> None:
    async def story() -> None:
        zero, one = places(site)
        async with joined(site, 2) as member, producing(site, "writer") as producer:
            await member.consumer.commit({zero: 1})
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({zero: 2, one: 7}, site.group)
            assert await member.consumer.committed(zero) == 1
            assert await member.consumer.committed(one) is None
            await producer.abort_transaction()
            assert await member.consumer.committed(zero) == 1
            await producer.begin_transaction()
            await send(producer, zero, b"a")
            await producer.send_offsets_to_transaction({zero: 3}, site.group)
            await producer.commit_transaction()
            await until_ended(site, "writer")
            assert await member.consumer.committed(zero) == 3
            assert await member.consumer.committed(one) is None

    site.run(story)


def test_of_two_commits_the_later_one_stands_although_the_other_shows_later(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with joined(site, 2) as member, producing(site, "writer") as producer:
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({zero: 9}, site.group)
            await member.consumer.commit({zero: 4})
            await producer.commit_transaction()
            await until_ended(site, "writer")
            assert await member.consumer.committed(zero) == 4

    site.run(story)


def test_a_group_without_this_producer_among_its_members_takes_its_offsets(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with producing(site, "writer") as producer:
            writer = FencedWriter(producer, site.group)
            writer.append(*zero, b"key", b"a")
            await writer.commit({zero: 6})
            await until_ended(site, "writer")
        async with joined(site, 2) as member:
            assert await member.consumer.committed(zero) == 6

    site.run(story)


def test_a_producer_that_was_replaced_writes_and_commits_nothing_more(site: Site) -> None:
    async def story() -> None:
        zero, one = places(site)
        async with joined(site, 2) as member, producing(site, "writer") as older:
            await older.begin_transaction()
            await send(older, zero, b"old")
            await older.send_offsets_to_transaction({zero: 5}, site.group)
            async with producing(site, "writer") as newer:
                # It was rolled back before the newer one could start.
                with pytest.raises(KafkaError):
                    await older.commit_transaction()
                writer = FencedWriter(older, site.group)
                writer.append(*one, b"key", b"too late")
                with pytest.raises((PartitionLostError, BrokenProducerError)):
                    await writer.commit({zero: 6})
                await newer.begin_transaction()
                await send(newer, zero, b"new")
                await newer.send_offsets_to_transaction({zero: 1}, site.group)
                await newer.commit_transaction()
                member.consumer.seek(zero, 0)
                assert values_of(await poll(member.consumer, zero, count=1)) == [b"new"]
                assert await read_all(site, one) == []
                await until_ended(site, newer)
                assert await member.consumer.committed(zero) == 1

    site.run(story)


def test_a_replaced_producer_is_refused_by_a_partition_that_it_had_joined(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with producing(site, "writer") as older:
            await older.begin_transaction()
            await send(older, zero, b"old")
            async with producing(site, "writer"):
                with pytest.raises(KafkaError):
                    await send(older, zero, b"older still")
        assert await read_all(site, zero) == []

    site.run(story)


def test_one_transaction_follows_the_other_without_a_pause(site: Site) -> None:
    async def story() -> None:
        zero, one = places(site)
        async with producing(site, "writer") as producer:
            writer = FencedWriter(producer, site.group)
            for number in range(5):
                writer.append(*zero, b"key", b"%d" % number)
                writer.append(*one, b"key", b"%d" % number)
                await writer.commit({zero: number})
            await until_ended(site, "writer")
        expected = [b"%d" % number for number in range(5)]
        for place in (zero, one):
            assert values_of(await read_all(site, place)) == expected

    site.run(story)
