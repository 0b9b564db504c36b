"""Limits on dead letters: they stop one partition where it stands, and nothing else."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.fakes.kafka import FakeBroker, FakeConsumer, FakeMessage, FakeProducer
from worker.consumer import BatchConsumer
from worker.dead_letters.limits import DeadLetterLimits, PartitionGuard, Stop
from worker.kafka import GroupConsumer, TopicPartition
from worker.lanes import Lane
from worker.metrics import MessageBook, Metrics
from worker.roles.project import ProjectLane
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.topics import own_topics

ZERO = TopicPartition("workflow-runs", 0)
ONE = TopicPartition("workflow-runs", 1)
GOOD = json.dumps(
    {"id": "r", "workflowName": "w", "status": "running", "revision": 1, "startedAt": "2026-10-01T09:00Z"}
)


def guard(in_row: int = 1_000, window: int = 10_000, percent: float = 5.0) -> PartitionGuard:
    return PartitionGuard(
        LimitSettings(
            dead_letters_in_row_max=in_row,
            dead_letters_window_messages=window,
            dead_letters_window_percent_max=percent,
        )
    )


def offset_of_stop(guarded: PartitionGuard, verdicts: Sequence[bool]) -> int | None:
    for offset, is_dead in enumerate(verdicts):
        if guarded.note(offset, is_dead=is_dead):
            return offset
    return None


def test_the_thousandth_dead_letter_in_a_row_stops_the_partition_behind_it() -> None:
    guarded = guard()
    assert offset_of_stop(guarded, [True] * 2_000) == 999
    assert guarded.stop == Stop(1_000, "in_row")


def test_one_good_message_begins_a_new_row() -> None:
    verdicts = [True] * 999 + [False] + [True] * 999
    assert offset_of_stop(guard(), verdicts) is None


def test_a_twentieth_of_a_full_window_stops_the_partition_and_less_does_not() -> None:
    twentieth = [number % 20 == 0 for number in range(40_000)]
    assert offset_of_stop(guard(), twentieth) == 10_000
    assert offset_of_stop(guard(), [number % 21 == 0 for number in range(40_000)]) is None


def test_no_percentage_of_a_few_messages_stops_anything() -> None:
    assert offset_of_stop(guard(), [True, False] * 4_999) is None


def test_a_batch_that_is_read_again_is_not_counted_again() -> None:
    guarded = guard(in_row=10)
    for _ in range(5):
        assert offset_of_stop(guarded, [True] * 9) is None
    assert guarded.note(9, is_dead=True)


@given(
    st.lists(st.booleans(), max_size=300), st.integers(2, 30), st.integers(5, 60), st.sampled_from([5.0, 20.0, 50.0])
)
def test_the_guard_agrees_with_counting_all_over_again(
    verdicts: list[bool], in_row: int, window: int, percent: float
) -> None:
    def is_too_many(seen: list[bool]) -> bool:
        row = seen[::-1].index(False) if False in seen else len(seen)
        last = seen[-window:]
        return seen[-1] and (row >= in_row or (len(seen) >= window and sum(last) >= window * percent / 100))

    expected = next((index for index in range(len(verdicts)) if is_too_many(verdicts[: index + 1])), None)
    assert offset_of_stop(guard(in_row, window, percent), verdicts) == expected


def test_only_messages_before_the_stop_are_admitted() -> None:
    guarded = guard(in_row=2)
    messages = [FakeMessage(offset, None, None) for offset in range(6)]
    assert list(guarded.admitted(messages)) == messages
    offset_of_stop(guarded, [True] * 2)
    assert [message.offset for message in guarded.admitted(messages)] == [0, 1]
    assert list(guarded.admitted(messages[3:])) == []


def test_a_partition_that_was_moved_beyond_its_stop_begins_anew() -> None:
    limits = DeadLetterLimits(LimitSettings(dead_letters_in_row_max=2))
    offset_of_stop(limits.guard(ZERO), [True] * 2)
    limits.opened(ZERO, 2)
    assert limits.stops(frozenset({ZERO})) == {ZERO: Stop(2, "in_row")}
    limits.opened(ZERO, 3)
    assert limits.stops(frozenset({ZERO})) == {}


# ------------------------------------------------------------------------------------------------- in the batch loop


class ProjectWorld:
    """A project lane in the batch loop over a fake broker."""

    name = "project"
    topics: tuple[str, ...] = ("workflow-runs",)

    def __init__(self, **limits: Any) -> None:
        values = {"batch_wait_s": 0.005, "shutdown_drain_s": 0.5, "batch_messages_max": 7} | limits
        self.settings = Settings(limits=LimitSettings(**values))
        self.broker = FakeBroker()
        self.metrics = Metrics()
        self.book = MessageBook(self.metrics)
        self.dead_letters = DeadLetterLimits(self.settings.limits)
        self.group = FakeConsumer(self.broker)
        self.lanes: list[ProjectLane] = []
        self.service = BatchConsumer(self, self.settings.limits, self.metrics)

    def make_consumer(self) -> GroupConsumer:
        return self.group

    def make_lanes(self, partitions: frozenset[TopicPartition]) -> Sequence[Lane]:
        def make_producer() -> Any:
            return FakeProducer(self.broker)

        self.lanes = [ProjectLane(partitions, self.settings, self.metrics, self.book, make_producer, self.dead_letters)]
        return self.lanes

    def letters(self) -> int:
        return len(self.broker.values(own_topics(self.settings).dead_letters))

    def committed(self, partition: TopicPartition) -> int | None:
        return self.broker.committed["group"].get(partition)

    def assert_accounted(self) -> None:
        samples = {sample.name: 0.0 for family in self.metrics.families() for sample in family.samples}
        for family in self.metrics.families():
            for sample in family.samples:
                samples[sample.name] += sample.value
        outcomes = ("projected_messages_total", "ignored_messages_total", "dead_lettered_messages_total")
        accounted = sum(samples.get(f"trace_projector_{name}", 0) for name in (*outcomes, "in_flight_messages"))
        assert samples["trace_projector_consumed_messages_total"] == accounted


async def eventually(is_so: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 5
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story(), 20)

    asyncio.run(bounded())


def test_a_partition_of_poison_stops_where_it_stands_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        world = ProjectWorld(dead_letters_in_row_max=10)
        for _ in range(40):
            world.broker.logs[ZERO].append(b"poison")
            world.broker.logs[ONE].append(GOOD.encode(), key=b"r")
        await world.service.start()
        await eventually(lambda: world.group.listener is not None)
        await world.group.give(ZERO, ONE)
        await eventually(lambda: world.committed(ONE) == 40)
        await eventually(lambda: world.service.stopped_partitions() == 1)
        await eventually(lambda: (world.committed(ZERO), world.letters()) == (10, 10))
        assert ZERO in world.group.paused
        # What comes later changes nothing for the one, and is projected from the other.
        world.broker.logs[ZERO].append(GOOD.encode())
        world.broker.logs[ONE].append(GOOD.encode(), key=b"r")
        await eventually(lambda: world.committed(ONE) == 41)
        await asyncio.sleep(0.03)
        assert (world.committed(ZERO), world.letters()) == (10, 10)
        assert world.service.lag_messages()[ZERO] == 31
        assert world.service.is_ready()
        world.assert_accounted()
        await world.service.stop()

    run(story)
    told = capsys.readouterr().out
    assert told.count("partition_stopped") == 1
    assert "dead letters in a row" in told


def test_a_rebalance_that_gives_the_partition_back_does_not_let_it_go_on() -> None:
    async def story() -> None:
        world = ProjectWorld(dead_letters_in_row_max=10)
        for _ in range(40):
            world.broker.logs[ZERO].append(b"poison")
        await world.service.start()
        await eventually(lambda: world.group.listener is not None)
        await world.group.give(ZERO)
        await eventually(lambda: world.committed(ZERO) == 10)
        await world.group.take()
        await world.group.give(ZERO)
        await eventually(world.service.is_ready)
        await asyncio.sleep(0.03)
        assert (world.committed(ZERO), world.letters()) == (10, 10)
        assert ZERO in world.group.paused
        await world.service.stop()

    run(story)


def test_all_partitions_stopped_is_no_reason_to_poll_for_everything() -> None:
    async def story() -> None:
        world = ProjectWorld(dead_letters_in_row_max=3)
        for partition in (ZERO, ONE):
            for _ in range(9):
                world.broker.logs[partition].append(b"poison")
        await world.service.start()
        await eventually(lambda: world.group.listener is not None)
        await world.group.give(ZERO, ONE)
        await eventually(lambda: world.service.stopped_partitions() == 2)
        polls = len(world.group.polled_partitions)
        await asyncio.sleep(0.05)
        assert len(world.group.polled_partitions) == polls
        assert all(world.group.polled_partitions)
        await world.service.stop()
        world.assert_accounted()

    run(story)
