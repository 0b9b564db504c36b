"""What every kind of broker gives the tests, and what all of them need: ports, waiting, processes."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

LOOPBACK = "127.0.0.1"

_POLL_S = 0.1
_LISTED_TIMEOUT_S = 30.0
_LOG_TAIL_BYTES = 4_096


class BrokerUnavailableError(RuntimeError):
    """A kind of broker cannot be had here; the message says why."""


@dataclass(frozen=True)
class Broker:
    """A broker, or cluster of them, that answers now."""

    name: str
    bootstrap_servers: str
    supports_transactions: bool
    stop: Callable[[], None] = field(repr=False)


def free_ports(count: int) -> list[int]:
    """Return ``count`` different loopback ports on which nothing listens now."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def file_tail(path: Path) -> str:
    """Return the end of a log file, or of nothing when there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def wait_until_answers(
    bootstrap_servers: str, *, node_count: int = 1, timeout_s: float, is_running: Callable[[], bool] = lambda: True
) -> bool:
    """Wait until ``node_count`` nodes have joined and take requests; False when it took too long or they ended."""
    deadline = time.monotonic() + timeout_s
    while is_running() and time.monotonic() < deadline:
        if _accepts_connections(bootstrap_servers.split(",")):
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                if asyncio.run(_count_nodes(bootstrap_servers)) >= node_count:
                    return True
        time.sleep(_POLL_S)
    return False


def _accepts_connections(addresses: Sequence[str]) -> bool:
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
    return True


async def _count_nodes(bootstrap_servers: str) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=2_000)
    try:
        await asyncio.wait_for(admin.start(), timeout=5)
        cluster = await admin.describe_cluster()
        return len(cluster["brokers"])
    finally:
        await admin.close()


async def create_topics(admin: AIOKafkaAdminClient, topics: Sequence[NewTopic]) -> None:
    """Create topics and wait until they are listed: a broker says that they are made before it knows them itself.

    They keep everything, whatever times the messages of a test are given, unless their settings say otherwise.
    """
    for topic in topics:
        topic.topic_configs = {"retention.ms": "-1"} | (topic.topic_configs or {})
    await admin.create_topics(list(topics))
    names = {topic.name for topic in topics}
    async with asyncio.timeout(_LISTED_TIMEOUT_S):
        while not names <= set(await admin.list_topics()):
            await asyncio.sleep(_POLL_S)


def cache_directory() -> Path:
    """Return where downloads are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trace-projector"
