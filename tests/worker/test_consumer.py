"""The batch loop: what it commits and when, on a fake group and fake lanes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.errors import CommitFailedError, KafkaError, NodeNotReadyError, NoOffsetForPartitionError

from tests.worker.fakes.kafka import FakeBroker, FakeConsumer
from tests.worker.fakes.lane import FakeLane, FakeRole
from worker import consumer as consumer_module
from worker import membership
from worker.consumer import BatchConsumer
from worker.kafka import BrokenProducerError, PartitionLostError, TopicPartition
from worker.lanes import RetryLater, SpoiltLaneError, StopWorkerError
from worker.metrics import Metrics
from worker.reading import ReadingRules
from worker.settings_sections import LimitSettings

ZERO = TopicPartition("topic", 0)
ONE = TopicPartition("topic", 1)

_RULES = ReadingRules()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(consumer_module, "_IDLE_COMMIT_S", 0.01)
    monkeypatch.setattr(membership, "_LOST_DELAY_S", 0.02)
    monkeypatch.setattr(membership, "_BROKEN_DELAY_S", 0.02)


class World:
    """One batch consumer over a fake broker, run inside one event loop."""

    def __init__(self, *, is_one_lane: bool = True, rules: ReadingRules = _RULES, **limits: Any) -> None:
        self.broker = FakeBroker()
        self.group = FakeConsumer(self.broker)
        self.role = FakeRole(self.group, is_one_lane=is_one_lane)
        self.metrics = Metrics()
        values = {"batch_wait_s": 0.005, "shutdown_drain_s": 0.5, "sink_retry_delay_max_s": 0.01} | limits
        self.service = BatchConsumer(self.role, LimitSettings(**values), self.metrics, rules)

    @property
    def lane(self) -> FakeLane:
        return self.role.lanes[0]

    def publish(self, partition: TopicPartition, *values: bytes, offsets: tuple[int, ...] | None = None) -> None:
        for index, value in enumerate(values):
            self.broker.logs[partition].append(value, offset=None if offsets is None else offsets[index])

    def committed(self, partition: TopicPartition = ZERO) -> int | None:
        return self.broker.committed["group"].get(partition)

    async def start(self, *partitions: TopicPartition) -> None:
        await self.service.start()
        await eventually(lambda: self.group.listener is not None)
        await self.group.give(*partitions)


async def eventually(is_so: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


async def a_while() -> None:
    await asyncio.sleep(0.06)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story(), 20)

    asyncio.run(bounded())


def test_handle_comes_before_flush_and_commit_comes_last() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, b"a", b"b")
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 2)
        await world.service.stop()
        assert world.lane.steps[:4] == ["open", "handle", "flush", "commit"]
        assert world.lane.durable == [b"a", b"b"]

    run(story)


def test_gaps_in_the_offsets_cannot_stall_the_committed_offset() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, *[b"v"] * 5, offsets=(0, 1, 4, 5, 9))
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 10)
        assert world.service.lag_messages() == {ZERO: 0}
        await world.service.stop()

    run(story)


def test_an_offset_that_is_delivered_again_does_not_stall_the_committed_offset() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, *[b"v"] * 3, offsets=(4, 4, 5))
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 6)
        await world.service.stop()

    run(story)


def test_a_position_that_moves_without_a_message_is_committed_too() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, b"a")
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 1)
        # A transaction marker, or a message that compaction has removed.
        world.broker.logs[ZERO].end = 3
        await eventually(lambda: world.committed() == 3)
        await world.service.stop()
        assert world.lane.durable == [b"a"]

    run(story)


def test_reading_goes_on_from_the_committed_offset() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, b"a", b"b", b"c")
        world.broker.committed["group"][ZERO] = 2
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 3)
        await world.service.stop()
        assert world.lane.durable == [b"c"]

    run(story)


def test_a_failing_flush_commits_nothing_and_is_repeated_until_it_works() -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        world.lane.flush_errors = [OSError("away")] * 4
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        assert world.lane.steps.count("handle") == 1
        assert world.lane.steps.count("flush") == 5
        assert world.lane.durable == [b"a"]
        assert world.metrics.value("retries", role="fake") == 4
        assert world.group.paused == set()
        await world.service.stop()

    run(story)


def test_a_failing_lane_is_paused_while_the_others_go_on() -> None:
    async def story() -> None:
        world = World(is_one_lane=False)
        await world.start(ZERO, ONE)
        failing, working = world.role.lanes
        failing.flush_errors = [OSError("away")] * 100_000
        world.publish(ZERO, b"a")
        await eventually(lambda: world.service.paused_partitions() == 1)
        assert world.group.paused == {ZERO}
        world.publish(ONE, b"b")
        await eventually(lambda: world.committed(ONE) == 1)
        assert world.committed(ZERO) is None
        failing.flush_errors.clear()
        await eventually(lambda: world.committed(ZERO) == 1)
        assert working.durable == [b"b"]
        assert world.group.paused == set()
        await world.service.stop()

    run(story)


def test_a_busy_sink_chooses_its_own_delay() -> None:
    async def story() -> None:
        world = World(sink_retry_delay_max_s=30.0)
        await world.start(ZERO)
        world.lane.flush_errors = [RetryLater(0.003)] * 3
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        await world.service.stop()

    run(story)


def test_a_revoked_partition_waits_for_the_batch_in_flight() -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        lane = world.lane
        lane.gate = asyncio.Event()
        world.publish(ZERO, b"a")
        await eventually(lambda: "flush" in lane.steps)
        revoking = asyncio.ensure_future(world.group.take())
        await a_while()
        assert not revoking.done()
        lane.gate.set()
        await revoking
        assert world.committed() == 1
        assert lane.steps[-2:] == ["commit", "close"]
        await world.service.stop()

    run(story)


def test_a_batch_that_does_not_finish_in_time_is_left_uncommitted_when_its_partition_is_revoked() -> None:
    async def story() -> None:
        world = World(shutdown_drain_s=0.05)
        await world.start(ZERO)
        lane = world.lane
        lane.gate = asyncio.Event()
        world.publish(ZERO, b"a", b"b")
        await eventually(lambda: "flush" in lane.steps)
        await world.group.take()
        lane.gate.set()
        await a_while()
        assert world.committed() is None
        assert "commit" not in lane.steps
        assert (lane.accepted_messages, lane.settled_messages, lane.abandoned_messages) == (2, 0, 2)
        await world.group.give(ZERO)
        await eventually(lambda: world.committed() == 2)
        assert world.lane.durable == [b"a", b"b"]
        await world.service.stop()

    run(story)


def test_a_lane_that_is_retrying_does_not_hold_up_a_rebalance() -> None:
    async def story() -> None:
        world = World(shutdown_drain_s=60.0, sink_retry_delay_max_s=60.0)
        await world.start(ZERO)
        world.lane.flush_errors = [RetryLater(60.0)]
        world.publish(ZERO, b"a")
        await eventually(lambda: world.service.paused_partitions() == 1)
        await asyncio.wait_for(world.group.take(), 5)
        assert world.committed() is None
        await world.service.stop()

    run(story)


def test_a_member_that_the_group_has_dropped_commits_nothing_and_does_not_crash() -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        world.group.is_member = False
        world.publish(ZERO, b"a")
        await eventually(lambda: "commit" in world.lane.steps)
        await a_while()
        assert world.committed() is None
        assert not world.service.crashed
        # It asks the group before it opens the lane again: opening would fence the rightful owner.
        assert world.lane.steps.count("open") == 1
        world.group.is_member = True
        await eventually(lambda: world.committed() == 1)
        assert world.lane.durable[-1:] == [b"a"]
        await world.service.stop()

    run(story)


@pytest.mark.parametrize(
    "error", [PartitionLostError("ProducerFenced"), CommitFailedError(), SpoiltLaneError(), BrokenProducerError()]
)
def test_a_lost_lane_is_closed_and_opened_again_and_its_batch_is_read_again(error: Exception) -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        lane = world.lane
        lane.commit_errors = [error]
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        assert not world.service.crashed
        assert lane.steps.count("open") == 2
        assert lane.steps.count("handle") >= 2
        assert lane.accepted_messages == lane.settled_messages + lane.abandoned_messages
        await world.service.stop()

    run(story)


def test_a_lane_that_cannot_be_opened_is_tried_again_and_is_not_ready_meanwhile() -> None:
    async def story() -> None:
        world = World()
        world.role.prepare = {"open": [OSError("locked")] * 3}
        world.publish(ZERO, b"a")
        await world.service.start()
        await eventually(lambda: world.group.listener is not None)
        assert not world.service.is_ready()
        await world.group.give(ZERO)
        assert not world.service.is_ready()
        assert world.service.partition_counts() == (1, 0)
        await eventually(lambda: world.committed() == 1)
        assert world.service.is_ready()
        assert world.service.partition_counts() == (1, 1)
        await world.service.stop()

    run(story)


def test_a_standby_without_partitions_is_ready() -> None:
    async def story() -> None:
        world = World()
        await world.start()
        assert world.service.is_ready()
        await world.service.stop()

    run(story)


@pytest.mark.parametrize("place", ["open", "flush"])
def test_a_lane_that_must_not_go_on_stops_the_worker_and_says_why(place: str) -> None:
    async def story() -> None:
        world = World()
        if place == "open":
            world.role.prepare = {"open": [StopWorkerError("mend this")]}
        await world.start(ZERO)
        world.lane.flush_errors = [StopWorkerError("mend this")]
        world.publish(ZERO, b"a")
        await eventually(lambda: world.service.crashed)
        assert str(world.service.crash_reason) == "mend this"
        assert world.committed() is None
        await world.service.stop()

    run(story)


def test_a_fault_in_handling_stops_the_worker_instead_of_skipping_the_batch() -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        world.lane.handle_errors = [ZeroDivisionError()]
        world.publish(ZERO, b"a")
        await eventually(lambda: world.service.crashed)
        assert world.committed() is None
        await world.service.stop()

    run(story)


def test_an_offset_that_was_deleted_before_it_was_read_stops_the_worker() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, b"a", b"b")
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 2)
        world.broker.logs[ZERO].beginning = world.broker.logs[ZERO].end = 7
        await eventually(lambda: world.service.crashed)
        assert "topic topic partition 0" in str(world.service.crash_reason)
        assert "5 offsets, 2 to 6, were deleted before they were read" in str(world.service.crash_reason)
        assert "kafka.on_missing_offsets" in str(world.service.crash_reason)
        await world.service.stop()

    run(story)


def test_a_log_that_begins_after_the_committed_offset_stops_the_worker_when_it_is_opened() -> None:
    async def story() -> None:
        world = World()
        world.broker.committed["group"][ZERO] = 3
        world.broker.logs[ZERO].beginning = world.broker.logs[ZERO].end = 7
        await world.start(ZERO)
        await eventually(lambda: world.service.crashed)
        assert "begins at offset 7 and 3 is to be read next" in str(world.service.crash_reason)
        await world.service.stop()

    run(story)


def test_polls_that_fail_are_repeated() -> None:
    async def story() -> None:
        world = World()
        world.group.poll_errors = [KafkaError()] * 2
        await world.start(ZERO)
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        assert world.role.made_consumers == 1
        await world.service.stop()

    run(story)


@pytest.mark.parametrize("error", [KafkaError(), RuntimeError(), NodeNotReadyError()])
def test_a_membership_that_has_broken_down_is_begun_anew(error: Exception) -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        lane = world.lane
        world.group.poll_errors = [error] * 5
        await eventually(lambda: world.role.made_consumers > 1 and world.service._consumer is not None)
        world.group.poll_errors.clear()
        assert lane.steps[-1] == "close"
        assert not world.service.is_ready()
        await world.group.give(ZERO)
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        assert not world.service.crashed
        await world.service.stop()

    run(story)


def test_memberships_that_always_break_down_stop_the_worker() -> None:
    async def story() -> None:
        world = World()
        world.group.start_errors = [KafkaError()] * 1_000
        await world.service.start()
        await eventually(lambda: world.service.crashed)
        await world.service.stop()

    run(story)


def test_a_broker_that_is_away_is_waited_for_however_long() -> None:
    async def story() -> None:
        world = World()
        world.group.start_errors = [NodeNotReadyError()] * 30
        await world.service.start()
        await eventually(lambda: world.role.made_consumers == 31)
        await world.group.give(ZERO)
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        assert not world.service.crashed
        await world.service.stop()

    run(story)


def test_a_producer_that_keeps_failing_is_replaced() -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        world.lane.flush_errors = [KafkaError()] * 8
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        assert world.lane.steps.count("open") == 2
        assert world.lane.durable == [b"a"]
        await world.service.stop()

    run(story)


@pytest.mark.parametrize(("rest_s", "committed"), [(60.0, 1), (0.01, 2)])
def test_messages_gather_while_a_lane_rests(rest_s: float, committed: int) -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        world.lane.rest_until = asyncio.get_running_loop().time() + rest_s
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        world.publish(ZERO, b"b")
        await a_while()
        await eventually(lambda: world.committed() == committed)
        await world.service.stop()
        assert world.lane.steps.count("handle") == committed

    run(story)


def test_no_more_is_polled_than_may_be_in_flight() -> None:
    async def story() -> None:
        world = World(is_one_lane=False, in_flight_bytes_max=1_000)
        await world.start(ZERO, ONE)
        slow, other = world.role.lanes
        slow.gate = asyncio.Event()
        world.publish(ZERO, b"a" * 2_000)
        await eventually(lambda: "flush" in slow.steps)
        world.publish(ONE, b"b")
        await a_while()
        assert other.accepted_messages == 0
        slow.gate.set()
        await eventually(lambda: world.committed(ONE) == 1)
        await world.service.stop()

    run(story)


def test_a_batch_is_bounded_in_messages_and_in_bytes() -> None:
    async def story() -> None:
        world = World(batch_messages_max=4, batch_bytes_max=1_000)
        world.publish(ZERO, *[b"v" * 300] * 6)
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 6)
        await world.service.stop()
        # Two messages of 300 bytes and their overhead fill a part; four a poll: 2 + 2, then 2.
        assert world.broker.commits == [{ZERO: 2}, {ZERO: 4}, {ZERO: 6}]

    run(story)


def test_stopping_lets_the_batch_in_flight_finish_and_leaves_the_group() -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        lane = world.lane
        lane.gate = asyncio.Event()
        world.publish(ZERO, b"a")
        await eventually(lambda: "flush" in lane.steps)
        assert world.service.oldest_in_flight_s() > 0
        stopping = asyncio.ensure_future(world.service.stop())
        await a_while()
        lane.gate.set()
        await stopping
        assert world.committed() == 1
        assert world.group.is_stopped
        assert lane.steps[-1] == "close"

    run(story)


def test_stopping_does_not_wait_for_ever() -> None:
    async def story() -> None:
        world = World(shutdown_drain_s=0.1)
        await world.start(ZERO)
        world.lane.gate = asyncio.Event()
        world.publish(ZERO, b"a")
        await eventually(lambda: "flush" in world.lane.steps)
        await asyncio.wait_for(world.service.stop(), 5)
        assert world.committed() is None

    run(story)


def test_partitions_that_arrive_while_stopping_are_not_taken() -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        lane = world.lane
        lane.gate = asyncio.Event()
        world.publish(ZERO, b"a")
        await eventually(lambda: "flush" in lane.steps)
        stopping = asyncio.ensure_future(world.service.stop())
        await asyncio.sleep(0)
        await world.group.give(ZERO, ONE)
        lane.gate.set()
        await stopping
        assert world.role.lanes == [lane]
        assert not world.service.crashed

    run(story)


def test_a_partition_without_a_position_yet_is_no_failed_poll() -> None:
    async def story() -> None:
        world = World()
        world.group.poll_errors = [NoOffsetForPartitionError()] * 1_000
        await world.start(ZERO)
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        await world.service.stop()

    run(story)


def test_messages_that_arrive_for_a_lane_before_it_has_chosen_its_position_are_not_lost() -> None:
    async def story() -> None:
        world = World()
        world.publish(ZERO, b"a", b"b")
        world.broker.committed["group"][ZERO] = 1
        await world.start(ZERO)
        await eventually(lambda: world.committed() == 2)
        # The partition comes back while a poll for it is under way; what that poll finds is nobody's.
        for _ in range(5):
            await world.group.take()
            world.publish(ZERO, b"c")
            await world.group.give(ZERO)
            await eventually(lambda: world.committed() == world.broker.logs[ZERO].end)
        await world.service.stop()
        assert sorted(offset for commit in world.broker.commits for offset in commit.values()) == [2, 3, 4, 5, 6, 7]

    run(story)
