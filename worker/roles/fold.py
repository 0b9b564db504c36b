"""The fold role: facts of one partition join into state, and what follows from it goes to the logs, fenced.

Per partition and batch, one Kafka transaction holds the changed records, the derived facts, the tombstones of
superseded facts and the committed offset. Every reader of these topics reads committed messages only.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import orjson
import structlog

from projections.facts import Fact, decode_fact, encode_fact, partition_of
from projections.fold import Change, Fold, FoldResult, Load
from worker.dead_letters.letter import DeadLetter, corrupt_batch_letter, dead_letter, encode_dead_letter
from worker.exports import KIND_HEADER, REPO_HEADER, SPLIT_HEADER, record_key
from worker.facts_log import read_log
from worker.kafka import (
    BatchWriter,
    FencedWriter,
    GroupConsumer,
    Header,
    Message,
    Producer,
    TopicPartition,
    group_consumer,
    log_reader,
    plain_producer,
    start_producer,
    transactional_producer,
)
from worker.lanes import Batch, Lane, SpoiltLaneError, committed_positions
from worker.logs import error_fields
from worker.metrics import CounterName, Metrics
from worker.settings import Settings
from worker.state import FoldStore, Held, LocalState, StateFailedError
from worker.topics import fold_group, own_topics

_log = structlog.get_logger(__name__)

# Restoring is a burst of decoding; more at once would only take turns on one event loop.
_RESTORES_AT_ONCE = 2
# Written at once, and until then in memory; a shorter restore that is killed before begins where it began.
_RESTORE_ROWS_MAX = 4_000
_SETTLED_AT_ONCE = 100


class FoldRole:
    """Reads the facts log and writes the records log; one lane, one state and one producer per partition."""

    name = "fold"

    def __init__(self, settings: Settings, metrics: Metrics, store: FoldStore, *, is_fenced: bool) -> None:
        self._settings = settings
        self._metrics = metrics
        self._store = store
        self._is_fenced = is_fenced
        self._restores = asyncio.Semaphore(_RESTORES_AT_ONCE)
        self._lanes: Sequence[FoldLane] = ()
        self.topics: tuple[str, ...] = (own_topics(settings).facts,)
        metrics.watch("fenced", lambda: [((), float(is_fenced))])
        metrics.watch("held_aggregates", lambda: self._sums(FoldLane.held_counts))
        metrics.watch("state_facts", lambda: [((), float(sum(lane.facts_held for lane in self._lanes)))])
        metrics.watch("fold_findings", lambda: self._sums(FoldLane.findings))

    def make_consumer(self) -> GroupConsumer:
        return group_consumer(self._settings, fold_group(self._settings))

    def make_lanes(self, partitions: frozenset[TopicPartition]) -> Sequence[Lane]:
        self._store.forget_others(frozenset(partition.partition for partition in partitions))
        self._lanes = [
            FoldLane(
                partition,
                self._settings,
                self._metrics,
                self._store,
                self._restores,
                is_fenced=self._is_fenced,
                facts_max=self._settings.limits.state_facts_max // len(partitions),
            )
            for partition in sorted(partitions)
        ]
        return self._lanes

    def _sums(self, read: Callable[["FoldLane"], Mapping[str, int]]) -> list[tuple[tuple[str, ...], float]]:
        """Add up what each partition's state counts, by name."""
        counts: Counter[str] = Counter()
        for lane in self._lanes:
            counts.update(read(lane))
        return [((name,), count) for name, count in counts.items()]


class FoldLane:
    """Folds one facts partition; durable means committed in the transaction that also commits the offset."""

    rest_until = 0.0

    def __init__(
        self,
        partition: TopicPartition,
        settings: Settings,
        metrics: Metrics,
        store: FoldStore,
        restores: asyncio.Semaphore,
        *,
        is_fenced: bool,
        facts_max: int,
    ) -> None:
        self.partitions = frozenset((partition,))
        self._partition = partition
        self._settings = settings
        self._metrics = metrics
        self._store = store
        self._restores = restores
        self._is_fenced = is_fenced
        self._facts_max = facts_max
        self._topics = own_topics(settings)
        self._producer: Producer | None = None
        self._writer: BatchWriter | None = None
        self._held: Held | None = None
        self._local: LocalState | None = None
        self._waiting: tuple[Batch, Sequence[tuple[int, Fact]]] | None = None
        self._is_ahead = False
        self._is_careful = False
        self._results: list[FoldResult] = []
        self._folded_facts = 0

    def held_counts(self) -> Mapping[str, int]:
        """Count, per kind, the aggregates that hold something back until another fact comes."""
        return {} if self._held is None else self._held.fold.held_counts()

    def findings(self) -> Mapping[str, int]:
        """Count what was decided against some fact, by name: no record shows it, and an operator should see it."""
        return {} if self._held is None else self._held.fold.counters()

    @property
    def facts_held(self) -> int:
        """How many facts are in memory."""
        return 0 if self._held is None else self._held.fold.facts_held

    @property
    def stopped_at(self) -> Mapping[TopicPartition, int]:
        return {}

    async def open(self, consumer: GroupConsumer) -> Mapping[TopicPartition, int]:
        """Fence whoever had this partition, then see how far it got, then restore up to there; in this order.

        What the predecessor commits before it is fenced is part of what is read here; after that it can commit nothing.
        """
        await self.close()
        self._producer = self._make_producer()
        await start_producer(self._producer)
        group = fold_group(self._settings)
        self._writer = FencedWriter(self._producer, group) if self._is_fenced else BatchWriter(self._producer)
        positions = await committed_positions(consumer, self.partitions)
        position = positions[self._partition]
        async with self._restores:
            self._held = await self._held_at(position)
        return positions

    async def _held_at(self, position: int) -> Held:
        """Give the fold as it is at the committed offset: as it was kept, or from the disk; the rest from the log."""
        local = self._local = await self._store.open_local(self._partition.partition, position)
        held = self._store.take(self._partition.partition)
        if local is None:
            if held is None or held.position != position:
                held = Held(await self._read_log(self._new_fold(), 0, position), position)
            return held
        fold = self._new_fold(load=self._load, totals=local.totals)
        if local.position != position:
            await self._read_log(fold, local.position or 0, position)
            while fold.settle(_SETTLED_AT_ONCE):  # noqa: ASYNC110  (others get their turn)
                await asyncio.sleep(0)
            await self._write_local(fold, position)
        return Held(fold, position)

    def _new_fold(self, load: Load | None = None, totals: Mapping[str, int] | None = None) -> Fold:
        settings = self._settings
        return Fold(generation=settings.generation, unbound=settings.unbound, load=load, totals=totals)

    def _load(self, name: str) -> Iterable[Fact]:
        assert self._local is not None
        facts = list(self._local.load(name))
        self._count_restored("local", len(facts))
        return facts

    def _count_restored(self, place: str, facts: int) -> None:
        self._metrics.count("restored_facts", facts, **{"from": place})

    def _make_producer(self) -> Producer:
        if not self._is_fenced:
            return plain_producer(self._settings)
        settings = self._settings
        transactional_id = f"{settings.app_id}-g{settings.generation}-fold-{self._partition.partition}"
        return transactional_producer(settings, transactional_id)

    async def _read_log(self, fold: Fold, begin: int, end: int) -> Fold:
        """Join the facts log of this partition between two offsets."""
        reader = log_reader(self._settings)
        try:
            async for part in read_log(reader, self._partition, begin, end, self._settings.limits.batch_messages_max):
                # What cannot be read was buried when its offset was committed.
                items = self._items(part.messages, lambda _message: None)
                if self._local is not None:
                    await self._local.fetch(fold.missing(fact.aggregate for _, fact in items))
                fold.restore(items)
                self._count_restored("log", len(items))
                if self._local is not None and self._local.waiting_rows >= _RESTORE_ROWS_MAX:
                    await self._write_local(fold, part.position, is_finished=False)
                await asyncio.sleep(0)
        finally:
            await reader.stop()
        return fold

    # --------------------------------------------------------------------------------------- handle, flush, commit

    def accepted(self, batches: Sequence[Batch]) -> None:
        """Facts are not accounted for: their messages were."""

    def handle(self, batch: Batch) -> None:
        assert self._held is not None
        self._is_ahead = True
        if batch.corrupt is not None:
            first_offset, next_offset, size_bytes = batch.corrupt
            self._write_letter(corrupt_batch_letter(*self._partition, first_offset, next_offset - 1, size_bytes))
        items = self._items(batch.messages, self._refuse)
        if self._local is not None and self._held.fold.missing(fact.aggregate for _, fact in items):
            # They are on the disk, or new; `flush` looks for them off the event loop, and then folds.
            self._waiting = batch, items
        else:
            self._fold(batch, items)

    def _fold(self, batch: Batch, items: Sequence[tuple[int, Fact]]) -> None:
        for part in [[item] for item in items] if self._is_careful else [items]:
            self._fold_part(part, batch)
        self._folded_facts += len(items)

    async def _fold_waiting(self) -> None:
        if self._waiting is None:
            return
        assert self._held is not None
        assert self._local is not None
        (batch, items), self._waiting = self._waiting, None
        try:
            await self._local.fetch(self._held.fold.missing(fact.aggregate for _, fact in items))
        except StateFailedError as error:
            raise SpoiltLaneError from error
        self._fold(batch, items)

    def _fold_part(self, items: Sequence[tuple[int, Fact]], batch: Batch) -> None:
        assert self._held is not None
        if not items:
            return
        try:
            result = self._held.fold.apply(items)
        except MemoryError:
            raise
        except StateFailedError as error:
            raise SpoiltLaneError from error
        except Exception as error:
            # The state is half changed now. It is restored, and the next time facts are folded one by one, so that
            # the one that cannot be folded is found and left out.
            if not self._is_careful:
                self._is_careful = True
                raise SpoiltLaneError from error
            [(offset, _fact)] = items
            _log.error("fact_not_folded", partition=self._partition.partition, offset=offset, **error_fields(error))
            message = next(message for message in batch.messages if message.offset == offset)
            if self._local is not None and message.key is not None:
                self._local.delete(message.key)
            self._bury(message, "fold_failed")
        else:
            self._collect(result)

    def _items(self, messages: Iterable[Message], refuse: Callable[[Message], None]) -> list[tuple[int, Fact]]:
        """Decode facts with their offsets; tombstones of superseded facts say nothing to the fold, only to the disk."""
        items = []
        for message in messages:
            key, value = message.key or b"", message.value
            if value is None:
                if self._local is not None:
                    self._local.delete(key)
                continue
            try:
                fact = decode_fact(key, value)
            except (ValueError, TypeError):
                refuse(message)
                continue
            items.append((message.offset, fact))
            if self._local is not None:
                self._local.put(key, value, fact)
        return items

    def _refuse(self, message: Message) -> None:
        # Only this program writes the facts log, so this is a foreign message, or a fact of another version of it.
        _log.error("fact_not_read", partition=self._partition.partition, offset=message.offset)
        self._bury(message, "invalid_fact")

    def _collect(self, result: FoldResult) -> None:
        for change in result.changes:
            key = record_key(change.kind, change.id)
            self._append(self._topics.records, change.id, key, change.record, headers_of(change))
        for fact in result.facts:
            self._append(self._topics.facts, fact.aggregate, *encode_fact(fact))
        assert self._writer is not None
        for key in result.superseded:
            self._writer.append(*self._partition, key, None)
            if self._local is not None:
                self._local.delete(key)
        self._results.append(result)

    def _bury(self, message: Message, reason: str) -> None:
        self._write_letter(dead_letter(*self._partition, message, reason))

    def _write_letter(self, letter: DeadLetter) -> None:
        key, value = encode_dead_letter(letter)
        self._append(self._topics.dead_letters, key.decode(), key, value)
        self._metrics.count("dead_lettered_facts", partition=self._partition.partition, reason=letter.reason)

    def _append(self, topic: str, name: str, key: bytes, value: bytes | None, headers: Sequence[Header] = ()) -> None:
        assert self._writer is not None
        self._writer.append(topic, partition_of(name, self._settings.partitions), key, value, headers)

    async def flush(self) -> None:
        await self._fold_waiting()
        # Inside a transaction nothing is durable before the offsets are committed with it: `commit` does both.
        if not isinstance(self._writer, FencedWriter):
            assert self._writer is not None
            await self._writer.flush()

    async def commit(self, consumer: GroupConsumer, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the offset with the outputs, and then write the state and its position to the disk.

        In this order a state on disk is never ahead of its outputs, whatever ends the worker in between: what it lacks
        is joined again from the log. (Written before, it would have to be thrown away.)
        """
        assert self._writer is not None
        assert self._waiting is None, "what was handled is flushed before it is committed"
        if isinstance(self._writer, FencedWriter) and not self._writer.is_empty():
            await self._writer.commit(positions)
        else:
            # Nothing was made from the batch, or the broker has no transactions; the group's own generation guards it.
            await consumer.commit(positions)
        if self._local is not None and self._held is not None:
            try:
                await self._write_local(self._held.fold, positions[self._partition])
            except StateFailedError as error:
                raise SpoiltLaneError from error

    async def _write_local(self, fold: Fold, position: int, *, is_finished: bool = True) -> None:
        assert self._local is not None
        await self._local.write(position, fold.totals() if is_finished else None)
        # Not before: what is let go is on the disk.
        fold.let_go(self._facts_max)

    def settled(self, batches: Sequence[Batch]) -> None:
        assert self._held is not None
        self._held = self._held._replace(position=batches[-1].next_offset)
        self._is_ahead = False
        partition = self._partition.partition
        self._metrics.count("folded_facts", self._folded_facts, partition=partition)
        for result in self._results:
            self._metrics.count("superseded_facts", len(result.superseded), partition=partition)
            for change in result.changes:
                name: CounterName = "deleted_records" if change.record is None else "published_records"
                self._metrics.count(name, kind=change.kind)
        self._forget_results()

    def abandoned(self, batches: Sequence[Batch]) -> None:
        del batches
        self._forget_results()

    def _forget_results(self) -> None:
        self._results.clear()
        self._waiting = None
        self._folded_facts = 0

    async def close(self) -> None:
        held, self._held = self._held, None
        local, self._local = self._local, None
        if held is not None and local is None and not self._is_ahead:
            self._store.keep(self._partition.partition, held)
        self._is_ahead = False
        if local is not None:
            await local.close()
        producer, self._producer, self._writer = self._producer, None, None
        if producer is not None:
            await producer.abandon()


def headers_of(change: Change) -> list[Header]:
    """Give the headers of a record's message: its kind, and what redaction or pricing needs and its value lacks."""
    headers = [(KIND_HEADER, change.kind.encode())]
    if change.record is None and change.repo is not None:
        headers.append((REPO_HEADER, change.repo.encode()))
    if change.cache_write_split is not None:
        headers.append((SPLIT_HEADER, orjson.dumps(change.cache_write_split)))
    return headers
