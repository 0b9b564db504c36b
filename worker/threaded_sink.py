"""What sinks share whose destination makes its caller wait: a thread does the work, one piece of it at a time."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from worker.sink import Upsert, newest_by_id

_Result = TypeVar("_Result")


class ThreadedSink(ABC):
    """A sink whose opening, writing and closing are plain functions, called off the event loop and never side by side.

    They may raise what ``Sink`` says.
    """

    def __init__(self) -> None:
        # A caller that was cancelled leaves its thread behind; whoever comes next waits for it here.
        self._mutex = threading.Lock()

    async def open(self) -> bool:
        return await self._in_turn(self._open)

    async def write(self, batch: Sequence[Upsert]) -> None:
        # Each id once: not every destination keeps the newer of two rows that come in one statement.
        newest = newest_by_id(batch)
        if newest:
            await self._in_turn(lambda: self._write(newest))

    async def close(self) -> None:
        await self._in_turn(self._close)

    async def _in_turn(self, work: Callable[[], _Result]) -> _Result:
        def alone() -> _Result:
            with self._mutex:
                return work()

        return await asyncio.to_thread(alone)

    @abstractmethod
    def _open(self) -> bool:
        """Make ready; whether there is nothing in it yet."""

    @abstractmethod
    def _write(self, batch: Sequence[Upsert]) -> None:
        """Apply versions of records, of each the newest; at least one."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of everything."""
