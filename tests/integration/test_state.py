"""State on disk under real workers: a restart reads almost nothing, and no kill leaves a trace of itself."""

import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.pipeline import Pipeline, eventually, worlds

pytestmark = pytest.mark.integration

KILLED = (sys.executable, str(Path(__file__).with_name("killed_worker.py")))


@pytest.fixture
def kept(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose workers keep state on disk."""
    if not pipeline.kafka.supports_transactions:
        pytest.skip("the broker gives topics no ids, and state is bound to one")
    pipeline.write_config(state_dir=str(pipeline.directory / "state"))
    pipeline.create_topics()
    return pipeline


def assert_same_as_file_mode(pipeline: Pipeline) -> None:
    records, lines = pipeline.file_mode()
    assert records, "a world without records shows nothing"
    assert pipeline.duckdb_records() == records
    assert pipeline.jsonl_path.read_bytes() == lines


def test_a_restart_with_local_state_reads_nothing_from_the_log_and_one_without_reads_it_all(kept: Pipeline) -> None:
    kept.publish(worlds(range(6)))
    first = kept.worker("first")
    first.start()
    kept.wait_settled()
    facts = first.total("folded_facts_total") - first.total("superseded_facts_total")
    assert facts > 0
    assert first.stop() == 0
    second = kept.worker("second")
    second.start()
    second.wait_ready()
    assert second.total("restored_facts_total") == 0
    kept.publish(worlds(range(6, 8)))
    kept.wait_settled()
    assert second.total("restored_facts_total", **{"from": "log"}) == 0
    # Idle when it is killed, so what it had settled is on the disk.
    second.kill()
    third = kept.worker("third")
    third.start()
    third.wait_ready()
    assert third.total("restored_facts_total") == 0
    assert third.stop() == 0
    shutil.rmtree(kept.directory / "state")
    fourth = kept.worker("fourth")
    fourth.start()
    fourth.wait_ready()
    assert fourth.total("restored_facts_total", **{"from": "log"}) >= facts
    kept.publish(worlds(range(8, 9)))
    kept.wait_settled()
    assert fourth.stop() == 0
    assert_same_as_file_mode(kept)


@pytest.mark.parametrize("step", ["outputs-flushed", "offsets-committed", "state-written"])
def test_a_kill_behind_any_step_to_durability_leaves_no_trace_of_it(kept: Pipeline, step: str) -> None:
    messages = worlds(range(40, 52))
    size = len(messages) // 3
    for number, count in enumerate((2, 7)):
        doomed = kept.worker(f"doomed-{number}", KILL_BEHIND=f"{step}:{count}")
        doomed.start(program=KILLED)
        kept.publish(messages[number * size : (number + 1) * size], pause_s=0.1)
        eventually(lambda doomed=doomed: not doomed.is_running, "the worker was killed")  # type: ignore[misc]
        assert doomed._process is not None
        assert doomed._process.returncode == -signal.SIGKILL
    last = kept.worker("last")
    last.start()
    kept.publish(messages[2 * size :])
    kept.wait_settled()
    # What one batch of the killed one had, and not the log.
    folded = last.total("folded_facts_total")
    assert last.total("restored_facts_total", **{"from": "log"}) < folded / 2
    assert last.stop() == 0
    assert "state_discarded" not in last.log_path.read_text()
    assert_same_as_file_mode(kept)
