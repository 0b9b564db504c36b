"""Kafka clients with one set of options, and the writer that sends whole batches to explicit partitions."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
)
from aiokafka.helpers import create_ssl_context

from worker.settings import Settings

if TYPE_CHECKING:

    class TopicPartition(NamedTuple):
        """One partition of one topic."""

        topic: str
        partition: int
else:
    # aiokafka ships no types, and insists on partitions of its own class.
    from aiokafka import TopicPartition

# Measured on two cores with facts of 330 bytes: of none, lz4, zstd and snappy, snappy costs the least processor time
# (compressing takes less than sending more), and larger batches than this gain nothing.
COMPRESSION = "snappy"
BATCH_BYTES = 256 * 1024

# aiokafka leaves the group when nobody polls for this long. Heartbeats already prove that the process lives, and a
# failing sink may keep its partitions paused for hours, so this guard is set as far away as it goes.
_NEVER_MS = 2**31 - 1
_REBALANCE_TIMEOUT_MS = 60_000
# How long the broker holds a fetch that finds nothing. A client has one on its way, for the partitions of which it
# holds nothing, and what arrives in the others waits for it: with the usual 500 ms a hop takes up to half a second.
FETCH_WAIT_MS = 50
# Compressed: what a client holds beyond the batches that are being worked on, of one partition and of all. An answer
# takes its size up to three times until it is messages.
_PARTITION_FETCH_BYTES_MAX = 2**17
_FETCH_BYTES_MAX = 2**21
# A partition that is read alone, from its beginning, waits for every fetch.
_LOG_FETCH_BYTES_MAX = 2**19
# A transaction that a killed worker left open holds up readers until its partition is taken over, or for this long.
_TRANSACTION_TIMEOUT_MS = 60_000
_CLOSE_TIMEOUT_S = 3.0
_START_TIMEOUT_S = 30.0
# An idempotent producer never gives up by itself, not even when it has lost its way.
_DELIVERY_TIMEOUT_S = 90.0

_FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState, OutOfOrderSequenceNumber)

Header = tuple[str, bytes]
Outgoing = tuple[bytes, bytes | None, list[Header]]

_NO_HEADERS: list[Header] = []


class PartitionLostError(Exception):
    """The partition belongs to another worker now; whatever was made from it here must not be committed."""


class BrokenProducerError(Exception):
    """A producer does not deliver; what it was given is to be made again, and given to a new one."""


class Message(Protocol):
    """What the roles read of a consumed message: raw bytes and where they came from."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...


class GroupConsumer(Protocol):
    """The part of a group consumer that the batch loop uses; aiokafka's in the worker, a fake in unit tests."""

    def subscribe(self, topics: Iterable[str], *, listener: Any) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Message]]: ...
    async def position(self, partition: TopicPartition) -> int: ...
    async def committed(self, partition: TopicPartition) -> int | None: ...
    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None: ...
    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    def assignment(self) -> frozenset[TopicPartition]: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...
    def highwater(self, partition: TopicPartition) -> int | None: ...


class Producer(AIOKafkaProducer):  # type: ignore[misc]
    """aiokafka's producer, which can also be closed without waiting for what it still holds."""

    _is_abandoned = False

    async def abandon(self) -> None:
        """Close now: fail what was not delivered yet, leave an open transaction to whoever takes the partition."""
        if self._is_abandoned:
            return
        # aiokafka's own flag, or its destructor complains.
        self._is_abandoned = self._closed = True
        if self._sender.sender_task is not None:
            # It would fail once more what is failed here, and without a transaction it fails itself in doing so.
            self._sender.sender_task.remove_done_callback(self._sender._fail_all)  # noqa: SLF001
        self._message_accumulator.fail_all(ProducerClosed())
        # The sender trips over a batch that was about to be sent again when it was failed here: a KeyError of its own.
        with contextlib.suppress(TimeoutError, KeyError, KafkaError):
            await asyncio.wait_for(self._sender.close(), _CLOSE_TIMEOUT_S)
        await self.client.close()


def quiet_abandoned_futures(loop: asyncio.AbstractEventLoop) -> None:
    """Keep a loop from reporting Kafka errors that nobody asked for.

    aiokafka sets the error that ends a producer on every future it holds, those included that only it could look at;
    whoever used the producer was told.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "task" in context or "future" not in context or not isinstance(context.get("exception"), KafkaError):
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


def client_options(settings: Settings) -> dict[str, Any]:
    """Give the connection options that every Kafka client of this program shares."""
    kafka = settings.kafka
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers,
        "client_id": settings.app_id,
        "request_timeout_ms": int(kafka.request_timeout_s * 1000),
        "security_protocol": kafka.security_protocol,
    }
    if kafka.security_protocol.endswith("SSL"):
        options["ssl_context"] = _tls_context(settings)
    if kafka.security_protocol.startswith("SASL"):
        assert kafka.sasl_password is not None
        options |= {
            "sasl_mechanism": kafka.sasl_mechanism,
            "sasl_plain_username": kafka.sasl_username,
            "sasl_plain_password": kafka.sasl_password.get_secret_value(),
        }
    return options


def _tls_context(settings: Settings) -> ssl.SSLContext:
    kafka = settings.kafka
    context: ssl.SSLContext = create_ssl_context(
        cafile=None if kafka.ssl_ca_file is None else str(kafka.ssl_ca_file),
        certfile=None if kafka.ssl_cert_file is None else str(kafka.ssl_cert_file),
        keyfile=None if kafka.ssl_key_file is None else str(kafka.ssl_key_file),
    )
    return context


def admin_client(settings: Settings) -> Any:
    """Make the client that creates and inspects topics (aiokafka's; untyped)."""
    return AIOKafkaAdminClient(**client_options(settings))


def _consumer_options(settings: Settings, partition_bytes_max: int = _PARTITION_FETCH_BYTES_MAX) -> dict[str, Any]:
    limits = settings.limits
    return client_options(settings) | {
        "enable_auto_commit": False,
        # Where to begin is decided when a partition is opened; a position that the log does not hold is an error.
        "auto_offset_reset": "none",
        # Only facts and records are written in transactions; for sources this changes nothing.
        "isolation_level": "read_committed",
        "fetch_max_wait_ms": FETCH_WAIT_MS,
        "fetch_max_bytes": min(limits.batch_bytes_max, _FETCH_BYTES_MAX),
        # One message above this is still delivered, alone.
        "max_partition_fetch_bytes": max(
            1, min(limits.batch_bytes_max // 8, limits.in_flight_bytes_max // 8, partition_bytes_max)
        ),
    }


def group_consumer(settings: Settings, group: str, assignors: Sequence[Any] | None = None) -> GroupConsumer:
    """Make a consumer of one group; it commits nothing by itself."""
    # The broker knows a member with a name again when it comes back within its session: nothing is given to others.
    # Such a member does not leave when it stops, one without leaves at once (aiokafka sees to both).
    name = settings.kafka.instance_id
    consumer: GroupConsumer = AIOKafkaConsumer(
        group_id=group,
        group_instance_id=None if name is None else f"{name}.{group.removeprefix(settings.app_id).lstrip('-')}",
        session_timeout_ms=int(settings.kafka.session_timeout_s * 1000),
        heartbeat_interval_ms=int(settings.kafka.heartbeat_interval_s * 1000),
        rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
        max_poll_interval_ms=_NEVER_MS,
        partition_assignment_strategy=tuple(assignors or (RoundRobinPartitionAssignor,)),
        **_consumer_options(settings),
    )
    return consumer


def log_reader(settings: Settings) -> Any:
    """Make a consumer without a group, for reading a partition again from its beginning (aiokafka's; untyped)."""
    return AIOKafkaConsumer(group_id=None, **_consumer_options(settings, _LOG_FETCH_BYTES_MAX))


def _producer(settings: Settings, **options: Any) -> Producer:
    return Producer(
        acks="all", compression_type=COMPRESSION, max_batch_size=BATCH_BYTES, **client_options(settings), **options
    )


def plain_producer(settings: Settings) -> Producer:
    """Make a producer for brokers that know neither idempotence nor transactions: every replica still acknowledges."""
    return _producer(settings)


def idempotent_producer(settings: Settings) -> Producer:
    """Make a producer whose resends are never stored twice."""
    return _producer(settings, enable_idempotence=True)


def transactional_producer(settings: Settings, transactional_id: str) -> Producer:
    """Make a producer that, once started, fences every earlier one with the same id."""
    return _producer(settings, transactional_id=transactional_id, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)


async def start_producer(producer: Producer) -> None:
    """Connect a producer; aiokafka itself would look for a coordinator without end."""
    try:
        await asyncio.wait_for(producer.start(), _START_TIMEOUT_S)
    except BaseException:
        await producer.abandon()
        raise


@contextlib.contextmanager
def _fencing_means_loss() -> Iterator[None]:
    try:
        yield
    except _FENCED as error:
        raise PartitionLostError(type(error).__name__) from None


class BatchWriter:
    """Messages on their way to explicit partitions: collected without IO, sent in whole batches by `flush`.

    What was collected stays until a flush has delivered all of it, so a flush that failed is repeated whole.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._pending: dict[tuple[str, int], list[Outgoing]] = {}

    def append(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Sequence[Header] = ()
    ) -> None:
        """Collect one message."""
        # aiokafka's batches take headers as a list only.
        self._pending.setdefault((topic, partition), []).append((key, value, list(headers) if headers else _NO_HEADERS))

    def is_empty(self) -> bool:
        """Say whether nothing waits to be sent."""
        return not self._pending

    def discard(self) -> None:
        """Forget what was collected: its partition was lost, or a transaction delivered it."""
        self._pending.clear()

    async def flush(self) -> None:
        """Send everything and wait until every replica in sync has it; raises the first failure."""
        await self.send()
        self.discard()

    async def send(self) -> None:
        """Send everything and wait for the acknowledgements, but keep it (a transaction may still fail).

        Raises BrokenProducerError when they do not come.
        """
        if self._pending:
            async with _bounded():
                await asyncio.gather(
                    *(self._send_partition(topic, number, rows) for (topic, number), rows in self._pending.items())
                )

    async def _send_partition(self, topic: str, partition: int, rows: list[Outgoing]) -> None:
        deliveries: list[Awaitable[Any]] = []
        try:
            for batch in _batches(self._producer.create_batch, rows):
                # One at a time: queueing the next one waits until the last one is on its way.
                deliveries.append(await self._producer.send_batch(batch, topic, partition=partition))  # noqa: PERF401
        except Exception:
            # Deliveries must not be left behind that nobody awaits; but who is cancelled waits for nothing more.
            await asyncio.gather(*deliveries, return_exceptions=True)
            raise
        results = await asyncio.gather(*deliveries, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _batches(create: Callable[[], Any], rows: Iterable[Outgoing]) -> Iterable[Any]:
    batch = create()
    for key, value, headers in rows:
        if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
            yield batch
            batch = create()
            # The first message of a batch always fits, whatever its size.
            added = batch.append(timestamp=None, key=key, value=value, headers=headers)
            assert added is not None
    yield batch


class FencedWriter(BatchWriter):
    """A writer whose every flush is one transaction that also commits the offsets it was made from."""

    def __init__(self, producer: Producer, group: str) -> None:
        super().__init__(producer)
        self._group = group

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Send everything and commit the offsets, all or nothing.

        Raises PartitionLostError when another worker has taken the partition and BrokenProducerError when the producer
        is past use (its successor rolls back what was begun); after any other failure the same call may be repeated.
        """
        try:
            await self._producer.begin_transaction()
        except Exception as error:
            # Nothing is sent to begin a transaction: this fails only when the producer is past use.
            raise BrokenProducerError from error
        try:
            with _fencing_means_loss():
                # One after the other: a broker asks the transaction's coordinator about both, and of two questions at
                # once it drops one, which is answered like a replica too few and costs a tenth of a second.
                await self.send()
                await self._send_offsets(positions)
                async with _bounded():
                    await self._producer.commit_transaction()
        except (PartitionLostError, BrokenProducerError):
            raise
        except Exception:
            await self._roll_back()
            raise
        self.discard()

    async def _send_offsets(self, positions: Mapping[TopicPartition, int]) -> None:
        async with _bounded():
            await self._producer.send_offsets_to_transaction(dict(positions), self._group)

    async def _roll_back(self) -> None:
        try:
            await asyncio.wait_for(self._producer.abort_transaction(), _START_TIMEOUT_S)
        except Exception as error:
            raise BrokenProducerError from error


@contextlib.asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_DELIVERY_TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise BrokenProducerError from error
