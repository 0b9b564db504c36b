"""The Kafka sink beyond the contract: its messages, its memory, and what it refuses; on the embedded broker."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidProducerEpoch,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
)
from pydantic import SecretStr

from projections.facts import partition_of
from projections.records import RECORD_KINDS
from tests.worker.sinks.destinations import (
    POLICY,
    REPOSITORY,
    KafkaDestination,
    deletion,
    run_record,
    topic_messages,
    upsert,
)
from worker.kafka import BrokenProducerError, Message
from worker.settings import Settings
from worker.settings_sections import ExportSettings, KafkaSettings
from worker.sink import Sink, SinkBusy, SinkFailed, SinkRefused, Upsert, open_sink
from worker.sink_setup import configure_sink
from worker.sink_switch import can_be_switched, instead_of_switching
from worker.sinks import kafka_topic
from worker.sinks.kafka_topic import KafkaTopicSink, Location

MARK = "ZZMARKZZ"
RUN = run_record("r1")
DONE = run_record("r1", status="completed", completedAt="2026-09-28T11:00:00.000Z")


@pytest.fixture
def destination(tmp_path: Path) -> KafkaDestination:
    return KafkaDestination(tmp_path)


def messages(destination: KafkaDestination) -> list[Message]:
    return asyncio.run(topic_messages(destination.bootstrap_servers, destination.topic))


def opened_sink(url: str) -> KafkaTopicSink:
    sink = open_sink(url, POLICY)
    assert isinstance(sink, KafkaTopicSink)
    return sink


def test_a_message_is_a_record_under_kind_and_id(destination: KafkaDestination) -> None:
    destination.write([upsert(RUN, 7, generation=2)])
    [message] = messages(destination)
    assert (message.key, message.value) == (b"run:r1", upsert(RUN, 7).json)
    assert dict(message.headers) == {
        "kind": b"run",
        "generation": b"2",
        "offset": b"7",
        "policy": POLICY.encode(),
    }


def test_a_deletion_is_a_tombstone_with_its_version(destination: KafkaDestination) -> None:
    destination.write([upsert(RUN, 1), deletion(RUN, 2)], [deletion(run_record("r2"), 3)])
    written = {message.key: message for message in messages(destination)}
    assert {key: message.value for key, message in written.items()} == {b"run:r1": None, b"run:r2": None}
    assert dict(written[b"run:r1"].headers)["offset"] == b"2"


def test_no_kind_holds_what_separates_it_from_an_id() -> None:
    assert not [kind for kind in RECORD_KINDS if ":" in kind]


def test_what_the_topic_holds_already_is_not_written_again(destination: KafkaDestination) -> None:
    batch = [upsert(run_record(f"r{n}"), n) for n in range(20)]
    destination.write(batch, batch)
    destination.write(batch)
    assert len(messages(destination)) == 20


def test_a_key_is_in_one_partition_and_keys_are_in_all(destination: KafkaDestination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(run_record(f"r{n}"), n) for n in range(50)])

    destination.run(work)
    assert {message.key for message in messages(destination)} == {f"run:r{n}".encode() for n in range(50)}
    assert {partition_of(f"run:r{n}", 3) for n in range(50)} == {0, 1, 2}


def test_a_key_stays_where_it_is_when_partitions_are_added() -> None:
    sink = KafkaTopicSink("t?bootstrap_servers=h:1", POLICY)
    key = hashlib.blake2b(b"run:r1", digest_size=16).digest()
    known = {key: kafka_topic._packed(kafka_topic._Known(1, 5, 2))}
    connection = kafka_topic._Connection(None, 100, known)  # type: ignore[arg-type]
    [(_, placed, _)] = sink._newer(connection, [upsert(DONE, 6)])
    assert placed == (1, 6, 2)


@pytest.mark.parametrize("known", [(1, 0, 0), (3, 2**63 - 1, 9_999), (2**20, 17, 2**31)])
def test_what_is_remembered_of_a_key_is_exact(known: tuple[int, int, int]) -> None:
    assert kafka_topic._unpacked(kafka_topic._packed(kafka_topic._Known(*known))) == known


def test_a_topic_with_more_keys_than_may_be_remembered_is_refused(destination: KafkaDestination) -> None:
    destination.write([upsert(run_record(f"r{n}"), n) for n in range(3)])

    async def use(limit: int, batch: Sequence[Upsert]) -> None:
        sink = opened_sink(f"{destination.url}&records_max={limit}")
        try:
            await sink.open()
            await sink.write(batch)
        finally:
            await sink.close()

    with pytest.raises(SinkRefused, match="records_max"):
        asyncio.run(use(2, []))
    with pytest.raises(SinkRefused, match="records_max"):
        asyncio.run(use(3, [upsert(run_record("another"), 9)]))
    asyncio.run(use(3, [upsert(run_record("r0"), 9)]))
    assert len(messages(destination)) == 4


async def _publish(destination: KafkaDestination, key: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    sink = opened_sink(destination.url)
    await sink.open()
    await sink.close()
    producer = AIOKafkaProducer(bootstrap_servers=destination.bootstrap_servers)
    await producer.start()
    await producer.send_and_wait(destination.topic, key=key, value=b"{}", headers=headers)
    await producer.stop()


OURS = [("kind", b"run"), ("generation", b"1"), ("offset", b"1"), ("policy", POLICY.encode())]


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (b"run:r1", []),
        (None, OURS),
        (b"run:r1", [*OURS[:2], ("offset", b"one"), OURS[3]]),
        (b"run:r1", [*OURS[:3], ("policy", b"\xff")]),
        (b"run:r1", [*OURS[:3], ("policy", None)]),
        (b"run:r1", [*OURS[:2], ("offset", None), OURS[3]]),
    ],
)
def test_a_topic_with_messages_of_somebody_else_is_refused(
    destination: KafkaDestination, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    asyncio.run(_publish(destination, key, headers))
    with pytest.raises(SinkRefused, match="not of an export"):
        destination.write([upsert(RUN, 1)])
    assert len(messages(destination)) == 1


def test_opening_twice_is_opening_once(destination: KafkaDestination) -> None:
    async def work(sink: Sink) -> None:
        await sink.write([upsert(RUN, 1)])
        assert await sink.open() is False
        await sink.write([upsert(DONE, 2)])

    assert destination.run(work) == {("run", "r1"): upsert(DONE, 2).json}


class _FailingProducer:
    """A producer in whose place everything fails."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.is_abandoned = False

    def create_batch(self) -> None:
        raise self._error

    async def abandon(self) -> None:
        self.is_abandoned = True


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (InvalidProducerEpoch(MARK), SinkBusy),
        (MessageSizeTooLargeError(MARK), SinkRefused),
        (NotEnoughReplicasError(MARK), SinkFailed),
        (BrokenProducerError(MARK), SinkFailed),
        (TimeoutError(MARK), SinkFailed),
        (ZeroDivisionError("a fault of the program"), ZeroDivisionError),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
)
def test_after_a_failed_write_the_topic_is_read_again(
    destination: KafkaDestination, error: BaseException, raised: type[BaseException]
) -> None:
    producer = _FailingProducer(error)

    async def work(sink: Sink) -> None:
        assert isinstance(sink, KafkaTopicSink)
        assert sink._connection is not None
        real, sink._connection = sink._connection, sink._connection._replace(producer=producer)  # type: ignore[arg-type]
        await real.producer.abandon()
        with pytest.raises(raised) as caught:
            await sink.write([upsert(RUN, 1)])
        assert MARK not in str(caught.value)
        assert producer.is_abandoned
        await sink.write([upsert(RUN, 1)])

    assert destination.run(work) == {("run", "r1"): upsert(RUN, 1).json}


def test_a_write_whose_answer_was_lost_is_not_repeated(destination: KafkaDestination) -> None:
    async def work(sink: Sink) -> None:
        assert isinstance(sink, KafkaTopicSink)
        send = sink._send

        async def sent_but_unknown(*arguments: Any) -> None:
            await send(*arguments)
            raise TimeoutError

        sink._send = sent_but_unknown  # type: ignore[method-assign,assignment]
        with pytest.raises(SinkFailed):
            await sink.write([upsert(RUN, 1)])
        sink._send = send  # type: ignore[method-assign]
        await sink.write([upsert(RUN, 1)])

    destination.run(work)
    assert len(messages(destination)) == 1


# ---------------------------------------------------------------------------------------------------------- location


def test_a_location_says_where_and_how() -> None:
    location = (
        "t?bootstrap_servers=a:1,b:2&security=ssl&partitions=3&replication_factor=2&transactions=off&records_max=9"
    )
    assert Location.parsed(location) == ("t", "a:1,b:2", "ssl", 3, 2, False, 9)
    assert Location.parsed("t") == ("t", None, "own", None, None, True, 5_000_000)
    assert Location.parsed("t?bootstrap_servers=a:1").security == "plaintext"


@pytest.mark.parametrize(
    "location",
    [
        "",
        "//host/topic",
        "a/b",
        f"t?password={MARK}",
        "t?partitions=1&partitions=2",
        "t?partitions=0",
        "t?partitions=-1",
        "t?records_max=9999999999",
        f"t?security={MARK}",
        "t?security=ssl",
        f"t?transactions={MARK}",
    ],
)
def test_a_location_that_is_of_no_use_is_refused_and_not_repeated(location: str) -> None:
    with pytest.raises(SinkRefused) as caught:
        open_sink(f"kafka:{location}", POLICY)
    assert MARK not in str(caught.value)


@pytest.mark.parametrize("location", ["t", "t?bootstrap_servers=a:1&security=own"])
def test_the_workers_cluster_without_a_worker_is_refused(location: str) -> None:
    with pytest.raises(SinkRefused, match="bootstrap_servers"):
        asyncio.run(open_sink(f"kafka:{location}", POLICY).open())


def _settings() -> Settings:
    kafka = KafkaSettings(security_protocol="SASL_SSL", sasl_username="u", sasl_password=SecretStr(MARK))
    return Settings(bootstrap_servers="own:9092", kafka=kafka)


def _configured(location: str) -> Settings:
    sink = KafkaTopicSink(location, POLICY)
    configure_sink(sink, _settings(), ExportSettings(name="a", sink=f"kafka:{location}", redact=False))
    assert sink._settings is not None
    return sink._settings


def test_the_workers_own_cluster_is_reached_as_the_worker_reaches_it() -> None:
    assert _configured("t") == _settings()


@pytest.mark.parametrize(("security", "protocol"), [("plaintext", "PLAINTEXT"), ("ssl", "SSL"), ("own", "SASL_SSL")])
def test_other_brokers_get_the_workers_credentials_only_when_it_is_said(security: str, protocol: str) -> None:
    settings = _configured(f"t?bootstrap_servers=other:9092&security={security}")
    assert (settings.bootstrap_servers, settings.kafka.security_protocol) == ("other:9092", protocol)
    assert (settings.kafka.sasl_password is not None) == (security == "own")


def test_brokers_that_are_away_are_a_failure() -> None:
    async def work() -> None:
        sink = opened_sink("kafka:t?bootstrap_servers=127.0.0.1:1")
        with pytest.raises(SinkFailed, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
            await sink.open()
        await sink.close()

    asyncio.run(work())


def test_an_error_without_a_name_for_it_stays_what_it_is() -> None:
    sink = opened_sink("kafka:t?bootstrap_servers=h:1")
    assert isinstance(sink._failure(KafkaConnectionError(MARK)), SinkFailed)
    assert MARK not in str(sink._failure(KafkaConnectionError(MARK)))


def test_a_generation_cannot_be_put_in_place_in_one_step() -> None:
    assert not can_be_switched("kafka:t")
    assert "change one by one" in instead_of_switching("kafka:t")


def test_the_example_for_kafka_connect_reads_what_was_committed() -> None:
    config = json.loads((REPOSITORY / "deploy/feeds/kafka-connect-jdbc.json").read_bytes())["config"]
    assert config["consumer.override.isolation.level"] == "read_committed"
    assert (config["pk.mode"], config["delete.enabled"]) == ("record_key", "true")
