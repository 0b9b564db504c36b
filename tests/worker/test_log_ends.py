"""The lag of a partition, whether or not it is being fetched from."""

import pytest

from tests.worker.fakes.kafka import FakeConsumer
from tests.worker.test_consumer import ZERO, World, eventually, run


def test_messages_behind_a_pause_count_once_the_brokers_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World()
        await world.start(ZERO)
        world.publish(ZERO, b"a")
        await eventually(lambda: world.committed() == 1)
        # What the last fetch told of the end, as aiokafka keeps it while a partition is paused.
        monkeypatch.setattr(FakeConsumer, "highwater", lambda _self, _partition: 1)
        world.lane.flush_errors = [RuntimeError()] * 10_000
        world.publish(ZERO, b"b", b"c")
        assert world.service.lag_messages() == {ZERO: 0}
        await world.service.look_at_ends()
        assert world.service.lag_messages() == {ZERO: 2}
        world.lane.flush_errors = []
        await eventually(lambda: world.committed() == 3)
        assert world.service.lag_messages() == {ZERO: 0}
        await world.service.stop()

    run(story)


def test_a_worker_that_is_no_member_yet_has_no_lag() -> None:
    async def story() -> None:
        world = World()
        await world.service.look_at_ends()
        assert world.service.lag_messages() == {}

    run(story)
