"""The way of shipped lines into their topic: whole batches, each acknowledged by every replica in sync."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from aiokafka.partitioner import murmur2

from worker.kafka import (
    Producer,
    TopicPartition,
    admin_client,
    idempotent_producer,
    log_reader,
    plain_producer,
    start_producer,
)
from worker.settings import Settings
from worker.shipping.state import Target
from worker.transaction_probe import has_transactions

_TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)
# So many of a client's own time-outs without an acknowledgement mean that nobody is going to give one.
_PATIENCE: Final = 3
_VISIBLE_TRIES: Final = 10
_VISIBLE_PAUSE_S: Final = 0.1


class ShipTargetError(Exception):
    """The topic cannot be reached or does not exist."""


class UndeliveredError(Exception):
    """The brokers do not acknowledge; what was sent may have arrived or not, and is to be sent again."""


class Outgoing(NamedTuple):
    """One message on its way; ``place`` says where it came from, for whoever hears that it was refused."""

    key: bytes
    value: bytes
    place: Any


class Delivery(NamedTuple):
    """What became of messages: the offset of one in each partition, and those that the topic is too narrow for."""

    acknowledged: dict[int, int]
    refused: list[Outgoing]


class _Batch(NamedTuple):
    partition: int
    builder: Any
    rows: list[Outgoing]


async def find_target(settings: Settings) -> tuple[Target, list[int]]:
    """Find the transcripts topic and its partitions; ShipTargetError when it is not there."""
    topic = settings.source_topics["transcripts"]
    admin = admin_client(settings)
    try:
        await admin.start()
        cluster = await admin.describe_cluster()
        if not await _is_visible(admin, topic):
            hint = "create it (`topics create --sources` makes one for a try)"
            raise ShipTargetError(f"{settings.bootstrap_servers} has no topic {topic}; {hint}")
        [described] = await admin.describe_topics([topic])
    except KafkaConnectionError as error:
        raise ShipTargetError(f"no broker answers at {settings.bootstrap_servers}") from error
    except KafkaError as error:
        name = type(error).__name__
        raise ShipTargetError(f"looking up topic {topic} at {settings.bootstrap_servers} failed: {name}") from error
    finally:
        await admin.close()
    partitions = sorted(partition["partition"] for partition in described["partitions"])
    return Target(str(cluster.get("cluster_id")), topic), partitions


async def _is_visible(admin: Any, topic: str) -> bool:
    # A topic is created by the controller, and known to every broker a moment later.
    for _ in range(_VISIBLE_TRIES):
        if topic in await admin.list_topics():
            return True
        await asyncio.sleep(_VISIBLE_PAUSE_S)
    return False


async def holds(settings: Settings, topic: str, acknowledged: Mapping[int, int]) -> bool:
    """Say whether a topic reaches the offsets that it once gave out: one that was made anew does not."""
    if not acknowledged:
        return True
    reader = log_reader(settings)
    try:
        await reader.start()
        partitions = {TopicPartition(topic, number): offset for number, offset in acknowledged.items()}
        ends = await reader.end_offsets(list(partitions))
    except KafkaError as error:
        raise ShipTargetError(f"reading the ends of topic {topic} failed: {type(error).__name__}") from error
    finally:
        await reader.stop()
    return all(ends.get(partition, 0) > offset for partition, offset in partitions.items())


class ShipSender:
    """Sends messages to the partition of their key, and comes back when all of them are acknowledged."""

    def __init__(self, settings: Settings, topic: str, partitions: Sequence[int]) -> None:
        self._settings = settings
        self._topic = topic
        self._partitions = partitions
        self._patience_s = _PATIENCE * settings.kafka.request_timeout_s
        self._is_idempotent: bool | None = {"on": True, "off": False}.get(settings.fencing)
        self._producer: Producer | None = None

    async def deliver(self, rows: Sequence[Outgoing]) -> Delivery:
        """Send messages and wait for all acknowledgements; UndeliveredError when they do not come."""
        acknowledged: dict[int, int] = {}
        refused: list[Outgoing] = []
        waiting, is_alone = list(rows), False
        try:
            while waiting:
                waiting = await asyncio.wait_for(
                    self._round(waiting, acknowledged, refused, is_alone=is_alone), self._patience_s
                )
                is_alone = True
        except (KafkaError, OSError, TimeoutError) as error:
            raise UndeliveredError(type(error).__name__) from error
        finally:
            if waiting:
                await self.close()
        return Delivery(acknowledged, refused)

    async def _round(
        self, rows: Sequence[Outgoing], acknowledged: dict[int, int], refused: list[Outgoing], *, is_alone: bool
    ) -> list[Outgoing]:
        """Send messages once; gives those that must be sent again because a batch was too large for the topic."""
        producer = await self._ready()
        batches = list(_batches(producer.create_batch, self._by_partition(rows), is_alone=is_alone))
        results = await self._send(producer, batches)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures and not any(isinstance(failure, _TOO_LARGE) for failure in failures):
            raise failures[0]
        again: list[Outgoing] = []
        for batch, result in zip(batches, results, strict=True):
            if not isinstance(result, BaseException):
                acknowledged[batch.partition] = max(acknowledged.get(batch.partition, 0), result.offset)
            elif isinstance(result, _TOO_LARGE) and len(batch.rows) == 1:
                refused += batch.rows
            else:
                again += batch.rows
        if failures:
            # A producer counts what it sends, and one whose count the broker did not follow is of no more use.
            await self.close()
        return again

    async def _send(self, producer: Producer, batches: Sequence[_Batch]) -> list[Any]:
        """Queue batches and wait; gives for each the place where it was written, or its failure."""
        deliveries: list[Any] = []
        try:
            for batch in batches:
                # One at a time: queueing the next one waits until the last one of its partition is on its way.
                deliveries.append(  # noqa: PERF401
                    await producer.send_batch(batch.builder, self._topic, partition=batch.partition)
                )
        finally:
            results = await asyncio.gather(*deliveries, return_exceptions=True)
        return list(results)

    def _by_partition(self, rows: Iterable[Outgoing]) -> dict[int, list[Outgoing]]:
        found: dict[int, list[Outgoing]] = {}
        numbers: dict[bytes, int] = {}
        for row in rows:
            number = numbers.get(row.key)
            if number is None:
                # As Kafka's own clients choose it, so that other producers' messages of one key are beside these.
                place = (murmur2(row.key) & 0x7FFF_FFFF) % len(self._partitions)
                number = numbers[row.key] = self._partitions[place]
            found.setdefault(number, []).append(row)
        return found

    async def _ready(self) -> Producer:
        if self._is_idempotent is None:
            self._is_idempotent = await has_transactions(self._settings)
        if self._producer is None:
            make = idempotent_producer if self._is_idempotent else plain_producer
            producer = make(self._settings)
            await start_producer(producer)
            self._producer = producer
        return self._producer

    async def close(self) -> None:
        """Let go of the producer without waiting for anything."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.abandon()


def _batches(create: Callable[[], Any], rows: Mapping[int, Sequence[Outgoing]], *, is_alone: bool) -> Iterable[_Batch]:
    for partition, messages in rows.items():
        batch: _Batch | None = None
        for row in messages:
            if batch is None or is_alone or not _add(batch, row):
                if batch is not None:
                    yield batch
                batch = _Batch(partition, create(), [])
                # The first message of a batch always fits, whatever its size.
                added = _add(batch, row)
                assert added
        if batch is not None:
            yield batch


def _add(batch: _Batch, row: Outgoing) -> bool:
    if batch.builder.append(timestamp=None, key=row.key, value=row.value, headers=[]) is None:
        return False
    batch.rows.append(row)
    return True
