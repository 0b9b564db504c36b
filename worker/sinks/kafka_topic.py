"""A compacted Kafka topic: one message per record for readers that are Kafka Connect, Flink, ClickPipes and the like.

Key: ``kind:id``, the id as it leaves (no kind holds a colon, so no two records share a key). Value: the record's exact
bytes; none for a deletion. Headers: ``kind``, ``generation``, ``offset`` and ``policy`` (the digest of the rules that
the message left under), as text. What a key's last message says is what the sink holds.

A log cannot be asked before it is written, so what keeps an older version from following a newer one is this writer
alone: there is one, it reads the topic when it opens, and remembers the version of every key. Partition-ordered writers
would need no memory, but after a replay or a lost commit they do write older versions after newer ones.

1. Opening fences: a transactional producer under an id of the topic's shuts out every earlier one and ends what it had
   begun. 2. Only then the topic is read: nobody else can add to it any more. 3. Every batch is one transaction, so it
   is there as a whole or not at all for readers with ``isolation.level=read_committed``. After any failure, one whose
   outcome is unknown included, the next write begins again at 1.

The memory is a digest of 16 bytes and one number per key, deletions included, about 200 bytes; ``records_max`` (5
million) bounds it. Deletions are remembered as long as the topic keeps them: 30 days, as in the records log, where an
export that stood still for longer stops.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import parse_qsl

from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    TopicAlreadyExistsError,
    for_code,
)
from pydantic import TypeAdapter, ValidationError

from projections.facts import partition_of
from worker.kafka import (
    BatchWriter,
    BrokenProducerError,
    Header,
    Message,
    Producer,
    plain_producer,
    start_producer,
    transactional_producer,
)
from worker.settings import Settings
from worker.settings_sections import ExportSettings, KafkaSettings, TopicName
from worker.sink import SinkBusy, SinkFailed, SinkRefused, Upsert, newest_by_id
from worker.topic_scan import BrokerFailed, TopicScan, open_scan

RECORDS_MAX: Final = 5_000_000
POLICY_HEADER: Final = "policy"

_DAY_MS: Final = 24 * 60 * 60 * 1000
_TOMBSTONES_MS: Final = 30 * _DAY_MS
_MESSAGE_BYTES_SPARE: Final = 1024 * 1024
_VISIBLE_TRIES: Final = 50
_VISIBLE_PAUSE_S: Final = 0.1
_COMMIT_TIMEOUT_S: Final = 90.0
_FENCED_DELAY_S: Final = 2.0
_FENCED: Final = (InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState, ProducerFenced)
_PARAMETERS: Final = frozenset(
    {"bootstrap_servers", "partitions", "records_max", "replication_factor", "security", "transactions"}
)
_TOPIC: Final[TypeAdapter[str]] = TypeAdapter(TopicName)


class Location(NamedTuple):
    """What a sink URL says: ``kafka:TOPIC?bootstrap_servers=…&security=…``; None stands for the worker's own.

    ``security`` of other brokers is ``plaintext``, ``ssl`` (the machine's certificate authorities) or ``own``, which
    gives them the credentials of the worker's own cluster; ``partitions`` and ``replication_factor`` are for a topic
    that is missing. ``transactions=off`` is for brokers that know none: then nobody is fenced, and a batch may be seen
    in parts.
    """

    topic: str
    bootstrap_servers: str | None
    security: str
    partitions: int | None
    replication_factor: int | None
    has_transactions: bool
    records_max: int

    @classmethod
    def parsed(cls, location: str) -> "Location":
        """Read the part of the URL behind ``kafka:``. Raises SinkRefused."""
        topic, _, query = location.partition("?")
        try:
            _TOPIC.validate_python(topic)
        except ValidationError:
            raise SinkRefused("a Kafka sink needs a topic, as in kafka:traces?bootstrap_servers=host:9092") from None
        given = parse_qsl(query, keep_blank_values=True)
        values = dict(given)
        unknown = sorted(values.keys() - _PARAMETERS)
        if unknown or len(values) < len(given):
            named = f"no parameter {', '.join(unknown)}" if unknown else "each parameter once"
            raise SinkRefused(f"a Kafka sink's URL has {named}; there are {', '.join(sorted(_PARAMETERS))}")
        servers = values.get("bootstrap_servers")
        security = _one_of(values, "security", ("own",) if servers is None else ("plaintext", "ssl", "own"))
        return cls(
            topic,
            servers,
            security,
            _count(values, "partitions"),
            _count(values, "replication_factor"),
            _one_of(values, "transactions", ("on", "off")) == "on",
            _count(values, "records_max") or RECORDS_MAX,
        )


def _one_of(values: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    value = values.get(name, allowed[0])
    if value not in allowed:
        raise SinkRefused(f"a Kafka sink's {name} is {' or '.join(allowed)}")
    return value


def _count(values: Mapping[str, str], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and int(value) > 0):
        raise SinkRefused(f"a Kafka sink's {name} is a whole number from 1 on")
    return int(value)


class _Known(NamedTuple):
    """The version of a key's last message and the partition that it is in."""

    generation: int
    offset: int
    partition: int


class _Connection(NamedTuple):
    """A producer that has shut out its predecessors, and what the topic holds."""

    producer: Producer
    partitions: int
    known: dict[bytes, int]


class KafkaTopicSink:
    """Keep the newest version of every record as the last message of its key."""

    single_writer: ClassVar[bool] = True
    is_durable: ClassVar[bool] = True

    def __init__(self, location: str, policy_digest: str) -> None:
        self._location = Location.parsed(location)
        self._policy_digest = policy_digest
        self._settings: Settings | None = None
        if self._location.security != "own":
            # Not the environment's: that is of the worker's own cluster.
            self._settings = settings_for(self._location, Settings.model_construct())
        self._connection: _Connection | None = None
        self._mutex = asyncio.Lock()

    def configure(self, settings: Settings, export: ExportSettings) -> None:
        """Take the worker's cluster, or how it reaches it."""
        del export
        self._settings = settings_for(self._location, settings)

    async def open(self) -> bool:
        async with self._mutex:
            return not (await self._connected()).known

    async def write(self, batch: Sequence[Upsert]) -> None:
        newest = newest_by_id(batch)
        if not newest:
            return
        async with self._mutex:
            connection = await self._connected()
            newer = self._newer(connection, newest)
            if not newer:
                return
            try:
                await self._send(connection, newer)
            except BaseException as error:
                # What became of it is read when the next write opens the topic again.
                await self._disconnect()
                if isinstance(error, Exception):
                    raise self._failure(error) from error
                raise
            connection.known.update((digest, _packed(known)) for digest, known, _ in newer)

    async def close(self) -> None:
        async with self._mutex:
            await self._disconnect()

    # ----------------------------------------------------------------------------------------------------- opening

    async def _connected(self) -> _Connection:
        if self._connection is None:
            if self._settings is None:
                raise SinkRefused(
                    f"kafka:{self._location.topic} is on a worker's own cluster, and this is no worker: name its "
                    "bootstrap_servers"
                )
            try:
                self._connection = await self._connect(self._settings)
            except (BrokerFailed, KafkaError, TimeoutError) as error:
                raise self._failure(error) from error
        return self._connection

    async def _connect(self, settings: Settings) -> _Connection:
        topic = self._location.topic
        async with open_scan(settings) as scan:
            partitions = await self._prepared(scan, settings)
            if self._location.has_transactions:
                producer = transactional_producer(settings, f"{topic}-trace-export")
            else:
                producer = plain_producer(settings)
            await start_producer(producer)
            try:
                known = await self._read(scan)
            except BaseException:
                await producer.abandon()
                raise
        return _Connection(producer, partitions, known)

    async def _prepared(self, scan: TopicScan, settings: Settings) -> int:
        """Make the topic if it is missing and check how it is kept; gives the number of its partitions."""
        topic = self._location.topic
        if not await scan.partition_counts([topic]):
            await self._create(scan, settings)
        for _ in range(_VISIBLE_TRIES):
            counts = await scan.partition_counts([topic])
            if counts.get(topic):
                break
            await asyncio.sleep(_VISIBLE_PAUSE_S)
        else:
            raise SinkFailed(f"topic {topic} was created and does not appear")
        responses = await scan.admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        configs = {name: value for answer in responses for *_, rows in answer.resources for name, value, *_ in rows}
        # A broker may leave out what it does not know; what it does say must be right.
        if configs.get("cleanup.policy", "compact") != "compact":
            raise SinkRefused(
                f"topic {topic} has cleanup.policy {configs['cleanup.policy']}: it must be compact, or records are "
                "lost to retention"
            )
        return counts[topic]

    async def _create(self, scan: TopicScan, settings: Settings) -> None:
        location = self._location
        factor = location.replication_factor or settings.replication_factor
        configs = {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(_TOMBSTONES_MS),
            "max.message.bytes": str(settings.limits.message_bytes_max + _MESSAGE_BYTES_SPARE),
            "min.insync.replicas": str(max(1, factor - 1)),
        }
        wanted = NewTopic(location.topic, location.partitions or settings.partitions, factor, topic_configs=configs)
        for _topic, code, *_ in (await scan.admin.create_topics([wanted])).topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise SinkRefused(
                    f"cannot create topic {location.topic}: {error.__name__} (replication_factor {factor})"
                )

    async def _read(self, scan: TopicScan) -> dict[bytes, int]:
        known: dict[bytes, int] = {}
        spans = await scan.spans(await scan.partitions([self._location.topic]))
        async for place, messages in scan.read(spans):
            for message in messages:
                self._take(known, place.partition, message)
            self._check_room(len(known))
        return known

    def _take(self, known: dict[bytes, int], partition: int, message: Message) -> None:
        headers = dict(message.headers)
        try:
            policy = headers[POLICY_HEADER].decode()
            version = _Known(int(headers["generation"]), int(headers["offset"]), partition)
        except (KeyError, ValueError, AttributeError, TypeError):
            # One is missing, of another form, or there without a value.
            version, policy = None, ""
        if version is None or message.key is None:
            raise SinkRefused(f"topic {self._location.topic} holds messages that are not of an export")
        if policy != self._policy_digest:
            raise SinkRefused(
                f"topic {self._location.topic} was written under another policy (redaction, key, public_repos, price "
                "table, or another application): make a new export with another name and topic"
            )
        digest = _digest(message.key)
        if digest not in known or _unpacked(known[digest])[:2] < version[:2]:
            known[digest] = _packed(version)

    def _check_room(self, count: int) -> None:
        if count > self._location.records_max:
            raise SinkRefused(
                f"topic {self._location.topic} has more than {self._location.records_max} keys to remember, about 200 "
                "bytes each; raise records_max in the sink's URL if the memory is there"
            )

    # ----------------------------------------------------------------------------------------------------- writing

    def _newer(self, connection: _Connection, batch: Sequence[Upsert]) -> list[tuple[bytes, _Known, Upsert]]:
        """Give what is newer than what the topic holds; a key stays in the partition it is in."""
        newer = []
        added = 0
        for item in batch:
            key = message_key(item.kind, item.id)
            digest = _digest(key.encode())
            held = connection.known.get(digest)
            if held is None:
                added += 1
                partition = partition_of(key, connection.partitions)
            else:
                generation, offset, partition = _unpacked(held)
                if item.version <= (generation, offset):
                    continue
            newer.append((digest, _Known(*item.version, partition), item))
        self._check_room(len(connection.known) + added)
        return newer

    async def _send(self, connection: _Connection, batch: Sequence[tuple[bytes, _Known, Upsert]]) -> None:
        writer = BatchWriter(connection.producer)
        for _digest_of_key, known, item in batch:
            key = message_key(item.kind, item.id).encode()
            writer.append(self._location.topic, known.partition, key, item.json, self._headers(item))
        if not self._location.has_transactions:
            await writer.send()
            return
        await connection.producer.begin_transaction()
        await writer.send()
        async with asyncio.timeout(_COMMIT_TIMEOUT_S):
            await connection.producer.commit_transaction()

    def _headers(self, item: Upsert) -> list[Header]:
        return [
            ("kind", item.kind.encode()),
            ("generation", str(item.generation).encode()),
            ("offset", str(item.offset).encode()),
            (POLICY_HEADER, self._policy_digest.encode()),
        ]

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.producer.abandon()

    def _failure(self, error: Exception) -> Exception:
        """Say of an error what it means for whoever writes; what it holds may be of a record and stays here."""
        topic = self._location.topic
        match error:
            case SinkRefused() | SinkBusy() | SinkFailed():
                return error
            case MessageSizeTooLargeError():
                return SinkRefused(f"topic {topic} does not take a message this large: raise its max.message.bytes")
            case _ if isinstance(error, _FENCED):
                return SinkBusy(f"another writer has taken over topic {topic}", _FENCED_DELAY_S)
            case BrokerFailed():
                return SinkFailed(str(error))
            case BrokenProducerError() | KafkaError() | TimeoutError():
                return SinkFailed(f"topic {topic} cannot be written: {type(error).__name__}")
            case _:
                return error


def settings_for(location: Location, settings: Settings) -> Settings:
    """Give the settings that clients of the sink's cluster are made from."""
    if location.bootstrap_servers is None:
        return settings
    update: dict[str, Any] = {"bootstrap_servers": location.bootstrap_servers}
    if location.security != "own":
        # Credentials are for the cluster that they were given for.
        protocol = "SSL" if location.security == "ssl" else "PLAINTEXT"
        update["kafka"] = KafkaSettings.model_validate({"security_protocol": protocol})
    return settings.model_copy(update=update)


def message_key(kind: str, record_id: str) -> str:
    """Name a record in the topic: ``kind:id``."""
    return f"{kind}:{record_id}"


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _packed(known: _Known) -> int:
    """One number takes a third of a tuple's memory, and there is one for every record."""
    return known.generation << 96 | known.offset << 32 | known.partition


def _unpacked(number: int) -> _Known:
    return _Known(number >> 96, number >> 32 & (1 << 64) - 1, number & (1 << 32) - 1)
