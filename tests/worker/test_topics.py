"""What our topics are called, how they are made, and what is said when something is missing."""

import asyncio
from typing import Any, NamedTuple

import pytest
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError

from worker import topics
from worker.settings import Settings
from worker.topics import (
    StartError,
    export_group,
    fold_group,
    own_topics,
    prepare_topics,
    project_group,
    topic_configs,
)

SETTINGS = Settings(app_id="app", generation=3, partitions=4)
DAY_MS = 86_400_000


class Response(NamedTuple):
    topic_errors: list[tuple[str, int, str | None]]


class ConfigResponse(NamedTuple):
    resources: list[tuple[int, str, int, str, list[tuple[str, str]]]]


class FakeAdmin:
    """Topics with their partition counts and cleanup policies; a created one is known one look later."""

    def __init__(self, existing: dict[str, int], *, policies: dict[str, str] | None = None, code: int = 0) -> None:
        self.existing = dict(existing)
        self.created: dict[str, Any] = {}
        self.is_closed = False
        self.start_error: Exception | None = None
        self._policies = policies or {}
        self._code = code
        self._late: dict[str, int] = {}

    async def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error

    async def close(self) -> None:
        self.is_closed = True

    async def list_topics(self) -> list[str]:
        known = list(self.existing)
        self.existing |= self._late
        return known

    async def create_topics(self, new: list[Any]) -> Response:
        self.created = {topic.name: topic for topic in new}
        self._late = {topic.name: topic.num_partitions for topic in new}
        return Response([(topic.name, self._code, None) for topic in new])

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"topic": name, "partitions": [0] * self.existing[name]} for name in names]

    async def describe_configs(self, resources: list[Any]) -> list[ConfigResponse]:
        entries = [("cleanup.policy", self._policies[one.name]) for one in resources if one.name in self._policies]
        return [ConfigResponse([(0, "", 2, "", entries)])]


def prepare(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin, roles: tuple[str, ...] = ("project",)) -> None:
    monkeypatch.setattr(topics, "admin_client", lambda _settings: admin)
    monkeypatch.setattr(topics, "_VISIBLE_PAUSE_S", 0.0)
    asyncio.run(prepare_topics(SETTINGS, roles))


def sources() -> dict[str, int]:
    return {topic: 2 for source, topic in SETTINGS.source_topics.items() if source != "erasures"}


def test_topics_and_groups_are_named_after_the_application_and_what_is_of_one_generation_says_which() -> None:
    assert own_topics(SETTINGS) == (
        "app-g3-trace-facts",
        "app-g3-trace-records",
        "app-trace-dead-letters",
        "app-erasures",
    )
    assert project_group(SETTINGS) == "app-g3-project"
    assert fold_group(SETTINGS) == "app-g3-fold"
    assert export_group(SETTINGS, "plain") == "app-g3-export-plain"


def test_logs_are_compacted_and_erasures_are_kept_for_good() -> None:
    configs = topic_configs(SETTINGS)
    facts, records, letters, erasures = (configs[topic] for topic in own_topics(SETTINGS))
    assert {one["cleanup.policy"] for one in (facts, records, letters)} == {"compact"}
    assert int(records["delete.retention.ms"]) == 30 * DAY_MS
    # Later copies of facts must not replace earlier ones that a fold still needs to restore what it had.
    assert int(facts["min.compaction.lag.ms"]) == 7 * DAY_MS
    assert (erasures["cleanup.policy"], erasures["retention.ms"], erasures["retention.bytes"]) == ("delete", "-1", "-1")
    assert all(int(one["max.message.bytes"]) > SETTINGS.limits.message_bytes_max for one in configs.values())


@pytest.mark.parametrize(("factor", "in_sync"), [(1, "1"), (2, "1"), (3, "2")])
def test_one_broker_may_fail_where_there_are_three_replicas(factor: int, in_sync: str) -> None:
    configs = topic_configs(Settings(replication_factor=factor))
    assert {one["min.insync.replicas"] for one in configs.values()} == {in_sync}


def test_what_is_missing_of_ours_is_created_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_topics(SETTINGS)
    admin = FakeAdmin(sources() | {own.facts: 4})
    prepare(monkeypatch, admin)
    assert set(admin.created) == set(own) - {own.facts}
    assert {topic.num_partitions for topic in admin.created.values()} == {4}
    assert admin.is_closed


def test_missing_sources_are_named_with_their_settings_and_only_for_the_role_that_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = FakeAdmin({"workflow-runs": 1})
    with pytest.raises(StartError, match=r"gate-decisions \(setting topics.gate_decisions\), ledger-changes"):
        prepare(monkeypatch, admin)
    assert admin.created == {}
    assert admin.is_closed
    prepare(monkeypatch, FakeAdmin({"workflow-runs": 1}), roles=("fold",))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KafkaConnectionError(), "no Kafka broker answers at 127.0.0.1:9092"),
        (NodeNotReadyError(), "refused to prepare the topics: NodeNotReadyError"),
    ],
)
def test_a_broker_that_cannot_be_used_is_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    admin = FakeAdmin({})
    admin.start_error = error
    with pytest.raises(StartError, match=said):
        prepare(monkeypatch, admin)
    assert admin.is_closed


@pytest.mark.parametrize(("code", "is_refused"), [(0, False), (36, False), (38, True)])
def test_only_a_topic_that_another_worker_made_first_may_be_there_already(
    monkeypatch: pytest.MonkeyPatch, code: int, is_refused: bool
) -> None:
    admin = FakeAdmin(sources(), code=code)
    if is_refused:
        with pytest.raises(StartError, match=r"cannot create topic .*InvalidReplicationFactorError"):
            prepare(monkeypatch, admin)
    else:
        prepare(monkeypatch, admin)


def test_a_generation_keeps_its_partition_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_topics(SETTINGS)
    admin = FakeAdmin(sources() | dict.fromkeys(own, 4) | {own.records: 6})
    with pytest.raises(StartError, match=f"topic {own.records} has 6 partitions and the settings say 4"):
        prepare(monkeypatch, admin)
    # How many partitions erasures have is their maker's choice.
    prepare(monkeypatch, FakeAdmin(sources() | dict.fromkeys(own, 4) | {own.erasures: 1}))


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_log_that_retention_would_empty_is_refused(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    own = own_topics(SETTINGS)
    admin = FakeAdmin(sources() | dict.fromkeys(own, 4), policies={own.facts: policy})
    with pytest.raises(StartError, match=f"topic {own.facts} has cleanup.policy {policy}"):
        prepare(monkeypatch, admin)
