"""The export role: records are filtered, redacted and upserted into one sink; one consumer group per export."""

from collections.abc import Mapping, Sequence

from worker.assignor import SingleWriterAssignor
from worker.exports import ExportPolicy, make_upserts
from worker.kafka import GroupConsumer, TopicPartition, group_consumer
from worker.lanes import Batch, Lane, RetryLater, StopWorkerError, committed_positions
from worker.metrics import Metrics
from worker.settings import ExportSettings, Settings
from worker.sink import Sink, SinkBusy, SinkRefused, Upsert, open_sink
from worker.topics import export_group, own_topics


class ExportRole:
    """Reads the records log and keeps one sink up to date with it."""

    def __init__(self, settings: Settings, export: ExportSettings, metrics: Metrics) -> None:
        self.name = f"export:{export.name}"
        self.topics = (own_topics(settings).records,)
        self._settings = settings
        self._export = export
        self._metrics = metrics
        self._policy = ExportPolicy.from_settings(export)
        self._sink = open_sink(export.sink, self._policy.digest)

    def make_consumer(self) -> GroupConsumer:
        # A sink with one writer gives all partitions to one member; the others stand by and take over when it leaves.
        assignors = [SingleWriterAssignor()] if self._sink.single_writer else None
        return group_consumer(self._settings, export_group(self._settings, self._export.name), assignors)

    def make_lanes(self, partitions: frozenset[TopicPartition]) -> Sequence[Lane]:
        # One lane: the sink takes all partitions in one write, and when it fails it fails for all of them.
        if not partitions:
            return ()
        return (ExportLane(partitions, self._export.name, self._settings.generation, self._policy, self._sink, self._metrics),)
