"""A committed offset that stands still while there is something to read is noticed, and nothing else is."""

import structlog

from tests.worker.test_consumer import ONE, ZERO, World, eventually, run
from worker.standing import CommitWatch


def test_a_partition_with_messages_whose_commit_does_not_move_stands_still() -> None:
    watch = CommitWatch("project", 60)
    with structlog.testing.capture_logs() as logs:
        for now in range(0, 200, 10):
            watch.compare({ZERO: 5, ONE: now}, {ZERO: 9, ONE: 1_000}, now)
            assert watch.standing_partitions() == (now >= 60)
    assert watch.longest_s(200) == 200
    assert [(log["event"], log["role"], log["partition"]) for log in logs] == [("commit_stands_still", "project", 0)]


def test_a_partition_at_its_end_never_stands_still() -> None:
    watch = CommitWatch("project", 60)
    for now in range(0, 200, 10):
        watch.compare({ZERO: 9}, {ZERO: 9}, now)
    assert (watch.standing_partitions(), watch.longest_s(190)) == (0, 0)


def test_a_partition_of_which_no_fetch_ever_succeeded_stands_still() -> None:
    watch = CommitWatch("project", 60)
    watch.compare({ZERO: 0}, {ZERO: None}, 0)
    watch.compare({ZERO: 0}, {ZERO: None}, 61)
    assert watch.standing_partitions() == 1


def test_a_commit_that_moves_again_or_a_partition_that_goes_ends_the_standstill() -> None:
    watch = CommitWatch("project", 60)
    watch.compare({ZERO: 5, ONE: 5}, {ZERO: 9, ONE: 9}, 0)
    watch.compare({ZERO: 5, ONE: 5}, {ZERO: 9, ONE: 9}, 70)
    assert watch.standing_partitions() == 2
    watch.compare({ZERO: 6}, {ZERO: 9}, 71)
    assert (watch.standing_partitions(), watch.longest_s(72)) == (0, 1)


def test_a_worker_whose_sink_never_takes_anything_says_that_it_stands_still() -> None:
    async def story() -> None:
        world = World(standstill_s=0.001)
        await world.start(ZERO)
        world.lane.flush_errors = [RuntimeError()] * 10_000
        world.publish(ZERO, b"a")
        await eventually(lambda: world.service.standing_partitions() == 1)
        assert world.service.standstill_s() > 0
        world.lane.flush_errors = []
        await eventually(lambda: world.committed() == 1)
        await eventually(lambda: world.service.standing_partitions() == 0)
        await world.service.stop()

    run(story)
