"""Apache Kafka itself, from the jars on Maven Central: one node or a cluster, in KRaft mode, on loopback ports.

By hand, until Ctrl-C: ``python -m tests.brokers.apache_kafka --port 9092``
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.brokers.broker import LOOPBACK, Broker, BrokerUnavailableError, free_ports, wait_until_answers
from tests.brokers.kafka_jars import KAFKA_VERSION, fetch_jars, java_command
from tests.brokers.kafka_node import KafkaNode, own_settings
from tests.brokers.prepared import Prepared, prepare_once

_START_TIMEOUT_S = 60.0
_START_TRIES_MAX = 3


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
        # So is what retention may delete, and from the start: a test that depends on what is old shows it every time.
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "0",
    }


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
        prepared = prepare_once(java, cluster_settings(1))
        tail = ""
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            for _ in range(_START_TRIES_MAX):
                self._prepare(prepared.quick(java), prepared)
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

    def _prepare(self, java: Sequence[str], prepared: Prepared) -> None:
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
            settings = self._settings | own_settings(node_id, voters, port, controller_port)
            if self._secured is not None:
                secured = f",SECURE://{LOOPBACK}:{secured_ports[index]}"
                settings |= self._secured
                settings["listeners"] += secured
                settings["advertised.listeners"] += secured
                settings["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
            node = KafkaNode(java, node_id, port, settings, Path(self._home.name) / f"node-{node_id}")
            prepared.make_storage(node.data_directory, node_id)
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
