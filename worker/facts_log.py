"""Reads a partition of the facts log up to a committed offset, for a fold that joins it and emits nothing."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException

from worker.kafka import Message, TopicPartition
from worker.lanes import StopWorkerError

_POLL_MS = 500
_CORRUPT_TRIES_MAX = 5


class LogPart(NamedTuple):
    """Some messages of the log, and the offset behind them."""

    messages: Sequence[Message]
    position: int


async def read_log(
    reader: Any, partition: TopicPartition, begin: int, end: int, messages_max: int
) -> AsyncIterator[LogPart]:
    """Give what the log still holds between two offsets, in order; starts the reader and leaves it to be stopped.

    What was compacted away is not missed: a newer version of it stands later in the log. Raises StopWorkerError when
    the log ends before ``end``, or holds a batch that cannot be read: without it the state would be another one.
    """
    reader.assign([partition])
    await reader.start()
    beginning = (await reader.beginning_offsets([partition]))[partition]
    reader.seek(partition, max(beginning, begin))
    failures = 0
    while await reader.position(partition) < end:
        try:
            polled = await reader.getmany(timeout_ms=_POLL_MS, max_records=messages_max)
        except (CorruptRecordException, UnicodeDecodeError):
            # The latter is said of a header whose name is no UTF-8, which is nothing that this program writes.
            failures += 1
            if failures == _CORRUPT_TRIES_MAX:
                raise StopWorkerError(_corrupt_text(partition, await reader.position(partition))) from None
            continue
        failures = 0
        messages = polled.get(partition, ())
        if not messages:
            await _check_end(reader, partition, end)
        position = await reader.position(partition)
        yield LogPart([message for message in messages if message.offset < end], min(position, end))


def _corrupt_text(partition: TopicPartition, offset: int) -> str:
    return (
        f"topic {partition.topic} partition {partition.partition} holds a batch that cannot be read, at or behind "
        f"offset {offset}: mend it from a replica, or make all records anew with `trace-projector rebuild`"
    )


async def _check_end(reader: Any, partition: TopicPartition, end: int) -> None:
    log_end = reader.highwater(partition)
    if log_end is not None and log_end < end and await reader.position(partition) >= log_end:
        message = (
            f"topic {partition.topic} partition {partition.partition} ends at offset {log_end}, and {end} "
            "was committed: the topic was made anew; start another generation"
        )
        raise StopWorkerError(message)
