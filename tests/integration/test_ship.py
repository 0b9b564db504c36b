"""`ship` on a real broker: what it leaves in the topic, killed or not, is what the files hold."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from subprocess import PIPE

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from projections.sources.transcripts import LINE_BYTES_MAX
from tests.brokers.apache_kafka import KafkaCluster
from tests.brokers.broker import Broker, create_topics
from tests.integration.pipeline import eventually
from tests.worlds.native_files import NAMESPACE, NativeFile, native_files
from tests.worlds.transcripts import line_messages, project_lines
from tests.worlds.world import PRIVATE_MARKER
from worker.cli import run
from worker.settings import ENV_PREFIX, load_settings
from worker.source_topics import create_source_topics, read_source_topics

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
RESTARTS = 50
PATIENCE_S = 60.0


# A fork of a process that has everything loaded starts in no time, so most runs are killed while they ship.
LOADED = """
import json, os, sys
import worker.commands.ship, worker.shipping.shipper
from worker.cli import run
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os._exit(run(json.loads(line)))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    """Starts the program, one run after another, as forks of a process that has loaded it."""

    def __init__(self) -> None:
        self._loaded = subprocess.Popen([sys.executable, "-c", LOADED], stdin=PIPE, stdout=PIPE, text=True, bufsize=1)
        self._pid = 0

    def start(self, arguments: list[str]) -> None:
        assert self._loaded.stdin is not None
        self._loaded.stdin.write(json.dumps(arguments) + "\n")
        self._pid = self._answer()

    def kill(self) -> int:
        """Kill the run and give its exit code."""
        os.kill(self._pid, signal.SIGKILL)
        return self._answer()

    def _answer(self) -> int:
        assert self._loaded.stdout is not None
        return int(self._loaded.stdout.readline())

    def close(self) -> None:
        assert self._loaded.stdin is not None
        self._loaded.stdin.close()
        assert self._loaded.wait(PATIENCE_S) == 0


@pytest.fixture
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


class Shipping:
    """A home directory with transcripts in it, and a topic of its own."""

    def __init__(self, kafka: Broker, app_id: str, directory: Path) -> None:
        self.home = directory / "home"
        self.places = {
            "claude-code": self.home / ".claude" / "projects",
            "codex": self.home / ".codex" / "sessions",
        }
        self.config = directory / "ship.toml"
        self.state = directory / "state" / "ship.json"
        sources = ("workflow_runs", "gate_decisions", "ledger_changes", "transcripts")
        self.config.write_text(
            f'app_id = "{app_id}"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
            # To ask the broker whether it fences takes longer than many of the runs here live.
            f'fencing = "{"on" if kafka.supports_transactions else "off"}"\n'
            "[topics]\n" + "".join(f'{source} = "{app_id}-{source}"\n' for source in sources)
        )
        asyncio.run(create_source_topics(load_settings(self.config), 3))

    def arguments(self, *more: str) -> list[str]:
        common = ["--namespace", NAMESPACE, "--state", str(self.state), "--poll-interval-s", "0.02"]
        return ["--config", str(self.config), "ship", *common, *more]

    def path_of(self, file: NativeFile) -> Path:
        return self.places[file.harness] / file.path

    def append(self, file: NativeFile, start: int, end: int) -> None:
        """Write some bytes of a file, wherever they end."""
        path = self.path_of(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(file.data[start:end])

    def values(self) -> list[bytes]:
        messages = asyncio.run(read_source_topics(load_settings(self.config)))
        assert all(message.key is not None for message in messages)
        return [message.value or b"" for message in messages]

    def offsets(self) -> int:
        """Count the bytes that the state says are shipped."""
        return sum(row["offset"] for row in json.loads(self.state.read_text())["files"]) if self.state.exists() else 0

    def wait_for_progress(self, before: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.offsets() == before:
            assert time.monotonic() < deadline, "waited in vain for something to be shipped"
            time.sleep(0.01)


@pytest.fixture
def shipping(kafka: Broker, fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shipping:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX) or name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
            monkeypatch.delenv(name)
    made = Shipping(kafka, fresh_app_id, tmp_path)
    monkeypatch.setenv("HOME", str(made.home))
    return made


def lines_of(files: list[NativeFile]) -> list[bytes]:
    """Give the messages of all files, made line by line as the tests make them."""
    return [value for file in files for value in line_messages(file.source, file.data)]


def parsed(values: list[bytes]) -> Counter[str]:
    """Count messages by what they say, whatever order their fields have."""
    return Counter(json.dumps(json.loads(value), sort_keys=True) for value in values)


def records_of(values: list[bytes]) -> dict[str, bytes]:
    cluster = project_lines(values)
    assert cluster.dead == []
    return cluster.records


def test_everything_is_shipped_once_and_a_second_run_ships_only_what_is_new(
    shipping: Shipping, capfd: pytest.CaptureFixture[str]
) -> None:
    files = native_files(1, turns=20)
    for file in files:
        shipping.append(file, 0, len(file.data) - 40)
    for _ in range(2):
        assert run(shipping.arguments("--once")) == 0
    first, second = capfd.readouterr().err.split("unfinished")[:2]
    assert "of 5 files" in first
    assert "0 lines, 0 bytes, of 0 files" in second
    for file in files:
        shipping.append(file, len(file.data) - 40, len(file.data))
    assert run(shipping.arguments("--once")) == 0
    assert parsed(shipping.values()) == parsed(lines_of(files))


def test_the_messages_of_one_conversation_are_in_one_partition(shipping: Shipping) -> None:
    files = native_files(2, turns=5)
    for file in files:
        shipping.append(file, 0, len(file.data))
    assert run(shipping.arguments("--once")) == 0
    partitions: dict[bytes | None, set[int]] = {}
    for message in asyncio.run(read_source_topics(load_settings(shipping.config))):
        partitions.setdefault(message.key, set()).add(message.partition)
    assert len(partitions) == 4
    assert all(len(numbers) == 1 for numbers in partitions.values())


def test_killed_at_random_points_over_growing_files_it_leaves_what_one_clean_pass_leaves(
    shipping: Shipping, forks: Forks
) -> None:
    seed = int(os.environ.get("SHIP_SEED", "3"))
    random = Random(seed)
    files = native_files(seed, turns=200)
    written = [0] * len(files)

    def grow(share: float) -> None:
        for number, file in enumerate(files):
            end = min(len(file.data), written[number] + int(random.random() * 2 * share * len(file.data)))
            shipping.append(file, written[number], end)
            written[number] = end

    progress = []
    for _restart in range(RESTARTS):
        grow(0.5 / RESTARTS)
        before = shipping.offsets()
        forks.start(shipping.arguments("--rate", "200KiB/s"))
        grow(0.5 / RESTARTS)
        if random.random() < 0.7:
            shipping.wait_for_progress(before)
        time.sleep(random.random() * 0.3)
        assert forks.kill() == -signal.SIGKILL
        progress.append(shipping.offsets())
    for number, file in enumerate(files):
        shipping.append(file, written[number], len(file.data))
    assert run(shipping.arguments("--once")) == 0

    clean = lines_of(files)
    shipped = shipping.values()
    assert parsed(shipped).keys() == parsed(clean).keys()
    assert records_of(shipped) == records_of(clean)
    # It was killed in the middle of things, and went on from there: neither all at the end nor again from the start.
    assert len(set(progress)) > RESTARTS // 2
    assert progress == sorted(progress)
    assert len(clean) <= len(shipped) < 2 * len(clean)


def test_told_to_stop_it_ends_well_and_its_log_shows_no_path_and_no_content(shipping: Shipping) -> None:
    files = native_files(4, turns=5)
    for file in files:
        shipping.append(file._replace(path=file.path.with_name(f"{PRIVATE_MARKER}-{file.path.name}")), 0, 100)
        shipping.append(file, 0, len(file.data))
    arguments = [sys.executable, "-m", "worker", *shipping.arguments()]
    process = subprocess.Popen(arguments, cwd=ROOT, stderr=PIPE, text=True)
    shipping.wait_for_progress(0)
    rewritten = shipping.path_of(files[0])
    rewritten.write_bytes(files[1].data)
    shipping.wait_for_progress(shipping.offsets())
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "no longer begins with what was shipped of it" in said or "is shorter than what was shipped of it" in said
    assert "shipped " in said
    assert str(shipping.home) not in said
    assert PRIVATE_MARKER not in said


@pytest.mark.slow
def test_brokers_that_do_not_answer_for_a_while_cost_nothing(
    fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = native_files(8, turns=40)
    halves = [len(file.data) // 2 for file in files]
    said = tmp_path / "said.txt"
    with KafkaCluster() as cluster:
        broker = Broker(cluster.name, cluster.bootstrap_servers, supports_transactions=True, stop=cluster.stop)
        shipping = Shipping(broker, fresh_app_id, tmp_path)
        monkeypatch.setenv("HOME", str(shipping.home))
        # Out of patience soon, and not because the machine is slow at the start.
        monkeypatch.setenv(f"{ENV_PREFIX}KAFKA__REQUEST_TIMEOUT_S", "2")
        monkeypatch.setenv(f"{ENV_PREFIX}LIMITS__SINK_RETRY_DELAY_MAX_S", "0.5")
        for file, half in zip(files, halves, strict=True):
            shipping.append(file, 0, half)
        with said.open("w") as stream:
            arguments = [sys.executable, "-m", "worker", *shipping.arguments()]
            process = subprocess.Popen(arguments, cwd=ROOT, stderr=stream)
        shipping.wait_for_progress(0)
        (node,) = cluster.nodes
        node.pause()
        for file, half in zip(files, halves, strict=True):
            shipping.append(file, half, len(file.data))
        eventually(lambda: "do not acknowledge" in said.read_text(), "the outage is noticed")
        node.resume()
        total = sum(len(file.data) for file in files)
        eventually(lambda: shipping.offsets() == total, "everything is shipped")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert parsed(shipping.values()).keys() == parsed(lines_of(files)).keys()
    assert "internal error" not in said.read_text()
    assert "Traceback" not in said.read_text()


def test_a_line_that_the_topic_is_too_narrow_for_is_named_and_all_others_are_shipped(
    kafka: Broker, shipping: Shipping, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kafka.supports_transactions:
        pytest.skip(f"{kafka.name} has no limits")
    topic = f"{load_settings(shipping.config).source_topics['transcripts']}-narrow"
    monkeypatch.setenv(f"{ENV_PREFIX}TOPICS__TRANSCRIPTS", topic)
    asyncio.run(create_narrow_topic(kafka, topic, 4_000))
    (file, *_) = native_files(5, turns=20)
    noise = Random(5).randbytes(9_000).hex()
    large = f'{{"type":"system","text":"{noise}"}}\n'.encode()
    cut = file.data.index(b"\n", len(file.data) // 2) + 1
    with_large = file._replace(data=file.data[:cut] + large + file.data[cut:])
    shipping.append(with_large, 0, len(with_large.data))
    assert run(shipping.arguments("--once")) == 1
    said = capfd.readouterr().err
    assert "refused       1 (message_too_large_for_topic 1)" in said
    assert f"{shipping.path_of(file)} byte {cut}, {len(large) - 1} bytes: message_too_large_for_topic" in said
    expected = parsed(line_messages(file.source, with_large.data))
    (missing,) = [value for value in expected if noise in value]
    del expected[missing]
    assert parsed(shipping.values()).keys() == expected.keys()
    assert run(shipping.arguments("--once")) == 0


def test_a_line_of_the_greatest_length_arrives_and_one_byte_more_is_refused(
    shipping: Shipping, capfd: pytest.CaptureFixture[str]
) -> None:
    (file, *_) = native_files(7, turns=2)
    noise = Random(7).randbytes(LINE_BYTES_MAX // 2).hex()
    longest = f'{{"type":"x","text":"{noise}'.encode()[: LINE_BYTES_MAX - 2] + b'"}'
    too_long = longest[:-2] + b'x"}'
    data = file.data + longest + b"\n" + too_long + b"\n" + b'{"type":"last"}\n'
    shipping.append(file._replace(data=data), 0, len(data))
    assert run(shipping.arguments("--once")) == 1
    assert f"byte {len(file.data) + len(longest) + 1}, {len(too_long)} bytes: line_too_large" in capfd.readouterr().err
    lines = [json.loads(value)["line"].encode() for value in shipping.values()]
    assert longest in lines
    assert too_long not in lines
    assert b'{"type":"last"}' in lines


async def create_narrow_topic(kafka: Broker, topic: str, bytes_max: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        configs = {"max.message.bytes": str(bytes_max)}
        await create_topics(admin, [NewTopic(topic, 2, 1, topic_configs=configs)])
    finally:
        await admin.close()


def test_a_topic_that_was_made_anew_gets_everything_again(
    shipping: Shipping, capfd: pytest.CaptureFixture[str]
) -> None:
    files = native_files(6, turns=3)
    for file in files:
        shipping.append(file, 0, len(file.data))
    assert run(shipping.arguments("--once")) == 0
    state = json.loads(shipping.state.read_text())
    # As if the topic had once reached further than it does.
    state["acknowledged"] = {number: offset + 10_000 for number, offset in state["acknowledged"].items()}
    shipping.state.write_text(json.dumps(state))
    assert run(shipping.arguments("--once")) == 0
    assert "is not the one that was shipped to; everything is shipped again" in capfd.readouterr().err
    twice = parsed(shipping.values())
    assert twice == {value: 2 * count for value, count in parsed(lines_of(files)).items()}
    assert records_of(shipping.values()) == records_of(lines_of(files))


def test_a_topic_that_is_not_there_and_a_broker_that_is_not_are_one_clear_line(
    kafka: Broker, shipping: Shipping, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{ENV_PREFIX}TOPICS__TRANSCRIPTS", "nowhere")
    assert run(shipping.arguments("--once")) == 1
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith(f"trace-projector: {kafka.bootstrap_servers} has no topic nowhere; create it ")
    monkeypatch.setenv(f"{ENV_PREFIX}BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert run(shipping.arguments("--once")) == 1
    assert capfd.readouterr().err.splitlines() == ["trace-projector: no broker answers at 127.0.0.1:1"]
