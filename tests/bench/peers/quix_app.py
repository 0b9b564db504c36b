"""The three hops as a Quix Streams application, run as its own process: `python -m tests.bench.peers.quix_app`.

As its documentation shows it: one application with a dataframe per hop, `apply(..., expand=True)`, `to_topic` and a
sink of its own. A checkpoint flushes the sink and the producer and only then commits the offsets. Everything else is
message by message, because a dataframe is; the state of the fold is in memory per partition (Quix's own store would
write every change to RocksDB and to a changelog topic).

Tuned: bytes instead of JSON serializers, a checkpoint every half second (of 0.5, 1, 2 and 5 s the quickest), one write
of the sink for all partitions instead of one for each, snappy and a few milliseconds of lingering in the producer.
`to_topic` chooses a partition by the key alone, so facts travel under the name of their aggregate (librdkafka's
`consistent` is CRC-32, as in the worker), their own key in front of the value; facts that were superseded are not taken
out of their topic, which spares Quix work.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from quixstreams import Application, message_context
from quixstreams.models.serializers import BytesSerializer
from quixstreams.sinks import BaseSink

from tests.bench.peers.hops import Exporting, Folding, Header, Outgoing, Projecting, RecordRow
from tests.bench.place import Place

_BORDER = b"\n"


class _Value(BytesSerializer):
    """Takes the bytes out of what is on its way."""

    def __call__(self, value: Outgoing, ctx: Any) -> bytes | None:
        del ctx
        return value.value


class _FactValue(BytesSerializer):
    """Puts a fact's key, in which no line ends, in front of its value."""

    def __call__(self, value: Outgoing, ctx: Any) -> bytes:
        del ctx
        assert value.value is not None
        return value.key + _BORDER + value.value


class DuckDBSink(BaseSink):
    """Collects records until a checkpoint and writes them at once, durable before the offsets are committed."""

    def __init__(self, exporting: Exporting) -> None:
        super().__init__()
        self._exporting = exporting
        self._rows: list[RecordRow] = []
        self._runner = asyncio.Runner()

    def setup(self) -> None:
        self._runner.run(self._exporting.sink.open())

    def add(
        self, value: bytes | None, key: bytes, timestamp: int, headers: Any, topic: str, partition: int, offset: int
    ) -> None:
        del topic, partition
        self._rows.append(RecordRow(offset, timestamp, key, value, headers))

    def flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._runner.run(self._exporting.sink.write(self._exporting.upserts(rows)))


def make_app(place: Place) -> Any:
    """Make the application with its three dataframes."""
    app = Application(
        broker_address=place.servers,
        consumer_group=place.app_id,
        auto_offset_reset="earliest",
        commit_interval=0.5,
        consumer_poll_timeout=0.1,
        auto_create_topics=False,
        use_changelog_topics=False,
        loglevel="WARNING",
        producer_extra_config={
            "partitioner": "consistent",
            "compression.type": "snappy",
            "linger.ms": 5,
            "batch.size": 256 * 1024,
            "acks": "all",
        },
    )
    raw = {"key_deserializer": "bytes", "value_deserializer": "bytes", "key_serializer": "bytes"}
    facts = app.topic(place.topics.facts, value_serializer=_FactValue(), **raw)
    records = app.topic(place.topics.records, value_serializer=_Value(), **raw)
    projecting, folding, exporting = Projecting(place), Folding(place), Exporting(place)

    def project(value: bytes | None, key: bytes | None, _timestamp: int, _headers: Any) -> list[Outgoing]:
        place_of = message_context()
        return projecting.facts_of(place_of.topic, place_of.partition, place_of.offset, key, value)

    def fold(value: bytes) -> list[Outgoing]:
        place_of = message_context()
        key, _border, body = value.partition(_BORDER)
        made = folding.fold(place_of.partition, [(place_of.offset, key, body)])
        return [outgoing for outgoing in made if outgoing.owner]

    def headers_of(outgoing: Outgoing, _key: Any, _timestamp: int, _headers: Any) -> Iterable[Header]:
        return outgoing.headers

    def topic_of(outgoing: Outgoing, _key: Any, _timestamp: int, _headers: Any) -> Any:
        return facts if outgoing.topic == place.topics.facts else records

    def key_of(outgoing: Outgoing) -> bytes:
        return outgoing.owner.encode() if outgoing.topic == place.topics.facts else outgoing.key

    for topic in place.topics.sources.values():
        source = app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="bytes"))
        source.apply(project, expand=True, metadata=True).to_topic(facts, key=key_of)
    app.dataframe(facts).apply(fold, expand=True).set_headers(headers_of).to_topic(topic_of, key=key_of)
    app.dataframe(records).sink(DuckDBSink(exporting))
    return app


if __name__ == "__main__":
    make_app(Place.from_arguments()).run()
