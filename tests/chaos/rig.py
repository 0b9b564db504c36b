"""What the scenarios play on: brokers, topics with as many replicas, workers with two exports, file mode's answer."""

import asyncio
import contextlib
import io
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from tests.brokers.apache_kafka import KafkaCluster
from tests.brokers.broker import Broker, create_topics
from tests.brokers.kafka_node import KafkaNode
from tests.chaos.publisher import SOURCE_PARTITIONS
from tests.chaos.watch import Samples, parse, total
from tests.integration.pipeline import SOURCES, Pipeline, WorkerProcess
from tests.worlds.world import SourceMessage
from worker.settings import load_settings
from worker.topics import prepare_topics

SESSION_S = 2.0
# A client that asked a frozen broker asks another one after this.
REQUEST_S = 8.0
ROLES = ("project", "fold", "export:plain", "export:public")
# Partitions of each role: four sources and the erasures; facts; records.
ROLE_PARTITIONS = (SOURCE_PARTITIONS * len(SOURCES) + 3, 3, 3, 3)

# A killed broker is replaced within seconds instead of ten, and two of three replicas must have what is acknowledged.
BROKER_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
    "controller.quorum.election.timeout.ms": "700",
    "replica.lag.time.max.ms": "3000",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}
_POLL_S = 0.3
_LAG_SMALL = 300
_IN_FLIGHT_S_MAX = 5.0


def cluster_of(nodes: int) -> KafkaCluster:
    """Make a cluster that notices quickly when one of its nodes is gone."""
    quick = dict(BROKER_SETTINGS)
    quick["min.insync.replicas"] = str(max(1, nodes - 1))
    return KafkaCluster(nodes, settings=quick)


def broker_of(cluster: KafkaCluster) -> Broker:
    """Give a cluster as what the pipeline of a test works on."""
    return Broker(cluster.name, cluster.bootstrap_servers, supports_transactions=True, stop=cluster.stop)


class Rig(Pipeline):
    """One application on some brokers, and the processes that a scenario may strike."""

    def __init__(self, kafka: Broker, nodes: Sequence[KafkaNode], app_id: str, directory: Path) -> None:
        super().__init__(kafka, app_id, directory)
        self.nodes = nodes
        self.workers: list[WorkerProcess] = []
        self.frozen: set[WorkerProcess] = set()

    # ------------------------------------------------------------------------------------------------- set-up

    def prepare(self) -> None:
        """Write the settings and make the topics, with a replica on every node."""
        replicas = max(1, len(self.nodes))
        self.write_config(replication_factor=replicas, log_level="info")

        async def create() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers)
            await admin.start()
            try:
                await create_topics(
                    admin, [NewTopic(self.topic(source), SOURCE_PARTITIONS, replicas) for source in SOURCES]
                )
            finally:
                await admin.close()
            await prepare_topics(load_settings(self.config), ())

        asyncio.run(create())

    def add_workers(self, count: int, *roles: str) -> list[WorkerProcess]:
        """Start more workers."""
        added = [
            self.worker(
                f"worker-{len(self.workers) + index}",
                TRACE_PROJECTOR_KAFKA__SESSION_TIMEOUT_S=str(SESSION_S),
                TRACE_PROJECTOR_KAFKA__REQUEST_TIMEOUT_S=str(REQUEST_S),
            )
            for index in range(count)
        ]
        for worker in added:
            worker.start(*(argument for role in roles for argument in ("--role", role)))
        self.workers += added
        return added

    def answering(self) -> Sequence[WorkerProcess]:
        """Give the workers that are neither gone nor frozen."""
        return [worker for worker in self.workers if worker.is_running and worker not in self.frozen]

    def keep_broker_logs(self) -> None:
        """Copy the brokers' logs beside the workers', before the cluster takes them along."""
        for node in self.nodes:
            if node._log_path.exists():
                shutil.copy(node._log_path, self.directory / f"broker-{node.node_id}.log")

    # ------------------------------------------------------------------------------------------------- recovery

    def is_whole(self) -> bool:
        """Say whether every node runs and every partition has all its replicas in sync."""
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            return all(node.is_running for node in self.nodes) and asyncio.run(
                asyncio.wait_for(self._are_replicas_in_sync(), 6)
            )
        return False

    async def _are_replicas_in_sync(self) -> bool:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers, request_timeout_ms=2_000)
        try:
            await admin.start()
            topics = await admin.describe_topics()
            return all(
                len(partition["isr"]) == len(partition["replicas"]) and partition["leader"] >= 0
                for topic in topics
                for partition in topic["partitions"]
            )
        finally:
            await admin.close()

    def what_lags(self) -> str | None:
        """Say what does not work as it should; None when every role has its partitions and keeps up."""
        scraped: list[Samples] = []
        for worker in self.workers:
            if not worker.is_running:
                return f"{worker.log_path.stem} is not running"
            status, body = worker.get("/metrics")
            if status != 200:
                return f"{worker.log_path.stem} does not answer"
            scraped.append(parse(body.decode()))
        for role, partitions in zip(ROLES, ROLE_PARTITIONS, strict=True):
            ready = sum(total(samples, "ready_partitions", role=role) for samples in scraped)
            if ready != partitions:
                return f"{role} has {ready:.0f} of {partitions} partitions ready"
            lag = sum(total(samples, "lag_messages", role=role) for samples in scraped)
            if lag > _LAG_SMALL:
                return f"{role} is {lag:.0f} messages behind"
            age_s = max(total(samples, "oldest_in_flight_seconds", role=role) for samples in scraped)
            if age_s > _IN_FLIGHT_S_MAX:
                return f"{role} has had a batch in flight for {age_s:.0f} s"
        return None

    # -------------------------------------------------------------------------------------------------- verdict

    def differences(self, published: Sequence[SourceMessage]) -> list[str]:
        """Compare both sinks with file mode, once all workers have closed them."""
        self.published = list(published)
        # What file mode says of the messages is not what this run is about.
        with contextlib.redirect_stderr(io.StringIO()):
            records, lines = self.file_mode()
        found = self.duckdb_records()
        assert records, "worlds without records show nothing"
        problems = []
        lost, doubled = Counter(records) - Counter(found), Counter(found) - Counter(records)
        if lost or doubled:
            kinds = sorted({kind for kind, _id, _record in (*lost, *doubled)})
            problems.append(f"DuckDB: lost {lost.total()}, too many {doubled.total()} (kinds: {', '.join(kinds)})")
        written = self.jsonl_path.read_bytes()
        if written != lines:
            wanted, had = Counter(lines.splitlines()), Counter(written.splitlines())
            problems.append(
                f"JSONL: lost {(wanted - had).total()}, too many {(had - wanted).total()}, or another order"
            )
        return problems

    def stop_workers(self) -> list[str]:
        """Stop all workers, one after the other, and name those that did not end well."""
        return [problem for worker in self.workers if worker.is_running for problem in stop_well(worker)]


def stop_well(worker: WorkerProcess) -> list[str]:
    """Ask a worker to stop, and say so when it does not end in time or not well."""
    name = worker.log_path.stem
    try:
        code = worker.stop()
    except subprocess.TimeoutExpired:
        worker.kill()
        return [f"{name} did not end in time when it was asked to stop"]
    return [f"{name} ended with {code} when it was asked to stop"] if code != 0 else []


def wait_until(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until something is so; False when it took too long."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
