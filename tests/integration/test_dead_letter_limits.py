"""A flood of poison on a real broker: one partition stops, loudly, and everything else goes on."""

import json

import pytest

from projections.facts import partition_of
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, WorkerProcess, eventually, worlds
from tests.integration.test_worker import assert_accounted, assert_same_as_file_mode
from tests.worlds.world import SourceMessage

pytestmark = pytest.mark.integration

IN_A_ROW = "dead_letters_in_row_max = 20"


def test_a_flood_of_poison_stops_its_partition_and_nothing_else(pipeline: Pipeline, commands: Commands) -> None:
    pipeline.create_topics()
    pipeline.config.write_text(pipeline.config.read_text().replace("[limits]", f"[limits]\n{IN_A_ROW}"))
    topic = pipeline.topic("workflow-runs")
    flood_key = next(key for key in ("a", "b", "c", "d") if partition_of(key, 2) == 0)
    pipeline.publish([SourceMessage("workflow-runs", flood_key.encode(), b"{poison")] * 200)
    pipeline.published.clear()
    good = worlds(range(70, 73))
    pipeline.publish(good)
    worker = pipeline.worker()
    worker.start()
    worker.wait_ready()
    eventually(lambda: worker.total("stopped_partitions", topic=topic, partition="0") == 1, "the partition stops")
    eventually(lambda: worker.total("lag_messages", role="project") == _lag(worker, topic), "the others have caught up")

    assert worker.total("stopped_partitions") == 1
    status, body = worker.get("/readyz")
    assert (status, json.loads(body)["roles"]["project"]["stopped_partitions"]) == (200, 1)
    assert commands.json("dead-letters", "list", "--topic", topic, "--reason", "invalid_json")["count"] == 20
    assert worker.total("lag_messages", role="project", topic=topic, partition="0") >= 180
    assert_accounted(worker)
    assert worker.stop() == 0
    told = worker.log_path.read_text()
    assert told.count('"partition_stopped"') == 1
    assert "20 dead letters in a row" in told
    assert "dead-letters stats" in told

    # With the limit raised it goes on from where it stood, and in the end everything is as if it had never stopped.
    pipeline.config.write_text(pipeline.config.read_text().replace(IN_A_ROW, "dead_letters_in_row_max = 1000"))
    worker = pipeline.worker("again")
    worker.start()
    pipeline.wait_settled()
    assert worker.total("stopped_partitions") == 0
    assert commands.json("dead-letters", "list", "--topic", topic, "--reason", "invalid_json")["count"] == 200
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def _lag(worker: WorkerProcess, topic: str) -> float:
    return worker.total("lag_messages", role="project", topic=topic, partition="0")
