"""Generations on a real broker: bound, built beside the one that serves, verified, promoted in one step, dropped."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic

from projections.version import PROJECTION_VERSION
from tests.brokers.broker import Broker, create_topics
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline, WorkerProcess, duckdb_records, eventually, living_run, worlds
from tests.integration.test_dead_letter_commands import delete_before
from tests.integration.test_erase import run_ids
from tests.integration.test_worker import assert_same_as_file_mode, run_until_it_ends
from worker.kafka import TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CHANGED = (sys.executable, "-m", "tests.integration.changed_projection")
SECOND = {"TRACE_PROJECTOR_GENERATION": "2"}


def changed(pipeline: Pipeline, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the later release."""
    return subprocess.run(
        [*CHANGED, "--config", str(pipeline.config), *arguments],
        cwd=pipeline.directory,
        env=pipeline.environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


class Reader:
    """Looks at a sink again and again, as a dashboard does, and keeps what kinds of moments it saw."""

    def __init__(self, look: Callable[[], str]) -> None:
        self.seen: list[str] = []
        self._look = look
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._is_done.is_set():
            moment = self._look()
            if not self.seen or self.seen[-1] != moment:
                self.seen.append(moment)
            time.sleep(0.05)

    @contextmanager
    def looking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_done.set()
            self._thread.join()


def moment_of(records: list[dict[str, object]]) -> str:
    """Tell by whose rules records were made; of a mixture, that it is one."""
    # A conversation that is a run of its own is named after its harness, by another function.
    runs = [record for record in records if record["kind"] == "run" and "standalone-" not in str(record["id"])]
    names = [str(record["workflowName"]) for record in runs]
    has_artifacts = any(record["kind"] == "artifact" for record in records)
    if not names:
        return "nothing"
    if all(name == name.upper() for name in names) and not has_artifacts:
        return "new"
    if all(name != name.upper() for name in names) and has_artifacts:
        return "old"
    return "mixture"


def duckdb_moment(pipeline: Pipeline) -> str:
    return moment_of([json.loads(record) for _kind, _id, record in pipeline.duckdb_records()])


def jsonl_moment(path: Path) -> str:
    return moment_of([json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")])


# -------------------------------------------------------------------------------------------------- the whole way


def test_a_changed_projection_is_built_verified_and_promoted_and_readers_never_see_both(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    messages = worlds(range(110, 116))
    pipeline.publish(messages[:-40])
    old = pipeline.worker("old")
    old.start()
    pipeline.wait_settled()
    assert duckdb_moment(pipeline) == "old"
    victim = max((name for name in run_ids(pipeline) if not name.startswith("standalone-")), key=run_ids(pipeline).get)  # type: ignore[arg-type]
    commands.json("erase", "--run", victim, "--wait")

    code, told = _ends_at_once(pipeline.worker("later release"), program=CHANGED)
    assert code == 1
    versions = f"{PROJECTION_VERSION}, and this program's is {PROJECTION_VERSION + 1}"
    assert f"generation 1 is of projection version {versions}: `trace-projector rebuild` makes" in told

    reader = Reader(lambda: duckdb_moment(pipeline))
    other = Reader(lambda: jsonl_moment(pipeline.jsonl_path))
    with reader.looking(), other.looking():
        built = changed(pipeline, "rebuild", "--json")
        assert built.returncode == 0, built.stderr
        assert "generation 2 was started" in built.stderr
        assert json.loads(built.stdout) == {"generation": 2, "isNew": True, "hasCaughtUp": True}
        verified = changed(pipeline, "verify", "--json")
        assert verified.returncode == 1, verified.stderr
        _assert_named(json.loads(verified.stdout))

        new = pipeline.worker("new", **SECOND)
        new.start(program=CHANGED)
        new.wait_ready()
        # The old one goes on all the while, and so does what is published.
        pipeline.publish(messages[-40:])
        promoted = changed(pipeline, "promote", "2")
        assert promoted.returncode == 0, promoted.stderr
        assert promoted.stdout.splitlines() == ["export plain: switched", "export public: switched"]
        eventually(lambda: duckdb_moment(pipeline) == "new", "the new generation is what readers see")
    assert reader.seen == ["old", "new"]
    assert "mixture" not in other.seen
    assert other.seen[-1] == "new"

    _goes_on_in_place(pipeline, new, old)
    assert victim not in run_ids(pipeline)
    _comes_down_to_one(pipeline, commands, new, old)


def _assert_named(verdict: dict[str, list[dict[str, object]]]) -> None:
    """Every difference is named: the field of each run, and each artifact that is gone."""
    differences = verdict["differences"]
    assert {tuple(one["fields"]) for one in differences if one["kind"] == "run"} == {("workflowName",)}  # type: ignore[arg-type]
    assert {one["onlyIn"] for one in differences if one["kind"] == "artifact"} == {"generation 1"}
    assert {one["kind"] for one in differences} == {"run", "artifact"}
    assert "secret" not in json.dumps(verdict).lower()


def _goes_on_in_place(pipeline: Pipeline, new: WorkerProcess, old: WorkerProcess) -> None:
    """What is published now shows in place of the old rows; the old worker keeps its own out of sight."""
    more = worlds([116])
    pipeline.publish(more)
    run_id = living_run(more)
    eventually(lambda: run_id in run_ids(pipeline), "the new worker writes in place")
    assert duckdb_moment(pipeline) == "new"
    aside = pipeline.duckdb_path.with_name("plain.duckdb.g1")
    eventually(lambda: any(run_id in row[2] for row in duckdb_records(aside)), "the old one goes on beside")
    assert new.is_running
    assert old.is_running


def _comes_down_to_one(pipeline: Pipeline, commands: Commands, new: WorkerProcess, old: WorkerProcess) -> None:
    code, _, err = commands.run("drop", "1")
    assert (code, "needs it empty" in err) == (1, True)
    assert old.stop() == 0
    code, out, _ = commands.run("drop", "1", "--dry-run")
    assert (code, f"topic {pipeline.app_id}-g1-trace-facts" in out) == (0, True)
    told = commands.json("drop", "1", "--dry-run")
    assert (told["generation"], told["dryRun"], told["rowsOfExports"]) == (1, True, ["plain", "public"])
    assert f"{pipeline.app_id}-g1-trace-facts" in told["topics"]
    again = commands.json("promote", "2")
    assert again == {"generation": 2, "exports": [{"name": name, "isSwitched": True} for name in ("plain", "public")]}
    code, out, err = commands.run("drop", "1")
    assert (code, "rows of export plain" in out) == (0, True), err
    assert not list(pipeline.directory.glob("*.g1*"))
    assert [row["state"] for row in commands.json("generations")] == ["dropped", "serves"]
    code, ended = _ends_at_once(pipeline.worker("old again"))
    assert (code, "generation 1 was dropped; generation 2 serves: set generation = 2" in ended) == (1, True)
    assert new.stop() == 0


def _ends_at_once(worker: WorkerProcess, program: tuple[str, ...] | None = None) -> tuple[int, str]:
    if program is None:
        return run_until_it_ends(worker)
    worker.start(program=program)
    return worker.wait_exit(), worker.log_path.read_text()


def test_an_unchanged_projection_gives_equal_generations_from_sources_and_from_facts(
    pipeline: Pipeline, commands: Commands
) -> None:
    pipeline.create_topics()
    pipeline.publish(worlds(range(117, 121)))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    code, _, err = commands.run("verify", "--export", "plain")
    assert (code, "equal" in err) == (0, True), err
    code, _, err = commands.run("verify", "--export", "public")
    assert (code, "equal" in err) == (0, True), err

    code, _, err = commands.run("rebuild")
    assert (code, "generation 2 has caught up" in err) == (0, True), err
    verdict = commands.json("verify")
    assert verdict["differences"] == []
    assert verdict["sides"][0]["digest"] == verdict["sides"][1]["digest"]
    assert verdict["sides"][0]["records"] > 100
    code, _, err = commands.run("promote")
    assert code == 0, err
    code, _, err = commands.run("rebuild", "--from-facts")
    assert (code, "generation 3 has caught up" in err) == (0, True), err
    assert commands.json("verify", "1", "3")["differences"] == []
    assert [row["origin"] for row in commands.json("generations")] == ["sources", "sources", "facts"]
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def test_a_difference_in_a_sink_is_named_by_record_and_field(pipeline: Pipeline, commands: Commands) -> None:
    pipeline.create_topics()
    pipeline.publish(worlds([121]))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0
    with duckdb.connect(str(pipeline.duckdb_path)) as connection:
        [run_id] = connection.execute("SELECT min(id) FROM trace_run").fetchone() or ()
        connection.execute(
            'UPDATE trace_run SET record = replace(record, \'"status":"\', \'"status":"x\') WHERE id = ?', [run_id]
        )
        [attempt_id] = connection.execute("SELECT min(id) FROM trace_attempt").fetchone() or ()
        connection.execute("DELETE FROM trace_attempt WHERE id = ?", [attempt_id])
    named = {one["id"]: one for one in commands.json("verify", "--export", "plain")["differences"]}
    assert named.keys() == {run_id, attempt_id}
    assert (named[run_id]["fields"], named[run_id]["onlyIn"]) == (["status"], None)
    assert (named[attempt_id]["fields"], named[attempt_id]["onlyIn"]) == ([], "generation 1")
    code, out, err = commands.run("verify", "--export", "plain")
    assert (code, "differs in status" in out, "2 records differ" in err) == (1, True, True)


def test_a_redriven_message_reaches_every_generation_of_the_projection(pipeline: Pipeline, commands: Commands) -> None:
    pipeline.create_topics()
    pipeline.config.write_text(pipeline.config.read_text().replace("[limits]", "[limits]\nmessage_bytes_max = 700"))
    pipeline.publish(worlds([125, 126]))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    code, _, err = commands.run("rebuild")
    assert code == 0, err
    assert worker.stop() == 0
    pipeline.config.write_text(pipeline.config.read_text().replace("message_bytes_max = 700\n", ""))
    assert commands.json("dead-letters", "redrive", "--reason", "message_too_large")["counts"]["projected"] > 10
    for name, environ in (("first", {}), ("second", SECOND)):
        worker = pipeline.worker(name, **environ)
        worker.start("--role", "project", "--role", "fold")
        worker.wait_ready()
        eventually(lambda worker=worker: worker.total("lag_messages") == 0, "the letters' facts are folded")  # type: ignore[misc]
        assert worker.stop() == 0
    verdict = commands.json("verify", "1", "2")
    assert verdict["differences"] == []
    worker = pipeline.worker("exports")
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


# ------------------------------------------------------------------------------------------------- what binds


def test_topics_that_are_not_what_they_were_stop_the_worker_and_the_way_out_is_named(
    pipeline: Pipeline, commands: Commands, kafka: Broker
) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker makes no partitions")
    pipeline.create_topics()
    pipeline.publish(worlds([122]))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0
    assert [row["state"] for row in commands.json("generations")] == ["serves"]

    code, told = run_until_it_ends(pipeline.worker("second", **SECOND))
    assert (code, "generation 2 was never started, and generation 1 serves" in told) == (1, True)

    topic = pipeline.topic("workflow-runs")
    asyncio.run(_widen(kafka, topic))
    code, told = run_until_it_ends(pipeline.worker("widened"))
    assert code == 1
    assert f"topic {topic} has 3 partitions and had 2" in told
    assert "`trace-projector generations accept`" in told
    code, out, _ = commands.run("generations", "accept")
    assert (code, out.strip()) == (0, f"accepted: topic {topic} has 3 partitions and had 2")
    worker = pipeline.worker("accepted")
    worker.start()
    worker.wait_ready()
    asyncio.run(_make_anew(kafka, pipeline.topic("transcripts")))
    assert worker.wait_exit() == 1
    for told in (worker.log_path.read_text(), run_until_it_ends(pipeline.worker("anew"))[1]):
        assert f"topic {pipeline.topic('transcripts')} was deleted and made anew: start another one" in told
        assert "Traceback" not in told
    code, _, err = commands.run("rebuild")
    assert (code, "is not all there any more" in err) == (1, True)


def test_a_generation_keeps_the_answer_to_unbound_conversations_that_it_began_with(
    pipeline: Pipeline, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.create_topics()
    pipeline.publish(worlds([123]))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.stop() == 0

    # A restored fold takes the runs of unbound conversations for said: they would stay, and new ones would not come.
    holding = {"TRACE_PROJECTOR_UNBOUND": "hold"}
    code, told = run_until_it_ends(pipeline.worker("holding", **holding))
    assert code == 1
    assert 'generation 1 was started with unbound = "standalone", and the settings say "hold"' in told

    with monkeypatch.context() as environ:
        environ.setenv("TRACE_PROJECTOR_UNBOUND", "hold")
        code, _, err = commands.run("rebuild")
    assert code == 0, err
    worker = pipeline.worker("second", **SECOND, **holding)
    worker.start()
    worker.wait_ready()
    assert worker.stop() == 0
    code, told = run_until_it_ends(pipeline.worker("second standing alone", **SECOND))
    assert (code, "generation 2 was started with unbound" in told) == (1, True)


async def _widen(kafka: Broker, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_partitions({topic: NewPartitions(3)})
    finally:
        await admin.close()


async def _make_anew(kafka: Broker, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():
            await asyncio.sleep(0.1)
        await create_topics(admin, [NewTopic(topic, 2, 1)])
    finally:
        await admin.close()


def test_a_source_that_does_not_reach_back_is_built_from_only_when_the_loss_is_accepted(
    pipeline: Pipeline, commands: Commands, kafka: Broker
) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the embedded broker deletes no messages")
    pipeline.create_topics()
    pipeline.publish(worlds([123, 124]))
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    topic = pipeline.topic("workflow-runs")
    end = next(
        one["end"] for one in commands.json("status")["partitions"] if (one["topic"], one["partition"]) == (topic, 0)
    )
    asyncio.run(delete_before(kafka, TopicPartition(topic, 0), end))
    code, _, err = commands.run("rebuild")
    assert code == 1
    assert f"topic {topic} partition 0 begins at offset {end}, and began at 0" in err
    assert "--accept-loss builds from what is left, --from-facts" in err
    assert [row["generation"] for row in commands.json("generations")] == [1]
    # The facts have all of it.
    code, _, err = commands.run("rebuild", "--from-facts")
    assert code == 0, err
    assert commands.json("verify")["differences"] == []
    # What is lost shows.
    assert worker.stop() == 0
    code, _, err = commands.run("promote", "2")
    assert code == 0, err
    code, _, err = commands.run("rebuild", "--accept-loss")
    assert (code, "generation 3 has caught up" in err) == (0, True), err
    code, _, _ = commands.run("verify", "2", "3")
    assert code == 1
