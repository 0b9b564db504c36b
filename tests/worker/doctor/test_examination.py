"""What the doctor finds without a broker: files, disks, replicas, groups that stand, and how findings are worded."""

import asyncio
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.brokers.broker import free_ports
from worker.doctor.examination import _broker_finding
from worker.doctor.findings import refusal, set_on_topic
from worker.doctor.groups import _check_lost, _check_moved, _Place
from worker.doctor.machine import check_machine
from worker.doctor.sinks import check_sinks
from worker.doctor.topics import TopicState, check_topics
from worker.kafka import TopicPartition
from worker.progress import Passage
from worker.settings import Settings
from worker.topic_scan import Span
from worker.topics import own_topics, topic_configs

PLACE = TopicPartition("workflow-runs", 0)
PASSAGE = Passage("project", "trace-projector-g1-project", ("workflow-runs",))


def settings_of(**values: Any) -> Settings:
    return Settings(**({"web_port": free_ports(1)[0]} | values))


def codes(findings: Any) -> list[str]:
    return [finding.code for finding in findings]


# ------------------------------------------------------------------------------------------------------------- machine


def test_nothing_is_wrong_with_a_machine_of_which_nothing_is_asked() -> None:
    assert codes(check_machine(settings_of())) == []


def test_a_state_directory_that_is_not_there_yet_is_one_that_the_worker_makes(tmp_path: Path) -> None:
    assert codes(check_machine(settings_of(state_dir=tmp_path / "a" / "b"))) == []


def test_a_state_directory_below_a_file_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    [finding] = check_machine(settings_of(state_dir=tmp_path / "file"))
    assert (finding.code, finding.severity) == ("state_dir", "error")
    assert "install -d -m 0700" in finding.fix


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_that_is_nearly_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(100 * 1024**3, 0, 200 * 1024**2))
    [finding] = check_machine(settings_of(state_dir=tmp_path / "state"))
    assert finding.code == "disk_full"
    assert finding.problem.startswith("200 MiB are free")


def test_an_address_that_is_not_this_machines_is_named() -> None:
    [finding] = check_machine(settings_of(web_host="192.0.2.1", web_port=6066))
    assert (finding.code, "or web_host" in finding.fix) == ("web_port", True)


def test_tls_files_are_looked_at_when_tls_is_spoken(tmp_path: Path) -> None:
    missing = {"ssl_ca_file": tmp_path / "ca.pem"}
    assert codes(check_machine(settings_of(kafka=missing))) == []
    [finding] = check_machine(settings_of(kafka=missing | {"security_protocol": "SSL"}))
    assert (finding.code, finding.about) == ("tls_file", "kafka.ssl_ca_file")


def test_a_private_key_that_others_may_read_is_named(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch(mode=0o644)
    files = {"ssl_cert_file": tmp_path / "cert.pem", "ssl_key_file": tmp_path / "key.pem"}
    [finding] = check_machine(settings_of(kafka=files | {"security_protocol": "SSL"}))
    assert (finding.code, finding.fix) == ("secret_file_mode", f"chmod 600 {tmp_path / 'key.pem'}")


# --------------------------------------------------------------------------------------------------------------- sinks


async def sink_findings(*exports: dict[str, Any]) -> list[Any]:
    named = tuple({"name": f"e{number}", "redact": False, **export} for number, export in enumerate(exports))
    return await check_sinks(settings_of(exports=named), serving=1)


def test_two_exports_into_one_sink_are_named(tmp_path: Path) -> None:
    sink = f"jsonl:{tmp_path}/x.jsonl"
    assert codes(asyncio.run(sink_findings({"sink": sink}, {"sink": sink}))) == ["sink_shared"]


def test_a_sink_that_no_table_has_is_named_without_its_url() -> None:
    [finding] = asyncio.run(sink_findings({"sink": "mysql://user:ZZSECRETZZ@host/db"}))
    assert finding.code == "sink_url"
    assert "ZZSECRETZZ" not in str(finding)


def test_unredacted_records_that_others_may_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.touch()
    path.chmod(0o644)
    [finding] = asyncio.run(sink_findings({"sink": f"jsonl:{path}"}))
    assert (finding.code, finding.fix) == ("sink_file_mode", f"chmod go= {path}")
    path.chmod(0o600)
    assert asyncio.run(sink_findings({"sink": f"jsonl:{path}"})) == []


def test_a_file_that_is_no_sinks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.duckdb"
    path.write_bytes(b"not a database" * 1000)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    [finding] = asyncio.run(sink_findings({"sink": f"duckdb:{path}"}))
    assert (finding.code, finding.severity) == ("sink_refuses", "error")


def test_a_sink_that_keeps_nothing_is_named() -> None:
    assert codes(asyncio.run(sink_findings({"sink": "memory:"}))) == ["sink_forgets"]


def test_a_receiver_that_does_not_listen_is_named() -> None:
    [finding] = asyncio.run(sink_findings({"sink": "otlp:http://127.0.0.1:1"}))
    assert (finding.code, finding.problem) == ("sink_unreachable", "nothing listens at 127.0.0.1:1")


@pytest.mark.parametrize(
    "sink",
    [
        "postgresql://user:ZZSECRETZZ@127.0.0.1:1/db",
        "clickhouse://user:ZZSECRETZZ@127.0.0.1:1/db",
        "kafka:out?bootstrap_servers=127.0.0.1:1",
    ],
)
def test_a_server_that_cannot_be_reached_is_named_without_its_password(sink: str) -> None:
    [finding] = asyncio.run(sink_findings({"sink": sink}))
    scheme = sink.partition(":")[0]
    assert (finding.code, finding.severity) == ("sink_unreachable", "error")
    assert "correct sink in the settings" in finding.fix
    assert "127.0.0.1" in finding.problem, scheme
    assert "ZZSECRETZZ" not in str(finding)


def test_a_driver_that_is_missing_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "worker.sinks.postgresql", None)
    [finding] = asyncio.run(sink_findings({"sink": "postgresql://127.0.0.1:1/db"}))
    assert (finding.code, finding.fix) == ("sink_url", "pip install 'trace-projector[postgresql]'")


def test_a_directory_without_the_right_to_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A test that runs as root may write anywhere, so the refusal is played.
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    [finding] = asyncio.run(sink_findings({"sink": f"jsonl:{tmp_path}/x.jsonl"}))
    assert (finding.code, "chown" in finding.fix) == ("sink_directory", True)


# -------------------------------------------------------------------------------------------------------------- topics


def topics_with(settings: Settings, partition: dict[str, Any], **configs: str) -> dict[str, TopicState]:
    """Give all topics as they should be, but for what is given."""
    partitions = [{"leader": 1, "replicas": [1], "isr": [1]} | partition] * settings.partitions
    changed = {name.replace("_", "."): value for name, value in configs.items()}
    own = {topic: TopicState(partitions, wanted | changed) for topic, wanted in topic_configs(settings).items()}
    kept = {"retention.ms": "-1", "max.message.bytes": str(settings.limits.message_bytes_max)}
    return {topic: TopicState(partitions, kept | changed) for topic in settings.source_topics.values()} | own


def test_topics_as_they_are_made_have_no_finding() -> None:
    settings = settings_of()
    assert codes(check_topics(settings, topics_with(settings, {}), brokers=1)) == []


def test_topics_that_are_not_made_yet_are_named_with_the_command_that_makes_them() -> None:
    settings = settings_of()
    states = {topic: state for topic, state in topics_with(settings, {}).items() if topic != own_topics(settings).facts}
    [finding] = check_topics(settings, states, brokers=1)
    assert (finding.code, finding.fix) == ("own_topic_missing", "trace-projector topics create")


@pytest.mark.parametrize(
    ("partition", "configs", "brokers", "code", "severity"),
    [
        ({"leader": -1}, {}, 1, "topic_offline", "error"),
        ({"replicas": [1, 2, 3], "isr": [1]}, {"min_insync_replicas": "2"}, 3, "topic_in_sync", "error"),
        ({"replicas": [1, 2, 3], "isr": [1, 2]}, {"min_insync_replicas": "2"}, 3, "topic_in_sync", "warning"),
        ({}, {"min_insync_replicas": "2"}, 1, "topic_in_sync", "error"),
        ({}, {}, 3, "topic_replicas", "warning"),
        ({}, {"max_message_bytes": "99999999"}, 1, "source_message_bytes", "warning"),
    ],
)
def test_what_brokers_say_of_topics_is_weighed(
    partition: dict[str, Any], configs: dict[str, str], brokers: int, code: str, severity: str
) -> None:
    settings = settings_of()
    found = list(check_topics(settings, topics_with(settings, partition, **configs), brokers))
    assert {(finding.code, finding.severity) for finding in found} == {(code, severity)}


def test_a_compacted_source_is_named() -> None:
    settings = settings_of()
    states = topics_with(settings, {})
    configs = {**states["transcripts"].configs, "cleanup.policy": "compact,delete"}
    [finding] = check_topics(
        settings, {**states, "transcripts": TopicState(states["transcripts"].partitions, configs)}, brokers=1
    )
    assert (finding.code, finding.about) == ("source_compacted", "topic transcripts")


# -------------------------------------------------------------------------------------------------------------- groups


def test_a_group_whose_offset_does_not_move_is_stuck() -> None:
    before = {PLACE: _Place(5, Span(0, 9))}
    [finding] = _check_moved(settings_of(), PASSAGE, before, {PLACE: _Place(5, Span(0, 12))}, 5.0)
    assert (finding.code, "did not move for 5 s: workflow-runs/0" in finding.problem) == ("group_stuck", True)
    assert list(_check_moved(settings_of(), PASSAGE, before, {PLACE: _Place(6, Span(0, 12))}, 5.0)) == []
    assert list(_check_moved(settings_of(), PASSAGE, before, {PLACE: _Place(9, Span(0, 9))}, 5.0)) == []


def test_messages_that_were_deleted_before_they_were_read_are_named() -> None:
    [finding] = _check_lost(settings_of(), PASSAGE, {PLACE: _Place(5, Span(8, 9))})
    assert "workflow-runs/0: messages 5 to 7 were deleted" in finding.problem
    assert 'kafka.on_missing_offsets = "skip"' in finding.fix
    assert list(_check_lost(settings_of(), PASSAGE, {PLACE: _Place(None, Span(8, 9))})) == []


# --------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("told", "setting"),
    [
        ("refuses kafka.sasl_username with this kafka.sasl_password", "TRACE_PROJECTOR_KAFKA__SASL_PASSWORD"),
        ("does not know kafka.sasl_mechanism PLAIN", "kafka.sasl_mechanism"),
        ("has a certificate that kafka.ssl_ca_file does not vouch for", "openssl s_client"),
        ("takes connections; is kafka.security_protocol SSL what it speaks?", "SASL_SSL"),
        ("refused: TopicAuthorizationFailedError", "kafka-acls.sh"),
    ],
)
def test_what_is_wrong_with_the_way_to_a_broker_says_which_setting_mends_it(told: str, setting: str) -> None:
    assert setting in _broker_finding(settings_of(), told).fix


def test_a_refusal_ends_with_its_way_out() -> None:
    found = refusal("generation", "generation 2", "generation 2 was dropped: set generation = 1", "look")
    assert (found.problem, found.fix) == ("generation 2 was dropped", "set generation = 1")
    assert refusal("x", "y", "it is not so", "look").fix == "look"


def test_commands_of_a_secured_cluster_name_a_file_of_credentials() -> None:
    secured = {"security_protocol": "SASL_SSL", "sasl_username": "u", "sasl_password": "ZZSECRETZZ"}
    told = set_on_topic(settings_of(kafka=secured), "t", {"a": "b"})
    assert "--command-config client.properties" in told
    assert "ZZSECRETZZ" not in told
