"""Offsets on a real broker: messages that are gone, batches that are damaged on disk, members that come and go."""

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.record.util import calc_crc32c

from projections.errors import ProjectionError
from projections.facts import encode_fact
from projections.sources import project_message
from tests.brokers.apache_kafka import KafkaCluster
from tests.brokers.broker import Broker
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, WorkerProcess, eventually, worlds
from tests.integration.test_worker import assert_accounted, run_until_it_ends
from tests.worlds.world import SourceMessage

pytestmark = pytest.mark.integration

PROJECT = ("--role", "project")
SKIP_MISSING = {"TRACE_PROJECTOR_KAFKA__ON_MISSING_OFFSETS": "skip"}
SKIP_CORRUPT = {"TRACE_PROJECTOR_KAFKA__ON_CORRUPT_BATCH": "skip"}


@pytest.fixture
def needs_real_groups(kafka: Broker) -> None:
    """Skip where the broker has no more of Kafka than the demo needs."""
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker deletes nothing and knows no names of members")


# ------------------------------------------------------------------------------------------------- missing offsets


def delete_before(pipeline: Pipeline, place: TopicPartition, offset: int) -> None:
    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.kafka.bootstrap_servers)
        await admin.start()
        try:
            await admin.delete_records({place: RecordsToDelete(before_offset=offset)})
        finally:
            await admin.close()

    asyncio.run(delete())


def append(servers: str, place: TopicPartition, values: list[bytes]) -> None:
    """Publish values as one batch, acknowledged before this returns."""

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
            batch = producer.create_batch()
            for value in values:
                assert batch.append(key=None, value=value, timestamp=None) is not None
            await (await producer.send_batch(batch, place.topic, partition=place.partition))

    asyncio.run(send())


@pytest.mark.usefixtures("needs_real_groups")
def test_messages_that_are_deleted_before_they_are_read_stop_the_worker_or_are_counted(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    place = TopicPartition(pipeline.topic("workflow-runs"), 0)
    servers = pipeline.kafka.bootstrap_servers
    append(servers, place, snapshots(3))
    worker = pipeline.worker()
    worker.start(*PROJECT)
    pipeline.wait_settled(("project",))
    assert worker.stop() == 0
    append(servers, place, snapshots(6))
    delete_before(pipeline, place, 7)

    stopped = pipeline.worker("stopped")
    code, told = run_until_it_ends(stopped)
    assert code == 1
    assert f"topic {place.topic} partition 0 begins at offset 7 and 3 is to be read next: 4 offsets, 3 to 6," in told
    assert "kafka.on_missing_offsets" in told
    assert "Traceback" not in told

    worker = pipeline.worker("skips", **SKIP_MISSING)
    worker.start(*PROJECT)
    pipeline.wait_settled(("project",))
    assert worker.total("missing_offsets_total", role="project", topic=place.topic, partition="0") == 4
    assert worker.total("consumed_messages_total", topic=place.topic) == 2
    assert_accounted(worker)
    assert worker.stop() == 0
    [lost] = [line for line in log_lines(worker) if line["event"] == "offsets_missing"]
    assert (lost["first_offset"], lost["last_offset"], lost["next_offset"]) == (3, 6, 7)

    # What was skipped is skipped for good: the next start has nothing to complain about.
    worker = pipeline.worker("after")
    worker.start(*PROJECT)
    worker.wait_ready()
    assert worker.stop() == 0


def snapshots(count: int) -> list[bytes]:
    """Give values of the workflow-runs topic."""
    values = [message.value for message in worlds(range(140, 144)) if message.topic == "workflow-runs"]
    found = [value for value in values if value is not None][:count]
    assert len(found) == count
    return found


def log_lines(worker: WorkerProcess) -> list[dict[str, object]]:
    return [json.loads(line) for line in worker.log_path.read_text().splitlines() if line.startswith("{")]


# ------------------------------------------------------------------------------------------------- corrupt batches


@pytest.fixture
def own_cluster() -> Iterator[KafkaCluster]:
    """Give a broker whose files a test may damage."""
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def damaged(own_cluster: KafkaCluster, fresh_app_id: str, tmp_path: Path) -> Iterator[Pipeline]:
    """Give a pipeline with three batches in one partition, offsets 3 to 6 of it damaged on disk, and other messages."""
    servers = own_cluster.bootstrap_servers
    pipeline = Pipeline(
        Broker("damaged", servers, supports_transactions=True, stop=own_cluster.stop), fresh_app_id, tmp_path
    )
    pipeline.write_config()
    pipeline.create_topics()
    place = TopicPartition(pipeline.topic("workflow-runs"), 0)
    values = snapshots(10)
    for batch in (values[:3], values[3:7], values[7:]):
        append(servers, place, batch)
    pipeline.publish([message for message in worlds([144]) if message.topic == "ledger-changes"])
    [node] = own_cluster.nodes
    node.stop()
    damage_batch(node.data_directory / f"{place.topic}-0" / f"{0:020}.log", 1)
    node.start()
    assert own_cluster.wait_until_ready()
    try:
        yield pipeline
    finally:
        pipeline.close()


def damage_batch(segment: Path, index: int) -> None:
    """Flip the last byte of a batch, which is part of its last message."""
    data = bytearray(segment.read_bytes())
    end = 0
    for _ in range(index + 1):
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    data[end - 2] ^= 0xFF
    segment.write_bytes(data)


def start_and_stand(worker: WorkerProcess, topic: str, lag: int) -> None:
    """Start a worker that projects, and wait until it stands in partition 0 and has read all else."""
    worker.start(*PROJECT)
    eventually(lambda: worker.get("/metrics")[0] == 200, "the worker shows its metrics")
    eventually(
        lambda: worker.total("corrupt_partitions", role="project", topic=topic, partition="0") == 1, "it stops there"
    )
    eventually(lambda: worker.total("lag_messages", role="project") == lag, "the others have caught up")


def test_a_batch_that_is_damaged_on_disk_stops_its_partition_or_becomes_one_dead_letter(
    damaged: Pipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = damaged.topic("workflow-runs")
    worker = damaged.worker()
    start_and_stand(worker, topic, lag=7)
    status, body = worker.get("/readyz")
    assert (status, json.loads(body)["roles"]["project"]["stopped_partitions"]) == (200, 1)
    assert worker.total("consumed_messages_total", topic=topic, partition="0") == 3
    assert_accounted(worker)
    assert worker.stop() == 0
    [stop] = [line for line in log_lines(worker) if line["event"] == "partition_stopped"]
    assert (stop["topic"], stop["partition"], stop["offset"]) == (topic, 0, 3)

    worker = damaged.worker("skips", **SKIP_CORRUPT)
    worker.start(*PROJECT)
    damaged.wait_settled(("project",))
    assert worker.total("corrupt_batches_total", role="project", topic=topic, partition="0") == 1
    assert worker.total("consumed_messages_total", topic=topic, partition="0") == 3
    assert_accounted(worker)
    assert worker.stop() == 0
    [letter] = [letter for letter in damaged.dead_letters() if letter["reason"] == "corrupt_batch"]
    assert (letter["topic"], letter["partition"], letter["offset"], letter["lastOffset"]) == (topic, 0, 3, 6)
    redriven = Commands(damaged.config, capfd).json("dead-letters", "redrive", "--reason", "corrupt_batch")
    assert "its batch is corrupt" in json.dumps(redriven)


def append_foreign_header(servers: str, place: TopicPartition, values: list[bytes]) -> None:
    """Publish values as one batch; the second has a header whose name is bytes of no text, which Kafka itself takes."""

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
            batch = producer.create_batch()
            for index, value in enumerate(values):
                headers = [("NAME", b"")] if index == 1 else []
                assert batch.append(key=None, value=value, timestamp=None, headers=headers) is not None
            batch.close()
            data = bytearray(batch._build().replace(b"NAME", b"\xff\xfe\x80\x81"))
            data[17:21] = calc_crc32c(data[21:]).to_bytes(4, "big")
            batch._buffer = data
            await (await producer.send_batch(batch, place.topic, partition=place.partition))

    asyncio.run(send())


@pytest.mark.usefixtures("needs_real_groups")
def test_a_header_whose_name_is_no_text_stops_its_partition_or_makes_its_batch_one_dead_letter(
    pipeline: Pipeline,
) -> None:
    pipeline.create_topics()
    topic, servers, values = pipeline.topic("workflow-runs"), pipeline.kafka.bootstrap_servers, snapshots(8)
    append(servers, TopicPartition(topic, 0), values[:2])
    append_foreign_header(servers, TopicPartition(topic, 0), values[2:5])
    append(servers, TopicPartition(topic, 0), values[5:])
    append(servers, TopicPartition(topic, 1), values[:4])
    worker = pipeline.worker()
    start_and_stand(worker, topic, lag=5)
    assert worker.total("consumed_messages_total", topic=topic, partition="0") == 3
    assert_accounted(worker)
    assert worker.stop() == 0
    [stop] = [line for line in log_lines(worker) if line["event"] == "partition_stopped"]
    assert stop["offset"] == 3

    worker = pipeline.worker("skips", **SKIP_CORRUPT)
    worker.start(*PROJECT)
    pipeline.wait_settled(("project",))
    assert worker.total("consumed_messages_total", topic=topic, partition="0") == 3
    assert_accounted(worker)
    assert worker.stop() == 0
    [letter] = [letter for letter in pipeline.dead_letters() if letter["reason"] == "corrupt_batch"]
    assert (letter["topic"], letter["partition"], letter["offset"], letter["lastOffset"]) == (topic, 0, 3, 4)


# ------------------------------------------------------------------------------------------------- members


def assignments(worker: WorkerProcess) -> int:
    return sum(line["event"] == "assigned" for line in log_lines(worker))


def with_long_sessions(pipeline: Pipeline) -> None:
    """Make sessions last longer than any wait of a test: who takes over does so because somebody left."""
    text = pipeline.config.read_text()
    pipeline.config.write_text(text.replace("session_timeout_s = 6.0", "session_timeout_s = 300.0"))


@pytest.mark.usefixtures("needs_real_groups")
def test_a_member_with_a_name_may_be_started_again_and_nobody_notices(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    with_long_sessions(pipeline)
    first = pipeline.worker("first", TRACE_PROJECTOR_KAFKA__INSTANCE_ID="one")
    second = pipeline.worker("second", TRACE_PROJECTOR_KAFKA__INSTANCE_ID="two")
    for worker in (first, second):
        worker.start(*PROJECT)
    for worker in (first, second):
        eventually(lambda worker=worker: shares(worker), "both have partitions")  # type: ignore[misc]
    before, held = assignments(second), second.total("assigned_partitions", role="project")
    assert first.stop() == 0
    pipeline.publish([SourceMessage("workflow-runs", None, value) for value in snapshots(6)])
    again = pipeline.worker("again", TRACE_PROJECTOR_KAFKA__INSTANCE_ID="one")
    again.start(*PROJECT)
    pipeline.wait_settled(("project",))
    assert assignments(second) == before
    assert second.total("assigned_partitions", role="project") == held
    assert again.stop() == 0
    assert second.stop() == 0


@pytest.mark.usefixtures("needs_real_groups")
def test_a_member_without_a_name_leaves_when_it_stops_and_others_take_over_at_once(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    with_long_sessions(pipeline)
    first, second = pipeline.worker("first"), pipeline.worker("second")
    for worker in (first, second):
        worker.start(*PROJECT)
    for worker in (first, second):
        eventually(lambda worker=worker: shares(worker), "both have partitions")  # type: ignore[misc]
    assert first.stop() == 0
    eventually(lambda: second.total("assigned_partitions", role="project") == 11, "the other one has them all")
    assert second.stop() == 0


def shares(worker: WorkerProcess) -> bool:
    """Say whether a worker has some of the eleven source partitions."""
    return worker.get("/metrics")[0] == 200 and 0 < worker.total("assigned_partitions", role="project") < 11


# ------------------------------------------------------------------------------------------------- leaders


@pytest.mark.slow
def test_a_broker_that_goes_and_takes_its_leaderships_with_it_costs_nothing(fresh_app_id: str, tmp_path: Path) -> None:
    with KafkaCluster(3) as cluster:
        broker = Broker("three", cluster.bootstrap_servers, supports_transactions=True, stop=cluster.stop)
        pipeline = Pipeline(broker, fresh_app_id, tmp_path)
        pipeline.write_config(replication_factor=3)
        pipeline.create_topics(replication_factor=3)
        worker = pipeline.worker()
        try:
            worker.start(*PROJECT)
            worker.wait_ready()
            first, second = worlds([145]), worlds([146])
            pipeline.publish(first)
            cluster.nodes[0].kill()
            pipeline.publish(second)
            pipeline.wait_settled(("project",))
            cluster.nodes[0].start()
            assert cluster.wait_until_ready()
            cluster.nodes[1].stop()
            pipeline.publish(third := worlds([147]))
            pipeline.wait_settled(("project",))
            assert worker.total("consumed_messages_total") >= len(first) + len(second) + len(third)
            assert_accounted(worker)
            assert worker.stop() == 0
        finally:
            pipeline.close()
        facts = told_by(message.key for message in pipeline.read(pipeline.own_topics[0]) if message.value is not None)
        assert facts == clean_facts([*first, *second, *third])


def told_by(keys: Iterable[bytes]) -> set[tuple[str, ...]]:
    """Give what facts tell: their keys without the places of their messages, and no bare tombstones, all place."""
    told: set[tuple[str, ...]] = set()
    for aggregate, name, version, _place, digest in map(json.loads, keys):
        if not name.startswith("tombstone"):
            told.add((aggregate, name, json.dumps(version), digest))
    return told


def clean_facts(messages: list[SourceMessage]) -> set[tuple[str, ...]]:
    """Give what the facts of messages tell when nothing happens to them."""
    told: set[tuple[str, ...]] = set()
    for message in messages:
        with contextlib.suppress(ProjectionError):
            facts = project_message(message.topic, message.key, message.value, 0, 0).facts
            told |= told_by(encode_fact(fact)[0] for fact in facts)
    return told
