"""The course that every contender runs: topics on one broker, traffic onto them, and when all of it is in DuckDB.

A contender is one process that is ready and warm. The clock starts when the first message is published and stops at
the last write of the DuckDB file: by then everything that was published is durable there, because every group has
committed the end of every partition it reads, and commits after what it made is durable.
"""

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import uvloop
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from projections.facts import partition_of
from tests.bench.place import SOURCE_PARTITIONS, Place
from tests.bench.site import cpu_s, peak_rss_mib
from tests.worlds.world import SourceMessage
from worker.kafka import BatchWriter, TopicPartition, plain_producer
from worker.settings import Settings

_PATIENCE_S = 240.0
_POLL_S = 0.2
# Folding makes facts for other partitions, so that nothing is left to read has to hold for a while.
_QUIET_POLLS = 4
_SAMPLE_S = 0.02

Groups = Mapping[str, Collection[TopicPartition]]
"""Consumer group to the partitions it reads."""


class Run(NamedTuple):
    """What one run over the course gave."""

    messages: int
    took_s: float
    cpu_s: float
    peak_rss_mib: float

    def figures(self) -> dict[str, float]:
        return {
            "messages": self.messages,
            "messages_per_s": self.messages / self.took_s,
            "cpu_us_per_message": self.cpu_s / self.messages * 1e6,
            "peak_rss_mib": self.peak_rss_mib,
        }


async def create_topics(servers: str, counts: Mapping[str, int]) -> None:
    """Create topics with so many partitions each."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, count, 1) for topic, count in counts.items()])
    finally:
        await admin.close()


async def publish(servers: str, topics: Mapping[str, str], messages: Sequence[SourceMessage]) -> None:
    """Publish as fast as the broker takes it; a key has one partition, as with any producer."""
    producer = plain_producer(Settings(bootstrap_servers=servers))
    await producer.start()
    try:
        writer = BatchWriter(producer)
        for message in messages:
            key = message.key or b""
            partition = partition_of(key.decode(), SOURCE_PARTITIONS)
            writer.append(topics[message.topic], partition, key, message.value)
        await writer.flush()
    finally:
        await producer.stop()


async def wait_until_settled(servers: str, groups: Groups, check: Callable[[], None]) -> None:
    """Wait until every group has committed the end of all its partitions; ``check`` raises when it never will."""
    reader = AIOKafkaConsumer(bootstrap_servers=servers)
    members = {
        group: AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False) for group in groups
    }
    await reader.start()
    for group, member in members.items():
        member.assign(list(groups[group]))
        await member.start()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            quiet = 0
            while quiet < _QUIET_POLLS:
                check()
                lags = [await _lag(reader, members[group], list(places)) for group, places in groups.items()]
                quiet = 0 if any(lags) else quiet + 1
                await asyncio.sleep(_POLL_S)
    finally:
        for client in (*members.values(), reader):
            await client.stop()


async def _lag(reader: AIOKafkaConsumer, member: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> int:
    ends = await reader.end_offsets(places)
    committed = [await member.committed(place) or 0 for place in places]
    return sum(ends[place] - offset for place, offset in zip(places, committed, strict=True))


def run_course(
    place: Place,
    groups: Groups,
    process: subprocess.Popen[bytes],
    messages: Sequence[SourceMessage],
    warm_up: int,
    log_path: Path,
) -> Run:
    """Let a process that is ready take all messages, the first of them before the clock starts."""

    def check() -> None:
        assert process.poll() is None, f"it ended: {log_path.read_text()[-3_000:]}"

    def send(part: Sequence[SourceMessage]) -> None:
        run_sync(publish(place.servers, place.topics.sources, part))
        run_sync(wait_until_settled(place.servers, groups, check))

    send(messages[:warm_up])
    with Meter(process.pid) as meter:
        started = time.time()
        send(messages[warm_up:])
    ended = place.duckdb_path.stat().st_mtime
    assert ended > started, "what was published changed the file"
    used_s = meter.cpu_s_at(ended) - meter.cpu_s_at(started)
    return Run(len(messages) - warm_up, ended - started, used_s, peak_rss_mib(process.pid))


def run_sync(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop, as the worker does, so that publishing takes as little from a contender as it can."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


class Meter:
    """Samples the processor time of a process, all its threads together."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[tuple[float, float]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._take()

    def cpu_s_at(self, at: float) -> float:
        """Give the processor time used up to an instant: that of the first sample after it."""
        return next((used_s for taken, used_s in self._samples if taken >= at), self._samples[-1][1])

    def _sample(self) -> None:
        while not self._is_over.wait(_SAMPLE_S):
            self._take()

    def _take(self) -> None:
        # A process that is gone has no figure; whoever waits for it notices and says so.
        try:
            self._samples.append((time.time(), cpu_s(self._pid)))
        except FileNotFoundError:
            self._is_over.set()
