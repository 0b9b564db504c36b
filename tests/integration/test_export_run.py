"""Exports to files from the records log, and filters of exports, on a broker."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.brokers.broker import Broker
from tests.integration.commands import Commands
from tests.integration.pipeline import KEY, Pipeline, worlds
from tests.integration.test_worker import run_until_it_ends
from tests.worlds.world import PRIVATE_MARKER, SECRET_MARKER
from worker.file_exports.manifest import MANIFEST_NAME

pytestmark = pytest.mark.integration

FILTER = '[exports.filter]\nkinds = ["run", "attempt", "artifact"]\nrun_id_prefixes = ["run-141"]\n'


def project(pipeline: Pipeline) -> None:
    """Let a worker project some worlds, and stop it."""
    pipeline.create_topics()
    pipeline.publish(worlds(range(140, 143)))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def rows(directory: Path) -> list[bytes]:
    return sorted(line for path in directory.glob("*.jsonl") for line in path.read_bytes().splitlines())


def manifest_of(directory: Path) -> Any:
    return json.loads((directory / MANIFEST_NAME).read_bytes())


async def publish_poison(kafka: Broker, topic: str) -> None:
    """Write what is no record under its own id, with markers wherever a message has room for them."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    await producer.start()
    try:
        value = json.dumps({"kind": "run", "id": f"another {SECRET_MARKER}", "error": SECRET_MARKER}).encode()
        headers = [("kind", b"run"), (SECRET_MARKER, SECRET_MARKER.encode())]
        await producer.send_and_wait(topic, value, key=SECRET_MARKER.encode(), partition=1, headers=headers)
    finally:
        await producer.stop()


def test_files_hold_what_the_sink_holds_and_the_same_offsets_give_the_same_files(
    pipeline: Pipeline, commands: Commands, kafka: Broker
) -> None:
    project(pipeline)
    out = pipeline.directory / "out"
    code, told, err = commands.run("export", "run", "public", "--to", str(out))
    assert (code, told) == (0, ""), err
    assert rows(out) == sorted(pipeline.jsonl_path.read_bytes().splitlines())
    manifest = manifest_of(out)
    assert manifest["withheld"] == 0
    assert manifest["source"]["topic"] == pipeline.own_topics[1]
    assert [entry["partition"] for entry in manifest["source"]["partitions"]] == [0, 1, 2]
    assert sum(entry["end"] for entry in manifest["source"]["partitions"]) >= len(rows(out))
    before = content(out)
    assert commands.run("export", "run", "public", "--to", str(out))[0] == 0
    assert commands.run("export", "run", "public", "--to", str(pipeline.directory / "again"))[0] == 0
    assert content(out) == content(pipeline.directory / "again") == before
    assert commands.run("export", "verify", str(out))[0] == 0

    asyncio.run(publish_poison(kafka, pipeline.own_topics[1]))
    code, told, err = commands.run("export", "run", "public", "--to", str(out))
    assert (code, "1 messages cannot leave" in err) == (0, True)
    assert rows(out) == rows(pipeline.directory / "again")
    assert manifest_of(out)["withheld"] == 1
    ends = [
        [entry["end"] for entry in manifest_of(path)["source"]["partitions"]] for path in (out, out.parent / "again")
    ]
    assert ends[0][1] > ends[1][1]
    everything = repr(content(out)) + told + err
    assert [marker for marker in (SECRET_MARKER, PRIVATE_MARKER, KEY) if marker in everything] == []


def test_a_changed_filter_is_refused_until_the_sink_was_read_anew_and_then_nothing_else_is_in_it(
    pipeline: Pipeline, commands: Commands
) -> None:
    project(pipeline)
    everything = pipeline.jsonl_path.read_bytes().splitlines()
    out = pipeline.directory / "out"
    assert commands.run("export", "run", "public", "--to", str(out))[0] == 0
    pipeline.config.write_text(pipeline.config.read_text() + FILTER)

    code, told = run_until_it_ends(pipeline.worker("refused"))
    assert (code, "filter" in told, "`export resync`" in told) == (1, True, True)
    code, _, err = commands.run("export", "run", "public", "--to", str(out))
    assert (code, "give another directory" in err) == (1, True)
    assert pipeline.jsonl_path.read_bytes().splitlines() == everything

    assert commands.run("export", "resync", "public")[0] == 0
    records = [json.loads(line) for line in everything]
    wanted = [
        line
        for line, record in zip(everything, records, strict=True)
        if record["kind"] in {"run", "attempt", "artifact"} and record["runId"].startswith("run-141")
    ]
    assert 0 < len(wanted) < len(everything)
    assert sorted(pipeline.jsonl_path.read_bytes().splitlines()) == sorted(wanted)
    worker = pipeline.worker("filtered")
    worker.start()
    pipeline.publish(worlds([141, 143]))
    pipeline.wait_settled()
    assert worker.stop() == 0
    assert sorted(pipeline.jsonl_path.read_bytes().splitlines()) == sorted(wanted)
    code, out_text, err = commands.run("verify", "--export", "public")
    assert code == 0, out_text + err
    assert commands.run("export", "run", "public", "--to", str(pipeline.directory / "few"))[0] == 0
    assert rows(pipeline.directory / "few") == sorted(wanted)
    assert (pipeline.directory / "few" / "call.jsonl").exists() is False


def test_an_export_run_without_records_or_brokers_is_told_and_leaves_no_directory(
    pipeline: Pipeline, commands: Commands
) -> None:
    out = pipeline.directory / "out"
    code, _, err = commands.run("export", "run", "public", "--to", str(out))
    assert (code, "there is no topic" in err) == (1, True)
    assert not out.exists()
