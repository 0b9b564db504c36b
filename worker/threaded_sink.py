"""What sinks share whose destination makes its caller wait: a thread does the work, one piece of it at a time."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from worker.sink import SinkFailed, Upsert, newest_by_id

_Result = TypeVar("_Result")


class _Closing(Protocol):
    def close(self) -> object: ...


_Connection = TypeVar("_Connection", bound=_Closing)


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


class ServerSink(ThreadedSink, Generic[_Connection]):
    """A threaded sink that keeps a connection to a server between its writes."""

    def __init__(self) -> None:
        super().__init__()
        self._connection: _Connection | None = None

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self, work: Callable[[_Connection], _Result]) -> _Result:
        """Work on the connection that is open, or on a new one after that one failed."""
        connection = self._connection
        if connection is None or self._is_lost(connection):
            connection = self._connection = self._connect()
        try:
            return self._told(lambda: work(connection))
        except SinkFailed:
            # Whatever state it is in, the next one begins anew.
            self._connection = None
            connection.close()
            raise

    @abstractmethod
    def _connect(self) -> _Connection:
        """Make a connection."""

    def _is_lost(self, _connection: _Connection) -> bool:
        """Whether a connection is known to be of no more use."""
        return False

    @abstractmethod
    def _told(self, work: Callable[[], _Result]) -> _Result:
        """Do something with the server; its driver's errors become those of sinks."""
