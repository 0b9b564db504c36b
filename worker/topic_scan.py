"""Topics read outside every consumer group: from given offsets up to the ends that they have at that moment.

Only committed messages are read, and nothing on the broker changes by it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from aiokafka.errors import KafkaConnectionError, KafkaError, OffsetOutOfRangeError

from worker.kafka import Message, TopicPartition, admin_client, log_reader
from worker.reachable import why_unreachable
from worker.settings import Settings

_POLL_MS = 1_000
# So many empty polls in a row, short of a partition's end, mean that the broker does not deliver.
_EMPTY_POLLS_MAX = 30
# Messages between two that are wanted are read over as long as this is cheaper than asking for the next place.
_READ_OVER_MAX = 5_000
_STOP_TIMEOUT_S = 5.0


class BrokerFailed(Exception):  # noqa: N818  (a state of the world, not a fault of the program)
    """The brokers cannot be reached, refuse, lack a topic or do not deliver; the text is one line for a person."""


class Span(NamedTuple):
    """Offsets of one partition: from ``start`` on, before ``end``.

    ``is_exact`` is False where the end is only what the broker lists as the end of the log.
    """

    start: int
    end: int
    is_exact: bool = False

    @property
    def length(self) -> int:
        """How many offsets it spans; compacted and aborted messages and markers count, too."""
        return max(0, self.end - self.start)


class Original(NamedTuple):
    """What stands at an offset: a message, or why there is none any more (one of the words of ``GONE``)."""

    offset: int
    message: Message | None
    gone: str | None = None


GONE = {
    "deleted": "its topic no longer holds it: deleted by retention",
    "compacted": "its topic no longer holds it: compacted away, or never committed",
    "beyond": "its topic ends before it: the topic was made anew",
}


@contextmanager
def broker_errors(settings: Settings) -> Iterator[None]:
    """Turn what a Kafka client raises into one line that names the brokers and the kind of error."""
    try:
        yield
    except KafkaConnectionError as error:
        raise BrokerFailed(
            f"no Kafka broker answers at {settings.bootstrap_servers}; start one, or correct bootstrap_servers "
            "(environment: TRACE_PROJECTOR_BOOTSTRAP_SERVERS)"
        ) from error
    except KafkaError as error:
        raise BrokerFailed(f"Kafka at {settings.bootstrap_servers} refused: {type(error).__name__}") from error
    except UnicodeDecodeError:
        # aiokafka's, which would carry the bytes along.
        raise BrokerFailed(
            f"Kafka at {settings.bootstrap_servers} holds a message whose header has a name that is no UTF-8: neither "
            "it nor what follows it in its batch can be read"
        ) from None


@asynccontextmanager
async def connecting(settings: Settings) -> AsyncIterator[None]:
    """Turn the failure of a first connection into one line that says what is wrong with the way there."""
    with broker_errors(settings):
        try:
            yield
        except KafkaConnectionError as error:
            raise BrokerFailed(await why_unreachable(settings)) from error


class TopicScan:
    """One connection that reads partitions of any topics; made by ``open_scan``, used by one task at a time."""

    def __init__(self, settings: Settings, admin: Any, reader: Any) -> None:
        self._settings = settings
        self.admin = admin
        self._reader = reader

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Count the partitions of the topics that exist; the others are left out."""
        with broker_errors(self._settings):
            # Listed first: describing a topic that is missing creates it on some brokers.
            present = sorted(set(topics) & set(await self.admin.list_topics()))
            described = await self.admin.describe_topics(present) if present else []
            return {topic["topic"]: len(topic["partitions"]) for topic in described if not topic["error_code"]}

    async def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """List all partitions of the topics that exist, in order."""
        counts = await self.partition_counts(topics)
        return sorted(TopicPartition(topic, number) for topic, count in counts.items() for number in range(count))

    async def spans(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
        """Give where each partition begins and ends now; an open transaction ends it before its first message."""
        wanted = sorted(partitions)
        if not wanted:
            return {}
        with broker_errors(self._settings):
            beginnings = await self._reader.beginning_offsets(wanted)
            ends = await self._reader.end_offsets(wanted)
        return {place: Span(beginnings[place], ends[place]) for place in wanted}

    async def offsets_at(self, spans: Mapping[TopicPartition, Span], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Give each partition's first offset whose message is of this time or later; the end where there is none."""
        if not spans:
            return {}
        with broker_errors(self._settings):
            found = await self._reader.offsets_for_times(dict.fromkeys(spans, timestamp_ms))
        return {
            place: span.end if found.get(place) is None else min(max(found[place].offset, span.start), span.end)
            for place, span in spans.items()
        }

    async def read(
        self, spans: Mapping[TopicPartition, Span]
    ) -> AsyncIterator[tuple[TopicPartition, Sequence[Message]]]:
        """Yield the messages of spans in offset order, batch by batch, partitions side by side."""
        ends = {place: span.end for place, span in spans.items() if span.length}
        with broker_errors(self._settings):
            self._assign({place: spans[place].start for place in ends})
            listed = {place for place in ends if not spans[place].is_exact}
            empty_polls = 0
            while ends:
                polled = await self._poll(list(ends))
                empty_polls = 0 if polled else empty_polls + 1
                if empty_polls > _EMPTY_POLLS_MAX:
                    raise _undelivered(next(iter(ends)))
                for place, messages in polled.items():
                    if place in listed:
                        # The embedded broker lists an end inside its last batch; what a fetch says is right.
                        ends[place] = max(ends[place], self._reader.last_stable_offset(place) or 0)
                        listed.remove(place)
                    wanted = [message for message in messages if message.offset < ends[place]]
                    if wanted:
                        yield place, wanted
                for place in [place for place, end in ends.items() if await self._reader.position(place) >= end]:
                    self._reader.pause(place)
                    del ends[place]

    async def originals(self, partition: TopicPartition, offsets: Iterable[int]) -> AsyncIterator[Original]:
        """Yield what stands at each of some offsets of one partition, in offset order."""
        waiting = deque(sorted(set(offsets)))
        span = (await self.spans([partition]))[partition]
        with broker_errors(self._settings):
            while waiting:
                while waiting and waiting[0] < span.start:
                    yield Original(waiting.popleft(), None, "deleted")
                try:
                    async for original in self._standing(partition, span, waiting):
                        yield original
                except OffsetOutOfRangeError:
                    asked, span = span, (await self.spans([partition]))[partition]
                    if span.start <= asked.start:
                        raise
                    # Retention took messages since the broker was asked where the log begins.
                    continue
                while waiting:
                    yield Original(waiting.popleft(), None, "beyond")

    async def _standing(self, partition: TopicPartition, span: Span, waiting: deque[int]) -> AsyncIterator[Original]:
        """Yield, and take off the queue, what stands at those of the offsets waiting that are within the log."""
        position: int | None = None
        end = span.end if not waiting or waiting[-1] < span.end else await self._fetched_end(partition, span)
        while waiting and waiting[0] < end:
            if position is None or waiting[0] - position > _READ_OVER_MAX:
                self._assign({partition: waiting[0]})
            messages = await self._deliver(partition)
            position = await self._reader.position(partition)
            found = {message.offset: message for message in messages}
            while waiting and waiting[0] < position:
                offset = waiting.popleft()
                message = found.get(offset)
                yield Original(offset, message, None if message else "compacted")

    async def _fetched_end(self, partition: TopicPartition, span: Span) -> int:
        """Give where a log ends by what a fetch says, which is right where the embedded broker's list is too low."""
        if not span.length:
            return span.end
        self._assign({partition: span.end - 1})
        await self._deliver(partition)
        return max(span.end, self._reader.last_stable_offset(partition) or 0)

    def _assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._reader.assign(list(positions))
        for place, offset in positions.items():
            self._reader.seek(place, offset)

    async def _poll(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, list[Message]]:
        polled: dict[TopicPartition, list[Message]] = await self._reader.getmany(
            *partitions, timeout_ms=_POLL_MS, max_records=self._settings.limits.batch_messages_max
        )
        return polled

    async def _deliver(self, partition: TopicPartition) -> list[Message]:
        """Poll until messages come, or the position has moved over messages that are gone."""
        before = await self._reader.position(partition)
        for _ in range(_EMPTY_POLLS_MAX):
            polled = await self._poll([partition])
            if polled or await self._reader.position(partition) > before:
                return polled.get(partition, [])
        raise _undelivered(partition)


def _undelivered(partition: TopicPartition) -> BrokerFailed:
    return BrokerFailed(f"topic {partition.topic} partition {partition.partition} does not deliver")


@asynccontextmanager
async def open_scan(settings: Settings) -> AsyncIterator[TopicScan]:
    """Connect for as long as something is read. Raises BrokerFailed."""
    admin, reader = admin_client(settings), log_reader(settings)
    try:
        async with connecting(settings):
            await admin.start()
            await reader.start()
        yield TopicScan(settings, admin, reader)
    finally:
        await asyncio.wait_for(reader.stop(), _STOP_TIMEOUT_S)
        await admin.close()
