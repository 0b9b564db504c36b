"""A pipeline for each test: its own topics, groups and directory on the session's broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers.broker import Broker
from tests.integration.commands import Commands
from tests.integration.pipeline import KEY, KEY_VARIABLE, Pipeline, WorkerProcess
from tests.sizes import SIZE


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """Let workers be forks for every day, and whole programs at full size."""
    WorkerProcess.forks = SIZE == "everyday"
    yield
    WorkerProcess.forks = False


@pytest.fixture
def pipeline(kafka: Broker, fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """Give a pipeline whose workers are gone after the test, however it ends."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    made = Pipeline(kafka, fresh_app_id, tmp_path)
    made.write_config()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def commands(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> Commands:
    """Give the commands as somebody with the pipeline's settings runs them."""
    return Commands(pipeline.config, capfd)
