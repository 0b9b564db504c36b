"""Workers as real processes on a real broker: what they leave behind is what file mode makes of the same messages."""

import signal
import socket
import time

import duckdb
import pytest

from tests.brokers.broker import LOOPBACK
from tests.integration.pipeline import Pipeline, WorkerProcess, eventually, worlds
from tests.worlds.cluster import clean_pass
from tests.worlds.world import PRIVATE_MARKER, SECRET_MARKER, SourceMessage

pytestmark = pytest.mark.integration

POISON = [b'{"kind":"run"', b"\xff\xfe", b"", b'["' + SECRET_MARKER.encode() + b'"]']


def assert_same_as_file_mode(pipeline: Pipeline) -> None:
    records, lines = pipeline.file_mode()
    assert records, "a world without records shows nothing"
    assert pipeline.duckdb_records() == records
    assert pipeline.jsonl_path.read_bytes() == lines


def assert_accounted(worker: WorkerProcess) -> None:
    metrics = worker.metrics()
    sums: dict[tuple[str, str], float] = {}
    for name in (
        "projected_messages_total",
        "ignored_messages_total",
        "dead_lettered_messages_total",
        "in_flight_messages",
    ):
        for labels, value in metrics.get(f"trace_projector_{name}", []):
            place = labels["topic"], labels["partition"]
            sums[place] = sums.get(place, 0) + value
    consumed = {
        (labels["topic"], labels["partition"]): value
        for labels, value in metrics["trace_projector_consumed_messages_total"]
    }
    assert consumed == sums


@pytest.mark.broker_smoke
def test_four_topics_with_poison_give_what_file_mode_gives_and_nothing_secret_leaves(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    good = worlds(range(8))
    pipeline.publish(good[:30])
    for value in POISON:
        pipeline.publish([SourceMessage("workflow-runs", None, value)])
        del pipeline.published[-1]
    pipeline.publish(good[30:])
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.get("/healthz")[0] == 200
    assert_accounted(worker)
    assert worker.total("lag_messages") == 0
    letters = [letter for letter in pipeline.dead_letters() if not letter["partial"]]
    poison = ["invalid_json", "invalid_json", "invalid_utf8", "not_an_object"]
    # Some of the worlds' own messages are bad too.
    assert sorted(letter["reason"] for letter in letters) == sorted([*poison, *clean_pass(good).dead])
    lengths = sorted(letter["byteLength"] for letter in letters if letter["topic"] == pipeline.topic("workflow-runs"))
    assert lengths == sorted(len(value) for value in POISON)
    scraped = worker.get("/metrics")[1].decode()
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)
    leaves = [scraped, worker.log_path.read_text(), pipeline.jsonl_path.read_text(), repr(pipeline.dead_letters())]
    assert not [marker for marker in (SECRET_MARKER, PRIVATE_MARKER) for text in leaves if marker in text]
    assert SECRET_MARKER not in repr(pipeline.read(pipeline.own_topics[0])) + repr(
        pipeline.read(pipeline.own_topics[1])
    )


def test_a_worker_that_is_killed_mid_stream_beside_another_leaves_no_trace_of_it(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    messages = worlds(range(8, 24))
    first, second = pipeline.worker("first"), pipeline.worker("second")
    first.start()
    first.wait_ready()
    pipeline.publish(messages[:200], pause_s=0.05)
    second.start()
    pipeline.publish(messages[200:300], pause_s=0.05)
    eventually(lambda: first.total("published_facts_total") > 50, "the first worker is in the middle of it")
    pipeline.publish(messages[300:400])
    first.kill()
    pipeline.publish(messages[400:], pause_s=0.02)
    pipeline.wait_settled()
    assert_accounted(second)
    assert second.stop() == 0
    assert_same_as_file_mode(pipeline)


def test_a_worker_that_slept_through_its_own_replacement_writes_nothing_old(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    messages = worlds(range(24, 32))
    sleeper, other = pipeline.worker("sleeper"), pipeline.worker("other")
    sleeper.start()
    sleeper.wait_ready()
    pipeline.publish(messages[:150])
    eventually(lambda: sleeper.total("published_records_total") > 0, "the first worker has written records")
    sleeper.signal(signal.SIGSTOP)
    other.start()
    pipeline.publish(messages[150:])
    # The sleeper still holds its files, so nobody else can write them; the logs are another matter.
    pipeline.wait_settled(("project", "fold"))
    sleeper.signal(signal.SIGCONT)
    # It finds out that it was replaced, takes part again, and nothing changes.
    eventually(lambda: sleeper.get("/readyz")[0] == 200, "the first worker is back")
    pipeline.wait_settled()
    assert sleeper.stop() == 0
    assert other.stop() == 0
    assert_same_as_file_mode(pipeline)


def test_a_broken_sink_loses_nothing_and_holds_up_no_other_export(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    messages = worlds(range(32, 38))
    worker = pipeline.worker()
    worker.start()
    pipeline.publish(messages[:100])
    pipeline.wait_settled()
    holder = _hold(pipeline)
    pipeline.publish(messages[100:])
    pipeline.wait_settled(("project", "fold", "export-public"))
    eventually(
        lambda: worker.total("paused_partitions", role="export:plain") == 3, "the partitions of the broken sink wait"
    )
    assert worker.total("retries_total", role="export:plain") > 0
    assert worker.get("/healthz")[0] == 200
    holder.close()
    pipeline.wait_settled()
    assert worker.total("paused_partitions") == 0
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def _hold(pipeline: Pipeline) -> duckdb.DuckDBPyConnection:
    """Open the database for writing, which keeps the worker from it."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return duckdb.connect(str(pipeline.duckdb_path))
        except duckdb.IOException:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_restart_goes_on_where_it_was_and_reading_everything_again_writes_nothing(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    messages = worlds(range(38, 44))
    worker = pipeline.worker()
    worker.start("--role", "project", "--role", "fold")
    pipeline.publish(messages[:150])
    pipeline.wait_settled(("project", "fold"))
    assert worker.stop() == 0
    pipeline.publish(messages[150:])
    worker.start()
    pipeline.wait_settled()
    records = pipeline.own_topics[1]
    before = len(pipeline.read(records))
    # The same messages once more, at other offsets: a producer's resend, or a replay.
    resent = [message for message in messages if not _reaches_a_tombstone(message, messages)]
    pipeline.publish(resent)
    del pipeline.published[-len(resent) :]
    pipeline.wait_settled()
    assert len(pipeline.read(records)) == before
    assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


def _reaches_a_tombstone(message: SourceMessage, messages: list[SourceMessage]) -> bool:
    return any(other.value is None and (other.topic, other.key) == (message.topic, message.key) for other in messages)


def test_roles_run_in_workers_of_their_own(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    pipeline.publish(worlds(range(44, 47)))
    roles = ("project", "fold", "export:plain", "export:public")
    workers = [pipeline.worker(role.replace(":", "-")) for role in roles]
    for worker, role in zip(workers, roles, strict=True):
        worker.start("--role", role)
    pipeline.wait_settled()
    for worker in workers:
        assert worker.stop() == 0
    assert_same_as_file_mode(pipeline)


# ------------------------------------------------------------------------------------------------------ misuse


def run_until_it_ends(worker: WorkerProcess) -> tuple[int, str]:
    worker.start()
    return worker.wait_exit(), worker.log_path.read_text()


def test_missing_source_topics_are_named_with_their_settings(pipeline: Pipeline) -> None:
    pipeline.create_topics(("workflow-runs", "transcripts"))
    code, told = run_until_it_ends(pipeline.worker())
    assert code == 1
    assert f"missing source topics: {pipeline.topic('gate-decisions')} (setting topics.gate_decisions)" in told
    assert pipeline.topic("ledger-changes") in told
    assert "Traceback" not in told


def test_a_missing_broker_is_one_clear_line(pipeline: Pipeline) -> None:
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    pipeline.config.write_text(
        pipeline.config.read_text().replace(pipeline.kafka.bootstrap_servers, f"{LOOPBACK}:{port}")
    )
    code, told = run_until_it_ends(pipeline.worker())
    assert code == 1
    assert f"no Kafka broker answers at {LOOPBACK}:{port}" in told
    assert "Traceback" not in told


def test_a_busy_web_port_is_named(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    worker = pipeline.worker()
    with socket.create_server((LOOPBACK, worker.port)):
        code, told = run_until_it_ends(worker)
    assert code == 1
    assert f"no pages on {LOOPBACK}:{worker.port}" in told
    assert "Traceback" not in told


def test_another_number_of_partitions_than_the_topics_have_is_refused(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    worker = pipeline.worker()
    worker.start()
    worker.wait_ready()
    assert worker.stop() == 0
    pipeline.config.write_text(pipeline.config.read_text().replace("partitions = 3", "partitions = 4"))
    code, told = run_until_it_ends(pipeline.worker("other"))
    assert code == 1
    assert "has 3 partitions and the settings say 4" in told


def test_fencing_on_needs_a_broker_with_transactions(pipeline: Pipeline) -> None:
    pipeline.create_topics()
    pipeline.write_config(fencing="on")
    worker = pipeline.worker()
    if pipeline.kafka.supports_transactions:
        worker.start()
        worker.wait_ready()
        assert worker.total("fenced") == 1
        assert worker.stop() == 0
    else:
        code, told = run_until_it_ends(worker)
        assert code == 1
        assert "this broker has no transactions" in told
