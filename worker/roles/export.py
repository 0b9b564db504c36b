"""The export role: records become redacted upserts in one sink; one consumer group per export."""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from projections.errors import ProjectionError
from projections.facts import partition_of
from worker.assignor import SingleWriterAssignor
from worker.dead_letters.letter import (
    UNEXPECTED_ERROR,
    DeadLetter,
    corrupt_batch_letter,
    dead_letter,
    encode_dead_letter,
)
from worker.export_policy import policy_for
from worker.exports import ExportPolicy, RecordMessage, make_upsert, record_message
from worker.kafka import (
    BatchWriter,
    GroupConsumer,
    Message,
    Producer,
    TopicPartition,
    group_consumer,
    plain_producer,
    start_producer,
)
from worker.lanes import Batch, CorruptBatch, Lane, RetryLater, StopWorkerError, committed_positions
from worker.metrics import Metrics
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import Sink, SinkBusy, SinkRefused, Upsert, open_sink
from worker.sink_place import Serving, SinkPlace
from worker.sink_setup import configure_sink
from worker.sink_switch import can_be_switched
from worker.topics import export_group, own_topics

_log = structlog.get_logger(__name__)

_REST_MAX_S = 0.5


class ExportRole:
    """Reads the records log and keeps one sink up to date with it.

    ``can_stand_beside`` says whether it can do so out of sight while another generation than its own serves.
    Raises SettingsError when the export has no usable key or price table, and SinkRefused for a sink URL that names
    none.
    """

    def __init__(
        self, settings: Settings, export: ExportSettings, metrics: Metrics, serving: Serving | None = None
    ) -> None:
        self.name = f"export:{export.name}"
        self.topics: tuple[str, ...] = (own_topics(settings).records,)
        self._settings = settings
        self._export = export
        self._metrics = metrics
        self._policy = policy_for(settings, export)
        self._sink = open_sink(export.sink, self._policy.digest)
        configure_sink(self._sink, settings, export)
        self.can_stand_beside = can_be_switched(export.sink)
        if self.can_stand_beside:
            place = serving or Serving(settings.generation)
            self._sink = SinkPlace(export.sink, self._policy.digest, settings.generation, place)
        for warning in self._policy.warnings:
            _log.warning("export_policy", export=export.name, problem=warning)

    def make_consumer(self) -> GroupConsumer:
        # A sink with one writer gives all partitions to one member; the others stand by and take over when it leaves.
        assignors = [SingleWriterAssignor()] if self._sink.single_writer else None
        return group_consumer(self._settings, export_group(self._settings, self._export.name), assignors)

    def make_lanes(self, partitions: frozenset[TopicPartition]) -> Sequence[Lane]:
        # One lane: the sink takes all partitions in one write, and when it fails it fails for all of them.
        if not partitions:
            return ()
        return (ExportLane(partitions, self._settings, self._export.name, self._policy, self._sink, self._metrics),)


class ExportLane:
    """Exports the partitions that this worker has; durable means that the sink's write has returned."""

    def __init__(
        self,
        partitions: frozenset[TopicPartition],
        settings: Settings,
        export: str,
        policy: ExportPolicy,
        sink: Sink,
        metrics: Metrics,
    ) -> None:
        self.partitions = partitions
        self._settings = settings
        self._export = export
        self._policy = policy
        self._sink = sink
        self._metrics = metrics
        self._producer: Producer | None = None
        self._letters: BatchWriter | None = None
        self._upserts: list[Upsert] = []
        self._written = 0
        self._rest_until = 0.0

    @property
    def rest_until(self) -> float:
        """As long after the last write as it took, so that a sink whose writes cost much however small gets fewer.

        Not when there is more to write than a batch takes.
        """
        return self._rest_until

    @property
    def stopped_at(self) -> Mapping[TopicPartition, int]:
        return {}

    async def open(self, consumer: GroupConsumer) -> Mapping[TopicPartition, int]:
        await self.close()
        try:
            is_empty = await self._sink.open()
        except SinkBusy as error:
            raise RetryLater(error.delay_s) from error
        except SinkRefused as error:
            raise StopWorkerError(f"export {self._export}: {error}") from error
        self._producer = plain_producer(self._settings)
        await start_producer(self._producer)
        self._letters = BatchWriter(self._producer)
        if is_empty or not self._sink.is_durable:
            # Whatever was committed, this sink holds nothing of it: it is new, or it was lost.
            return await consumer.beginning_offsets(self.partitions)
        return await committed_positions(consumer, self.partitions)

    def accepted(self, batches: Sequence[Batch]) -> None:
        """Records are not accounted for: the messages they came from were."""

    def handle(self, batch: Batch) -> None:
        if batch.corrupt is not None:
            self._bury_corrupt(batch.partition, batch.corrupt)
        # Only the newest version of a record in a batch is worth redacting.
        newest: dict[tuple[str, str], tuple[Message, RecordMessage]] = {}
        for message in batch.messages:
            try:
                item = record_message(self._settings.generation, message)
            except ProjectionError as error:
                self._bury(batch.partition, message, error.reason, error.field)
            else:
                if self._policy.takes(item.kind, item.id):
                    newest[item.kind, item.id] = message, item
        for message, item in newest.values():
            self._collect(batch.partition, message, item)

    def _collect(self, partition: TopicPartition, message: Message, item: RecordMessage) -> None:
        # Fails closed: a record that cannot be redacted does not leave, and does not hold up the others.
        try:
            self._upserts.append(make_upsert(self._policy, item))
        except ProjectionError as error:
            self._bury(partition, message, error.reason, error.field)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001
            self._bury(partition, message, UNEXPECTED_ERROR, None)

    def _bury(self, partition: TopicPartition, message: Message, reason: str, field: str | None) -> None:
        self._write_letter(dead_letter(*partition, message, reason, field=field))
        self._metrics.count("withheld_records", export=self._export, reason=reason)

    def _bury_corrupt(self, partition: TopicPartition, corrupt: CorruptBatch) -> None:
        last_offset = corrupt.next_offset - 1
        self._write_letter(corrupt_batch_letter(*partition, corrupt.first_offset, last_offset, corrupt.size_bytes))

    def _write_letter(self, letter: DeadLetter) -> None:
        assert self._letters is not None
        key, value = encode_dead_letter(letter)
        topic = own_topics(self._settings).dead_letters
        self._letters.append(topic, partition_of(key.decode(), self._settings.partitions), key, value)

    async def flush(self) -> None:
        assert self._letters is not None
        await self._letters.flush()
        self._rest_until = 0.0
        if not self._upserts:
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await self._sink.write(self._upserts)
        except SinkBusy as error:
            raise RetryLater(error.delay_s) from error
        except SinkRefused as error:
            raise StopWorkerError(f"export {self._export}: {error}") from error
        if len(self._upserts) < self._settings.limits.batch_messages_max // 2:
            ended = loop.time()
            self._rest_until = ended + min(ended - started, _REST_MAX_S)
        self._written += len(self._upserts)
        self._upserts = []

    async def commit(self, consumer: GroupConsumer, positions: Mapping[TopicPartition, int]) -> None:
        await consumer.commit(positions)

    def settled(self, batches: Sequence[Batch]) -> None:
        del batches
        self._metrics.count("written_upserts", self._written, export=self._export)
        self._written = 0

    def abandoned(self, batches: Sequence[Batch]) -> None:
        """Whoever reads them again writes the same upserts, and the sink knows them."""

    async def close(self) -> None:
        self._upserts, self._written = [], 0
        producer, self._producer, self._letters = self._producer, None, None
        if producer is not None:
            await producer.abandon()
        await self._sink.close()
