"""Dead letters: where a message that cannot be projected stands and why, never what it says."""

from typing import Any, Final, NamedTuple

import orjson
import structlog

from projections.version import PROJECTION_VERSION
from worker.kafka import Message, TopicPartition

_log = structlog.get_logger(__name__)

UNEXPECTED_ERROR: Final = "unexpected_error"
CORRUPT_BATCH: Final = "corrupt_batch"
# What Kafka itself gives for a message without a time.
_NO_TIMESTAMP: Final = -1


class DeadLetter(NamedTuple):
    """One message, or with ``is_partial`` a part of one, that the projection refused.

    ``reason`` is a bounded code and ``field`` a path of our own field names. No content and no digest of it: a digest
    of something that can be guessed gives it away. ``last_offset`` is there when the letter is about all
    offsets up to it, as that of a corrupt batch is.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    reason: str
    field: str | None
    byte_length: int
    projection_version: int
    is_partial: bool
    last_offset: int | None = None


def dead_letter(
    topic: str, partition: int, message: Message, reason: str, *, field: str | None = None, is_partial: bool = False
) -> DeadLetter:
    """Make the dead letter of a consumed message."""
    return DeadLetter(
        topic=topic,
        partition=partition,
        offset=message.offset,
        timestamp_ms=message.timestamp,
        reason=reason,
        field=field,
        byte_length=len(message.value or b""),
        projection_version=PROJECTION_VERSION,
        is_partial=is_partial,
    )


def corrupt_batch_letter(
    topic: str, partition: int, first_offset: int, last_offset: int, size_bytes: int
) -> DeadLetter:
    """Make the one dead letter of a batch that no client can read."""
    return DeadLetter(
        topic=topic,
        partition=partition,
        offset=first_offset,
        timestamp_ms=_NO_TIMESTAMP,
        reason=CORRUPT_BATCH,
        field=None,
        byte_length=size_bytes,
        projection_version=PROJECTION_VERSION,
        is_partial=False,
        last_offset=last_offset,
    )


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """Give a dead letter's fields by the names that they have in its topic, all of them but ``lastOffset``."""
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "reason": letter.reason,
        "field": letter.field,
        "byteLength": letter.byte_length,
        "projectionVersion": letter.projection_version,
        "partial": letter.is_partial,
    }


def encode_dead_letter(letter: DeadLetter) -> tuple[bytes, bytes]:
    """Give key and value of a dead letter; the key is the message's place, so a message refused twice is one letter."""
    value = letter_json(letter)
    if letter.last_offset is not None:
        value["lastOffset"] = letter.last_offset
    return f"{letter.topic}/{letter.partition}/{letter.offset}".encode(), orjson.dumps(value)


def decode_dead_letter(value: bytes) -> DeadLetter:
    """Read a dead letter back; the inverse of encode_dead_letter."""
    fields = orjson.loads(value)
    return DeadLetter(
        topic=fields["topic"],
        partition=fields["partition"],
        offset=fields["offset"],
        timestamp_ms=fields["timestamp"],
        reason=fields["reason"],
        field=fields["field"],
        byte_length=fields["byteLength"],
        projection_version=fields["projectionVersion"],
        is_partial=fields["partial"],
        last_offset=fields.get("lastOffset"),
    )


def letter_at(place: TopicPartition, message: Message) -> DeadLetter | None:
    """Read the dead letter that a message of their topic is; None, and a line in the log, for one of somebody else."""
    try:
        return decode_dead_letter(message.value or b"")
    except (ValueError, TypeError, KeyError):
        _log.warning("dead_letter_not_read", topic=place.topic, partition=place.partition, offset=message.offset)
        return None
