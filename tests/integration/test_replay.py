"""Replaying on a real broker: what has not changed is not written again, by whichever way it is read again."""

import time
from datetime import UTC, datetime

import pytest

from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, WorkerProcess, worlds
from tests.integration.test_erase import erasure, run_ids
from tests.integration.test_worker import assert_same_as_file_mode
from tests.worlds.world import SourceMessage

pytestmark = pytest.mark.integration

RUN = b'{"id": "run-1", "workflowName": "w", "status": "running", "revision": 1, "startedAt": "2026-10-01T09:00:00Z"}'


def written(worker: WorkerProcess) -> tuple[float, float, float]:
    """Give what a worker has told its sinks and its records log so far."""
    return (
        worker.total("written_upserts_total"),
        worker.total("published_records_total"),
        worker.total("deleted_records_total"),
    )


def test_a_replay_beside_a_running_worker_writes_nothing_to_any_sink(pipeline: Pipeline, commands: Commands) -> None:
    pipeline.create_topics()
    messages = [*worlds(range(100, 104)), SourceMessage("workflow-runs", None, b"{poison")]
    pipeline.publish(messages)
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    victim = max((name for name in run_ids(pipeline) if not name.startswith("standalone-")), key=run_ids(pipeline).get)  # type: ignore[arg-type]
    commands.json("erase", "--run", victim, "--wait")
    pipeline.published.append(erasure("run", victim))
    pipeline.wait_settled()
    before, records = written(worker), pipeline.read(pipeline.own_topics[1])
    facts = worker.total("published_facts_total")
    letters = commands.json("dead-letters", "list")["count"]

    counted = commands.json("replay", "--dry-run")
    assert counted["messages"] == len(messages) + 1
    pipeline.wait_settled()
    assert len(pipeline.read(pipeline.own_topics[0])) >= facts > 0
    done = commands.json("replay")
    assert {**done, "dryRun": True} == counted
    pipeline.wait_settled()
    assert written(worker) == before
    assert len(pipeline.read(pipeline.own_topics[1])) == len(records)
    assert commands.json("dead-letters", "list")["count"] == letters
    assert victim not in run_ids(pipeline)
    assert worker.stop() == 0
    pipeline.published.remove(messages[-1])
    assert_same_as_file_mode(pipeline)


def test_offsets_moved_back_make_the_workers_read_again_and_write_nothing(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    messages = worlds(range(104, 107))
    pipeline.publish(messages)
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    code, _, err = commands.run("replay", "--move-offsets")
    assert code == 1
    assert f"group {pipeline.app_id}-g1-project has 1 member: moving its offsets needs it empty" in err
    assert worker.stop() == 0

    code, _, err = commands.run("replay", "--move-offsets", "--dry-run")
    assert (code, f"nothing moved: {len(messages)} messages to be read again" in err.replace(",", "")) == (0, True), err
    code, _, err = commands.run("replay", "--move-offsets")
    assert (code, f"{len(messages)} messages to be read again" in err.replace(",", "")) == (0, True), err
    worker = pipeline.worker("again")
    worker.start()
    pipeline.wait_settled()
    assert worker.total("consumed_messages_total") == len(messages)
    # A worker that starts reads its sinks' logs again only from where they were committed: nothing new is there.
    assert written(worker) == (0, 0, 0)
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def test_a_replay_begins_at_times_and_offsets_and_keeps_to_a_rate(pipeline: Pipeline, commands: Commands) -> None:
    pipeline.create_topics()
    pipeline.publish([SourceMessage("workflow-runs", b"run-1", RUN) for _ in range(1_500)])
    time.sleep(0.1)
    between = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    time.sleep(0.1)
    pipeline.publish([SourceMessage("workflow-runs", b"run-1", RUN) for _ in range(20)])
    worker = pipeline.worker()
    worker.start("--role", "project")
    pipeline.wait_settled(["project"])
    assert worker.stop() == 0

    assert commands.json("replay", "--dry-run", "--since", between)["messages"] == 20
    assert commands.json("replay", "--dry-run", "--until", between)["messages"] == 1_500
    topic = pipeline.topic("workflow-runs")
    place = next(f"{topic}/{one['partition']}" for one in commands.json("status")["partitions"] if one["end"] == 1_520)
    assert commands.json("replay", "--dry-run", "--from-offsets", f"{place}/1510")["messages"] == 10
    assert commands.json("replay", "--dry-run", "--topic", pipeline.topic("transcripts"))["messages"] == 0
    started = time.monotonic()
    assert commands.json("replay", "--topic", topic, "--rate", "1000/s")["messages"] == 1_520
    assert time.monotonic() - started >= 1.5

    code, _, err = commands.run("replay", "--from-offsets", f"{place}/99999")
    assert (code, "holds the offsets 0 to 1520, and 99999 is none of them" in err) == (1, True)
    code, _, err = commands.run("replay", "--topic", "elsewhere")
    assert (code, "elsewhere is no source topic" in err) == (1, True)
    code, _, err = commands.run("replay", "--from-offsets", f"{topic}/7/0")
    assert (code, "has no partition 7" in err) == (1, True)


def test_messages_that_nobody_has_read_are_passed_over_only_when_that_is_accepted(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    pipeline.publish([SourceMessage("workflow-runs", b"run-1", RUN) for _ in range(10)])
    place = next(
        f"{one['topic']}/{one['partition']}" for one in commands.json("status")["partitions"] if one["lag"] == 10
    )
    code, _, err = commands.run("replay", "--move-offsets", "--from-offsets", f"{place}/7")
    assert (code, "7 messages that nobody has read would be passed over" in err) == (1, True)
    code, _, _ = commands.run("replay", "--move-offsets", "--from-offsets", f"{place}/7", "--accept-loss")
    assert code == 0
    assert [one["lag"] for one in commands.json("status")["partitions"] if one["lag"]] == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "fast"), "messages a second"),
        (("--rate", "5/s", "--move-offsets"), "go at their own speed"),
        (("--accept-loss",), "goes with --move-offsets"),
        (("--from-offsets", "workflow-runs"), "is no TOPIC/PARTITION/OFFSET"),
        (("--since", "soon"), "--since is no time"),
    ],
)
def test_wrong_options_are_one_line(commands: Commands, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = commands.run("replay", *arguments)
    assert (code, words in err) == (2, True), err
