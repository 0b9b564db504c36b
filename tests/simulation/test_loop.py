"""The simulated loop: virtual time, and processes that pause or die between two steps."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from tests.simulation.loop import Process, SimulatedLoop, new_loop
from tests.simulation.network import LostError, Network, Trap, Weather


class Bench:
    """A loop, a network, and one process."""

    def __init__(self) -> None:
        self.loop: SimulatedLoop = new_loop()
        self.network = Network(self.loop, Random(7))
        self.process = Process("p")
        self.seen: list[Any] = []

    def spawn(self, story: Callable[[], Awaitable[None]], process: Process | None = None) -> "asyncio.Task[None]":
        async def told() -> None:
            await story()

        return self.loop.spawn(process or self.process, told())

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        self.loop.call_later(seconds, action, context=self.network.outside)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_sleeping_costs_nothing_and_wakes_in_order(bench: Bench) -> None:
    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        bench.seen.append((seconds, bench.loop.time()))

    async def story() -> None:
        await asyncio.gather(*(sleeper(seconds) for seconds in (86_400, 5, 3_600)))

    bench.spawn(story)
    bench.run(100_000)
    assert bench.seen == [(5, 5), (3_600, 3_600), (86_400, 86_400)]


def test_a_paused_process_stands_still_and_then_goes_on_in_the_same_order(bench: Bench) -> None:
    async def story() -> None:
        for number in range(6):
            await asyncio.sleep(1)
            bench.seen.append((number, bench.loop.time()))

    bench.spawn(story)
    bench.at(2.5, lambda: bench.loop.pause(bench.process))
    bench.at(10, lambda: bench.loop.resume(bench.process))
    bench.run(20)
    assert bench.seen == [(0, 1), (1, 2), (2, 10), (3, 11), (4, 12), (5, 13)]


def test_callbacks_that_came_while_it_was_paused_run_before_later_ones(bench: Bench) -> None:
    def note(number: int) -> None:
        bench.seen.append(number)
        if number == 1:
            bench.loop.pause(bench.process)

    for number in (1, 2, 3):
        bench.loop.call_soon(note, number, context=bench.process.context)
    bench.run(1)
    assert bench.seen == [1]
    bench.loop.call_soon(note, 4, context=bench.process.context)
    bench.loop.resume(bench.process)
    bench.run(1)
    assert bench.seen == [1, 2, 3, 4]


def test_a_process_dies_between_two_steps_and_nothing_of_it_reaches_anybody(bench: Bench) -> None:
    written: list[int] = []

    async def story() -> None:
        try:
            for number in range(100):
                await bench.network.ask("write", lambda number=number: written.append(number))  # type: ignore[misc]
        finally:
            # What a process does to leave in good order is not done by one that was killed.
            await bench.network.ask("write", lambda: written.append(-1))

    task = bench.spawn(story)
    bench.process.step_hook = 30, lambda: bench.loop.kill(bench.process)
    bench.run(10)
    assert task.cancelled()
    assert written == list(range(len(written)))
    assert 5 < len(written) < 20
    assert bench.loop.complaints == []


def test_the_death_of_one_process_leaves_the_others_alone(bench: Bench) -> None:
    other = Process("other")

    async def story() -> None:
        await asyncio.sleep(5)
        bench.seen.append(bench.loop.time())

    doomed, alive = bench.spawn(story), bench.spawn(story, other)
    bench.at(2, lambda: bench.loop.kill(bench.process))
    bench.run(10)
    assert (doomed.cancelled(), alive.done(), bench.seen) == (True, True, [5])


@pytest.mark.parametrize(("is_before", "took_effect"), [(True, []), (False, ["done"])])
def test_a_trap_kills_before_a_request_takes_effect_or_after_it(
    bench: Bench, is_before: bool, took_effect: list[str]
) -> None:
    async def story() -> None:
        await bench.network.ask("commit", lambda: bench.seen.append("done"))
        bench.seen.append("answered")

    bench.network.traps.append(Trap("commit", 1, is_before, bench.loop.kill))
    task = bench.spawn(story)
    bench.run(5)
    assert task.cancelled()
    assert bench.seen == took_effect


def test_a_request_that_lingers_takes_effect_after_its_sender_is_gone(bench: Bench) -> None:
    async def story() -> None:
        await bench.network.ask("commit", lambda: bench.seen.append(bench.loop.time()))

    bench.network.traps.append(Trap("commit", 1, is_before=True, spring=bench.loop.kill, held_s=7))
    bench.spawn(story)
    bench.run(20)
    assert bench.seen == [pytest.approx(7, abs=0.1)]


def test_what_is_lost_is_asked_again_and_may_then_take_effect_twice(bench: Bench) -> None:
    bench.network.weather = Weather(loss_chance=0.5, loss_noticed_s=1)
    outcomes: list[str] = []

    async def story() -> None:
        for _ in range(50):
            try:
                await bench.network.ask_once("produce", lambda: bench.seen.append("once"))
            except LostError:
                outcomes.append("lost")
            else:
                outcomes.append("answered")
        await bench.network.ask("commit", lambda: bench.seen.append("again"))

    task = bench.spawn(story)
    bench.run(200)
    assert task.done()
    # Of those that got no answer some took effect.
    assert outcomes.count("answered") < bench.seen.count("once") < 50
    assert bench.seen.count("again") >= 1


def test_who_is_cut_off_is_answered_when_the_network_is_back(bench: Bench) -> None:
    async def story() -> None:
        bench.process.cut_until = 8
        await bench.network.ask("heartbeat", lambda: None)
        bench.seen.append(bench.loop.time())

    bench.spawn(story)
    bench.run(20)
    assert bench.seen == [pytest.approx(8, abs=0.1)]


def test_a_simulation_in_which_nothing_can_happen_any_more_fails(bench: Bench) -> None:
    with pytest.raises(AssertionError, match="never comes"):
        bench.loop.run_until_complete(bench.loop.create_future())
