"""What every start of Kafka from jars would do anew, done once per machine: loading its classes, making its storage.

Java keeps the loaded and verified classes of a first broker in a class data archive, and later brokers map it; that
halves what a start costs. Kafka's storage tool costs another second of Java per node, and what it makes is the same
for every node but for two lines.
"""

import asyncio
import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.brokers.broker import LOOPBACK, BrokerUnavailableError, cache_directory, free_ports, wait_until_answers
from tests.brokers.kafka_node import KafkaNode, own_settings

_CLUSTER_ID = "dHJhY2UtcHJvamVjdG9yIQ"
_ARCHIVE = "classes.jsa"
_CHECKPOINT = "bootstrap.checkpoint"
_START_TIMEOUT_S = 120.0
_EXERCISE_TIMEOUT_S = 60.0
# Java writes its archive at the end.
_STOP_TIMEOUT_S = 120.0


class Prepared(NamedTuple):
    """What a first broker left behind for all later ones."""

    directory: Path

    def quick(self, java: Sequence[str]) -> list[str]:
        """Return a Java command that loads its classes from the archive, or where they fit not, as ever."""
        return [*java, f"-XX:SharedArchiveFile={self.directory / _ARCHIVE}"]

    def make_storage(self, data_directory: Path, node_id: int) -> None:
        """Make the empty storage of a node, as Kafka's tool would."""
        data_directory.mkdir()
        shutil.copy(self.directory / _CHECKPOINT, data_directory)
        directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        lines = ["version=1", f"cluster.id={_CLUSTER_ID}", f"node.id={node_id}", f"directory.id={directory_id}"]
        (data_directory / "meta.properties").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def prepare_once(java: Sequence[str], settings: Mapping[str, str]) -> Prepared:
    """Return what a first broker left behind, after running one where none ever ran with this Java and these jars.

    Raises:
        BrokerUnavailableError: the broker did not come up.
    """
    told = subprocess.run([java[0], "-version"], capture_output=True, check=False).stderr
    # Where this checkout is, which the properties of a command tell, makes no difference.
    options = [os.fsencode(option) for option in java if not option.startswith("-D")]
    digest = hashlib.sha256(b"\0".join([told, *options])).hexdigest()[:12]
    prepared = Prepared(cache_directory() / f"kafka-prepared-{digest}")
    # Test processes start together, and one of them is enough to make it.
    with (cache_directory() / "kafka-prepared.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not prepared.directory.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_directory(), prefix="kafka-prepared-") as scratch:
                made = Path(scratch, "made")
                made.mkdir()
                _run_first_broker(java, settings, Path(scratch, "node"), made)
                made.rename(prepared.directory)
    return prepared


def _run_first_broker(java: Sequence[str], settings: Mapping[str, str], home: Path, made: Path) -> None:
    port, controller_port = free_ports(2)
    own = own_settings(1, f"1@{LOOPBACK}:{controller_port}", port, controller_port)
    node = KafkaNode([*java, f"-XX:ArchiveClassesAtExit={made / _ARCHIVE}"], 1, port, {**settings, **own}, home)
    tool = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(node.settings_path)]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokerUnavailableError(f"Kafka could not format its storage: {(done.stdout + done.stderr)[-1_000:]}")
    shutil.copy(node.data_directory / _CHECKPOINT, made)
    node.start()
    try:
        if not wait_until_answers(node.address, timeout_s=_START_TIMEOUT_S, is_running=lambda: node.is_running):
            raise BrokerUnavailableError(f"Apache Kafka did not start; the end of its log:\n{node.log_tail()}")
        asyncio.run(asyncio.wait_for(_exercise(node.address), _EXERCISE_TIMEOUT_S))
    finally:
        node.stop(_STOP_TIMEOUT_S)


async def _exercise(servers: str) -> None:
    """Use what the tests use, so that its classes are in the archive, too: topics, groups, transactions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("words", num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="first")
    async with producer, producer.transaction():
        await producer.send_and_wait("words", b"word")
    async with AIOKafkaConsumer(
        "words", bootstrap_servers=servers, group_id="first", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        await consumer.getone()
        await consumer.commit()
