"""Where a whole worker is measured: one broker, applications with topics of their own, workers as processes.

Everything runs on the same cores, so beside each rate stands the processor time that it took, the broker's too.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from projections.facts import partition_of
from tests.brokers.apache_kafka import KafkaCluster
from tests.brokers.broker import Broker
from tests.integration.pipeline import SOURCES, Pipeline, WorkerProcess
from tests.worlds.world import SourceMessage
from worker.groups import GroupsClient, open_groups
from worker.kafka import BatchWriter, TopicPartition, plain_producer
from worker.settings import Settings, load_settings
from worker.topic_scan import TopicScan, open_scan
from worker.topics import export_group, fold_group, own_topics, project_group

# Divides evenly among one, two and four workers.
PARTITIONS = 4
ROLES = ("project", "fold", "export:bench")

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CHUNK_MESSAGES = 5_000
_LOOK_S = 0.1
_QUIET_LOOKS = 5
_PATIENCE_S = 120.0
# Transaction markers take offsets too, and are committed a second later than what they end.
_MARKERS = 4


def cpu_s(pid: int) -> float:
    """Tell the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def peak_rss_mib(pid: int) -> float:
    """Tell the most memory that a process has had resident, since its peak was forgotten if it was."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def forget_peak(pid: int) -> None:
    """Let the peak of a process begin anew at what it has resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def pid_of(worker: WorkerProcess) -> int:
    """Give the process id of a worker that was started."""
    assert worker._process is not None
    return worker._process.pid


@contextlib.contextmanager
def pinned_to(cores: Collection[int]) -> Iterator[None]:
    """Let processes that are started meanwhile run on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, cores: Collection[int]) -> None:
    """Let a process that runs already, with all of its threads, run on these cores only."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


class Site(Pipeline):
    """One application on a broker: one export, an unredacted one to DuckDB unless another URL is given.

    ``more`` are further lines of the settings file, of its top level.
    """

    def __init__(
        self, cluster: KafkaCluster, app_id: str, directory: Path, sink: str | None = None, more: Sequence[str] = ()
    ) -> None:
        kafka = Broker(cluster.name, cluster.bootstrap_servers, supports_transactions=True, stop=cluster.stop)
        super().__init__(kafka, app_id, directory / app_id)
        self.directory.mkdir()
        [self.node] = cluster.nodes
        self._sink = f"duckdb:{self.duckdb_path}" if sink is None else sink
        lines = [
            f'app_id = "{app_id}"',
            f'bootstrap_servers = "{cluster.bootstrap_servers}"',
            f"partitions = {PARTITIONS}",
            *more,
            "[topics]",
            *(f'{source.replace("-", "_")} = "{self.topic(source)}"' for source in SOURCES),
            "[[exports]]",
            'name = "bench"',
            f'sink = "{self._sink}"',
            "redact = false",
        ]
        self.config.write_text("\n".join(lines) + "\n")
        self.create_topics(partition_count=PARTITIONS)

    @property
    def settings(self) -> Settings:
        """The settings of every worker here."""
        return load_settings(self.config)

    # ------------------------------------------------------------------------------------------------ processes

    def start(self, name: str, *roles: str, **environ: str) -> WorkerProcess:
        """Start a worker with these roles, or with all."""
        worker = self.worker(name, **environ)
        worker.start(*(argument for role in roles for argument in ("--role", role)))
        return worker

    def wait_assigned(self, workers: Sequence[WorkerProcess], roles: Collection[str]) -> None:
        """Wait until all are ready and every role has all of its partitions, each process its share of them."""
        deadline = time.monotonic() + _PATIENCE_S
        for worker in workers:
            worker.wait_ready()
        while not all(self._is_shared(workers, role) for role in roles):
            assert time.monotonic() < deadline, "the partitions are not shared out"
            time.sleep(_LOOK_S)

    def _is_shared(self, workers: Sequence[WorkerProcess], role: str) -> bool:
        counts = [worker.total("ready_partitions", role=role) for worker in workers]
        # A file sink has one writer; of the sources' topics one has as many partitions as the others have together.
        most = max(counts) if role.startswith("export") else min(counts) * len(workers)
        wanted = len(SOURCES) * PARTITIONS if role == "project" else PARTITIONS
        return sum(counts) >= wanted and most >= wanted

    def broker_cpu_s(self) -> float:
        """Tell the processor time that the broker has used."""
        assert self.node._process is not None
        return cpu_s(self.node._process.pid)

    # ------------------------------------------------------------------------------------------------- messages

    def send(self, messages: Iterable[SourceMessage]) -> int:
        """Publish in order, in batches and so with next to no time of these cores; gives how many."""
        return asyncio.run(self._send(messages))

    async def _send(self, messages: Iterable[SourceMessage]) -> int:
        producer = plain_producer(self.settings)
        await producer.start()
        writer, waiting, count = BatchWriter(producer), iter(messages), 0
        while chunk := list(islice(waiting, _CHUNK_MESSAGES)):
            for message in chunk:
                count += 1
                spread = message.key.decode("latin-1") if message.key is not None else str(count)
                place = partition_of(spread, PARTITIONS)
                writer.append(self.topic(message.topic), place, message.key or b"", message.value)
            await writer.flush()
        await producer.stop()
        return count

    def wait_done(self, roles: Collection[str] = ROLES) -> float:
        """Wait until these roles have read everything; gives when (``time.perf_counter``) that was so for good."""
        return asyncio.run(self._wait_done([self._reads(role) for role in roles]))

    def _reads(self, role: str) -> tuple[str, list[TopicPartition]]:
        settings, own = self.settings, own_topics(self.settings)
        groups: Mapping[str, tuple[str, Sequence[str]]] = {
            "project": (project_group(settings), [self.topic(source) for source in SOURCES]),
            "fold": (fold_group(settings), [own.facts]),
            "export:bench": (export_group(settings, "bench"), [own.records]),
        }
        group, topics = groups[role]
        return group, [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]

    async def _wait_done(self, reads: Sequence[tuple[str, list[TopicPartition]]]) -> float:
        quiet, done_at, stalled_at, best = 0, 0.0, time.monotonic(), float("inf")
        async with open_scan(self.settings) as scan, open_groups(self.settings) as groups:
            # Folding makes facts for other partitions, so the end must hold for a while.
            while quiet < _QUIET_LOOKS:
                behind = sum([await _behind(scan, groups, group, places) for group, places in reads])
                if not behind and not quiet:
                    done_at = time.perf_counter()
                quiet = 0 if behind else quiet + 1
                if behind < best:
                    best, stalled_at = behind, time.monotonic()
                assert time.monotonic() < stalled_at + _PATIENCE_S, f"{behind} messages are not read"
                await asyncio.sleep(_LOOK_S)
        return done_at


async def _behind(scan: TopicScan, groups: GroupsClient, group: str, places: Sequence[TopicPartition]) -> int:
    spans = await scan.spans(places)
    committed = await groups.committed(group, places)
    lags = [max(0, spans[place].end - committed.get(place, 0)) for place in places]
    return sum(lag for lag in lags if lag > _MARKERS)


@contextlib.contextmanager
def one_broker() -> Iterator[tuple[KafkaCluster, Path]]:
    """Start a broker, and give a directory for what is measured on it; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="trace-projector-bench-") as directory, KafkaCluster() as cluster:
        yield cluster, Path(directory)


@contextlib.contextmanager
def site_on(
    cluster: KafkaCluster, directory: Path, app_id: str, sink: str | None = None, more: Sequence[str] = ()
) -> Iterator[Site]:
    """Make an application, and end whatever still runs of it afterwards."""
    site = Site(cluster, app_id, directory, sink, more)
    try:
        yield site
    finally:
        site.close()
