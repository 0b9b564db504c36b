"""A machine that runs workers one after the other: whatever ends a worker, the next one is started a while later."""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mode import Service
from mode.types import ServiceT

from tests.simulation.disk import Disk
from tests.simulation.loop import Process, SimulatedLoop
from worker.consumer import BatchConsumer
from worker.lanes import Role
from worker.metrics import Metrics
from worker.roles.export import ExportRole
from worker.roles.fold import FoldRole
from worker.roles.project import ProjectRole
from worker.settings import Settings
from worker.state import MemoryFoldStore

# What Faust has beside the drain for ending a worker.
_STOP_SPARE_S = 5.0


class Roles(Service):
    """All roles of one worker, started and drained the way the worker's own pipeline does it."""

    def __init__(self, consumers: Sequence[BatchConsumer], **options: Any) -> None:
        super().__init__(**options)
        self._consumers = consumers

    def on_init_dependencies(self) -> Iterable[ServiceT]:
        return self._consumers

    async def on_stop(self) -> None:
        await asyncio.gather(*(consumer.drain() for consumer in self._consumers))


class Machine:
    """One machine: its disk, and the worker that runs there now, if any."""

    def __init__(self, name: str, loop: SimulatedLoop, settings: Settings, note: Callable[[str], None]) -> None:
        self.name = name
        self.disk = Disk()
        self.process: Process | None = None
        self.metrics: Metrics | None = None
        # Why workers ended by themselves.
        self.ends: list[BaseException] = []
        self._loop = loop
        self._settings = settings
        self._note = note
        self._starts = 0
        self._stopping = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether a worker runs here, paused or not."""
        return self.process is not None and not self.process.is_dead

    def start(self) -> None:
        """Start a worker, if none runs."""
        if self.is_up:
            return
        self._starts += 1
        process = self.process = Process(f"{self.name}.{self._starts}")
        self._stopping = asyncio.Event()
        self._note(f"{process.name} starts")
        self._loop.spawn(process, self._run(process)).add_done_callback(self._ran)

    def _ran(self, run: asyncio.Task[None]) -> None:
        if not run.cancelled() and (error := run.exception()) is not None:
            self.ends.append(error)

    async def _run(self, process: Process) -> None:
        metrics = self.metrics = Metrics()
        roles = Roles([BatchConsumer(role, self._settings.limits, metrics) for role in self._roles(metrics, process)])
        await roles.start()
        waits = [asyncio.ensure_future(self._stopping.wait()), asyncio.ensure_future(roles._crashed.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        stop = asyncio.ensure_future(roles.stop())
        # Second by second: of the time in which the machine stands still, one counts.
        for _ in range(math.ceil(self._settings.limits.shutdown_drain_s + _STOP_SPARE_S)):
            if (await asyncio.wait([stop], timeout=1.0))[0]:
                break
        reason = roles.crash_reason
        if not stop.done():
            reason = reason or TimeoutError("the worker did not stop in time")
        if reason is not None:
            self.ends.append(reason)
        self._note(f"{process.name} ends: {reason!r}")
        self._loop.kill(process)

    def _roles(self, metrics: Metrics, process: Process) -> list[Role]:
        settings = self._settings
        store = MemoryFoldStore() if settings.state_dir is None else self.disk.store(process)
        is_fenced = settings.fencing != "off"
        return [
            ProjectRole(settings, metrics, is_idempotent=is_fenced),
            FoldRole(settings, metrics, store, is_fenced=is_fenced),
            *(ExportRole(settings, export, metrics) for export in settings.exports),
        ]

    def kill(self) -> None:
        """End the worker without warning."""
        if self.process is not None and self.is_up:
            self._note(f"{self.process.name} is killed")
            self._loop.kill(self.process)

    def stop(self) -> None:
        """Ask the worker to drain and end."""
        if self.is_up and self.process is not None:
            self._note(f"{self.process.name} is asked to stop")
            process = self.process
            self._loop.call_soon(self._stopping.set, context=process.context)
