"""The compose file: workers with time to drain, sample runs for every source topic that has some, pages with a door."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from worker.settings import Settings, load_settings
from worker.web.pages import open_pages

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


def test_workers_have_a_read_only_root_no_rights_and_time_to_drain() -> None:
    for name in ("worker-1", "worker-2"):
        worker = SERVICES[name]
        assert (worker["read_only"], worker["cap_drop"]) == (True, ["ALL"])
        assert float(worker["stop_grace_period"].removesuffix("s")) > Settings().limits.shutdown_drain_s + 5


def test_each_mounted_file_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source


def test_the_pages_show_the_redacted_traces_to_those_who_have_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    variables = dict(re.findall(r"(TRACE_PROJECTOR_\w+)=(\S+)", image)) | SERVICES["worker-1"]["environment"]
    assert variables["TRACE_PROJECTOR_WEB_HOST"] == "0.0.0.0"  # noqa: S104 - the container's own
    for name in [name for name in os.environ if name.startswith("TRACE_PROJECTOR_")]:
        monkeypatch.delenv(name)
    for name in variables.keys() - {"TRACE_PROJECTOR_CONFIG"}:
        monkeypatch.setenv(name, variables[name])
    settings = load_settings(DEPLOY / "trace-projector.toml")
    assert open_pages(settings) is not None
    assert settings.export_named(settings.web_export or "").redact
    for name in ("worker-1", "worker-2"):
        [port] = SERVICES[name]["ports"]
        assert port.startswith("127.0.0.1:")
        # Compose refuses to start without it, and says what is wanted.
        assert SERVICES[name]["environment"]["TRACE_PROJECTOR_WEB_TOKEN"].startswith("${TRACE_WEB_TOKEN:?")


def test_the_samples_go_into_the_source_topics_of_the_settings(tmp_path: Path) -> None:
    [_bash, flags, script] = SERVICES["sample"]["entrypoint"]
    [mount] = SERVICES["sample"]["volumes"]
    runs = DEPLOY / mount.split(":")[0]
    # The producer of the image is played by one that writes down what it is asked for; compose doubles its dollars.
    producer = tmp_path / "producer"
    producer.write_text('#!/bin/sh\necho "$4 $(grep -c . /dev/stdin)"\n', encoding="utf-8")
    producer.chmod(0o700)
    played = script.replace("$$", "$").replace("/runs/", f"{runs}/")
    played = played.replace("/opt/kafka/bin/kafka-console-producer.sh", str(producer))
    told = subprocess.run(["bash", flags, played], capture_output=True, text=True, check=True).stdout
    sent = dict(line.split() for line in told.splitlines())
    topics = load_settings(DEPLOY / "trace-projector.toml").source_topics
    assert sent.keys() == {topic for topic in topics.values() if (runs / f"{topic}.jsonl").exists()}
    assert sent["workflow-runs"] == str(len((runs / "workflow-runs.jsonl").read_text(encoding="utf-8").splitlines()))
