"""Virtual sinks: destinations that outlive processes, and are slow, busy, away, or too late with their answer.

What a destination holds is kept by the same code as the worker's memory sink, so that the guard by version is the
product's; when a write arrives, and whether its writer hears of it, is up to the simulation.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.simulation.loop import Process, current_process
from tests.simulation.network import LostError, Network
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert
from worker.sinks.memory import MemoryStore


@dataclass(eq=False)
class Destination:
    """A database that many write, or a file that one writes."""

    network: Network
    has_one_writer: bool
    store: MemoryStore = field(default_factory=MemoryStore)
    # Until then nothing can be written.
    away_until: float = 0.0
    # Until then every write takes this much longer.
    slow_until: float = 0.0
    slow_s: float = 0.0
    # Chance that a write that succeeded looks like one that failed.
    lost_answer_chance: float = 0.0
    # Who has the file open, where only one can.
    writer: Process | None = None

    def open(self, process: Process, policy_digest: str) -> bool:
        """Open for a process; says whether nothing was ever written."""
        if self.store.policy_digest not in (None, policy_digest):
            raise SinkRefused("another policy")
        if self.has_one_writer and not process.is_dead:
            if self.writer not in (None, process):
                raise SinkBusy("somebody else writes the file", delay_s=0.5)
            self.writer = process
            process.on_death.append(lambda: self.release(process))
        self.store.policy_digest = policy_digest
        return not self.store.entries

    def release(self, process: Process) -> None:
        """Let go of the file; a process that ends does so, too."""
        if self.writer is process:
            self.writer = None

    def write(self, process: Process, batch: Sequence[Upsert]) -> None:
        """Apply a batch."""
        if self.network.loop.time() < self.away_until:
            raise SinkFailed("the destination is away")
        if self.has_one_writer and self.writer is not process:
            raise SinkFailed("the file was closed")
        self.store.apply(batch)


class DatabaseSink:
    """Writes a destination that takes any number of writers."""

    single_writer: ClassVar[bool] = False
    is_durable: ClassVar[bool] = True

    def __init__(self, destination: Destination, policy_digest: str) -> None:
        self._destination = destination
        self._network = destination.network
        self._policy_digest = policy_digest
        self._working: set[asyncio.Future[Any]] = set()

    async def open(self) -> bool:
        process = current_process()
        is_empty: bool = await self._work(
            self._network.ask("sink open", lambda: self._destination.open(process, self._policy_digest))
        )
        return is_empty

    async def write(self, batch: Sequence[Upsert]) -> None:
        process = current_process()
        destination = self._destination
        if self._network.loop.time() < destination.slow_until:
            await asyncio.sleep(destination.slow_s)
        kept = list(batch)
        try:
            await self._work(self._network.ask_once("sink write", lambda: destination.write(process, kept)))
        except LostError:
            raise TimeoutError from None
        if destination.lost_answer_chance and self._network.random.random() < destination.lost_answer_chance:
            raise TimeoutError

    async def _work(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        # What was begun goes on when its caller was cancelled, and the destination is held as long.
        await asyncio.gather(*self._working, return_exceptions=True)
        self._destination.release(current_process())


class FileSink(DatabaseSink):
    """Writes a destination that has one writer, who holds it until it closes it or ends."""

    single_writer: ClassVar[bool] = True
