"""Apache Kafka itself, from the jars on Maven Central: one node or a cluster, in KRaft mode, on loopback ports.

By hand, until Ctrl-C: ``python -m tests.brokers.apache_kafka --port 9092``
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.brokers.broker import (
    LOOPBACK,
    Broker,
    BrokerUnavailableError,
    cache_directory,
    file_tail,
    free_ports,
    wait_until_answers,
)

KAFKA_VERSION = "4.1.1"

_HERE = Path(__file__).parent
_CLUSTER_ID = "dHJhY2UtcHJvamVjdG9yIQ"
_JAVA_VERSION_MIN = 17
_FETCH_TIMEOUT_S = 600
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_START_TRIES_MAX = 3
# Test brokers live for minutes: the quick compiler and the plain collector start sooner and spare the cores.
_JAVA_OPTIONS = ("-Xms128m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def cluster_settings(node_count: int) -> dict[str, str]:
    """Return the broker settings that every test broker has, as jar or as container, with this many nodes."""
    replicas = str(min(node_count, 3))
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        # A topic that nobody created is a mistake to report, not a topic to make.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "group.initial.rebalance.delay.ms": "0",
        # A killed worker's partitions are to move within a test's patience.
        "group.min.session.timeout.ms": "1000",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "2" if node_count > 2 else "1",
        # Compaction is looked for often, so that a test that asks a topic to compact sees it happen.
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "log.cleaner.io.buffer.size": "65536",
    }


def java_program() -> str:
    """Return the Java to use: JAVA_HOME's or the one on PATH, 17 or later.

    Raises:
        BrokerUnavailableError: there is none, or it is older.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if program is None:
        raise BrokerUnavailableError(f"no java in JAVA_HOME or on PATH; Apache Kafka needs Java {_JAVA_VERSION_MIN}")
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _JAVA_VERSION_MIN:
        raise BrokerUnavailableError(f"{program} is not Java {_JAVA_VERSION_MIN} or later")
    return program


def fetch_jars() -> Path:
    """Return the directory of Kafka's jars, fetched from Maven Central when they are not there yet.

    Raises:
        BrokerUnavailableError: they are not there and Maven is missing or could not fetch them.
    """
    jars = cache_directory() / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailableError("no mvn on PATH to fetch Apache Kafka's jars")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix="kafka-") as scratch:
        # fmt: off
        command = [
            maven, "-B", "-q", "--strict-checksums", "-f", str(_HERE / "pom.xml"),
            f"-Dkafka.version={KAFKA_VERSION}",
            "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={scratch}/jars",
        ]
        # fmt: on
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S)
        except subprocess.SubprocessError as error:
            told = getattr(error, "stdout", None) or ""
            raise BrokerUnavailableError(f"mvn could not fetch Apache Kafka's jars: {told[-1_000:]}") from error
        # Whoever else fetched them meanwhile has the same files.
        with contextlib.suppress(OSError):
            Path(scratch, "jars").rename(jars)
    return jars


class KafkaNode:
    """One broker process of a cluster; ``kill`` and ``start`` again keep its data."""

    def __init__(self, java: Sequence[str], node_id: int, port: int, settings: Mapping[str, str], home: Path) -> None:
        self.node_id = node_id
        self.port = port
        self._java = list(java)
        self._home = home
        self._log_path = home / "broker.log"
        self._settings_path = home / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True)
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self._settings_path.write_text("".join([*lines, f"log.dirs={self.data_directory}\n"]), encoding="utf-8")

    @property
    def address(self) -> str:
        """Where clients connect to this node."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def data_directory(self) -> Path:
        """Where the node keeps its logs."""
        return self._home / "data"

    @property
    def is_running(self) -> bool:
        """Whether the node's process is alive."""
        return self._process is not None and self._process.poll() is None

    def format_storage(self) -> None:
        """Make the node's empty data directory."""
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._settings_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerUnavailableError(f"Kafka could not format its storage: {(done.stdout + done.stderr)[-1_000:]}")

    def start(self) -> None:
        """Start the process and return at once."""
        assert not self.is_running, "the node runs already"
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                # Ctrl-C is for the tests; the broker ends after them.
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ask the process to end, with a hand-over to the other nodes; one that does not end in time is killed."""
        if self._process is not None and self.is_running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End the process without warning, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Freeze the process: its connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the end of what the node logged."""
        return file_tail(self._log_path)


class KafkaCluster:
    """A cluster of nodes that are broker and controller at once, its data in a temporary directory.

    Args:
        node_count: how many nodes; replicated internal topics have three replicas from three nodes on.
        port: the first node's port; the others, and all when None, are free ones.
        settings: broker settings beside or instead of those of ``cluster_settings``.
        secured: settings of a second listener for clients, SECURE, that speaks SASL_SSL; without it there is none.
    """

    def __init__(
        self,
        node_count: int = 1,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        secured: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes: list[KafkaNode] = []
        self.secured_servers = ""
        self._secured = secured
        self._node_count = node_count
        self._port = port
        self._settings = cluster_settings(node_count) | dict(settings or {})
        self._home: tempfile.TemporaryDirectory[str] | None = None

    @property
    def name(self) -> str:
        """What runs, for a person."""
        return f"Apache Kafka {KAFKA_VERSION} from jars, nodes: {self._node_count}"

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return ",".join(node.address for node in self.nodes)

    def start(self) -> None:
        """Start all nodes and return once all of them take requests.

        Raises:
            BrokerUnavailableError: Java or the jars cannot be had, or the nodes did not come up.
        """
        java = java_command()
        tail = ""
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            for _ in range(_START_TRIES_MAX):
                self._prepare(java)
                for node in self.nodes:
                    node.start()
                if self.wait_until_ready():
                    undo.pop_all()
                    return
                tail = "\n".join(node.log_tail() for node in self.nodes)
                self.stop()
        raise BrokerUnavailableError(f"Apache Kafka did not start; the end of its log:\n{tail}")

    def wait_until_ready(self, timeout_s: float = _START_TIMEOUT_S) -> bool:
        """Wait until all nodes take requests; False when one ended or it took too long."""
        return wait_until_answers(
            self.bootstrap_servers,
            node_count=self._node_count,
            timeout_s=timeout_s,
            is_running=lambda: all(node.is_running for node in self.nodes),
        )

    def stop(self) -> None:
        """End all nodes and remove their data."""
        for node in self.nodes:
            node.kill()
        if self._home is not None:
            self._home.cleanup()
            self._home = None

    def _prepare(self, java: Sequence[str]) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="trace-projector-kafka-")
        ports = free_ports(2 * self._node_count)
        controller_ports, ports = ports[: self._node_count], ports[self._node_count :]
        if self._port is not None:
            ports[0] = self._port
        voters = ",".join(f"{index + 1}@{LOOPBACK}:{port}" for index, port in enumerate(controller_ports))
        self.nodes = []
        secured_ports = free_ports(self._node_count)
        if self._secured is not None:
            self.secured_servers = ",".join(f"{LOOPBACK}:{port}" for port in secured_ports)
        for index, (port, controller_port) in enumerate(zip(ports, controller_ports, strict=True)):
            node_id = index + 1
            settings = self._settings | {
                "node.id": str(node_id),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
                "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
            }
            if self._secured is not None:
                secured = f",SECURE://{LOOPBACK}:{secured_ports[index]}"
                settings |= self._secured
                settings["listeners"] += secured
                settings["advertised.listeners"] += secured
                settings["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
            node = KafkaNode(java, node_id, port, settings, Path(self._home.name) / f"node-{node_id}")
            node.format_storage()
            self.nodes.append(node)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_jars() -> Broker:
    """Start one node from the jars.

    Raises:
        BrokerUnavailableError: Java or the jars cannot be had, or the node did not come up.
    """
    cluster = KafkaCluster()
    cluster.start()
    return Broker(cluster.name, cluster.bootstrap_servers, supports_transactions=True, stop=cluster.stop)


def java_command() -> list[str]:
    """Return the start of a command line that runs a class of Kafka's jars."""
    logging = f"-Dlog4j2.configurationFile={(_HERE / 'log4j2.properties').as_uri()}"
    return [java_program(), *_JAVA_OPTIONS, logging, "-cp", f"{fetch_jars()}/*"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a cluster until Ctrl-C or SIGTERM, or only fetch its jars."""
    parser = argparse.ArgumentParser(prog="python -m tests.brokers.apache_kafka", description=__doc__)
    parser.add_argument("--port", type=int, default=9092, help="the first node's port (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=1, help="how many nodes (default: %(default)s)")
    parser.add_argument("--fetch", action="store_true", help="only fetch the jars and print where they are")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.fetch:
            print(fetch_jars())  # noqa: T201
            return 0
        with KafkaCluster(options.nodes, port=options.port) as cluster:
            print(f"{cluster.name} answers on {cluster.bootstrap_servers}; Ctrl-C stops it", flush=True)  # noqa: T201
            while all(node.is_running for node in cluster.nodes):
                time.sleep(0.5)
            print("a node ended; the end of its log:", cluster.nodes[0].log_tail(), file=sys.stderr)  # noqa: T201
            return 1
    except BrokerUnavailableError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
