"""The three hops as a Faust application, run as its own process: `python -m tests.bench.peers.faust_app`.

As Faust's user guide shows it: one agent per hop over `stream.take_events`, which acknowledges a batch only after the
agent has come back for the next one; `send` gives a delivery for each message, and the agent awaits all of a batch
before it comes back. What is read is therefore committed after what was made of it is durable; because Faust would
acknowledge a batch whose agent raised, too, a failure ends the process. The state of the fold is in memory per
partition; a table would add a changelog message per change.

Tuned: raw bytes instead of a codec, batches of what comes within a tenth of a second, snappy and full producer batches
as in the worker, uvloop (FAUST_LOOP), no web server, no leader topic, offsets committed every second, `-l info` (with
less, its spinner has every client format its debug messages).
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Awaitable, Iterable
from typing import Any

import faust

from tests.bench.peers.hops import (
    BATCH_MESSAGES,
    Exporting,
    Folding,
    Outgoing,
    Projecting,
    RecordRow,
    ending_on_failure,
)
from tests.bench.place import Place

_WITHIN_S = 0.1
_RAW: dict[str, Any] = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}


def make_app(place: Place) -> faust.App:
    """Make the application with its three agents."""
    app = faust.App(
        place.app_id,
        broker=f"aiokafka://{place.servers}",
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=1.0,
        stream_buffer_maxsize=BATCH_MESSAGES,
        producer_compression_type="snappy",
        producer_max_batch_size=256 * 1024,
        producer_linger=0.005,
    )
    sources = app.topic(*place.topics.sources.values(), **_RAW)
    facts, records = (app.topic(name, **_RAW) for name in (place.topics.facts, place.topics.records))
    topics = {place.topics.facts: facts, place.topics.records: records}
    projecting, folding, exporting = Projecting(place), Folding(place), Exporting(place)

    async def send(outgoing: Iterable[Outgoing]) -> None:
        deliveries: list[Awaitable[Any]] = []
        for topic, partition, _owner, key, value, headers in outgoing:
            sent = topics[topic].send(key=key, value=value, partition=partition, headers=list(headers) or None)
            deliveries.append(await sent)
        await asyncio.gather(*deliveries)

    @app.agent(sources)
    async def project(stream: Any) -> None:
        async for events in stream.take_events(BATCH_MESSAGES, within=_WITHIN_S):
            with ending_on_failure():
                messages = [event.message for event in events]
                await send(
                    outgoing
                    for message in messages
                    for outgoing in projecting.facts_of(
                        message.topic, message.partition, message.offset, message.key, message.value
                    )
                )

    @app.agent(facts)
    async def fold(stream: Any) -> None:
        async for events in stream.take_events(BATCH_MESSAGES, within=_WITHIN_S):
            rows: dict[int, list[tuple[int, bytes | None, bytes | None]]] = defaultdict(list)
            for event in events:
                message = event.message
                rows[message.partition].append((message.offset, message.key, message.value))
            with ending_on_failure():
                for partition, items in rows.items():
                    await send(folding.fold(partition, items))

    @app.agent(records)
    async def export(stream: Any) -> None:
        await exporting.sink.open()
        async for events in stream.take_events(BATCH_MESSAGES, within=_WITHIN_S):
            messages = [event.message for event in events]
            rows = [RecordRow(one.offset, 0, one.key, one.value, list(one.headers or ())) for one in messages]
            with ending_on_failure():
                await exporting.sink.write(exporting.upserts(rows))

    return app


if __name__ == "__main__":
    found = make_app(Place.from_arguments())
    sys.argv[1:] = ["worker", "--without-web", "--loglevel", "info"]
    found.main()
