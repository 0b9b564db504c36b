"""Exports that stood still for longer than the records log keeps deletions: they may hold rows that nobody takes out.

What is deleted leaves a tombstone in the log, and compaction removes it after a while. An export that has not read it
by then goes on as if nothing had happened, so it is stopped instead.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker.groups import open_groups
from worker.kafka import TopicPartition
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import split_sink_url
from worker.sink_place import place_word
from worker.sink_switch import beside, can_be_switched
from worker.topic_scan import Span, open_scan
from worker.topics import StartError, export_group, own_topics, topic_configs

_DAY_S = 24 * 60 * 60


def has_missed_deletions(
    committed: Mapping[TopicPartition, int], spans: Mapping[TopicPartition, Span], kept: Mapping[TopicPartition, int]
) -> bool:
    """Say whether offsets are unread that are older than deletions are kept.

    ``kept`` gives, per partition, the first offset that is young enough. Offsets count whether or not a message still
    stands there, because the deletion that stood there is just what may be gone.
    """
    return any(committed.get(place, span.start) < kept[place] for place, span in spans.items() if span.length)


async def check_standstill(settings: Settings, exports: Sequence[ExportSettings], serving: int) -> None:
    """Stop before an export that stood still for too long goes on. Raises StartError or BrokerFailed.

    How long is told by its file, which every write changes. Sinks that are no files are not looked at.
    """
    now = time.time()
    # The log's own setting decides; this is what it is created with.
    kept_s = int(topic_configs(settings)[own_topics(settings).records]["delete.retention.ms"]) / 1000
    written = {export.name: _last_written(export, settings.generation, serving) for export in exports}
    old = [name for name, at in written.items() if at is not None and now - at > kept_s]
    if not old:
        return
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        spans = await scan.spans(await scan.partitions([own_topics(settings).records]))
        kept = await scan.offsets_at(spans, int((now - kept_s) * 1000))
        for name in old:
            committed = await groups.committed(export_group(settings, name), spans)
            if has_missed_deletions(committed, spans, kept):
                days = int((now - (written[name] or 0)) / _DAY_S)
                message = (
                    f"export {name} has stood still for {days} days, and deletions are kept for "
                    f"{kept_s / _DAY_S:g}: read it anew with `trace-projector export resync {name}`"
                )
                raise StartError(message)


def _last_written(export: ExportSettings, generation: int, serving: int) -> float | None:
    if not can_be_switched(export.sink):
        return None
    url = export.sink if generation == serving else beside(export.sink, place_word(generation))
    path = Path(split_sink_url(url)[1])
    try:
        return path.stat().st_mtime
    except OSError:
        return None
