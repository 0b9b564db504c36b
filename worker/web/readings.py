"""Reading for the pages, off the event loop, with a limit on how much, how many at once, and how long one waits."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from worker.record_queries import QueryReader
from worker.record_reader import Record, RecordReader
from worker.web.run_list import RECORD_KINDS_READ, Runs, TooManyRecords, build_index
from worker.web.run_queries import QueriedRuns

RUN_RECORDS_MAX: Final = 50_000
INDEX_RECORDS_MAX: Final = 200_000
READINGS_MAX: Final = 16
WAIT_S: Final = 8.0
FRESH_S: Final = 3.0
"""For so long a list of runs that was made serves again: a sink's file is held while it is read."""
FRESH_SHARE: Final = 3
"""And for so many times as long as it took to make, so that a great sink is not read all the time."""

ALL_KINDS: Final = ("run", "attempt", "call", "gate", "artifact", "cost")

Made = TypeVar("Made")


class PagesBusy(Exception):  # noqa: N818  (a state of the worker, not a fault of the program)
    """A page cannot be made now; the text says why and what to do."""


class Readings:
    """Reads one export's sink; whoever wants what is being read waits for the same reading."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._running: dict[Hashable, asyncio.Future[Any]] = {}
        # One thread for the list and one for the rest: a great list does not keep a run from being shown.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="pages")
        self._is_closed = False
        self._runs: Runs | None = None
        self._fresh_until = 0.0

    async def runs(self) -> Runs:
        """Give all runs, some seconds old; those before if it takes too long to read the next.

        Raises RecordsUnreadable, TooManyRecords and PagesBusy, as ``run`` does.
        """
        if self._runs is not None and time.monotonic() < self._fresh_until:
            return self._runs
        try:
            return await self._wait_for("runs", self._look)
        except PagesBusy:
            if self._runs is None:
                raise
            return self._runs

    def _look(self) -> Runs:
        if isinstance(self._reader, QueryReader):
            # It is asked anew for each page, and no record is read.
            return QueriedRuns(self._reader)
        started = time.monotonic()
        runs = build_index(self._read(RECORD_KINDS_READ), INDEX_RECORDS_MAX)
        took_s = time.monotonic() - started
        self._runs, self._fresh_until = runs, time.monotonic() + max(FRESH_S, FRESH_SHARE * took_s)
        return runs

    async def listing(self, key: Hashable, make: Callable[[Runs], Made]) -> Made:
        """Make a page about all runs."""
        runs = await self.runs()
        return await self._wait_for(("list", key), lambda: make(runs))

    async def run(self, page: str, run_id: str, make: Callable[[list[Record]], Made]) -> Made:
        """Make a page of all records of one run, and the costs that its conversations have in others."""
        return await self._wait_for((page, run_id), lambda: make(self._records(run_id)))

    def _records(self, run_id: str) -> list[Record]:
        records = []
        for record in self._read(ALL_KINDS, run_id):
            records.append(record)
            if len(records) > RUN_RECORDS_MAX:
                raise TooManyRecords
        return records

    def _read(self, kinds: Collection[str], run_id: str | None = None) -> Iterator[Record]:
        for record in self._reader.read(kinds, run_id):
            if self._is_closed:
                raise PagesBusy("This worker stops.")
            yield record

    def close(self) -> None:
        """Give up what is being read, so that nobody waits for it when the worker stops."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait_for(self, key: Hashable, make: Callable[[], Made]) -> Made:
        running = self._running.get(key)
        if running is None:
            if self._is_closed:
                raise PagesBusy("This worker stops.")
            if len(self._running) >= READINGS_MAX:
                raise PagesBusy("Too many pages are being read at once. Reload in a moment.")
            running = asyncio.get_running_loop().run_in_executor(self._threads, make)
            self._running[key] = running
            running.add_done_callback(lambda done: self._forget(key, done))
        # Whoever gives up leaves the reading to the others who wait for it.
        done, _ = await asyncio.wait([running], timeout=WAIT_S)
        if not done:
            raise PagesBusy("The records are still being read: the sink is great, or held by its writer. Reload.")
        if running.cancelled():
            raise PagesBusy("This worker stops.")
        made: Made = running.result()
        return made

    def _forget(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        del self._running[key]
        if not done.cancelled():
            # Seen, even when nobody waits any more.
            done.exception()
