"""Source topics outside every consumer group: made for a first try, and read once from beginning to end."""

from collections.abc import Mapping
from typing import Any

from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError, for_code

from worker.kafka import Message, TopicPartition, admin_client, log_reader
from worker.settings import Settings
from worker.source_files import SourceMessage

_POLL_MS = 1_000
# A message is stored with its key, and the limit is on its value.
_MESSAGE_BYTES_SPARE = 1024 * 1024
# So many empty polls in a row, short of a partition's end, mean that the broker does not deliver.
_EMPTY_POLLS_MAX = 30


class SourceTopicError(Exception):
    """The brokers cannot be reached, have none of the topics, or do not deliver."""


async def create_source_topics(settings: Settings, partitions: int) -> list[str]:
    """Create the source topics that are missing and give their names; meant for tries, a real system has them."""
    admin = admin_client(settings)
    try:
        await admin.start()
        existing = set(await admin.list_topics())
        # The erasures topic is this program's own and is created with its other topics.
        wanted = [topic for source, topic in settings.source_topics.items() if source != "erasures"]
        missing = [topic for topic in wanted if topic not in existing]
        if not missing:
            return []
        configs = {
            # The brokers' own default is less than a transcript's line may have.
            "max.message.bytes": str(settings.limits.message_bytes_max + _MESSAGE_BYTES_SPARE),
            # A rebuild reads them from their beginning.
            "retention.ms": "-1",
        }
        response = await admin.create_topics(
            [NewTopic(topic, partitions, settings.replication_factor, topic_configs=configs) for topic in missing]
        )
    except KafkaError as error:
        raise SourceTopicError(
            f"creating topics at {settings.bootstrap_servers} failed: {type(error).__name__}"
        ) from error
    finally:
        await admin.close()
    for topic, code, *_ in response.topic_errors:
        if code and for_code(code) is not TopicAlreadyExistsError:
            raise SourceTopicError(f"cannot create topic {topic}: {for_code(code).__name__}")
    return missing


async def read_source_topics(settings: Settings) -> list[SourceMessage]:
    """Read every message that the source topics hold now; topics that do not exist are left out."""
    try:
        partitions = await _source_partitions(settings)
        reader = log_reader(settings)
        try:
            await reader.start()
            return await _read(reader, partitions)
        finally:
            await reader.stop()
    except KafkaConnectionError as error:
        raise SourceTopicError(f"no broker answers at {settings.bootstrap_servers}") from error
    except KafkaError as error:
        raise SourceTopicError(f"reading from {settings.bootstrap_servers} failed: {type(error).__name__}") from error


async def _source_partitions(settings: Settings) -> dict[TopicPartition, str]:
    """Find the partitions of the source topics that exist, each with the name of its source."""
    admin = admin_client(settings)
    try:
        await admin.start()
        present = set(await admin.list_topics())
        sources = {topic: source for source, topic in settings.source_topics.items() if topic in present}
        if not sources:
            wanted = ", ".join(settings.source_topics.values())
            raise SourceTopicError(f"{settings.bootstrap_servers} has none of the topics {wanted}")
        described = await admin.describe_topics(list(sources))
    finally:
        await admin.close()
    return {
        TopicPartition(topic["topic"], partition["partition"]): sources[topic["topic"]]
        for topic in described
        for partition in topic["partitions"]
    }


async def _read(reader: Any, sources: Mapping[TopicPartition, str]) -> list[SourceMessage]:
    partitions = sorted(sources)
    reader.assign(partitions)
    await reader.seek_to_beginning(*partitions)
    ends = await reader.end_offsets(partitions)
    messages: list[SourceMessage] = []
    empty_polls = 0
    while behind := [part for part in partitions if await reader.position(part) < _end(reader, part, ends)]:
        batches = await reader.getmany(*behind, timeout_ms=_POLL_MS)
        empty_polls = 0 if batches else empty_polls + 1
        if empty_polls > _EMPTY_POLLS_MAX:
            raise SourceTopicError(f"topic {behind[0].topic} partition {behind[0].partition} does not deliver")
        for part, batch in batches.items():
            messages += [_message(sources[part], part, message) for message in batch]
    return messages


def _end(reader: Any, partition: TopicPartition, ends: Mapping[TopicPartition, int]) -> int:
    # The embedded broker lists an end offset that is too low; what a fetch says is right.
    return max(ends[partition], reader.highwater(partition) or 0)


def _message(source: str, partition: TopicPartition, message: Message) -> SourceMessage:
    return SourceMessage(
        source=source,
        origin=partition.topic,
        line=None,
        partition=partition.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        size_bytes=len(message.value or b""),
    )
