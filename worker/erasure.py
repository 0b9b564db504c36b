"""Erasing a run or a conversation for good: one message on a topic that forgets nothing, read by every generation."""

from collections import Counter
from typing import Any, NamedTuple

import orjson

from projections.canonical import sha256_hex
from projections.errors import ProjectionError
from projections.facts import partition_of
from projections.sources import project_message
from projections.text import storable_text
from worker.direct_writer import open_producer
from worker.exports import KIND_HEADER
from worker.groups import open_groups
from worker.kafka import Message, TopicPartition
from worker.progress import passages, wait_through
from worker.record_subject import subject_of
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.topic_scan import BrokerFailed, TopicScan, broker_errors, open_scan
from worker.topics import check_erasures_are_kept, own_topics


class InvalidErasure(Exception):  # noqa: N818  (a wrong argument, not a fault of the program)
    """What is to be erased is no id that a run or a conversation can have."""


class Erasure(NamedTuple):
    """What to erase: ``{"run": id}`` or ``{"conversation": ref}``, as the erasures topic holds it."""

    field: str
    id: str

    @classmethod
    def of(cls, field: str, native_id: str) -> "Erasure":
        """Make an erasure that the projection will take. Raises InvalidErasure."""
        erasure = cls(field, native_id)
        try:
            project_message("erasures", None, erasure.value, 0, 0)
        except ProjectionError as error:
            form = "conversation:HARNESS:NAMESPACE:ID" if field == "conversation" else "the id of a run"
            raise InvalidErasure(f"this is no {field} ({error.reason}): give {form}") from error
        return erasure

    @property
    def value(self) -> bytes:
        """The message's value."""
        return orjson.dumps({self.field: self.id})

    def reaches(self, record: dict[str, Any]) -> bool:
        """Whether a record goes with it, as far as the record itself tells."""
        if self.field == "run":
            return bool(record["runId"] == storable_text(self.id))
        subject = subject_of(record["id"])
        own_run = f"standalone-{sha256_hex(self.id.encode())}"
        return record["runId"] == own_run or (subject is not None and subject.conversation == self.id)


class Erased(NamedTuple):
    """Where the durable message stands, what the records log held of it by kind, and the exports that read that log."""

    place: TopicPartition
    offset: int
    held: Counter[str]
    exports: tuple[ExportSettings, ...]


async def count_held(scan: TopicScan, settings: Settings, erasure: Erasure) -> Counter[str]:
    """Count the living records of this generation that an erasure reaches, by kind. Raises BrokerFailed."""
    partitions = await scan.partitions([own_topics(settings).records])
    living: dict[tuple[str, bytes], None] = {}
    async for _place, messages in scan.read(await scan.spans(partitions)):
        for message in messages:
            key = _record_key(message)
            if message.value is not None and erasure.reaches(orjson.loads(message.value)):
                living[key] = None
            else:
                living.pop(key, None)
    return Counter(kind for kind, _ in living)


def _record_key(message: Message) -> tuple[str, bytes]:
    # Somebody else's message may have the header without a value.
    return (dict(message.headers).get(KIND_HEADER) or b"").decode(errors="replace"), message.key or b""


async def erase(settings: Settings, erasure: Erasure) -> Erased:
    """Publish an erasure and wait until every replica in sync has it. Raises BrokerFailed or StartError.

    What the log held is counted before, because afterwards nothing tells.
    """
    topic = own_topics(settings).erasures
    async with open_scan(settings) as scan:
        counts = await scan.partition_counts([topic])
        if not counts:
            raise BrokerFailed(
                f"there is no topic {topic}: start a worker of {settings.app_id}, or make it: `topics create`"
            )
        await check_erasures_are_kept(scan.admin, topic)
        held = await count_held(scan, settings, erasure)
    place = TopicPartition(topic, partition_of(erasure.id, counts[topic]))
    async with open_producer(settings) as producer:
        with broker_errors(settings):
            sent = await producer.send_and_wait(
                place.topic, erasure.value, key=erasure.id.encode(), partition=place.partition
            )
    return Erased(place, sent.offset, held, settings.exports)


async def wait_for_erasure(settings: Settings, timeout_s: float) -> None:
    """Wait until workers have taken what is erased now out of every export. Raises Stalled or BrokerFailed."""
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        names = [export.name for export in settings.exports]
        await wait_through(scan, groups, passages(settings, names), timeout_s)
