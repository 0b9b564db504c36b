"""Dead letters: where a message that cannot be projected stands and why, never what it says."""

from typing import Final, NamedTuple

import orjson

from projections.version import PROJECTION_VERSION
from worker.kafka import Message

UNEXPECTED_ERROR: Final = "unexpected_error"


class DeadLetter(NamedTuple):
    """One message, or with ``is_partial`` a part of one, that the projection refused.

    ``reason`` is a bounded code and ``field`` a path of our own field names. No content and no digest of it: a digest
    of something that can be guessed gives it away.
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


def encode_dead_letter(letter: DeadLetter) -> tuple[bytes, bytes]:
    """Give key and value of a dead letter; the key is the message's place, so a message refused twice is one letter."""
    value = {
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
    )
