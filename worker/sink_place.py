"""Where the export of one generation writes: into its sink while that generation serves, beside it before and after.

A generation that is being built, or that was replaced and not dropped yet, keeps its rows up to date out of sight.
While a promotion moves files, and when it was interrupted, nobody opens anything: writing waits.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from worker.sink import Sink, SinkBusy, SinkRefused, Upsert, open_sink
from worker.sink_switch import BUSY_DELAY_S, beside, policy_of


@dataclass
class Serving:
    """Which generation serves, as far as this process has heard."""

    generation: int


def place_word(generation: int) -> str:
    """Name what stands beside a sink for a generation."""
    return f"g{generation}"


def sink_origin(app_id: str, generation: int, *, is_switchable: bool) -> str:
    """Name the log that the versions of a sink's rows are offsets of.

    A sink that is switched holds rows of one generation only, and its policy says of which.
    """
    return f"{app_id}/{place_word(generation)}" if is_switchable else app_id


class SinkPlace:
    """A switchable sink, at the place that its generation has when it is opened."""

    # As of every sink that can be switched.
    is_durable: ClassVar[bool] = True

    def __init__(self, url: str, policy_digest: str, generation: int, serving: Serving) -> None:
        self._url = url
        self._beside = beside(url, place_word(generation))
        self._policy_digest = policy_digest
        self._generation = generation
        self._serving = serving
        self._is_in_place = False
        self._sink: Sink | None = None
        self._has_single_writer = open_sink(url, policy_digest).single_writer

    @property
    def single_writer(self) -> bool:
        """As of the sink whose place it is."""
        return self._has_single_writer

    async def open(self) -> bool:
        self._is_in_place = self._serving.generation == self._generation
        if await self._is_elsewhere():
            message = (
                f"generation {self._serving.generation} is being promoted; if that was interrupted, run "
                "`trace-projector promote` again"
            )
            raise SinkBusy(message, BUSY_DELAY_S)
        self._sink = open_sink(self._url if self._is_in_place else self._beside, self._policy_digest)
        return await self._sink.open()

    async def write(self, batch: Sequence[Upsert]) -> None:
        assert self._sink is not None, "a sink is opened before it is written"
        try:
            await self._sink.write(batch)
        except SinkRefused:
            if await self._is_elsewhere():
                # It was moved between two writes; whoever watches the generations opens it where it is now.
                raise SinkBusy("another generation is being promoted", BUSY_DELAY_S) from None
            raise

    async def close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            return
        try:
            await sink.close()
        except SinkRefused:
            # What cannot be tidied up because it was moved is tidied up when it is opened where it is now.
            if not await self._is_elsewhere():
                raise

    async def _is_elsewhere(self) -> bool:
        """Whether our rows stand at the other of the two places: they are not moved yet, or just were."""
        other = self._beside if self._is_in_place else self._url
        return await asyncio.to_thread(policy_of, other) == self._policy_digest
