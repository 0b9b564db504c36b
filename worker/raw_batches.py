"""Where a batch stands that no client can read: told by its header and by the batch behind it, not by its content."""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest

from worker.kafka import TopicPartition, client_options
from worker.settings import Settings

# Base offset and length of what follows, and further on the offset of the last message counted from the base.
_HEADER: Final = struct.Struct(">qi")
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_WAIT_MS: Final = 500
_READ_UNCOMMITTED: Final = 0


class BatchSpan(NamedTuple):
    """Where reading goes on behind a batch, and how many bytes the batch takes in its log."""

    next_offset: int
    size_bytes: int


def span_at(data: bytes, offset: int) -> BatchSpan | None:
    """Find the batch that holds an offset in what a fetch gave; None when the headers make no sense.

    A header's own fields may be what is damaged, so the batch behind it is asked first where it begins.
    """
    position = 0
    while position + _HEADER.size <= len(data):
        base, length = _HEADER.unpack_from(data, position)
        end = position + _HEADER.size + length
        if length <= 0 or base < 0:
            return None
        following = _base_offset(data, end)
        last = _last_offset(data, position, base)
        next_offset = following if following is not None and following > base else last + 1
        if next_offset > offset:
            return BatchSpan(next_offset, end - position)
        position = end
    return None


def _base_offset(data: bytes, position: int) -> int | None:
    if position + _HEADER.size > len(data):
        return None
    base: int = _HEADER.unpack_from(data, position)[0]
    return base


def _last_offset(data: bytes, position: int, base: int) -> int:
    at = position + _LAST_OFFSET_DELTA_AT
    if at + _LAST_OFFSET_DELTA.size > len(data):
        return base
    delta: int = _LAST_OFFSET_DELTA.unpack_from(data, at)[0]
    return base + max(0, delta)


async def find_span(settings: Settings, place: TopicPartition, offset: int) -> BatchSpan:
    """Ask the partition's leader for the batch that holds an offset. Raises KafkaError.

    Where nothing can be told, the span is that one offset.
    """
    client = AIOKafkaClient(**client_options(settings))
    try:
        await client.bootstrap()
        await client.set_topics([place.topic])
        leader = client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            message = "the partition has no leader now"
            raise KafkaError(message)
        room = settings.limits.batch_bytes_max
        wanted = [(place.topic, [(place.partition, offset, room)])]
        response = await client.send(leader, FetchRequest(_WAIT_MS, 1, room, _READ_UNCOMMITTED, wanted, rack_id=""))
    finally:
        await client.close()
    return span_at(fetched_bytes(response.topics), offset) or BatchSpan(offset + 1, 0)


def fetched_bytes(topics: Sequence[Any]) -> bytes:
    """Take the one partition's bytes out of a fetch response.

    Raises KafkaError for an error that passes: who leads the partition now may well hold the batch whole.
    """
    rows = [row for _topic, partitions in topics for row in partitions]
    for _partition, code, *_ in rows:
        if code and for_code(code).retriable:
            raise for_code(code)
    return b"".join(bytes(row[-1] or b"") for row in rows)
