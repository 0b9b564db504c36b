"""The doctor on a real broker: silent where all is well, and each planted fault named with its remedy."""

import asyncio
import hashlib
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.brokers.broker import LOOPBACK, create_topics, free_ports
from tests.deploy.test_metrics_table import documented
from tests.integration.commands import Commands
from tests.integration.pipeline import KEY, KEY_VARIABLE, SOURCES, Pipeline, worlds
from worker.generations.binding import bind_generation
from worker.generations.log import append_event
from worker.settings import load_settings
from worker.sink import open_sink
from worker.topics import prepare_topics

pytestmark = pytest.mark.integration

MESSAGE_BYTES = 9 * 1024 * 1024
SOURCE_CONFIGS = {"retention.ms": "-1", "max.message.bytes": str(MESSAGE_BYTES)}
SECRET = "ZZSECRETZZ"


async def _with_admin(pipeline: Pipeline, work: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.kafka.bootstrap_servers)
    await admin.start()
    try:
        await work(admin)
    finally:
        await admin.close()


def set_on(pipeline: Pipeline, topic: str, **configs: str) -> None:
    """Set a topic's configuration; what is not named falls back to the broker's own."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, named)
    asyncio.run(_with_admin(pipeline, lambda admin: admin.alter_configs([resource])))


def drop_topic(pipeline: Pipeline, topic: str) -> None:
    asyncio.run(_with_admin(pipeline, lambda admin: admin.delete_topics([topic])))


@pytest.fixture
def installation(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Give an installation in which nothing is wrong, left as a worker leaves it that was started and stopped."""
    [port] = free_ports(1)
    monkeypatch.setenv("TRACE_PROJECTOR_WEB_PORT", str(port))
    made = [NewTopic(pipeline.topic(source), 2, 1, topic_configs=SOURCE_CONFIGS) for source in SOURCES]
    asyncio.run(_with_admin(pipeline, lambda admin: create_topics(admin, made)))
    asyncio.run(_prepare(pipeline))
    return pipeline


async def _prepare(pipeline: Pipeline) -> None:
    settings = load_settings(pipeline.config)
    await prepare_topics(settings, settings.roles)
    await bind_generation(settings, settings.roles)


def test_an_installation_that_works_has_no_finding(installation: Pipeline, commands: Commands) -> None:
    installation.publish(worlds([301]))
    worker = installation.worker()
    worker.start()
    installation.wait_settled()
    assert worker.metrics().keys() <= documented().keys()
    for state in ("running", "stopped"):
        diagnosis = commands.json("doctor")
        assert diagnosis["findings"] == [], state
        assert diagnosis["lookedAt"] == ["machine", "brokers", "topics", "groups", "generation", "clocks", "sinks"]
        assert set(diagnosis["lag"].values()) == {0}
        assert diagnosis["versions"]["duckdb"]
        if state == "running":
            assert worker.stop() == 0
    code, out, err = commands.run("doctor", "--strict")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("nothing is wrong")


class Planted(NamedTuple):
    """A fault: how it is planted, what is found, how bad it is, what the remedy says, and what it brings along."""

    name: str
    plant: Callable[[Pipeline, pytest.MonkeyPatch], None]
    severity: str
    code: str
    fix: str
    also: frozenset[str] = frozenset()


def _generation_of_another_release(pipeline: Pipeline, _patch: pytest.MonkeyPatch) -> None:
    settings = load_settings(pipeline.config)
    event = {"event": "started", "generation": 2, "projectionVersion": 0, "topics": {}, "began": {}, "origin": "facts"}
    asyncio.run(append_event(settings, event))
    pipeline.write_config(generation=2)
    asyncio.run(prepare_topics(load_settings(pipeline.config), ()))


def _foreign_sink(pipeline: Pipeline, _patch: pytest.MonkeyPatch) -> None:
    async def fill() -> None:
        sink = open_sink(f"jsonl:{pipeline.jsonl_path}", hashlib.sha256(b"another policy").hexdigest())
        await sink.open()
        await sink.close()

    asyncio.run(fill())


def _message_from_tomorrow(pipeline: Pipeline, _patch: pytest.MonkeyPatch) -> None:
    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=pipeline.kafka.bootstrap_servers)
        await producer.start()
        try:
            later_ms = int((time.time() + 1800) * 1000)
            await producer.send_and_wait(pipeline.app_id + "-erasures", b"{}", timestamp_ms=later_ms)
        finally:
            await producer.stop()

    asyncio.run(send())
    worker = pipeline.worker("reader")
    worker.start()
    pipeline.wait_settled(["project"])
    assert worker.stop() == 0


def _short_key(_pipeline: Pipeline, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(KEY_VARIABLE, SECRET)


def _open_key_file(pipeline: Pipeline, _patch: pytest.MonkeyPatch) -> None:
    key = pipeline.directory / "public.key"
    key.write_text(KEY)
    key.chmod(0o644)
    text = pipeline.config.read_text()
    pipeline.config.write_text(text.replace(f'key_env = "{KEY_VARIABLE}"', f'key_file = "{key}"'))


def _open_state(pipeline: Pipeline, patch: pytest.MonkeyPatch) -> None:
    state = pipeline.directory / "state"
    state.mkdir()
    state.chmod(0o755)
    patch.setenv("TRACE_PROJECTOR_STATE_DIR", str(state))


def _mistyped_sink(pipeline: Pipeline, _patch: pytest.MonkeyPatch) -> None:
    text = pipeline.config.read_text()
    pipeline.config.write_text(text.replace(str(pipeline.jsonl_path), str(pipeline.directory / "no" / "such.jsonl")))


def _needless_login(_pipeline: Pipeline, patch: pytest.MonkeyPatch) -> None:
    login = {"SECURITY_PROTOCOL": "SASL_PLAINTEXT", "SASL_USERNAME": "worker", "SASL_PASSWORD": SECRET}
    for name, value in login.items():
        patch.setenv(f"TRACE_PROJECTOR_KAFKA__{name}", value)


def _own(pipeline: Pipeline, kind: str) -> str:
    return f"{pipeline.app_id}-g1-trace-{kind}"


_OWN = {"max_message_bytes": str(MESSAGE_BYTES), "cleanup_policy": "compact"}
_FACTS = _OWN | {"min_compaction_lag_ms": str(7 * 86_400_000)}

PLANTED = [
    Planted(
        "a source topic that is missing",
        lambda pipeline, _: drop_topic(pipeline, pipeline.topic("gate-decisions")),
        "error",
        "source_missing",
        r"name the topic to read in topics\.gate_decisions, or make it: trace-projector topics create --sources",
        # The generation was begun with that topic.
        also=frozenset({"generation"}),
    ),
    Planted(
        "a source that keeps messages for a week",
        lambda pipeline, _: set_on(
            pipeline, pipeline.topic("workflow-runs"), retention_ms="604800000", max_message_bytes=str(MESSAGE_BYTES)
        ),
        "warning",
        "source_retention",
        r"kafka-configs\.sh .* --alter .*-workflow-runs --add-config retention\.ms=-1,retention\.bytes=-1",
    ),
    Planted(
        "transcripts that may be no longer than a megabyte",
        lambda pipeline, _: set_on(
            pipeline, pipeline.topic("transcripts"), retention_ms="-1", max_message_bytes="1048576"
        ),
        "warning",
        "source_message_bytes",
        r"-transcripts --add-config max\.message\.bytes=9437184",
    ),
    Planted(
        "facts that retention deletes",
        lambda pipeline, _: set_on(pipeline, _own(pipeline, "facts"), **(_FACTS | {"cleanup_policy": "delete"})),
        "error",
        "own_topic_config",
        r"-trace-facts --add-config cleanup\.policy=compact$",
    ),
    Planted(
        "facts that are compacted at once",
        lambda pipeline, _: set_on(pipeline, _own(pipeline, "facts"), **_OWN),
        "error",
        "own_topic_config",
        r"-trace-facts --add-config min\.compaction\.lag\.ms=604800000$",
    ),
    Planted(
        "records whose deletions are kept for a day",
        lambda pipeline, _: set_on(pipeline, _own(pipeline, "records"), **_OWN),
        "error",
        "own_topic_config",
        r"-trace-records --add-config delete\.retention\.ms=2592000000$",
    ),
    Planted(
        "erasures that are forgotten",
        lambda pipeline, _: set_on(
            pipeline, pipeline.app_id + "-erasures", retention_ms="86400000", max_message_bytes=str(MESSAGE_BYTES)
        ),
        "error",
        "own_topic_config",
        r"-erasures --add-config retention\.ms=-1$",
    ),
    Planted(
        "another number of partitions",
        lambda _, patch: patch.setenv("TRACE_PROJECTOR_PARTITIONS", "5"),
        "error",
        "own_topic_partitions",
        r"^set partitions = 3;",
    ),
    Planted(
        "more replicas than brokers",
        lambda _, patch: patch.setenv("TRACE_PROJECTOR_REPLICATION_FACTOR", "3"),
        "error",
        "replication_factor",
        r"^set replication_factor = 1, or add brokers$",
    ),
    Planted(
        "a key that is missing",
        lambda _, patch: patch.delenv(KEY_VARIABLE),
        "error",
        "key_missing",
        rf"openssl rand -hex 32|{KEY_VARIABLE}",
    ),
    Planted(
        "a short key", _short_key, "warning", "key_short", r"openssl rand -hex 32.*trace-projector export resync public"
    ),
    Planted(
        "a key that everybody may read", _open_key_file, "warning", "secret_file_mode", r"^chmod 600 /.*public\.key"
    ),
    Planted(
        "a state directory that everybody may read", _open_state, "warning", "state_dir_mode", r"^chmod 700 /.*state"
    ),
    Planted(
        "a sink in a directory that is not there", _mistyped_sink, "error", "sink_directory", r"^install -d -m 0700 /"
    ),
    Planted(
        "a sink of another policy",
        _foreign_sink,
        "error",
        "sink_policy",
        r"^`trace-projector export resync public` with its workers stopped",
    ),
    Planted(
        "messages that nobody reads",
        lambda pipeline, _: pipeline.publish(worlds([302])),
        "warning",
        "group_without_member",
        r"^trace-projector worker --role project$",
    ),
    Planted(
        "a generation of another release",
        _generation_of_another_release,
        "error",
        "generation",
        r"^set generation = 1, which is of version [0-9]+$",
    ),
    Planted(
        "a clock that is wrong",
        _message_from_tomorrow,
        "warning",
        "clock",
        r"chronyc tracking.*timedatectl set-ntp true",
    ),
    Planted(
        "no broker at the address",
        lambda _, patch: patch.setenv("TRACE_PROJECTOR_BOOTSTRAP_SERVERS", f"{LOOPBACK}:1"),
        "error",
        "broker",
        r"^start one, or correct bootstrap_servers \(TRACE_PROJECTOR_BOOTSTRAP_SERVERS\)$",
    ),
    Planted(
        "a password for a listener that wants none",
        _needless_login,
        "error",
        "broker",
        r"TRACE_PROJECTOR_KAFKA__SASL_PASSWORD; a listener that asks for neither is kafka\.security_protocol PLAINTEXT",
    ),
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_fault_is_named_with_its_remedy(
    planted: Planted, installation: Pipeline, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.plant(installation, monkeypatch)
    diagnosis = commands.json("doctor", "--watch", "1")
    assert {finding["code"] for finding in diagnosis["findings"]} == {planted.code, *planted.also}
    named = [finding for finding in diagnosis["findings"] if finding["code"] == planted.code]
    assert {finding["severity"] for finding in named} == {planted.severity}
    assert all(re.search(planted.fix, finding["fix"]) for finding in named), named
    code, out, err = commands.run("doctor", "--watch", "1")
    assert (code, err) == (int(planted.severity == "error"), "")
    assert commands.run("doctor", "--watch", "1", "--strict")[0] == 1
    assert f"[{planted.code}]" in out
    assert named[0]["fix"] in out
    assert SECRET not in out + str(diagnosis)


TOGETHER = (
    "a source that keeps messages for a week",
    "transcripts that may be no longer than a megabyte",
    "facts that retention deletes",
    "records whose deletions are kept for a day",
    "erasures that are forgotten",
    "another number of partitions",
    "more replicas than brokers",
    "a short key",
    "a state directory that everybody may read",
    "messages that nobody reads",
)


def test_ten_faults_at_once_hide_none_of_one_another(
    installation: Pipeline, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {one.name: one for one in PLANTED}
    for name in TOGETHER:
        planted[name].plant(installation, monkeypatch)
    findings = commands.json("doctor", "--watch", "1")["findings"]
    assert {finding["code"] for finding in findings} == {planted[name].code for name in TOGETHER}
    for name in TOGETHER:
        fixes = [finding["fix"] for finding in findings if finding["code"] == planted[name].code]
        assert any(re.search(planted[name].fix, fix) for fix in fixes), name
    severities = [finding["severity"] for finding in findings]
    assert severities == sorted(severities), "errors come first"


def test_a_group_that_reads_and_does_not_get_on_is_stuck(installation: Pipeline, commands: Commands) -> None:
    installation.publish(worlds([303]))
    group = f"{installation.app_id}-g1-project"
    reading, done = threading.Event(), threading.Event()

    async def read_and_commit_nothing() -> None:
        consumer = AIOKafkaConsumer(
            *map(installation.topic, SOURCES),
            bootstrap_servers=installation.kafka.bootstrap_servers,
            group_id=group,
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            reading.set()
            while not done.is_set():
                await consumer.getmany(timeout_ms=100)
        finally:
            await consumer.stop()

    member = threading.Thread(target=asyncio.run, args=(read_and_commit_nothing(),))
    member.start()
    try:
        assert reading.wait(30)
        diagnosis = commands.json("doctor", "--watch", "1")
    finally:
        done.set()
        member.join()
    [finding] = diagnosis["findings"]
    assert (finding["code"], finding["about"]) == ("group_stuck", f"group {group}")
    assert "trace-projector status" in finding["fix"]


def test_a_port_that_another_program_has_is_named(
    installation: Pipeline, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installation.config.exists()
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        other.settimeout(0)
        monkeypatch.setenv("TRACE_PROJECTOR_WEB_PORT", str(port))
        [finding] = commands.json("doctor")["findings"]
    assert (finding["code"], finding["about"]) == ("web_port", f"{LOOPBACK}:{port}")
    assert "set web_port (TRACE_PROJECTOR_WEB_PORT) to a free one" in finding["fix"]
