"""Resyncing an export: its sink is read anew from the records log, beside its place, and then put in its place.

So rows that are no longer there are gone, whatever the log still says of them, and everything is as the policy of now
lets it out. Order: 1. the new sink is filled and durable; 2. it takes the old one's place in one step; 3. the group's
offsets are set to where it was read up to. A crash before 3 lets the export read again what it has.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from worker.export_policy import policy_for
from worker.exports import ExportPolicy, read_upserts
from worker.generations.binding import refuse_dropped
from worker.generations.log import read_history
from worker.groups import open_groups
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import Sink, SinkRefused, Upsert, open_sink
from worker.sink_place import place_word
from worker.sink_switch import beside, can_be_switched, discard, switch
from worker.topic_scan import BrokerFailed, Span, TopicScan, open_scan
from worker.topics import export_group, own_topics

_WORD = "resync"
_UPSERTS_PER_WRITE = 20_000


class Resynced(NamedTuple):
    """How many messages of the log were read, and how many of them could not leave (they are dead letters)."""

    messages: int
    withheld: int


async def resync(
    settings: Settings, export: ExportSettings, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> Resynced:
    """Read an export's sink anew; nobody may be in its group.

    Raises GroupInUse, SinkBusy, SinkFailed, SinkRefused, SettingsError, StartError or BrokerFailed.
    """
    if not can_be_switched(export.sink):
        raise SinkRefused(f"export {export.name} has no sink that can be put in place: nothing of it can be read anew")
    policy = policy_for(settings, export)
    group = export_group(settings, export.name)
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        generations = await read_history(scan, settings)
        refuse_dropped(generations, settings.generation)
        place = _place(export, settings, is_serving=generations.serving in (None, settings.generation))
        await groups.require_empty(group, "reading its sink anew")
        spans = await scan.spans(await scan.partitions([own_topics(settings).records]))
        if not spans:
            raise BrokerFailed(f"there is no topic {own_topics(settings).records}")
        await asyncio.to_thread(discard, place, _WORD)
        sink = open_sink(beside(place, _WORD), policy.digest)
        resynced = await _fill(scan, sink, policy, settings.generation, spans, on_progress)
        # Whoever came into the group meanwhile has the sink open or is about to.
        await groups.require_empty(group, "reading its sink anew")
        await asyncio.to_thread(switch, place, _WORD, policy.digest, None)
        await groups.move(group, {place: span.end for place, span in spans.items()}, "reading its sink anew")
    return resynced


def _place(export: ExportSettings, settings: Settings, *, is_serving: bool) -> str:
    return export.sink if is_serving else beside(export.sink, place_word(settings.generation))


async def _fill(
    scan: TopicScan,
    sink: Sink,
    policy: ExportPolicy,
    generation: int,
    spans: dict[TopicPartition, Span],
    on_progress: Callable[[int, int], None],
) -> Resynced:
    total = sum(span.length for span in spans.values())
    messages_read = withheld = 0
    pending: list[Upsert] = []
    await sink.open()
    try:
        async for _partition, messages in scan.read(spans):
            upserts, refused = read_upserts(policy, generation, messages)
            messages_read += len(messages)
            withheld += refused
            pending += upserts
            if len(pending) >= _UPSERTS_PER_WRITE:
                await sink.write(pending)
                pending = []
                on_progress(messages_read, total)
        await sink.write(pending)
    finally:
        await sink.close()
    return Resynced(messages_read, withheld)
