"""The virtual broker: topics, fetches that wait for data, and the two coordinators; it lives outside all processes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from aiokafka.errors import OffsetOutOfRangeError

from tests.simulation.groups import GroupCoordinator
from tests.simulation.log import Entry, PartitionLog, Row, compacted
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.transactions import TransactionCoordinator
from worker.kafka import Message, TopicPartition


class Fetched(NamedTuple):
    """What a fetch brings of one partition: messages, where to read on, and where the log ends; or an error."""

    messages: Sequence[Message]
    next_offset: int
    end: int
    error: OffsetOutOfRangeError | None = None


class VirtualBroker:
    """A broker of any number of topics, the way a client sees a cluster that works."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.network = Network(loop, random)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.counts: dict[str, int] = {}
        self.groups = GroupCoordinator(loop)
        self.transactions = TransactionCoordinator(loop, self.network, self.groups, self.logs)
        self.transactions.wake = self.wake
        self.on_append: list[Callable[[TopicPartition, Sequence[Row]], None]] = []
        self._waiting: dict[TopicPartition, list[asyncio.Future[None]]] = {}

    def create_topic(self, topic: str, partition_count: int) -> None:
        """Create a topic."""
        self.counts[topic] = partition_count
        for number in range(partition_count):
            place = TopicPartition(topic, number)
            self.logs[place] = PartitionLog(place)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Give the partitions of a topic, for assignors."""
        return set(range(self.counts[topic])) if topic in self.counts else None

    def places(self, *topics: str) -> list[TopicPartition]:
        """List the partitions of some topics."""
        return [TopicPartition(topic, number) for topic in topics for number in range(self.counts[topic])]

    # -------------------------------------------------------------------------------------------------- producing

    def append(
        self,
        place: TopicPartition,
        rows: Sequence[Row],
        *,
        producer_id: int | None = None,
        epoch: int = 0,
        is_transaction: bool = False,
    ) -> None:
        """Append messages to a partition."""
        timestamp = int(self.loop.time() * 1_000)
        self.logs[place].append(rows, timestamp, producer_id=producer_id, epoch=epoch, is_transaction=is_transaction)
        for hook in self.on_append:
            hook(place, rows)
        self.wake(place)

    def wake(self, place: TopicPartition) -> None:
        """Answer the fetches that wait for a partition."""
        for waiting in self._waiting.pop(place, ()):
            if not waiting.done():
                waiting.set_result(None)

    # --------------------------------------------------------------------------------------------------- fetching

    def fetch(
        self, positions: Mapping[TopicPartition, int], count_max: int, wait_s: float
    ) -> asyncio.Future[dict[TopicPartition, Fetched]]:
        """Read several partitions; when none has anything new, the answer waits for it, but not for ever."""
        answer: asyncio.Future[dict[TopicPartition, Fetched]] = self.loop.create_future()
        if wait_s <= 0 or any(self.logs[place].has_news(offset) for place, offset in positions.items()):
            answer.set_result(self._read(positions, count_max))
            return answer
        news: asyncio.Future[None] = self.loop.create_future()
        for place in positions:
            self._waiting.setdefault(place, []).append(news)
        context = self.network.outside

        def reply(_news: asyncio.Future[None]) -> None:
            timer.cancel()
            if not answer.done():
                answer.set_result(self._read(positions, count_max))

        def give_up() -> None:
            if not news.done():
                news.set_result(None)

        timer = self.loop.call_later(wait_s, give_up, context=context)
        news.add_done_callback(reply, context=context)
        return answer

    def _read(self, positions: Mapping[TopicPartition, int], count_max: int) -> dict[TopicPartition, Fetched]:
        fetched = {}
        for place, position in positions.items():
            log = self.logs[place]
            try:
                messages, next_offset = log.read(position, self.random.randint(1, count_max))
            except OffsetOutOfRangeError as error:
                fetched[place] = Fetched((), position, log.end, error)
            else:
                fetched[place] = Fetched(messages, next_offset, log.end)
        return fetched

    def beginnings(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the first offset of logs."""
        return {place: self.logs[place].beginning for place in places}

    # ----------------------------------------------------------------------------------------------- for the tests

    def visible(self, topic: str) -> dict[TopicPartition, list[Entry]]:
        """List what readers see of a topic."""
        return {place: self.logs[place].visible() for place in self.places(topic)}

    def compacted(self, topic: str) -> dict[bytes | None, Entry]:
        """Give what a compacted topic comes down to."""
        newest: dict[bytes | None, Entry] = {}
        for entries in self.visible(topic).values():
            newest |= compacted(entries)
        return newest

    def compact(self, place: TopicPartition, limit: int, may_drop_tombstone: Callable[[Entry], bool]) -> None:
        """Let the log cleaner go over a partition, up to some offset before a limit."""
        log = self.logs[place]
        if limit > log.beginning:
            log.compact(self.random.randrange(log.beginning, limit), may_drop_tombstone)
