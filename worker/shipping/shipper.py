"""`ship`: transcript files on disk into the transcripts topic, at least once, and on from where it stopped.

Order of durability: a chunk of lines is acknowledged by every replica in sync; only then do the offsets of its files
enter the state, which is replaced whole. Whatever fails before that repeats lines, and a repeated line changes nothing.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from worker.settings import Settings
from worker.shipping.files import Chunk, ChunkLimits, Selection, ShipFiles, ShipTally, Work
from worker.shipping.sender import ShipSender, UndeliveredError, find_target, holds
from worker.shipping.state import ShipState
from worker.transcripts.files import TranscriptFile

_CHUNK_BYTES_MAX: Final = 2 << 20
_SAVE_INTERVAL_S: Final = 1.0
# A chunk holds what may be sent in this time, so that a rate is kept evenly.
_RATE_WINDOW_S: Final = 0.25
_BACKOFF_MIN_S: Final = 0.5
# A look at very many files must not keep a processor busy: it takes at most this part of the time.
_SCAN_SHARE_MAX: Final = 0.1


class Rate(NamedTuple):
    """How much may be sent in a second."""

    amount: float
    unit: Literal["bytes", "lines"]

    def of(self, chunk: Chunk) -> float:
        """Give how many seconds a chunk stands for."""
        return (chunk.read_bytes if self.unit == "bytes" else chunk.lines) / self.amount


class ShipPlan(NamedTuple):
    """What to ship, how, and whom to tell: ``say`` hears of files, ``on_bytes`` of bytes found and bytes shipped."""

    selection: Selection
    state_path: Path | None
    is_once: bool
    rate: Rate | None
    poll_interval_s: float
    say: Callable[[TranscriptFile | None, str], None]
    on_bytes: Callable[[int, int], None]


class ShipStopped(Exception):  # noqa: N818  (an outcome, not a fault)
    """It was told to stop before it was done."""


async def ship(settings: Settings, plan: ShipPlan, stop: asyncio.Event) -> ShipTally:
    """Ship until everything is shipped (once), or until told to stop.

    Raises ShipTargetError when the topic cannot be reached, ShipStateError when the state cannot be used, and, once,
    UndeliveredError when the brokers stop acknowledging; what was acknowledged until then is saved.
    """
    target, partitions = await find_target(settings)
    state = ShipState.open(plan.state_path or default_state_path(settings, target.topic))
    sender = ShipSender(settings, target.topic, partitions)
    try:
        state.aim(target)
        if not await holds(settings, target.topic, state.acknowledged):
            plan.say(None, f"topic {target.topic} is not the one that was shipped to; everything is shipped again")
            state.forget()
        return await _Shipper(settings, plan, state, sender, stop).run()
    finally:
        await sender.close()
        state.close()


def default_state_path(settings: Settings, topic: str) -> Path:
    """Give where the state is kept: below ``state_dir``, else where programs of this user keep theirs."""
    directory = settings.state_dir or Path("~/.local/state/trace-projector").expanduser()
    return directory / f"ship-{topic}.json"


class _Shipper:
    """One run of `ship`."""

    def __init__(
        self, settings: Settings, plan: ShipPlan, state: ShipState, sender: ShipSender, stop: asyncio.Event
    ) -> None:
        self._limits = settings.limits
        self._plan = plan
        self._state = state
        self._sender = sender
        self._stop = stop
        self._files = ShipFiles(plan.selection, state, settings.limits, plan.say)
        self._chunk_limits = _chunk_limits(plan.rate, settings)
        # The first chunk is saved at once: one that never lives for long must not repeat itself for ever.
        self._saved_at = float("-inf")
        self._due_at = 0.0
        self._told_unavailable: dict[str, str] = {}

    async def run(self) -> ShipTally:
        failures = 0
        try:
            while not self._stop.is_set():
                started = time.monotonic()
                work = await asyncio.to_thread(self._files.scan)
                scan_s = time.monotonic() - started
                self._tell_unavailable()
                try:
                    await self._pass(work)
                except UndeliveredError:
                    if self._plan.is_once:
                        raise
                    failures += 1
                    await self._back_off(failures)
                    continue
                if failures:
                    self._plan.say(None, "the brokers acknowledge again")
                    failures = 0
                if self._plan.is_once:
                    return self._files.tally
                await self._pause(max(self._plan.poll_interval_s, scan_s / _SCAN_SHARE_MAX))
        finally:
            self._save()
        if self._plan.is_once:
            raise ShipStopped
        return self._files.tally

    def _tell_unavailable(self) -> None:
        unavailable = self._files.unavailable()
        for name, reason in unavailable.items():
            if self._told_unavailable.get(name) != reason:
                self._plan.say(None, f"{name} is unavailable: {reason}")
        self._told_unavailable = unavailable

    async def _back_off(self, failures: int) -> None:
        if failures == 1:
            self._plan.say(None, "the brokers do not acknowledge; trying on")
        delay_s = min(self._limits.sink_retry_delay_max_s, _BACKOFF_MIN_S * 2 ** min(failures - 1, 16))
        await self._pause(delay_s * random.uniform(0.5, 1.0))  # noqa: S311  (spreads retries, keeps no secret)

    async def _pass(self, work: list[Work]) -> None:
        """Ship what a scan has found; the next chunk is read while the last one is on its way."""
        self._plan.on_bytes(_bytes_ahead(work), 0)
        chunks = self._files.chunks(work, self._chunk_limits)
        try:
            chunk = await asyncio.to_thread(next, chunks, None)
            while chunk is not None and not self._stop.is_set():
                reading = asyncio.create_task(asyncio.to_thread(next, chunks, None))
                try:
                    await self._deliver(chunk)
                finally:
                    # A generator cannot be closed while it runs.
                    chunk = await reading
        finally:
            chunks.close()
        self._save()

    async def _deliver(self, chunk: Chunk) -> None:
        """Deliver a chunk and take note of it; once told to stop, this may take a while but no longer."""
        delivery = asyncio.create_task(self._sender.deliver(chunk.rows))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((delivery, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not delivery.done():
                await asyncio.wait((delivery,), timeout=self._limits.shutdown_drain_s)
        finally:
            stopping.cancel()
            if not delivery.done():
                delivery.cancel()
                # It lets go of its producer on the way out.
                await asyncio.wait((delivery,))
        if delivery.cancelled():
            return
        self._files.settle(chunk, delivery.result())
        self._plan.on_bytes(0, chunk.read_bytes)
        if time.monotonic() - self._saved_at >= _SAVE_INTERVAL_S:
            self._save()
        if self._plan.rate is not None:
            now = time.monotonic()
            self._due_at = max(now, self._due_at) + self._plan.rate.of(chunk)
            await self._pause(self._due_at - now)

    def _save(self) -> None:
        self._state.save()
        self._saved_at = time.monotonic()

    async def _pause(self, delay_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), delay_s)


def _bytes_ahead(work: Sequence[Work]) -> int:
    return sum(
        item.transcript.file.size_bytes - (0 if item.transcript.is_document else item.start.offset) for item in work
    )


def _chunk_limits(rate: Rate | None, settings: Settings) -> ChunkLimits:
    limits = settings.limits
    # One chunk is on its way while the next one is read.
    limit_bytes = min(_CHUNK_BYTES_MAX, limits.batch_bytes_max, limits.in_flight_bytes_max // 2)
    limit_lines = limits.batch_messages_max
    if rate is not None and rate.unit == "bytes":
        limit_bytes = min(limit_bytes, int(rate.amount * _RATE_WINDOW_S))
    if rate is not None and rate.unit == "lines":
        limit_lines = min(limit_lines, int(rate.amount * _RATE_WINDOW_S))
    return ChunkLimits(max(1, limit_bytes), max(1, limit_lines))
