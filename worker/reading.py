"""Fetching for the batch loop: what the errors of a fetch mean, and how reading goes on after each.

Rules for editing this module: a fetch that fails takes what it had drained of other partitions with it, so after every
error all positions go back to what was settled; a partition is given up, or a batch of it skipped, by name and loudly.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import structlog
from aiokafka.errors import (
    CommitFailedError,
    CorruptRecordException,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)

from worker.kafka import FETCH_WAIT_MS, GroupConsumer, Message, TopicPartition
from worker.lanes import CorruptBatch, MissingOffsetsError, Slot
from worker.logs import error_fields
from worker.metrics import Metrics
from worker.raw_batches import BatchSpan, find_span
from worker.settings import Settings
from worker.settings_sections import LimitSettings

_log = structlog.get_logger(__name__)

_FAILURES_MAX: Final = 3
_RETRY_FIRST_S: Final = 0.1
# A client fetches nothing while nobody takes what it has, so what lies ready when a lane becomes idle is the oldest of
# what there is. One more fetch is waited for, as long as a broker holds one that finds nothing: without it the rest
# would wait for the lane's next turn.
_GATHER_MS: Final = FETCH_WAIT_MS
# What a client says of bytes that are no whole, undamaged batch, or of one with a header whose name is no UTF-8: Kafka
# takes any bytes there, and aiokafka reads no message of such a batch from that one on.
_CORRUPT: Final = (CorruptRecordException, RecordTooLargeError, UnicodeDecodeError)
# A partition under suspicion is read message by message, so many at a time and not waiting long for the first.
_SUSPECT_MESSAGES_MAX: Final = 500
_SUSPECT_WAIT_MS: Final = 20
_CORRUPT_WAY_OUT: Final = (
    "restore the partition from a replica that is whole and start the worker again (after a UnicodeDecodeError no "
    "replica helps: a producer named a header in other bytes than UTF-8), or set kafka.on_corrupt_batch to skip: the "
    "batch becomes a dead letter and reading goes on behind it"
)

FindSpan = Callable[[TopicPartition, int], Awaitable[BatchSpan]]


async def _one_offset(_place: TopicPartition, offset: int) -> BatchSpan:
    return BatchSpan(offset + 1, 0)


class ReadingRules(NamedTuple):
    """What is done when messages cannot be read, and who tells how far a corrupt batch reaches."""

    on_missing_offsets: Literal["stop", "skip"] = "stop"
    on_corrupt_batch: Literal["stop", "skip"] = "stop"
    find_span: FindSpan = _one_offset


def reading_rules(settings: Settings, role: str) -> ReadingRules:
    """Give the rules of a role; the fold's log is its state, so nothing of it is ever skipped."""
    if role == "fold":
        return ReadingRules()
    kafka = settings.kafka
    return ReadingRules(kafka.on_missing_offsets, kafka.on_corrupt_batch, partial(find_span, settings))


def _offsets(slots: Iterable[Slot]) -> dict[TopicPartition, int]:
    return {place: slot.committed[place] for slot in slots for place in slot.running_partitions}


class Polled(NamedTuple):
    """What one round of fetching gave: messages, and batches that were given up."""

    messages: dict[TopicPartition, Sequence[Message]]
    corrupt: dict[TopicPartition, CorruptBatch]


@dataclass
class _Suspect:
    """A partition that may hold the batch that a fetch failed on; `tries` counts failures at one offset."""

    offset: int = -1
    tries: int = 0
    retry_at: float = 0.0


class Reader:
    """Fetches for one role; `slots` gives the lanes that are there now, `pause` waits and may be cut short."""

    def __init__(
        self, role: str, limits: LimitSettings, rules: ReadingRules, metrics: Metrics, slots: Callable[[], list[Slot]]
    ) -> None:
        self._role = role
        self._limits = limits
        self._rules = rules
        self._metrics = metrics
        self._slots = slots
        self._suspects: dict[TopicPartition, _Suspect] = {}
        self._failures = 0
        self._log = _log.bind(role=role)
        self.has_polled = False

    async def poll(
        self, consumer: GroupConsumer, wait_s: float, busy_wait_s: float, pause: Callable[[float], Awaitable[Any]]
    ) -> Polled:
        """Fetch for all lanes that are ready; StopWorkerError when going on would lose messages."""
        partitions = self._ready()
        suspects = [place for place in partitions if place in self._suspects]
        others = [place for place in partitions if place not in self._suspects]
        polled = Polled({}, {})
        if others:
            polled.messages.update(await self._get_many(consumer, others, busy_wait_s if suspects else wait_s, pause))
        else:
            # To poll for no partitions would mean to poll for all of them.
            await pause(busy_wait_s if suspects else wait_s)
        owners = self._owners()
        for place in suspects:
            owners[place] = self._owners().get(place)
            await self._read_suspect(consumer, place, polled)
        self._drop_stale(consumer, polled, owners)
        return polled

    def _owners(self) -> dict[TopicPartition, Slot | None]:
        return {place: slot for slot in self._slots() for place in slot.lane.partitions}

    def _drop_stale(
        self, consumer: GroupConsumer, polled: Polled, owners: Mapping[TopicPartition, Slot | None]
    ) -> None:
        """Drop what was read for lanes that a rebalance took meanwhile: those that came read from their own offsets.

        One that came a moment ago may be open and not yet ready: what was read of it is not handed over either.
        """
        ready, settled, now = self._ready(), self._settled(), self._owners()
        for place in list(polled.messages):
            if place in ready and now.get(place) is owners.get(place):
                continue
            del polled.messages[place]
            if place in settled and place in consumer.assignment():
                consumer.seek(place, settled[place])

    def _ready(self) -> dict[TopicPartition, int]:
        """Give the partitions of lanes that take messages now, and the offset that each was settled to."""
        return _offsets(slot for slot in self._slots() if slot.is_ready)

    def _settled(self) -> dict[TopicPartition, int]:
        """Give the partitions of lanes that have nothing in flight, and the offset that each was settled to."""
        return _offsets(slot for slot in self._slots() if slot.is_settled)

    async def _get_many(
        self,
        consumer: GroupConsumer,
        partitions: Sequence[TopicPartition],
        wait_s: float,
        pause: Callable[[float], Awaitable[Any]],
    ) -> dict[TopicPartition, list[Message]]:
        try:
            polled = await self._fetch(consumer, partitions, wait_s)
        except NoOffsetForPartitionError:
            # The partition came back while it was polled for, and its lane has not chosen a position yet.
            self._rewind(consumer)
            return {}
        except OffsetOutOfRangeError as error:
            self._rewind(consumer)
            await self._out_of_range(consumer, error)
            return {}
        except _CORRUPT as error:
            # The error does not say which partition it was; each of them is asked alone from now on.
            self._rewind(consumer)
            self._log.warning("fetch_was_corrupt", partitions=len(partitions), **error_fields(error))
            self._suspects |= {place: _Suspect() for place in partitions}
            return {}
        except KafkaError as error:
            self._rewind(consumer)
            await self._failed(error, pause)
            return {}
        self._failures, self.has_polled = 0, True
        return polled

    async def _fetch(
        self, consumer: GroupConsumer, partitions: Sequence[TopicPartition], wait_s: float
    ) -> dict[TopicPartition, list[Message]]:
        """Wait for messages; where some lie ready, gather what has come since they were fetched."""
        messages_max = self._limits.batch_messages_max
        polled = await consumer.getmany(*partitions, timeout_ms=0, max_records=messages_max)
        if not polled:
            return await consumer.getmany(*partitions, timeout_ms=int(wait_s * 1000), max_records=messages_max)
        missing = messages_max - sum(map(len, polled.values()))
        # With half a batch there is enough to do, and what comes meanwhile makes the other half.
        if missing <= messages_max // 2:
            return polled
        owners = self._owners()
        more = await consumer.getmany(*partitions, timeout_ms=_GATHER_MS, max_records=missing)
        now = self._owners()
        # A lane that came with a rebalance meanwhile reads from its own offset, what was there before included.
        gathered = {place: messages for place, messages in polled.items() if now.get(place) is owners.get(place)}
        for place, messages in more.items():
            gathered[place] = [*gathered.get(place, ()), *messages]
        return gathered

    async def _failed(self, error: KafkaError, pause: Callable[[float], Awaitable[Any]]) -> None:
        self._failures += 1
        self._log.warning("poll_failed", failures=self._failures, **error_fields(error))
        if self._failures >= _FAILURES_MAX:
            self._failures = 0
            raise error
        await pause(min(_RETRY_FIRST_S * 2**self._failures, self._limits.sink_retry_delay_max_s))

    def _rewind(self, consumer: GroupConsumer) -> None:
        """Go back to what was settled, in every lane that is idle: a failed fetch drops what it had already drained."""
        assigned = consumer.assignment()
        for place, offset in self._settled().items():
            if place in assigned:
                consumer.seek(place, offset)

    # ------------------------------------------------------------------------------------------- missing offsets

    async def _out_of_range(self, consumer: GroupConsumer, error: OffsetOutOfRangeError) -> None:
        ready = self._ready()
        positions: Any = error.args[0] if error.args and isinstance(error.args[0], dict) else ready
        wanted = {place: ready[place] for place in positions if place in ready}
        if not wanted:
            # Its lane is opened again meanwhile, and looks where its log begins.
            return
        beginnings = await consumer.beginning_offsets(list(wanted))
        missing = MissingOffsetsError({place: (offset, beginnings[place]) for place, offset in wanted.items()})
        try:
            await self.skip_missing(consumer, missing)
        except CommitFailedError as refused:
            # Whoever has them now looks where their logs begin.
            self._log.warning("offsets_not_skipped", **error_fields(refused))
            return
        for slot in self._slots():
            for place in slot.lane.partitions & beginnings.keys() & consumer.assignment():
                slot.committed[place] = beginnings[place]
                consumer.seek(place, beginnings[place])

    async def skip_missing(self, consumer: GroupConsumer, missing: MissingOffsetsError) -> None:
        """Commit the beginnings of logs that do not reach back, and say what is lost; raised where that is not wanted.

        Raises CommitFailedError when the partitions are no longer ours to decide about.
        """
        if self._rules.on_missing_offsets == "stop":
            raise missing
        await self._commit_skipped(consumer, {place: begins for place, (_, begins) in missing.places.items()})
        for place, (wanted, begins) in missing.places.items():
            lost = max(0, begins - wanted)
            self._metrics.count("missing_offsets", lost, role=self._role, topic=place.topic, partition=place.partition)
            self._log.error(
                "offsets_missing",
                topic=place.topic,
                partition=place.partition,
                first_offset=wanted,
                last_offset=begins - 1 if lost else None,
                next_offset=begins,
                problem="deleted before they were read" if lost else "the log ends before the offset to be read next",
            )

    async def _commit_skipped(self, consumer: GroupConsumer, offsets: dict[TopicPartition, int]) -> None:
        try:
            await consumer.commit(offsets)
        except IllegalStateError as error:
            raise CommitFailedError from error

    # ------------------------------------------------------------------------------------------- corrupt batches

    async def _read_suspect(self, consumer: GroupConsumer, place: TopicPartition, polled: Polled) -> None:
        """Read one partition message by message, so that a corrupt batch costs nothing of what comes before it."""
        suspect, start = self._suspects[place], self._ready().get(place)
        if start is None or place not in consumer.assignment() or time.monotonic() < suspect.retry_at:
            return
        messages: list[Message] = []
        error: Exception | None = None
        try:
            while len(messages) < _SUSPECT_MESSAGES_MAX:
                wait_ms = 0 if messages else _SUSPECT_WAIT_MS
                got = (await consumer.getmany(place, timeout_ms=wait_ms, max_records=1)).get(place, [])
                messages += got
                if not got:
                    break
        except _CORRUPT as caught:
            error = caught
        if error is None:
            self._clear(consumer, place, start, messages)
        elif place in consumer.assignment() and self._settled().get(place) == start:
            # What failed has moved nothing, or past what was not given out: the place is made certain.
            consumer.seek(place, messages[-1].offset + 1 if messages else start)
            if not messages:
                await self._note_corrupt(consumer, place, start, polled, error)
        if messages:
            polled.messages[place] = messages

    def _clear(self, consumer: GroupConsumer, place: TopicPartition, start: int, messages: Sequence[Message]) -> None:
        """Take a partition from under suspicion: it gave what it had, or it has been read to its end."""
        end = consumer.highwater(place)
        if messages or (end is not None and end <= start):
            del self._suspects[place]

    async def _note_corrupt(
        self, consumer: GroupConsumer, place: TopicPartition, offset: int, polled: Polled, error: Exception
    ) -> None:
        suspect = self._suspects[place]
        if suspect.offset != offset:
            suspect.offset, suspect.tries = offset, 0
        suspect.tries += 1
        suspect.retry_at = time.monotonic() + _RETRY_FIRST_S * 2**suspect.tries
        where: dict[str, Any] = {"topic": place.topic, "partition": place.partition, "offset": offset}
        self._log.warning("batch_is_corrupt", failures=suspect.tries, **where, **error_fields(error))
        if suspect.tries < self._limits.corrupt_batch_tries_max:
            return
        if self._rules.on_corrupt_batch == "stop":
            del self._suspects[place]
            self._stop(consumer, place, offset)
            self._log.error("partition_stopped", problem="a batch is corrupt", way_out=_CORRUPT_WAY_OUT, **where)
            return
        try:
            span = await self._rules.find_span(place, offset)
        except (KafkaError, OSError) as failure:
            # The leader is away: the batch is tried, and its end asked for, once more.
            self._log.warning("corrupt_batch_not_measured", **where, **error_fields(failure))
            return
        if self._ready().get(place) != offset or place not in consumer.assignment():
            return
        consumer.seek(place, span.next_offset)
        polled.corrupt[place] = CorruptBatch(offset, span.next_offset, span.size_bytes)

    def _stop(self, consumer: GroupConsumer, place: TopicPartition, offset: int) -> None:
        for slot in self._slots():
            if place in slot.lane.partitions:
                slot.corrupt_at[place] = offset
        consumer.pause(place)

    def skipped(self, batches: Iterable[tuple[TopicPartition, CorruptBatch | None]]) -> None:
        """Say which corrupt batches are behind us, now that their dead letters are durable."""
        for place, corrupt in batches:
            if corrupt is None:
                continue
            self._suspects.pop(place, None)
            self._metrics.count("corrupt_batches", role=self._role, topic=place.topic, partition=place.partition)
            self._log.error(
                "corrupt_batch_skipped",
                topic=place.topic,
                partition=place.partition,
                first_offset=corrupt.first_offset,
                last_offset=corrupt.next_offset - 1,
            )
