"""Dead letters as their page shows them: how many there are of what, the newest one by one, and how to redrive them.

They say where a message stands and why it was refused, never what it holds, so they are shown beside any export.
"""

import asyncio
import shlex
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

from worker.dead_letters.tail import LetterTail, TailLetter, read_tail
from worker.settings import Settings
from worker.topic_scan import BrokerFailed
from worker.web.run_list import ROWS_PER_PAGE, page_of

ENTRIES_MAX: Final = 10_000
FRESH_S: Final = 10.0
"""For so long what was read serves again: the page is not what keeps the broker busy when something goes wrong."""
READ_TIMEOUT_S: Final = 8.0

Read = Callable[[Settings, int], Coroutine[Any, Any, LetterTail]]


class LetterQuery(NamedTuple):
    """Which letters to list: those of a reason and about a topic, if given; and which page, from 1."""

    reason: str = ""
    topic: str = ""
    page: int = 1


class LetterPage(NamedTuple):
    """What is shown of a tail: counts over all of it, a page of the letters that a query finds, and commands for them.

    ``redrive`` is the command that reads the messages of these letters again.
    """

    tail: LetterTail
    reasons: Sequence[tuple[str, int]]
    topics: Sequence[tuple[str, int]]
    rows: Sequence[TailLetter]
    found: int
    page: int
    pages: int
    redrive: str

    @property
    def is_whole(self) -> bool:
        """Whether everything that the topic holds was read."""
        return self.tail.entries_read == self.tail.entries


def view_letters(tail: LetterTail, query: LetterQuery) -> LetterPage:
    """Lay out a tail."""
    found = [
        kept
        for kept in tail.letters
        if query.reason in ("", kept.letter.reason) and query.topic in ("", kept.letter.topic)
    ]
    page, pages = page_of(query.page, len(found))
    return LetterPage(
        tail,
        _counted(kept.letter.reason for kept in tail.letters),
        _counted(kept.letter.topic for kept in tail.letters),
        found[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE],
        len(found),
        page,
        pages,
        _redrive(query) if found else _redrive(LetterQuery()),
    )


def _counted(words: Iterable[str]) -> Sequence[tuple[str, int]]:
    return sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))


def _redrive(query: LetterQuery) -> str:
    command = ["trace-projector", "dead-letters", "redrive"]
    command += ["--topic", query.topic] if query.topic else []
    command += ["--reason", query.reason] if query.reason else []
    return shlex.join(command)


class Letters:
    """Reads the newest letters by a connection of its own, which is closed again; whoever asks meanwhile waits for it.

    Used by the tasks of one event loop.
    """

    def __init__(self, settings: Settings, read: Read = read_tail) -> None:
        self._settings = settings
        self._read = read
        self._running: asyncio.Task[LetterTail] | None = None
        self._tail: LetterTail | None = None
        self._fresh_until = 0.0

    async def tail(self) -> LetterTail:
        """Give the newest letters, some seconds old. Raises BrokerFailed."""
        if self._tail is not None and time.monotonic() < self._fresh_until:
            return self._tail
        if self._running is None:
            self._running = asyncio.create_task(self._load())
            self._running.add_done_callback(self._forget)
        running = self._running
        # Somebody who goes away does not take the reading from the others who wait for it.
        await asyncio.wait([running])
        if running.cancelled():
            raise BrokerFailed("This worker stops")
        return running.result()

    def _forget(self, done: asyncio.Task[LetterTail]) -> None:
        self._running = None
        if not done.cancelled():
            # Seen, even when nobody waits any more.
            done.exception()

    async def _load(self) -> LetterTail:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                tail = await self._read(self._settings, ENTRIES_MAX)
        except TimeoutError as error:
            raise BrokerFailed(f"Kafka did not give the dead letters within {READ_TIMEOUT_S:.0f} s") from error
        self._tail, self._fresh_until = tail, time.monotonic() + FRESH_S
        return tail

    def close(self) -> None:
        """Give up what is being read."""
        if self._running is not None:
            self._running.cancel()
