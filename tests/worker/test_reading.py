"""Messages that cannot be read: what stops, what goes on, and what is said of it, on a fake group."""

import asyncio
from typing import Any

import pytest
import structlog
from aiokafka.errors import KafkaError, NotLeaderForPartitionError

from tests.worker.test_consumer import ONE, ZERO, World, eventually, run
from worker import reading
from worker.kafka import TopicPartition
from worker.lanes import CorruptBatch
from worker.raw_batches import BatchSpan, fetched_bytes, span_at
from worker.reading import ReadingRules, reading_rules
from worker.settings import Settings

SKIP_MISSING = ReadingRules(on_missing_offsets="skip")


async def _span_to_five(_place: TopicPartition, _offset: int) -> BatchSpan:
    return BatchSpan(5, 123)


SKIP_CORRUPT = ReadingRules(on_corrupt_batch="skip", find_span=_span_to_five)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_RETRY_FIRST_S", 0.001)


def damaged(world: World) -> None:
    """Publish offsets 0 to 9 to both partitions, and damage 3 and 4 of the first, which no client can read."""
    world.publish(ZERO, *[b"z%d" % index for index in range(10)])
    world.publish(ONE, *[b"o%d" % index for index in range(10)])
    world.broker.logs[ZERO].corrupt = frozenset({3, 4})


# ------------------------------------------------------------------------------------------------- corrupt batches


@pytest.mark.parametrize("is_one_lane", [True, False])
def test_a_corrupt_batch_stops_its_partition_behind_what_is_whole_and_nothing_else(is_one_lane: bool) -> None:
    async def story() -> None:
        world = World(is_one_lane=is_one_lane)
        damaged(world)
        with structlog.testing.capture_logs() as logs:
            await world.start(ZERO, ONE)
            await eventually(lambda: world.service.stopped_partitions() == 1)
            world.publish(ONE, b"later")
            await eventually(lambda: world.committed(ONE) == 11)
        assert world.committed(ZERO) == 3
        assert world.service.corrupt_partitions() == [ZERO]
        assert ZERO in world.group.paused
        [stop] = [log for log in logs if log["event"] == "partition_stopped"]
        assert (stop["topic"], stop["partition"], stop["offset"]) == ("topic", 0, 3)
        assert "kafka.on_corrupt_batch" in stop["way_out"]
        assert [log["failures"] for log in logs if log["event"] == "batch_is_corrupt"] == [1, 2, 3, 4, 5]
        await world.service.stop()
        durable = [value for lane in world.role.lanes for value in lane.durable]
        assert sorted(map(repr, durable)) == sorted(
            map(repr, [b"z0", b"z1", b"z2", *[b"o%d" % index for index in range(10)], b"later"])
        )

    run(story)


def test_a_corrupt_batch_is_skipped_when_the_settings_say_so_and_only_it() -> None:
    async def story() -> None:
        world = World(rules=SKIP_CORRUPT)
        damaged(world)
        with structlog.testing.capture_logs() as logs:
            await world.start(ZERO, ONE)
            await eventually(lambda: world.committed(ZERO) == 10 and world.committed(ONE) == 10)
        assert world.lane.corrupt == [(ZERO, CorruptBatch(3, 5, 123))]
        assert world.metrics.value("corrupt_batches", role="fake", topic="topic", partition=0) == 1
        [skip] = [log for log in logs if log["event"] == "corrupt_batch_skipped"]
        assert (skip["topic"], skip["partition"], skip["first_offset"], skip["last_offset"]) == ("topic", 0, 3, 4)
        await world.service.stop()
        assert [value for value in world.lane.durable if value in (b"z3", b"z4")] == []
        assert len(world.lane.durable) == 18

    run(story)


@pytest.mark.parametrize(("rules", "committed"), [(ReadingRules(), 3), (SKIP_CORRUPT, 10)])
def test_a_header_whose_name_is_no_text_stops_its_partition_or_costs_its_batch_and_nothing_else(
    rules: ReadingRules, committed: int
) -> None:
    async def story() -> None:
        world = World(rules=rules)
        damaged(world)
        world.broker.logs[ZERO].corrupt_error = UnicodeDecodeError("utf-8", b"SECRET\xff", 6, 7, "invalid start byte")
        with structlog.testing.capture_logs() as logs:
            await world.start(ZERO, ONE)
            await eventually(lambda: world.committed(ZERO) == committed and world.committed(ONE) == 10)
            await eventually(lambda: bool(world.service.corrupt_partitions()) or bool(world.lane.corrupt))
        assert "membership_failed" not in [log["event"] for log in logs]
        assert {log["error"] for log in logs if log["event"] == "batch_is_corrupt"} == {"UnicodeDecodeError"}
        assert "SECRET" not in repr(logs)
        await world.service.stop()

    run(story)


def test_a_corrupt_batch_is_not_passed_before_its_dead_letter_is_durable() -> None:
    async def story() -> None:
        world = World(rules=SKIP_CORRUPT)
        damaged(world)
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 3)
        world.lane.gate = asyncio.Event()
        await eventually(lambda: bool(world.lane.corrupt))
        assert world.committed() == 3
        assert world.metrics.value("corrupt_batches", role="fake", topic="topic", partition=0) == 0
        world.lane.gate.set()
        await eventually(lambda: world.committed() == 10)
        await world.service.stop()

    run(story)


def test_a_batch_that_reads_whole_on_a_later_try_is_not_given_up() -> None:
    async def story() -> None:
        world = World(corrupt_batch_tries_max=1_000)
        damaged(world)
        await world.start(ZERO, ONE)
        await eventually(lambda: world.committed(ZERO) == 3)
        world.broker.logs[ZERO].corrupt = frozenset()
        await eventually(lambda: world.committed(ZERO) == 10)
        assert world.service.stopped_partitions() == 0
        await world.service.stop()
        assert len(world.lane.durable) == 20

    run(story)


def test_what_was_read_before_a_rebalance_is_not_given_to_the_lanes_that_came_after_it() -> None:
    async def story() -> None:
        is_asked, answer = asyncio.Event(), asyncio.Event()

        async def find_span(_place: TopicPartition, _offset: int) -> BatchSpan:
            is_asked.set()
            await answer.wait()
            return BatchSpan(5, 1)

        world = World(rules=ReadingRules(on_corrupt_batch="skip", find_span=find_span))
        damaged(world)
        world.broker.logs[ZERO].corrupt = frozenset(range(5))
        get_many = world.group.getmany

        async def get_many_and_more(*places: TopicPartition, **options: Any) -> Any:
            # So that the round in which the end of the batch is asked for has messages of the other partition.
            if ONE in places and not is_asked.is_set():
                world.publish(ONE, b"m%d" % world.broker.logs[ONE].end)
            return await get_many(*places, **options)

        world.group.getmany = get_many_and_more  # type: ignore[method-assign]
        await world.start(ZERO, ONE)
        await asyncio.wait_for(is_asked.wait(), 5)
        before = list(world.role.lanes)
        await world.group.give(ZERO, ONE)
        await eventually(world.service.is_ready)
        answer.set()
        await eventually(lambda: world.committed(ONE) == world.broker.logs[ONE].end and world.committed(ZERO) == 10)
        await world.service.stop()
        lanes = [*before, *[lane for lane in world.role.lanes if lane not in before]]
        handed = [value for lane in lanes for value in lane.durable]
        assert len(set(handed)) == len(handed)
        assert len(handed) == world.broker.logs[ONE].end + 5

    run(story)


def test_a_leader_that_cannot_be_asked_for_the_end_of_a_batch_is_asked_again() -> None:
    calls = []

    async def find_span(_place: TopicPartition, _offset: int) -> BatchSpan:
        calls.append(1)
        if len(calls) < 3:
            raise KafkaError
        return BatchSpan(5, 1)

    async def story() -> None:
        world = World(rules=ReadingRules(on_corrupt_batch="skip", find_span=find_span))
        damaged(world)
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 10)
        await world.service.stop()

    run(story)


def test_a_failed_poll_loses_nothing_of_what_it_had_drained_of_other_partitions() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, b"a", b"b")
        take = world.group.getmany

        async def fail_once(*partitions: TopicPartition, timeout_ms: int, max_records: int) -> object:
            polled = await take(*partitions, timeout_ms=timeout_ms, max_records=max_records)
            if polled and not failed:
                failed.append(1)
                raise KafkaError
            return polled

        failed: list[int] = []
        world.group.getmany = fail_once  # type: ignore[method-assign, assignment]
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 2)
        await world.service.stop()
        assert world.lane.durable == [b"a", b"b"]

    run(story)


def test_nothing_of_the_facts_log_is_ever_skipped() -> None:
    settings = Settings.model_validate({"kafka": {"on_missing_offsets": "skip", "on_corrupt_batch": "skip"}})
    assert reading_rules(settings, "fold")[:2] == ("stop", "stop")
    assert reading_rules(settings, "project")[:2] == ("skip", "skip")
    assert reading_rules(settings, "export:plain")[:2] == ("skip", "skip")


# ------------------------------------------------------------------------------------------------- missing offsets


def test_offsets_that_are_gone_when_a_partition_is_opened_are_skipped_when_the_settings_say_so() -> None:
    async def story() -> None:
        world = World(rules=SKIP_MISSING)
        world.broker.committed["group"][ZERO] = 3
        world.publish(ZERO, b"h", offsets=(7,))
        world.broker.logs[ZERO].beginning = 7
        with structlog.testing.capture_logs() as logs:
            await world.start(ZERO)
            await eventually(lambda: world.committed() == 8)
        assert world.lane.durable == [b"h"]
        assert world.metrics.value("missing_offsets", role="fake", topic="topic", partition=0) == 4
        [lost] = [log for log in logs if log["event"] == "offsets_missing"]
        assert (lost["partition"], lost["first_offset"], lost["last_offset"], lost["next_offset"]) == (0, 3, 6, 7)
        await world.service.stop()

    run(story)


def test_offsets_that_go_while_a_worker_reads_are_skipped_when_the_settings_say_so() -> None:
    async def story() -> None:
        world = World(rules=SKIP_MISSING)
        world.publish(ZERO, b"a", b"b")
        await world.start(ZERO, ONE)
        await eventually(lambda: world.committed() == 2)
        world.broker.logs[ZERO].beginning = world.broker.logs[ZERO].end = 7
        await eventually(lambda: world.committed() == 7)
        world.publish(ZERO, b"h")
        world.publish(ONE, b"i")
        await eventually(lambda: world.committed() == 8 and world.committed(ONE) == 1)
        assert world.metrics.value("missing_offsets", role="fake", topic="topic", partition=0) == 5
        await world.service.stop()
        assert sorted(map(repr, world.lane.durable)) == sorted(map(repr, [b"a", b"b", b"h", b"i"]))

    run(story)


def test_a_log_that_ends_before_the_offset_to_be_read_is_read_from_its_beginning_when_the_settings_say_so() -> None:
    async def story() -> None:
        world = World(rules=SKIP_MISSING)
        world.broker.committed["group"][ZERO] = 30
        world.publish(ZERO, b"a", b"b")
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 2)
        assert world.lane.durable == [b"a", b"b"]
        await world.service.stop()

    run(story)


def test_a_log_that_ends_before_the_offset_to_be_read_stops_the_worker() -> None:
    async def story() -> None:
        world = World()
        world.broker.committed["group"][ZERO] = 30
        world.publish(ZERO, b"a", b"b")
        await world.start(ZERO)
        await eventually(lambda: world.service.crashed)
        assert "ends before 30, which is to be read next" in str(world.service.crash_reason)
        await world.service.stop()

    run(story)


# -------------------------------------------------------------------------------------------------------- gathering


async def waiting_for_more() -> World:
    """A reader that has one message, and waits for what comes to it."""
    world = World(batch_messages_max=4)
    world.publish(ZERO, b"a")
    await world.start(ZERO)
    await eventually(lambda: len(world.group.polled_partitions) > 1)
    return world


def test_what_lay_ready_is_joined_by_what_came_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_GATHER_MS", 15_000)

    async def story() -> None:
        world = await waiting_for_more()
        world.publish(ZERO, b"b")
        await eventually(lambda: world.committed() == 2)
        assert world.broker.commits == [{ZERO: 2}]
        await world.service.stop()

    run(story)


def test_what_lay_ready_is_dropped_when_a_rebalance_comes_before_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_GATHER_MS", 15_000)

    async def story() -> None:
        world = await waiting_for_more()
        # The wait ends with the seek of the lane that comes: one moment before that lane takes messages.
        world.publish(ZERO, b"b")
        await world.group.give(ZERO)
        await eventually(lambda: world.committed() == 2)
        await world.service.stop()
        assert [value for lane in world.role.lanes for value in lane.durable] == [b"a", b"b"]

    run(story)


def test_what_was_waited_for_is_handed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_GATHER_MS", 15_000)

    async def story() -> None:
        world = World(batch_messages_max=4, batch_wait_s=15.0)
        await world.start(ZERO)
        await eventually(lambda: len(world.group.polled_partitions) > 1)
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        await world.service.stop()

    run(story)


# ------------------------------------------------------------------------------------------------------ raw batches


def header(base: int, last_delta: int, body: bytes = b"x" * 40) -> bytes:
    """Give a batch of the current format as far as its place goes."""
    rest = bytes(4) + b"\x02" + bytes(4) + bytes(2) + last_delta.to_bytes(4, "big") + body
    return base.to_bytes(8, "big") + len(rest).to_bytes(4, "big") + rest


def test_a_batch_ends_where_the_one_behind_it_begins_whatever_its_own_header_says() -> None:
    first, second = header(10, 2**31 - 1), header(14, 5)
    assert span_at(first + second, 12) == BatchSpan(14, len(first))


def test_the_last_batch_of_a_fetch_ends_where_its_header_says() -> None:
    first, second = header(10, 3), header(14, 5)
    assert span_at(first + second, 16) == BatchSpan(20, len(second))
    assert span_at(second, 14) == BatchSpan(20, len(second))


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, bytes(30), header(10, 3)])
def test_headers_that_make_no_sense_tell_nothing(data: bytes) -> None:
    assert span_at(data, 99) is None


def test_a_leader_that_was_another_a_moment_ago_says_nothing_about_a_batch() -> None:
    def answer(code: int, data: bytes) -> list[tuple[str, list[tuple[int, int, int, bytes]]]]:
        return [("topic", [(0, code, -1, data)])]

    with pytest.raises(NotLeaderForPartitionError):
        fetched_bytes(answer(NotLeaderForPartitionError.errno, b""))
    assert fetched_bytes(answer(0, b"data")) == b"data"
