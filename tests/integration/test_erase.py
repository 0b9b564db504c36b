"""Erasing through the pipeline: rows leave every sink, and nothing that comes later brings them back."""

import asyncio
import json

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from projections.ids import conversation_ref
from tests.brokers.broker import Broker, create_topics
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, worlds
from tests.integration.test_worker import assert_same_as_file_mode
from tests.worlds.world import SourceMessage

pytestmark = pytest.mark.integration


def run_ids(pipeline: Pipeline) -> dict[str, int]:
    """Count the records of each run in the unredacted sink."""
    counts: dict[str, int] = {}
    for _kind, _id, record in pipeline.duckdb_records():
        run_id = json.loads(record)["runId"]
        counts[run_id] = counts.get(run_id, 0) + 1
    return counts


def erasure(field: str, native_id: str) -> SourceMessage:
    return SourceMessage("erasures", None, json.dumps({field: native_id}).encode())


def test_an_erased_run_leaves_every_sink_and_what_is_told_of_it_later_stays_out(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    messages = worlds(range(80, 84))
    # The ledger binds conversations to runs: of half of them it does so after the erasure.
    late = [message for message in messages if message.topic == "ledger-changes"][::2]
    pipeline.publish([message for message in messages if message not in late])
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    counts = run_ids(pipeline)
    victim = max((run_id for run_id in counts if not run_id.startswith("standalone-")), key=lambda name: counts[name])

    done = commands.json("erase", "--run", victim, "--wait")
    pipeline.published.append(erasure("run", victim))
    assert (done["topic"], sum(done["held"].values())) == (pipeline.topic("erasures"), counts[victim])
    assert [export["name"] for export in done["exports"]] == ["plain", "public"]
    assert victim not in run_ids(pipeline)
    pipeline.publish(late)
    pipeline.wait_settled()
    assert victim not in run_ids(pipeline)
    # A second time there is nothing left to take out.
    code, _, err = commands.run("erase", "--run", victim)
    assert (code, "no record of it was in the records log" in err) == (0, True)
    pipeline.wait_settled()
    assert worker.stop() == 0
    assert f'"{victim}"' not in pipeline.jsonl_path.read_text()
    assert_same_as_file_mode(pipeline)


def test_an_erased_conversation_stays_out_when_it_is_bound_afterwards(pipeline: Pipeline, commands: Commands) -> None:
    pipeline.create_topics()
    messages = worlds(range(84, 88))
    ledger = [message for message in messages if message.topic == "ledger-changes"]
    pipeline.publish([message for message in messages if message.topic != "ledger-changes"])
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    told = b"".join(message.value or b"" for message in ledger).decode()
    sources = [
        json.loads(message.value).get("source", {})
        for message in messages
        if message.topic == "transcripts" and message.value
    ]
    # One that the ledger is going to bind.
    refs = {conversation_ref(source) for source in sources if source.get("nativeId") and source["nativeId"] in told}
    held = {ref: sum(f":{ref.partition(':')[2]}:" in row[1] for row in pipeline.duckdb_records()) for ref in refs}
    victim = max(held, key=lambda ref: held[ref])
    assert held[victim] > 0

    code, out, err = commands.run("erase", "--conversation", victim, "--wait")
    assert (code, "gone from every export" in err) == (0, True), err
    assert [line.split()[0] for line in out.splitlines()] == ["export", "plain", "public"]
    pipeline.published.append(erasure("conversation", victim))
    pipeline.publish(ledger)
    pipeline.wait_settled()
    assert not [row for row in pipeline.duckdb_records() if f":{victim.partition(':')[2]}:" in row[1]]
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def test_the_erasures_topic_keeps_everything_for_good(pipeline: Pipeline, commands: Commands, kafka: Broker) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker does not tell how it keeps a topic")
    code, _, err = commands.run("erase", "--run", "run-1")
    assert (code, f"there is no topic {pipeline.topic('erasures')}" in err) == (1, True)
    asyncio.run(make_forgetful(kafka, pipeline.topic("erasures")))
    code, _, err = commands.run("erase", "--run", "run-1")
    assert code == 1
    assert "forgets erasures (retention.ms = 604800000)" in err
    code, _, err = commands.run("topics", "create", "--sources")
    assert (code, "forgets erasures" in err) == (1, True)


async def make_forgetful(kafka: Broker, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await create_topics(admin, [NewTopic(topic, 1, 1, topic_configs={"retention.ms": "604800000"})])
    finally:
        await admin.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give one of --run and --conversation"),
        (("--run", "a", "--conversation", "b"), "give one of --run and --conversation"),
        (("--run", " "), "this is no run"),
        (("--conversation", "run-1"), "this is no conversation"),
    ],
)
def test_what_cannot_be_erased_is_refused_before_anything_is_sent(
    commands: Commands, arguments: tuple[str, ...], words: str
) -> None:
    code, _, err = commands.run("erase", *arguments)
    assert (code, words in err) == (2, True), err
