"""Workers under test: real processes on a real broker, generated worlds as sources, and file mode beside them."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import duckdb
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from projections.facts import partition_of
from tests.brokers.broker import LOOPBACK, Broker, create_topics, free_ports
from tests.integration.forked_worker import ForkedProcess, fork_worker
from tests.worlds.cluster import clean_pass
from tests.worlds.world import SourceMessage, World
from worker.cli import run
from worker.settings import load_settings
from worker.topics import prepare_topics

PROGRAM = (sys.executable, "-m", "worker")
REPOSITORY = Path(__file__).resolve().parents[2]
# Generous: a slow machine is no failure, and nothing waits for as long as this when all is well.
PATIENCE_S = 90.0
STOP_S = 12.0
SOURCES = ("workflow-runs", "gate-decisions", "ledger-changes", "transcripts")
KEY_VARIABLE, KEY = "EXPORT_KEY", "integration-test-key-of-more-than-32-bytes"

_POLL_S = 0.2


def eventually(is_so: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until something is so; fails with the words for it when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(_POLL_S)


class WorkerProcess:
    """One `trace-projector worker` process.

    With ``forks`` it is forked where its modules are loaded already, unless it is to run another program.
    """

    forks = False

    def __init__(self, config: Path, name: str, environ: dict[str, str]) -> None:
        [self.port] = free_ports(1)
        self.log_path = config.with_name(f"{name}.log")
        self._config = config
        self._environ = environ | {"TRACE_PROJECTOR_WEB_PORT": str(self.port)}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def start(self, *arguments: str, program: Sequence[str] = PROGRAM) -> None:
        command = ["--config", str(self._config), "worker", *arguments]
        if self.forks and program is PROGRAM:
            self._process = fork_worker(command, self._environ, self.log_path)
            return
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*program, *command],
                cwd=self._config.parent,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def get(self, page: str) -> tuple[int, bytes]:
        """Fetch a page; status 0 while the worker does not answer."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}{page}", timeout=5) as response:
                return response.status, response.read()
        except HTTPError as error:
            return error.code, error.read()
        except (URLError, OSError):
            return 0, b""

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.is_running, f"the worker ended: {self.log_path.read_text()[-2_000:]}"
            return self.get("/readyz")[0] == 200

        eventually(is_ready, "the worker is ready")

    def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Scrape: metric name to (labels, value)."""
        status, body = self.get("/metrics")
        assert status == 200
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def total(self, name: str, **labels: str) -> float:
        """Sum one metric over all its labels but those given."""
        rows = self.metrics().get(f"trace_projector_{name}", [])
        return sum(value for row, value in rows if {**row, **labels} == row)

    def stop(self) -> int:
        """Ask the worker to stop and give its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(STOP_S)

    def wait_exit(self) -> int:
        """Wait until the worker ends by itself and give its exit code."""
        assert self._process is not None
        return self._process.wait(60)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class Pipeline:
    """The topics of one application on a broker, and the workers on them."""

    def __init__(self, kafka: Broker, app_id: str, directory: Path) -> None:
        self.kafka = kafka
        self.app_id = app_id
        self.directory = directory
        self.config = directory / "worker.toml"
        self.duckdb_path = directory / "plain.duckdb"
        self.jsonl_path = directory / "public.jsonl"
        self.published: list[SourceMessage] = []
        self._workers: list[WorkerProcess] = []
        self._sent = 0
        # Commands ask this one when they are told of no other; nobody answers there but who is meant to.
        [self._web_port] = free_ports(1)

    # ------------------------------------------------------------------------------------------------- set-up

    def topic(self, source: str) -> str:
        return f"{self.app_id}-{source}"

    @property
    def own_topics(self) -> list[str]:
        generation = f"{self.app_id}-g1"
        return [f"{generation}-trace-facts", f"{generation}-trace-records", f"{self.app_id}-trace-dead-letters"]

    def write_config(self, **settings: Any) -> None:
        """Write the settings file: an unredacted export to DuckDB and a redacted one to JSONL."""
        # The embedded broker lets a first member wait for half a session.
        session_s = 6.0 if self.kafka.supports_transactions else 2.0
        lines = [
            f'app_id = "{self.app_id}"',
            f'bootstrap_servers = "{self.kafka.bootstrap_servers}"',
            "partitions = 3",
            f"web_port = {self._web_port}",
            'unbound = "standalone"',
            *(f"{name} = {json.dumps(value)}" for name, value in settings.items()),
            "[topics]",
            *(f'{source.replace("-", "_")} = "{self.topic(source)}"' for source in SOURCES),
            "[kafka]",
            f"session_timeout_s = {session_s}",
            "heartbeat_interval_s = 0.5",
            "[limits]",
            "sink_retry_delay_max_s = 1.0",
            "[[exports]]",
            'name = "plain"',
            f'sink = "duckdb:{self.duckdb_path}"',
            "redact = false",
            "[[exports]]",
            'name = "public"',
            f'sink = "jsonl:{self.jsonl_path}"',
            f'key_env = "{KEY_VARIABLE}"',
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def create_topics(
        self, sources: Iterable[str] = SOURCES, partition_count: int = 2, replication_factor: int = 1
    ) -> None:
        """Create source topics, and the worker's own as its command does."""

        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers)
            await admin.start()
            try:
                await create_topics(
                    admin, [NewTopic(self.topic(source), partition_count, replication_factor) for source in sources]
                )
            finally:
                await admin.close()
            await prepare_topics(load_settings(self.config), ())

        asyncio.run(create())

    def environ(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.upper().startswith("TRACE_PROJECTOR_")}
        return ours | {"PYTHONPATH": str(REPOSITORY)}

    def worker(self, name: str = "worker", **environ: str) -> WorkerProcess:
        worker = WorkerProcess(self.config, name, self.environ() | environ)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._workers:
            if worker.is_running:
                worker.kill()

    # ------------------------------------------------------------------------------------------------ publishing

    def publish(self, messages: Sequence[SourceMessage], pause_s: float = 0.0) -> None:
        """Publish in order; messages of one key share a partition, the others are spread."""
        asyncio.run(self._publish(messages, pause_s))
        self.published += messages

    async def _publish(self, messages: Sequence[SourceMessage], pause_s: float) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka.bootstrap_servers, acks="all")
        await producer.start()
        try:
            for message in messages:
                self._sent += 1
                own = message.topic == "erasures"
                spread = message.key.decode("latin-1") if message.key is not None else str(self._sent)
                partition = 0 if own else partition_of(spread, 2)
                await producer.send(
                    self.topic(message.topic), value=message.value, key=message.key, partition=partition
                )
                if pause_s and self._sent % 20 == 0:
                    await asyncio.sleep(pause_s)
            await producer.flush()
        finally:
            await producer.stop()

    # ------------------------------------------------------------------------------------------------ looking

    def wait_settled(self, groups: Collection[str] = ("project", "fold", "export-plain", "export-public")) -> None:
        """Wait until every group has committed the end of all its partitions, and stays there."""
        asyncio.run(asyncio.wait_for(self._wait_settled(groups), PATIENCE_S))

    async def _wait_settled(self, groups: Collection[str]) -> None:
        reader = AIOKafkaConsumer(bootstrap_servers=self.kafka.bootstrap_servers)
        await reader.start()
        members = {group: self._group_member(group) for group in groups}
        for member in members.values():
            await member.start()
        try:
            quiet = 0
            # Folding makes facts for other partitions, so the end must hold for a while.
            while quiet < 3:
                lags = [await self._lag(reader, member, group) for group, member in members.items()]
                quiet = quiet + 1 if not any(lags) else 0
                await asyncio.sleep(_POLL_S)
        finally:
            for client in (*members.values(), reader):
                await client.stop()

    def _group_member(self, group: str) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers,
            group_id=f"{self.app_id}-g1-{group}",
            enable_auto_commit=False,
        )
        consumer.assign(self._partitions(group))
        return consumer

    def _partitions(self, group: str) -> list[TopicPartition]:
        facts, records, _letters = self.own_topics
        topics = {
            "project": dict.fromkeys(map(self.topic, SOURCES), 2) | {self.topic("erasures"): 3},
            "fold": {facts: 3},
        }
        counts = topics.get(group, {records: 3})
        return [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]

    async def _lag(self, reader: AIOKafkaConsumer, member: AIOKafkaConsumer, group: str) -> int:
        partitions = self._partitions(group)
        ends = await reader.end_offsets(partitions)
        committed = [await member.committed(partition) or 0 for partition in partitions]
        # The embedded broker lists ends that are too low.
        return sum(max(0, ends[partition] - offset) for partition, offset in zip(partitions, committed, strict=True))

    def read(self, topic: str) -> list[Any]:
        """Read every message that a topic holds now."""
        return asyncio.run(asyncio.wait_for(self._read(topic), PATIENCE_S))

    async def _read(self, topic: str) -> list[Any]:
        reader = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await reader.start()
        try:
            partitions = [
                TopicPartition(topic, number) for number in sorted(await reader._client._wait_on_metadata(topic))
            ]
            reader.assign(partitions)
            await reader.seek_to_beginning()
            messages: list[Any] = []
            while True:
                polled = await reader.getmany(timeout_ms=1_000)
                messages += [message for batch in polled.values() for message in batch]
                ends = await reader.end_offsets(partitions)
                if not polled and all([await reader.position(one) >= ends[one] for one in partitions]):
                    return messages
        finally:
            await reader.stop()

    def dead_letters(self) -> list[dict[str, Any]]:
        return [json.loads(message.value) for message in self.read(self.own_topics[2])]

    def duckdb_records(self) -> list[tuple[str, str, str]]:
        return duckdb_records(self.duckdb_path)

    # ---------------------------------------------------------------------------------------------- file mode

    def file_mode(self) -> tuple[list[tuple[str, str, str]], bytes]:
        """Project the same messages from files: what DuckDB holds, and the bytes of the redacted JSONL."""
        sources = self.directory / "sources"
        sources.mkdir(exist_ok=True)
        for topic in {message.topic for message in self.published}:
            lines = [file_line(message) for message in self.published if message.topic == topic]
            (sources / f"{topic}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        database, lines_path = self.directory / "file.duckdb", self.directory / "file.jsonl"
        for target in ((f"duckdb:{database}", "--no-redact"), (f"jsonl:{lines_path}", "--export", "public")):
            code = run(["--config", str(self.config), "project", str(sources), "--to", *target])
            # 1 says that there were dead letters, or that it failed.
            assert code in (0, 1)
            assert Path(target[0].partition(":")[2]).exists(), "file mode failed"
        return duckdb_records(database), lines_path.read_bytes()


def file_line(message: SourceMessage) -> bytes:
    if message.value is not None:
        return message.value
    assert message.key is not None
    return json.dumps({"key": message.key.decode(), "value": None}).encode()


def worlds(seeds: Iterable[int], runs: int = 3) -> list[SourceMessage]:
    return [message for seed in seeds for message in World(seed, runs=runs).messages]


def living_run(messages: Sequence[SourceMessage]) -> str:
    """Give the id of a workflow run that is still there once all of these messages were read."""
    ids = (record_id for record_id in clean_pass(list(messages)).records if record_id.startswith("run-"))
    return min(record_id for record_id in ids if "/" not in record_id)


def duckdb_records(path: Path) -> list[tuple[str, str, str]]:
    """Give (kind, id, record) of every record in a database, waiting for a worker that is writing it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with contextlib.closing(duckdb.connect(str(path), read_only=True)) as connection:
                return sorted(_all_records(connection))
        except duckdb.IOException:
            assert time.monotonic() < deadline, "the database stays locked"
            time.sleep(_POLL_S)


def _all_records(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, str, str]]:
    for kind in ("run", "attempt", "call", "gate", "artifact", "cost"):
        for record_id, record in connection.execute(f"SELECT id, record::VARCHAR FROM trace_{kind}").fetchall():  # noqa: S608
            yield kind, record_id, record
