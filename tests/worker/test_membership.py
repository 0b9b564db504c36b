"""The names under which one worker is a member of several groups."""

from collections.abc import Mapping
from typing import Any

import pytest

from worker import kafka
from worker.kafka import group_consumer
from worker.settings import Settings
from worker.topics import export_group, fold_group, project_group


def names_of(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> list[Any]:
    asked: list[Mapping[str, Any]] = []
    monkeypatch.setattr(kafka, "AIOKafkaConsumer", lambda **options: asked.append(options))
    for group in (project_group(settings), fold_group(settings), export_group(settings, "plain")):
        group_consumer(settings, group)
    return [options["group_instance_id"] for options in asked]


def test_a_worker_without_an_instance_id_has_no_name_in_any_group(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_of(monkeypatch, Settings()) == [None, None, None]


def test_an_instance_id_gives_each_role_and_export_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.model_validate({"app_id": "traces", "kafka": {"instance_id": "worker-0"}})
    names = names_of(monkeypatch, settings)
    assert names == ["worker-0.g1-project", "worker-0.g1-fold", "worker-0.g1-export-plain"]


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 101])
def test_a_name_that_kafka_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="instance id"):
        Settings.model_validate({"kafka": {"instance_id": name}})
