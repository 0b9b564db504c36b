"""The floor: the least that any worker must do that takes the same messages over the same hops into the same table.

Three hops, one after the other, each in the largest batches there are: read what the worker read, parse every value,
print every value that the worker published, publish it under the same key and headers to as many partitions, and load
the same rows in as many batches into the same tables, in which each replaces what has its key: durable in the file
itself after each, and the file opened for it, as it has to be free for readers in between. What lies between parsing
and printing is not part of it, nor is the line that a transcript's message carries as a text; no offset is committed,
and clients are connected before the clock runs.
"""

import asyncio
import contextlib
import gc
import resource
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import orjson
import pyarrow as pa
import uvloop
from aiokafka import AIOKafkaConsumer

from tests.bench.course import create_topics
from tests.bench.peers.hops import Exporting, RecordRow
from tests.bench.place import OWN_PARTITIONS, Place
from worker.kafka import BatchWriter, Header, TopicPartition, plain_producer
from worker.settings import Settings
from worker.sink import Upsert
from worker.sinks.duckdb_file import DuckDBSink

_BATCH = 5_000


class Row(NamedTuple):
    """A message of the worker's own topics: its value parsed, and printed again while the clock runs."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: Sequence[Header]


class Clock:
    """Adds up what is measured: processor time of this process, and time."""

    def __init__(self) -> None:
        self.cpu_s = self.took_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the clock run: what is prepared or connected before and after does not count."""
        took_s, used_s = time.perf_counter(), _own_cpu_s()
        yield
        self.took_s += time.perf_counter() - took_s
        self.cpu_s += _own_cpu_s() - used_s


def measure(place: Place, writes: int) -> dict[str, float]:
    """Do the least with everything that a worker has read and published, its rows in so many writes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        facts = runner.run(_read(place.servers, place.topics.fact_partitions))
        records = runner.run(_read(place.servers, place.topics.record_partitions))
        tables = runner.run(_tables(place, records, writes))
        names = [f"{place.app_id}-floor-facts", f"{place.app_id}-floor-records"]
        runner.run(create_topics(place.servers, dict.fromkeys(names, OWN_PARTITIONS)))
        loaded = place.duckdb_path.with_name("floor.duckdb")
        runner.run(DuckDBSink(str(loaded), "floor").open())
        hops, load = Clock(), Clock()
        steps = _Steps(place, names, facts, records, hops)
        # What was prepared is no part of what a worker has in memory.
        gc.collect()
        gc.freeze()
        messages = runner.run(steps.hops())
        _load(loaded, tables, load)
        gc.unfreeze()
    took_s = hops.took_s + load.took_s
    return {
        "messages": messages,
        "messages_per_s": messages / took_s,
        "upserts_per_s": sum(table.num_rows for batch in tables for table in batch.values()) / took_s,
        "cpu_us_per_message": (hops.cpu_s + load.cpu_s) / messages * 1e6,
        "hops_us_per_message": hops.cpu_s / messages * 1e6,
        "load_us_per_message": load.cpu_s / messages * 1e6,
        "facts_per_message": len(facts) / messages,
        "records_per_message": len(records) / messages,
        "writes": len(tables),
    }


class _Steps:
    """The three hops."""

    def __init__(
        self, place: Place, names: Sequence[str], facts: Sequence[Row], records: Sequence[Row], clock: Clock
    ) -> None:
        self._place = place
        self._clock = clock
        self._facts, self._records = names
        self._outputs = [_parsed(facts), _parsed(records)]

    async def hops(self) -> int:
        """Do all three; gives how many source messages there were."""
        topics = self._place.topics
        count = await self._hop(topics.source_partitions, self._outputs[0], self._facts)
        await self._hop(_partitions(self._facts), self._outputs[1], self._records)
        await self._hop(_partitions(self._records), (), None)
        return count

    async def _hop(self, places: Sequence[TopicPartition], outputs: Sequence[Any], target: str | None) -> int:
        producer = plain_producer(Settings(bootstrap_servers=self._place.servers))
        await producer.start()
        writer = BatchWriter(producer)
        async with _consumer(self._place.servers, places) as (consumer, ends):
            total, read, sent = sum(ends.values()), 0, 0
            with self._clock.running():
                while read < total:
                    read += _take(await _poll(consumer), is_printed=target is None)
                    upto = len(outputs) * read // total
                    for partition, key, value, headers in outputs[sent:upto]:
                        printed = None if value is None else orjson.dumps(value)
                        writer.append(str(target), partition, key, printed, headers)
                    sent = upto
                    await writer.flush()
        await producer.stop()
        return read


def _take(messages: Sequence[Any], *, is_printed: bool) -> int:
    """Parse messages; what goes into the sink is printed again."""
    for message in messages:
        if message.value is not None:
            value = orjson.loads(message.value)
            if is_printed:
                orjson.dumps(value)
    return len(messages)


def _partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(OWN_PARTITIONS)]


def _parsed(rows: Sequence[Row]) -> list[tuple[int, bytes, Any, Sequence[Header]]]:
    return [
        (row.partition, row.key, None if row.value is None else orjson.loads(row.value), row.headers) for row in rows
    ]


@contextlib.asynccontextmanager
async def _consumer(
    servers: str, places: Sequence[TopicPartition]
) -> AsyncIterator[tuple[AIOKafkaConsumer, dict[TopicPartition, int]]]:
    """Give a consumer that stands at the beginning of partitions, and where these end now."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    await consumer.start()
    try:
        consumer.assign(list(places))
        yield consumer, await consumer.end_offsets(list(places))
    finally:
        await consumer.stop()


async def _poll(consumer: AIOKafkaConsumer) -> list[Any]:
    polled = await consumer.getmany(timeout_ms=500, max_records=_BATCH)
    return [message for part in polled.values() for message in part]


async def _read(servers: str, places: Sequence[TopicPartition]) -> list[Row]:
    """Read what a worker has committed in transactions, whose markers take offsets too."""
    rows: list[Row] = []
    async with _consumer(servers, places) as (consumer, ends):
        while any([await consumer.position(place) < ends[place] for place in places]):
            messages = await _poll(consumer)
            rows += [Row(one.partition, one.offset, one.key, one.value, one.headers) for one in messages]
    return rows


# ------------------------------------------------------------------------------------------------------------- loading


async def _tables(place: Place, records: Sequence[Row], writes: int) -> list[dict[str, pa.Table]]:
    """Make what each write loads: by kind, the newest rows of its records, with the columns of the real table."""
    exporting = Exporting(place)
    size = -(-len(records) // max(1, writes))
    tables = []
    for first in range(0, len(records), size):
        part = records[first : first + size]
        rows = [RecordRow(row.offset, 0, row.key, row.value, row.headers) for row in part]
        tables.append(await _typed(place.duckdb_path, [one for one in exporting.upserts(rows) if one.json is not None]))
    return tables


async def _typed(beside: Path, upserts: Sequence[Upsert]) -> dict[str, pa.Table]:
    scratch = beside.with_name("scratch.duckdb")
    sink = DuckDBSink(str(scratch), "scratch")
    await sink.open()
    await sink.write(upserts)
    await sink.close()
    with duckdb.connect(str(scratch), read_only=True) as connection:
        found = {kind: connection.sql(f"FROM trace_{kind}").to_arrow_table() for kind in _kinds(upserts)}
    scratch.unlink()
    return found


def _kinds(upserts: Sequence[Upsert]) -> list[str]:
    return sorted({upsert.kind for upsert in upserts})


def _load(path: Path, tables: Sequence[Mapping[str, pa.Table]], clock: Clock) -> None:
    for batch in tables:
        with clock.running(), duckdb.connect(str(path)) as connection:
            connection.execute("BEGIN")
            for kind, table in batch.items():
                name = f"trace_{kind}"
                connection.register("rows", table)
                connection.execute(f"DELETE FROM {name} USING rows WHERE rows._key = {name}._key")  # noqa: S608 - ours
                connection.execute(f"INSERT INTO {name} FROM rows")
            connection.execute("COMMIT")
            connection.execute("CHECKPOINT")


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
