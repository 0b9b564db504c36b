"""The three hops as a FastStream application, run as its own process: `python -m tests.bench.peers.faststream_app`.

As its documentation shows it: a batch subscriber per hop (`batch=True`) with `AckPolicy.NACK_ON_ERROR`, which commits a
batch after its handler has returned and reads it again when it raised, and `publish_batch` with a key per message. A
handler returns after everything it published was acknowledged and the sink's write was durable. The state of the fold
is in memory per partition: FastStream has no state of its own, so a failure, after which it would hand out the batch
again to a state that has joined it, ends the process.

Tuned: raw bytes past the decoder, batches of up to 5,000 messages without a wait, snappy and full producer batches as
in the worker, uvloop. A published batch has one partition, one size limit and one set of headers, so messages are
grouped by these; a tombstone cannot be part of a batch and is published alone, without waiting for it in between.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import uvloop
from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaPublishMessage
from faststream.kafka.annotations import KafkaMessage

from tests.bench.peers.hops import (
    BATCH_MESSAGES,
    Exporting,
    Folding,
    Header,
    Outgoing,
    Projecting,
    RecordRow,
    ending_on_failure,
)
from tests.bench.place import Place

_BATCH_BYTES = 512 * 1024
# Of one message beside its key and value: its length, and the headers that FastStream adds.
_ROW_BYTES = 200

Target = tuple[str, int, tuple[Header, ...]]


async def _raw(message: Any) -> Any:
    return message.body


def make_app(place: Place) -> FastStream:
    """Make the application with its three subscribers."""
    broker = KafkaBroker(
        place.servers,
        compression_type="snappy",
        acks="all",
        max_batch_size=_BATCH_BYTES,
        logger=None,
        decoder=_raw,
    )
    projecting, folding, exporting = Projecting(place), Folding(place), Exporting(place)
    reading: dict[str, Any] = {
        "batch": True,
        "max_records": BATCH_MESSAGES,
        "batch_timeout_ms": 50,
        "auto_offset_reset": "earliest",
        "ack_policy": AckPolicy.NACK_ON_ERROR,
    }

    async def send(outgoing: Iterable[Outgoing]) -> None:
        deliveries = []
        for (topic, partition, headers), part in _parts(outgoing):
            texts = {name: value.decode() for name, value in headers}
            to: dict[str, Any] = {"topic": topic, "partition": partition, "headers": texts, "no_confirm": True}
            if part[0].value is None:
                deliveries += [await broker.publish(None, key=one.key, **to) for one in part]
            else:
                messages = [KafkaPublishMessage(one.value, key=one.key) for one in part]
                deliveries.append(await broker.publish_batch(*messages, **to))
        await asyncio.gather(*deliveries)

    @broker.subscriber(*place.topics.sources.values(), group_id=f"{place.app_id}-project", **reading)
    async def project(message: KafkaMessage) -> None:
        with ending_on_failure():
            await send(
                outgoing
                for row in message.raw_message
                for outgoing in projecting.facts_of(row.topic, row.partition, row.offset, row.key, row.value)
            )

    @broker.subscriber(place.topics.facts, group_id=f"{place.app_id}-fold", **reading)
    async def fold(message: KafkaMessage) -> None:
        rows = defaultdict(list)
        for row in message.raw_message:
            rows[row.partition].append((row.offset, row.key, row.value))
        with ending_on_failure():
            for partition, items in rows.items():
                await send(folding.fold(partition, items))

    @broker.subscriber(place.topics.records, group_id=f"{place.app_id}-export", **reading)
    async def export(message: KafkaMessage) -> None:
        rows = [RecordRow(row.offset, row.timestamp, row.key, row.value, row.headers) for row in message.raw_message]
        with ending_on_failure():
            await exporting.sink.write(exporting.upserts(rows))

    async def open_sink() -> None:
        await exporting.sink.open()

    return FastStream(broker, on_startup=[open_sink], logger=None)


def _parts(outgoing: Iterable[Outgoing]) -> Iterator[tuple[Target, Sequence[Outgoing]]]:
    """Part messages by where they go, into batches that fit."""
    groups: dict[tuple[Target, bool], list[Outgoing]] = defaultdict(list)
    for one in outgoing:
        groups[(one.topic, one.partition, tuple(one.headers)), one.value is None].append(one)
    for (target, _is_tombstone), rows in groups.items():
        size, first = 0, 0
        for index, row in enumerate(rows):
            row_bytes = len(row.key) + len(row.value or b"") + _ROW_BYTES
            if size + row_bytes > _BATCH_BYTES and index > first:
                yield target, rows[first:index]
                size, first = 0, index
            size += row_bytes
        yield target, rows[first:]


if __name__ == "__main__":
    uvloop.run(make_app(Place.from_arguments()).run())
