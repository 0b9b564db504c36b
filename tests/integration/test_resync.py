"""Exports that are read anew: after they stood still, after their policy changed, after somebody wrote into them."""

import asyncio
import json
import os
import time

import duckdb
import pytest
from aiokafka import AIOKafkaProducer

from tests.brokers.broker import Broker
from tests.integration.commands import Commands
from tests.integration.pipeline import KEY_VARIABLE, Pipeline, worlds
from tests.integration.test_worker import assert_same_as_file_mode, run_until_it_ends
from worker.groups import open_groups
from worker.kafka import TopicPartition
from worker.settings import load_settings
from worker.topics import export_group

pytestmark = pytest.mark.integration

DAY_S = 24 * 60 * 60


def test_rows_that_are_no_longer_there_go_and_nothing_is_read_twice_afterwards(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    pipeline.publish(worlds(range(130, 132)))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    code, _, err = commands.run("export", "resync", "plain")
    assert (code, "reading its sink anew needs it empty" in err) == (1, True)
    assert worker.stop() == 0
    with duckdb.connect(str(pipeline.duckdb_path)) as connection:
        connection.execute("INSERT INTO trace_run BY NAME SELECT * REPLACE ('left over' AS id) FROM trace_run LIMIT 1")
    assert ("run", "left over") in {row[:2] for row in pipeline.duckdb_records()}
    inode = pipeline.duckdb_path.stat().st_ino

    code, _, err = commands.run("export", "resync", "plain")
    assert (code, "export plain is read anew from" in err) == (0, True), err
    assert pipeline.duckdb_path.stat().st_ino != inode
    assert ("run", "left over") not in {row[:2] for row in pipeline.duckdb_records()}
    assert sorted(path.name for path in pipeline.directory.glob("plain.duckdb*")) == ["plain.duckdb"]
    assert pipeline.duckdb_path.stat().st_mode & 0o777 == 0o600
    told = commands.json("export", "resync", "plain")
    assert (told["export"], told["withheld"], told["messages"] > 0) == ("plain", 0, True)
    worker = pipeline.worker("again")
    worker.start()
    worker.wait_ready()
    pipeline.wait_settled()
    assert worker.total("written_upserts_total") == 0
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def test_a_changed_key_is_refused_until_everything_has_left_under_it(
    pipeline: Pipeline, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.create_topics()
    pipeline.publish(worlds([132]))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0
    before = pipeline.jsonl_path.read_bytes()
    monkeypatch.setenv(KEY_VARIABLE, "another-key-of-more-than-thirty-two-bytes")
    code, told = run_until_it_ends(pipeline.worker("refused"))
    assert (code, "read everything again with `export resync`" in told) == (1, True)
    assert pipeline.jsonl_path.read_bytes() == before
    code, _, err = commands.run("export", "resync", "public")
    assert code == 0, err
    assert pipeline.jsonl_path.read_bytes() != before
    worker = pipeline.worker("again")
    worker.start()
    worker.wait_ready()
    pipeline.wait_settled()
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def test_an_export_that_stood_still_for_too_long_stops_and_names_the_way_out(
    pipeline: Pipeline, commands: Commands, kafka: Broker
) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker lets nobody move a group that has just been left")
    pipeline.create_topics()
    asyncio.run(_publish_old_records(kafka, pipeline.own_topics[1]))
    worker = pipeline.worker()
    worker.start("--role", "export:plain")
    pipeline.wait_settled(["export-plain"])
    assert worker.stop() == 0
    place = TopicPartition(pipeline.own_topics[1], 0)
    asyncio.run(_move(pipeline, place, 2))
    worker = pipeline.worker("in time")
    worker.start("--role", "export:plain")
    pipeline.wait_settled(["export-plain"])
    assert worker.stop() == 0

    asyncio.run(_move(pipeline, place, 2))
    long_ago = time.time() - 35 * DAY_S
    os.utime(pipeline.duckdb_path, (long_ago, long_ago))
    worker = pipeline.worker("late")
    code, told = run_until_it_ends(worker)
    assert code == 1
    assert "export plain has stood still for 35 days" in told
    assert "`trace-projector export resync plain`" in told
    code, _, err = commands.run("export", "resync", "plain")
    assert code == 0, err
    assert len(pipeline.duckdb_records()) == 3
    worker = pipeline.worker("again")
    worker.start("--role", "export:plain")
    worker.wait_ready()
    assert worker.stop() == 0


async def _publish_old_records(kafka: Broker, topic: str) -> None:
    """Write records that are dated forty days back."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    await producer.start()
    at_ms = int((time.time() - 40 * DAY_S) * 1000)
    try:
        for number in range(3):
            record = {
                "schema": "titan.trace/v1",
                "kind": "run",
                "id": f"run-{number}",
                "runId": f"run-{number}",
                "at": "2026-10-01T09:00:00Z",
                "workflowName": "w",
                "status": "running",
            }
            await producer.send_and_wait(
                topic,
                json.dumps(record, separators=(",", ":")).encode(),
                key=f"run-{number}".encode(),
                partition=0,
                timestamp_ms=at_ms,
                headers=[("kind", b"run")],
            )
    finally:
        await producer.stop()


async def _move(pipeline: Pipeline, place: TopicPartition, offset: int) -> None:
    settings = load_settings(pipeline.config)
    async with open_groups(settings) as groups:
        await groups.move(export_group(settings, "plain"), {place: offset}, "a test")
