"""What the compose file runs, run without Docker: its commands, its variables and its samples on a real broker.

The images are the one thing that is left out; `tests/deploy/test_compose.py` looks at the file itself.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.brokers.broker import Broker
from tests.brokers.kafka_jars import java_command
from tests.integration.pipeline import WorkerProcess, eventually
from tests.worker.web.serving import DOC_CHANGE, Got, basic, get
from worker.settings import ENV_PREFIX
from worker.web.render import run_url

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
GIVEN = {"TRACE_EXPORT_KEY": "k" * 64, "TRACE_WEB_TOKEN": "a-password-of-the-pages"}
# Where the image keeps traces, and what the file calls the brokers inside.
TRACES, BROKERS, PRODUCER = "/var/lib/trace-projector/traces", "kafka:9094", "/opt/kafka/bin/kafka-console-producer.sh"
GOLDEN = (ROOT / "fixtures" / "runs" / "demo" / "trace.jsonl").read_bytes()
SAMPLE_RUNS = GOLDEN.count(b'"kind":"run"')


@pytest.fixture
def environ(kafka: Broker, fresh_app_id: str) -> dict[str, str]:
    """Give the variables of a worker of the file, with what differs outside of its network."""
    clean = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}
    told = SERVICES["worker-1"]["environment"]
    for name in told:
        variable = str(told[name]).removeprefix("${").partition(":?")[0]
        clean[name] = GIVEN.get(variable, str(told[name]))
    here = {"BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "APP_ID": fresh_app_id}
    del clean["TRACE_PROJECTOR_CONFIG"]
    return clean | {f"{ENV_PREFIX}{name}": value for name, value in here.items()}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    text = (DEPLOY / "trace-projector.toml").read_text(encoding="utf-8")
    assert TRACES in text
    path = tmp_path / "trace-projector.toml"
    path.write_text(text.replace(TRACES, str(tmp_path)), encoding="utf-8")
    return path


@pytest.fixture
def workers(config: Path, environ: dict[str, str]) -> Iterator[list[WorkerProcess]]:
    made = [WorkerProcess(config, name, environ) for name in SERVICES if name.startswith("worker-")]
    yield made
    for worker in made:
        worker.kill()


def publish_samples(kafka: Broker, tmp_path: Path) -> None:
    """Run the script of the service `sample`, its producer out of the jars that the tests have."""
    producer = tmp_path / "producer"
    java = shlex.join(java_command())
    producer.write_text(f'#!/bin/sh\nexec {java} org.apache.kafka.tools.ConsoleProducer "$@"\n', encoding="utf-8")
    producer.chmod(0o700)
    program, flags, script = SERVICES["sample"]["entrypoint"]
    [mount] = SERVICES["sample"]["volumes"]
    source, place, _ = mount.split(":")
    for theirs, ours in (
        ("$$", "$"),
        (f"{place}/", f"{DEPLOY / source}/"),
        (PRODUCER, str(producer)),
        (BROKERS, kafka.bootstrap_servers),
    ):
        assert theirs in script
        script = script.replace(theirs, ours)
    subprocess.run([program, flags, script], check=True, capture_output=True, timeout=120)


def test_it_comes_up_with_sample_runs_on_its_pages(
    kafka: Broker, config: Path, environ: dict[str, str], workers: list[WorkerProcess], tmp_path: Path
) -> None:
    if not kafka.supports_transactions:
        pytest.skip("the sample comes by Kafka's own producer, and the embedded broker has no idempotence")
    topics = [sys.executable, "-m", "worker", "--config", str(config), *SERVICES["topics"]["command"]]
    subprocess.run(topics, check=True, env=environ, cwd=ROOT, capture_output=True, timeout=60)
    publish_samples(kafka, tmp_path)
    for worker in workers:
        worker.start()

    def page(worker: WorkerProcess, path: str) -> Got:
        return get(f"http://127.0.0.1:{worker.port}{path}", Authorization=basic(GIVEN["TRACE_WEB_TOKEN"]))

    for worker in workers:
        worker.wait_ready()
        assert get(f"http://127.0.0.1:{worker.port}/runs").status == 401
        eventually(lambda worker=worker: f"{SAMPLE_RUNS} runs" in page(worker, "/runs").text, "the runs are there")  # type: ignore[misc]
        eventually(lambda worker=worker: "21m 18s" in page(worker, run_url(DOC_CHANGE)).text, "a gate has waited")  # type: ignore[misc]
        text = page(worker, run_url(DOC_CHANGE)).text
        assert 'badge good">redacted' in text
        assert "harness exited before a result" not in text, "an error stays where it was made"
        assert "Every message that was read could be projected" in page(worker, "/dead-letters").text
    assert [worker.stop() for worker in workers] == [0, 0]
