"""Consumer groups: sharing, rebalances, generations, committed offsets."""

import asyncio

import pytest
from aiokafka.errors import CommitFailedError, IllegalStateError, NoOffsetForPartitionError

from tests.simulation.contract.sites import Site, join, joined, poll, publish, values_of
from worker.assignor import SingleWriterAssignor
from worker.kafka import TopicPartition


def places(site: Site) -> tuple[TopicPartition, TopicPartition]:
    return TopicPartition(site.topic, 0), TopicPartition(site.topic, 1)


def test_members_share_the_partitions_and_who_stays_inherits(site: Site) -> None:
    async def story() -> None:
        everything = frozenset(places(site))
        async with joined(site, 2) as stays:
            async with joined(site, 1) as leaves:
                half = await stays.listener.assigned(1)
                assert half | await leaves.listener.assigned(1) == everything
                assert stays.consumer.assignment() == half
            assert await stays.listener.assigned(2) == everything
            # Before every assignment, all that the member had is taken; at first that is nothing.
            assert stays.listener.told == [
                ("revoked", frozenset()),
                ("assigned", everything),
                ("revoked", everything),
                ("assigned", half),
                ("revoked", half),
                ("assigned", everything),
            ]

    site.run(story)


def test_while_its_partitions_are_taken_a_member_can_still_commit(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with joined(site, 2) as first:

            async def commit_late() -> None:
                await asyncio.sleep(2)
                await first.consumer.commit({zero: 5})

            first.listener.when_revoked = commit_late
            async with joined(site, 1) as second:
                # The other waits for it.
                assert await second.consumer.committed(zero) == 5
                first.listener.when_revoked = None

    site.run(story)


def test_a_member_that_the_group_forgot_commits_nothing_and_finds_its_way_back(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with joined(site, 2) as member:
            await member.consumer.commit({zero: 1})
            await site.forget(member)
            with pytest.raises(CommitFailedError):
                await member.consumer.commit({zero: 2})
            assert await member.consumer.committed(zero) == 1
            while len(member.listener.told) < 4:
                await member.listener.assigned(2)
                await asyncio.sleep(0.1)
            await member.consumer.commit({zero: 3})
            assert await member.consumer.committed(zero) == 3

    site.run(story)


def test_a_commit_of_an_older_generation_is_refused(site: Site) -> None:
    async def story() -> None:
        zero, _ = places(site)
        async with joined(site, 2) as member:
            site.age(member)
            with pytest.raises(CommitFailedError):
                await member.consumer.commit({zero: 2})
            assert await member.consumer.committed(zero) is None

    site.run(story)


def test_a_partition_of_somebody_else_is_an_error_to_work_with(site: Site) -> None:
    async def story() -> None:
        async with joined(site, 2) as first, joined(site, 1) as second:
            [mine] = await first.listener.assigned(1)
            [theirs] = await second.listener.assigned(1)
            consumer = first.consumer
            with pytest.raises(IllegalStateError):
                await consumer.commit({theirs: 1})
            with pytest.raises(IllegalStateError):
                consumer.seek(theirs, 1)
            with pytest.raises(IllegalStateError):
                await consumer.position(theirs)
            consumer.seek(mine, 0)
            assert await consumer.position(mine) == 0

    site.run(story)


def test_without_a_position_reading_begins_at_the_committed_offset_or_not_at_all(site: Site) -> None:
    async def story() -> None:
        zero, one = places(site)
        await publish(site, zero, [b"a", b"b"])
        await publish(site, one, [b"c"])
        async with joined(site, 2) as before:
            await before.consumer.commit({zero: 1})
        async with joined(site, 2) as member:
            assert values_of(await poll(member.consumer, zero, count=1)) == [b"b"]
            with pytest.raises(NoOffsetForPartitionError):
                await poll(member.consumer, one, count=1)

    site.run(story)


def test_a_poll_that_spans_a_rebalance_returns_what_comes_after_it(site: Site) -> None:
    async def story() -> None:
        zero, one = places(site)
        async with joined(site, 2) as member:
            await member.consumer.commit({zero: 0, one: 0})
            for place in (zero, one):
                member.consumer.seek(place, 0)
            polling = asyncio.ensure_future(poll(member.consumer, zero, one, count=2))
            other = await join(site)
            await other.consumer.stop()
            while len(member.listener.told) < 6:
                await asyncio.sleep(0.1)
            assert not polling.done()
            await publish(site, zero, [b"a"])
            await publish(site, one, [b"b"])
            assert sorted(values_of(await polling), key=repr) == [b"a", b"b"]

    site.run(story)


def test_of_an_export_with_one_writer_one_member_has_everything_and_keeps_it(site: Site) -> None:
    async def story() -> None:
        writer = await join(site, SingleWriterAssignor())
        await writer.listener.assigned(2)
        async with joined(site, 0, SingleWriterAssignor()) as standby:
            await asyncio.sleep(1)
            assert len(writer.consumer.assignment()) == 2
            await writer.consumer.stop()
            assert await standby.listener.assigned(2) == frozenset(places(site))

    site.run(story)
