"""Every metric of a worker, in one table, and the book in which each consumed message is accounted for.

consumed = projected + ignored + dead-lettered + in flight holds for each partition of each source topic at every
scrape: the four are entered by the one event loop, in full before it does anything else, and a scrape runs on it too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CounterName = Literal[
    "consumed_messages",
    "projected_messages",
    "ignored_messages",
    "dead_lettered_messages",
    "dead_lettered_facts",
    "partial_messages",
    "published_facts",
    "folded_facts",
    "restored_facts",
    "published_records",
    "deleted_records",
    "superseded_facts",
    "withheld_records",
    "written_upserts",
    "settled_batches",
    "busy_seconds",
    "retries",
    "missing_offsets",
    "corrupt_batches",
]
GaugeName = Literal[
    "in_flight_messages",
    "lag_messages",
    "oldest_in_flight_seconds",
    "assigned_partitions",
    "ready_partitions",
    "paused_partitions",
    "stopped_partitions",
    "corrupt_partitions",
    "commit_standstill_seconds",
    "held_aggregates",
    "fold_findings",
    "state_facts",
    "fenced",
]


class Description(NamedTuple):
    """What a metric counts, and its labels; every label has a bounded set of values."""

    help: str
    labels: tuple[str, ...]


_SOURCE = ("topic", "partition")

COUNTERS: Final[Mapping[CounterName, Description]] = {
    "consumed_messages": Description("Messages taken from a source topic.", _SOURCE),
    "projected_messages": Description("Messages that became facts, all of them durable.", _SOURCE),
    "ignored_messages": Description("Messages that mean nothing to a trace, by reason.", (*_SOURCE, "reason")),
    "dead_lettered_messages": Description("Messages that cannot be projected, by reason.", (*_SOURCE, "reason")),
    "dead_lettered_facts": Description("Facts that the fold could not take, by reason.", ("partition", "reason")),
    "partial_messages": Description("Projected messages of which a part was refused, by reason.", (*_SOURCE, "reason")),
    "published_facts": Description("Facts written to the facts log by the project role.", ("source",)),
    "folded_facts": Description("Facts joined into the state.", ("partition",)),
    "restored_facts": Description("Facts joined again, from the facts log or from local state.", ("from",)),
    "published_records": Description("Trace records written, by kind.", ("kind",)),
    "deleted_records": Description("Trace records taken back, by kind.", ("kind",)),
    "superseded_facts": Description("Facts removed from the facts log because a newer version stands.", ("partition",)),
    "withheld_records": Description("Records that could not be redacted and did not leave.", ("export", "reason")),
    "written_upserts": Description("Upserts that a sink has made durable.", ("export",)),
    "settled_batches": Description("Batches whose offsets were committed.", ("role",)),
    "busy_seconds": Description("Time from taking batches to committing their offsets.", ("role",)),
    "retries": Description("Tries of a batch that failed and are repeated.", ("role",)),
    "missing_offsets": Description("Offsets that were deleted before they were read, and skipped.", ("role", *_SOURCE)),
    "corrupt_batches": Description("Batches that cannot be read, and were skipped.", ("role", *_SOURCE)),
}
GAUGES: Final[Mapping[GaugeName, Description]] = {
    "in_flight_messages": Description("Messages of a source topic that are not durable yet.", _SOURCE),
    "lag_messages": Description("Messages between committed offset and end of the log.", ("role", *_SOURCE)),
    "oldest_in_flight_seconds": Description("Age of the oldest batch that is not durable yet.", ("role",)),
    "assigned_partitions": Description("Partitions that the group has given to this worker.", ("role",)),
    "ready_partitions": Description("Assigned partitions whose state is restored.", ("role",)),
    "paused_partitions": Description("Partitions that wait for the next try.", ("role",)),
    "stopped_partitions": Description("1 for a partition that stands still: too many dead letters.", _SOURCE),
    "corrupt_partitions": Description("1 for a partition that stands still at a corrupt batch.", ("role", *_SOURCE)),
    "commit_standstill_seconds": Description(
        "For how long a partition with messages to read has not moved its committed offset, at most.", ("role",)
    ),
    "held_aggregates": Description("Aggregates that hold something back until another fact comes.", ("kind",)),
    "fold_findings": Description(
        "What the fold decided against some fact: event_conflicts, refused_transitions and the like.", ("finding",)
    ),
    "state_facts": Description("Facts that the fold has in memory.", ()),
    "fenced": Description("1 when the fold writes in fenced transactions, 0 when the broker has none.", ()),
}
PREFIX: Final = "trace_projector_"

Labels = tuple[str, ...]
GaugeReader = Callable[[], Iterable[tuple[Labels, float]]]


class Metrics:
    """Counters that only grow, and gauges that are read when they are asked for."""

    def __init__(self) -> None:
        self._counts: dict[CounterName, dict[Labels, float]] = {name: defaultdict(float) for name in COUNTERS}
        self._readers: dict[GaugeName, list[GaugeReader]] = {name: [] for name in GAUGES}
        self._registry = CollectorRegistry()
        self._registry.register(_Snapshot(self))

    def count(self, name: CounterName, amount: float = 1, **labels: str | int) -> None:
        """Add to a counter; the labels are exactly those of its description."""
        self._counts[name][_label_values(COUNTERS[name], labels)] += amount

    def watch(self, name: GaugeName, reader: GaugeReader) -> None:
        """Read (label values, value) rows from a function at every scrape."""
        self._readers[name].append(reader)

    def value(self, name: CounterName, **labels: str | int) -> float:
        """Give one counter's value."""
        return self._counts[name].get(_label_values(COUNTERS[name], labels), 0)

    def families(self) -> Iterator[Metric]:
        """Give every metric as it is now; nothing is awaited in between, so the values fit together."""
        for counter, description in COUNTERS.items():
            counted = CounterMetricFamily(PREFIX + counter, description.help, labels=description.labels)
            for values, count in self._counts[counter].items():
                counted.add_metric(values, count)
            yield counted
        for gauge, description in GAUGES.items():
            gauged = GaugeMetricFamily(PREFIX + gauge, description.help, labels=description.labels)
            for reader in self._readers[gauge]:
                for values, value in reader():
                    gauged.add_metric(values, value)
            yield gauged

    def exposition(self) -> bytes:
        """Give all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class Tally:
    """What became of the messages of one source partition in one batch, entered into the book when it is durable."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.projected = 0
        self.ignored: dict[str, int] = defaultdict(int)
        self.dead_lettered: dict[str, int] = defaultdict(int)


class MessageBook:
    """Accounts for every message of every source partition that this worker has consumed."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._in_flight: dict[tuple[str, int], int] = defaultdict(int)
        metrics.watch("in_flight_messages", self._rows)

    def take(self, topic: str, partition: int, messages: int) -> None:
        """Enter messages that were polled: consumed, and in flight."""
        self._metrics.count("consumed_messages", messages, topic=topic, partition=partition)
        self._in_flight[topic, partition] += messages

    def settle(self, topic: str, partition: int, tally: Tally) -> None:
        """Enter what became of messages, now that it is durable and their offsets are committed."""
        accounted = tally.projected + sum(tally.ignored.values()) + sum(tally.dead_lettered.values())
        assert accounted == tally.messages, "every message of a batch has exactly one outcome"
        self._in_flight[topic, partition] -= tally.messages
        place: dict[str, str | int] = {"topic": topic, "partition": partition}
        self._metrics.count("projected_messages", tally.projected, **place)
        for reason, count in tally.ignored.items():
            self._metrics.count("ignored_messages", count, reason=reason, **place)
        for reason, count in tally.dead_lettered.items():
            self._metrics.count("dead_lettered_messages", count, reason=reason, **place)

    def give_back(self, topic: str, partition: int, messages: int) -> None:
        """Enter messages that did not become durable here: they are read again, by this worker or by another."""
        self._in_flight[topic, partition] -= messages
        self._metrics.count("ignored_messages", messages, topic=topic, partition=partition, reason="read_again")

    def leave(self, topic: str, partition: int, messages: int) -> None:
        """Enter messages that were polled and not looked at, because their partition stopped; they are read again."""
        if messages:
            self._in_flight[topic, partition] -= messages
            self._metrics.count("ignored_messages", messages, topic=topic, partition=partition, reason="stopped")

    def _rows(self) -> Iterator[tuple[Labels, float]]:
        for (topic, partition), messages in self._in_flight.items():
            yield (topic, str(partition)), messages


class _Snapshot(Collector):
    """Hands the metrics to prometheus_client's text writer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families()


def _label_values(description: Description, labels: Mapping[str, str | int]) -> Labels:
    assert labels.keys() == set(description.labels), "a metric has exactly the labels of its description"
    return tuple(str(labels[name]) for name in description.labels)
