"""The project role: source messages become facts, or a dead letter each; stateless, so any worker takes any message."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from projections.errors import ProjectionError
from projections.facts import encode_fact, partition_of
from projections.sources import project_message
from projections.sources.envelope import Limits
from worker.dead_letters.letter import (
    UNEXPECTED_ERROR,
    DeadLetter,
    corrupt_batch_letter,
    dead_letter,
    encode_dead_letter,
)
from worker.dead_letters.limits import DeadLetterLimits
from worker.kafka import (
    BatchWriter,
    GroupConsumer,
    Message,
    Producer,
    TopicPartition,
    group_consumer,
    idempotent_producer,
    plain_producer,
    start_producer,
)
from worker.lanes import Batch, CorruptBatch, Lane, committed_positions
from worker.metrics import MessageBook, Metrics, Tally
from worker.settings import Settings
from worker.settings_sections import LimitSettings
from worker.topics import own_topics, project_group

EncodedFact = tuple[str, bytes, bytes]
"""Aggregate, key and value in the facts log."""


class Outcome(NamedTuple):
    """What became of one message: facts, or one reason why there are none, and the parts that were refused."""

    facts: Sequence[EncodedFact] = ()
    ignored: str | None = None
    dead: str | None = None
    field: str | None = None
    issues: tuple[str, ...] = ()


def project_outcome(source: str, partition: int, message: Message, limits: LimitSettings) -> Outcome:
    """Project one message; whatever is wrong with it is an outcome and no exception."""
    if len(message.value or b"") > limits.message_bytes_max:
        return Outcome(dead="message_too_large")
    try:
        projected = project_message(
            source,
            message.key,
            message.value,
            partition,
            message.offset,
            limits=Limits(limits.facts_per_message_max, limits.transcript_line_bytes_max, limits.json_depth_max),
        )
        facts = [(fact.aggregate, *encode_fact(fact)) for fact in projected.facts]
    except ProjectionError as error:
        return Outcome(dead=error.reason, field=error.field)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  (a fault of ours that shows in one message must not stop all the others)
        return Outcome(dead=UNEXPECTED_ERROR)
    if any(len(key) + len(value) > limits.message_bytes_max for _, key, value in facts):
        return Outcome(dead="fact_too_large")
    return Outcome(facts, ignored=projected.ignored, issues=projected.issues)


def letter_of(place: TopicPartition, message: Message, outcome: Outcome) -> DeadLetter | None:
    """Give the dead letter that an outcome deserves: of the message, or (partial) of the parts that were refused."""
    if outcome.dead is not None:
        return dead_letter(*place, message, outcome.dead, field=outcome.field)
    if outcome.issues:
        return dead_letter(*place, message, outcome.issues[0], is_partial=True)
    return None


def corrupt_letter(place: TopicPartition, corrupt: CorruptBatch) -> DeadLetter:
    """Give the dead letter of a batch that no client can read."""
    return corrupt_batch_letter(*place, corrupt.first_offset, corrupt.next_offset - 1, corrupt.size_bytes)


class ProjectRole:
    """Reads the source topics and writes the facts log."""

    name = "project"

    def __init__(self, settings: Settings, metrics: Metrics, *, is_idempotent: bool) -> None:
        self._settings = settings
        self._metrics = metrics
        self._book = MessageBook(metrics)
        self._dead_letters = DeadLetterLimits(settings.limits)
        self._lanes: Sequence[ProjectLane] = ()
        self._is_idempotent = is_idempotent
        metrics.watch("stopped_partitions", self._stopped_partitions)
        self.topics: tuple[str, ...] = tuple(settings.source_topics.values())

    def make_consumer(self) -> GroupConsumer:
        return group_consumer(self._settings, project_group(self._settings))

    def make_lanes(self, partitions: frozenset[TopicPartition]) -> Sequence[Lane]:
        # One lane: all output goes the same way, so nothing is gained by keeping partitions apart.
        lane = ProjectLane(
            partitions, self._settings, self._metrics, self._book, self._make_producer, self._dead_letters
        )
        self._lanes = (lane,) if partitions else ()
        return self._lanes

    def _stopped_partitions(self) -> list[tuple[tuple[str, ...], float]]:
        return [((topic, str(number)), 1.0) for lane in self._lanes for topic, number in lane.stopped_at]

    def _make_producer(self) -> Producer:
        # Where the broker cannot tell a resend from a new message, a fact may be stored twice; it is still one fact.
        return (idempotent_producer if self._is_idempotent else plain_producer)(self._settings)


class ProjectLane:
    """Projects the partitions that this worker has; durable means acknowledged by facts log and dead letters."""

    rest_until = 0.0

    def __init__(
        self,
        partitions: frozenset[TopicPartition],
        settings: Settings,
        metrics: Metrics,
        book: MessageBook,
        make_producer: Callable[[], Producer],
        dead_letters: DeadLetterLimits | None = None,
    ) -> None:
        self.partitions = partitions
        self._limits = settings.limits
        self._partition_count = settings.partitions
        self._topics = own_topics(settings)
        self._sources = {topic: source for source, topic in settings.source_topics.items()}
        self._metrics = metrics
        self._book = book
        self._make_producer = make_producer
        self._dead_letters = dead_letters or DeadLetterLimits(settings.limits)
        self._producer: Producer | None = None
        self._writer: BatchWriter | None = None
        self._handled: list[_Handled] = []

    @property
    def stopped_at(self) -> Mapping[TopicPartition, int]:
        return {partition: stop.offset for partition, stop in self._dead_letters.stops(self.partitions).items()}

    async def open(self, consumer: GroupConsumer) -> Mapping[TopicPartition, int]:
        await self.close()
        producer = self._make_producer()
        await start_producer(producer)
        self._producer = producer
        self._writer = BatchWriter(producer)
        positions = await committed_positions(consumer, self.partitions)
        for partition, position in positions.items():
            self._dead_letters.opened(partition, position)
        return positions

    def accepted(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._book.take(*batch.partition, len(batch.messages))

    def handle(self, batch: Batch) -> None:
        guard = self._dead_letters.guard(batch.partition)
        handled = _Handled(batch.partition, self._sources[batch.partition.topic])
        for message in guard.admitted(batch.messages):
            outcome = project_outcome(handled.source, batch.partition.partition, message, self._limits)
            self._collect(handled, message, outcome)
            handled.tally.messages += 1
            if guard.note(message.offset, is_dead=outcome.dead is not None):
                break
        handled.left = len(batch.messages) - handled.tally.messages
        self._handled.append(handled)
        if batch.corrupt is not None:
            self._bury(corrupt_letter(batch.partition, batch.corrupt))

    def _collect(self, handled: "_Handled", message: Message, outcome: Outcome) -> None:
        tally = handled.tally
        if outcome.dead is not None:
            tally.dead_lettered[outcome.dead] += 1
        elif outcome.ignored is not None:
            tally.ignored[outcome.ignored] += 1
        else:
            tally.projected += 1
        for aggregate, key, value in outcome.facts:
            self._append(self._topics.facts, aggregate, key, value)
        handled.facts += len(outcome.facts)
        handled.partial += outcome.issues
        letter = letter_of(handled.partition, message, outcome)
        if letter is not None:
            self._bury(letter)

    def _bury(self, letter: DeadLetter) -> None:
        key, value = encode_dead_letter(letter)
        self._append(self._topics.dead_letters, key.decode(), key, value)

    def _append(self, topic: str, name: str, key: bytes, value: bytes) -> None:
        assert self._writer is not None
        self._writer.append(topic, partition_of(name, self._partition_count), key, value)

    async def flush(self) -> None:
        assert self._writer is not None
        await self._writer.flush()

    async def commit(self, consumer: GroupConsumer, positions: Mapping[TopicPartition, int]) -> None:
        await consumer.commit(positions)

    def settled(self, batches: Sequence[Batch]) -> None:
        del batches  # what was handled since the last time is exactly what is settled
        for handled in self._handled:
            topic, partition = handled.partition
            self._book.settle(topic, partition, handled.tally)
            self._book.leave(topic, partition, handled.left)
            self._metrics.count("published_facts", handled.facts, source=handled.source)
            for issue in handled.partial:
                self._metrics.count("partial_messages", topic=topic, partition=partition, reason=issue)
        self._handled.clear()
        self._dead_letters.tell_new(self.partitions)

    def abandoned(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._book.give_back(*batch.partition, len(batch.messages))
        self._handled.clear()

    async def close(self) -> None:
        producer, self._producer, self._writer = self._producer, None, None
        if producer is not None:
            await producer.abandon()


class _Handled:
    """What one batch of one partition gave, until it is settled."""

    def __init__(self, partition: TopicPartition, source: str) -> None:
        self.partition = partition
        self.source = source
        self.tally = Tally(0)
        self.left = 0
        self.facts = 0
        self.partial: tuple[str, ...] = ()
