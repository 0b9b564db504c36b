"""The network between processes and the things they talk to: it takes its time, and it loses things."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.loop import Process, SimulatedLoop, current_process

RETRY_BACKOFF_S = 0.1


@dataclass(frozen=True)
class Weather:
    """How bad things are; every chance is per request."""

    latency_s: float = 0.002
    spike_chance: float = 0.0
    spike_s: float = 1.0
    # The request or its answer is lost; the client finds out after a while and asks again.
    loss_chance: float = 0.0
    loss_noticed_s: float = 2.0
    # A marker that ends a transaction comes late.
    late_marker_chance: float = 0.0
    late_marker_s: float = 3.0
    # A batch is refused for a reason that passes.
    refusal_chance: float = 0.0
    # A poll fails for a reason that passes.
    poll_error_chance: float = 0.0


CALM = Weather()


class LostError(Exception):
    """The request, or the answer to it, got lost; nobody knows which."""


@dataclass
class Trap:
    """Something that happens to a process when it asks a certain thing for the n-th time."""

    operation: str
    count: int
    is_before: bool
    spring: Callable[[Process], None]
    # The request is on its way for so long; whoever sent it may be gone when it arrives.
    held_s: float = 0.0


class Network:
    """Carries requests; the far side answers at once, later, or with an error."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.weather = CALM
        self.traps: list[Trap] = []
        # Called with the name of every request that takes effect.
        self.trace: Callable[[str], None] | None = None
        self.loop = loop
        self.random = random
        # Where the far side runs: in no process.
        self.outside = Context()

    def latency_s(self) -> float:
        """Choose how long one way takes."""
        weather = self.weather
        delay_s = self.random.uniform(0.5, 1.5) * weather.latency_s
        if weather.spike_chance and self.random.random() < weather.spike_chance:
            delay_s += self.random.uniform(0, weather.spike_s)
        return delay_s

    async def ask(self, operation: str, effect: Callable[[], Any]) -> Any:
        """Ask until there is an answer, as clients do with what may be asked twice; raises what the far side raises."""
        while True:
            try:
                return await self.ask_once(operation, effect)
            except LostError:
                await asyncio.sleep(RETRY_BACKOFF_S)

    async def ask_once(self, operation: str, effect: Callable[[], Any], *, may_lose: bool = True) -> Any:
        """Ask once.

        ``effect`` runs at the far side; it gives the answer, or a future of it, or raises. Raises LostError when
        nothing came back in time; the effect may have happened nevertheless.
        """
        process = current_process()
        if process.is_dead:
            raise asyncio.CancelledError
        answer: asyncio.Future[Any] = self.loop.create_future()
        loss = None
        if may_lose and self.weather.loss_chance and self.random.random() < self.weather.loss_chance:
            loss = self.random.choice(["request", "answer"])
        self._later(process, self._arrive, process, operation, effect, answer, loss)
        return await answer

    def _later(self, process: Process, callback: Callable[..., None], *arguments: Any) -> None:
        cut_s = max(0.0, process.cut_until - self.loop.time())
        self.loop.call_later(cut_s + self.latency_s(), callback, *arguments, context=self.outside)

    def _arrive(
        self, process: Process, operation: str, effect: Callable[[], Any], answer: asyncio.Future[Any], loss: str | None
    ) -> None:
        if process.is_dead and self.random.random() < 0.5:
            # It may or may not have left the machine in time.
            return
        sprung = self._count_down(operation)
        if sprung is not None and sprung.is_before:
            sprung.spring(process)
            if sprung.held_s:
                self.loop.call_later(
                    sprung.held_s, self._take_effect, process, operation, effect, answer, loss, context=self.outside
                )
                return
            if process.is_dead:
                return
        self._take_effect(process, operation, effect, answer, loss)
        if sprung is not None and not sprung.is_before:
            sprung.spring(process)

    def _take_effect(
        self, process: Process, operation: str, effect: Callable[[], Any], answer: asyncio.Future[Any], loss: str | None
    ) -> None:
        if loss == "request":
            self._give_up(process, answer)
            return
        try:
            result = effect()
        except Exception as error:  # noqa: BLE001  (an answer like any other)
            result = self.loop.create_future()
            result.set_exception(error)
        if self.trace is not None:
            self.trace(operation)
        if loss == "answer":
            if isinstance(result, asyncio.Future):
                result.cancel()
            self._give_up(process, answer)
        elif isinstance(result, asyncio.Future):
            result.add_done_callback(lambda done: self._answer_later(process, answer, done), context=self.outside)
        else:
            done = self.loop.create_future()
            done.set_result(result)
            self._answer_later(process, answer, done)

    def _count_down(self, operation: str) -> Trap | None:
        for trap in self.traps:
            if trap.operation == operation:
                trap.count -= 1
                if trap.count == 0:
                    self.traps.remove(trap)
                    return trap
        return None

    def _give_up(self, process: Process, answer: asyncio.Future[Any]) -> None:
        lost = self.loop.create_future()
        lost.set_exception(LostError())
        # Read here: if its process is gone by then, nobody looks at it.
        lost.exception()
        delay_s = self.weather.loss_noticed_s
        self.loop.call_later(delay_s, self._deliver, process, answer, lost, context=process.context)

    def _answer_later(self, process: Process, answer: asyncio.Future[Any], result: asyncio.Future[Any]) -> None:
        if not result.cancelled():
            result.exception()
        cut_s = max(0.0, process.cut_until - self.loop.time())
        delay_s = cut_s + self.latency_s()
        self.loop.call_later(delay_s, self._deliver, process, answer, result, context=process.context)

    def _deliver(self, process: Process, answer: asyncio.Future[Any], result: asyncio.Future[Any]) -> None:
        if process.is_dead or answer.done():
            return
        if result.cancelled():
            answer.set_exception(LostError())
        elif (error := result.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result.result())
