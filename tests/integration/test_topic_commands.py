"""The commands that talk to a broker without a worker: topics create, and explain over topics."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.broker import Broker
from worker.cli import run
from worker.demo import RUNS_DIRECTORY, publish
from worker.settings import ENV_PREFIX, Settings, load_settings
from worker.source_files import find_source_files
from worker.source_topics import read_source_topics

pytestmark = pytest.mark.integration


@pytest.fixture
def config(kafka: Broker, fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    sources = ("workflow_runs", "gate_decisions", "ledger_changes", "transcripts")
    topics = "".join(f'{source} = "{fresh_app_id}-{source}"\n' for source in sources)
    path = tmp_path / "c.toml"
    path.write_text(f'app_id = "{fresh_app_id}"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n[topics]\n{topics}')
    return path


def published(settings: Settings, run_name: str) -> int:
    files, _ = find_source_files([RUNS_DIRECTORY / run_name], settings, harness=None, namespace=None)
    return asyncio.run(publish(files, settings))


def test_topics_create_makes_what_is_missing_and_may_be_run_again(
    config: Path, fresh_app_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(["--config", str(config), "topics", "create", "--sources", "--partitions", "3"]) == 0
    first, second = capfd.readouterr().out.split(f"{fresh_app_id}-g1-trace-facts", 1)
    assert first.split() == [
        f"{fresh_app_id}-{source}" for source in ("workflow_runs", "gate_decisions", "ledger_changes", "transcripts")
    ]
    assert f"{fresh_app_id}-workflow_runs" not in second


def test_topics_check_says_what_is_wrong_with_them_and_how_to_mend_it(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def check(*options: str) -> tuple[int, dict[str, Any]]:
        capfd.readouterr()
        code = run(["--config", str(config), "topics", "check", "--json", *options])
        return code, json.loads(capfd.readouterr().out)

    code, told = check()
    assert (code, told["ok"], told["topics"]) == (1, False, [])
    assert {finding["code"] for finding in told["findings"]} == {"source_missing", "own_topic_missing"}
    assert all("topics create" in finding["fix"] for finding in told["findings"])

    capfd.readouterr()
    assert run(["--config", str(config), "topics", "create", "--sources", "--json"]) == 0
    made = json.loads(capfd.readouterr().out)["topics"]
    code, told = check()
    assert (code, told["findings"]) == (0, [])
    assert set(told["topics"]) == set(made)

    config.write_text(config.read_text().replace("[topics]", "partitions = 3\n[topics]"))
    code, told = check()
    assert code == 1
    assert {finding["code"] for finding in told["findings"]} == {"own_topic_partitions"}
    assert run(["--config", str(config), "topics", "check"]) == 1
    out = capfd.readouterr().out
    assert "ERROR topic" in out
    assert "fix: set partitions = " in out


def test_topics_are_read_from_their_beginning_to_their_end(config: Path) -> None:
    assert run(["--config", str(config), "topics", "create", "--sources", "--partitions", "4"]) == 0
    settings = load_settings(config)
    count = published(settings, "demo")
    messages = asyncio.run(read_source_topics(settings))
    assert len(messages) == count
    assert len({(message.origin, message.partition, message.offset) for message in messages}) == count


def test_a_record_is_explained_by_topic_partition_and_offset(
    config: Path, fresh_app_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["--config", str(config), "topics", "create", "--sources", "--partitions", "4"]) == 0
    published(load_settings(config), "example")
    capfd.readouterr()
    assert run(["--config", str(config), "--debug", "explain", "run-7/review", "--from", "kafka:"]) == 0
    assert capfd.readouterr().out.splitlines()[:2] == [
        "gate run-7/review: made by 1 of 13 messages",
        f"  gate-decisions  topic {fresh_app_id}-gate_decisions partition 0 offset 0",
    ]


def test_topics_that_do_not_exist_are_named(config: Path, fresh_app_id: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--config", str(config), "explain", "run-7", "--from", "kafka:"]) == 1
    assert f"has none of the topics {fresh_app_id}-workflow_runs" in capfd.readouterr().err
