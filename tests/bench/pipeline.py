"""Messages per second through a whole worker: four topics on a real broker, all roles in one process, rows in DuckDB.

Beside it the floor: the least that any such worker must do with the same bytes (read, parse, print, publish, over the
same three hops), and DuckDB's own bulk load of the same rows. CPU is what counts, because broker and publisher share
these cores; only ratios travel.
"""

import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.chaos.rig import Rig, broker_of, cluster_of
from tests.chaos.watch import parse, total
from tests.integration.pipeline import KEY, KEY_VARIABLE, WorkerProcess, worlds
from tests.worlds.world import SourceMessage
from worker.kafka import BatchWriter, plain_producer
from worker.settings import Settings

_BATCH = 5_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARTITIONS = 2


def measure_all(message_count: int) -> dict[str, dict[str, float]]:
    """Measure the worker and the floor on one broker."""
    os.environ[KEY_VARIABLE] = KEY
    messages = make_messages(message_count)
    cluster = cluster_of(1)
    cluster.start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            rig = Rig(broker_of(cluster), cluster.nodes, "bench", Path(directory))
            rig.prepare()
            _keep_one_export(rig)
            rows = measure_worker(rig, messages)
            records = [record.encode() for _kind, _id, record in rig.duckdb_records()]
        floor = measure_floor(cluster.bootstrap_servers, messages, records)
    finally:
        cluster.stop()
    rows["cpu_to_floor"] = rows["cpu_us_per_message"] / floor["cpu_us_per_message"]
    return {"duckdb": rows, "floor": {**floor, "cpu_to_floor": 1.0}}


def make_messages(count: int) -> list[SourceMessage]:
    """Make so many messages of generated worlds, those of one world together."""
    messages: list[SourceMessage] = []
    seed = 0
    while len(messages) < count:
        messages += worlds([seed])
        seed += 1
    return messages[:count]


def _keep_one_export(rig: Rig) -> None:
    text = rig.config.read_text()
    head, first, _second = text.split("[[exports]]")
    rig.config.write_text(f"{head}[[exports]]{first}")


def measure_worker(rig: Rig, messages: Sequence[SourceMessage]) -> dict[str, float]:
    """Publish everything to a worker that is ready, and wait until all of it is in the sink."""
    worker = rig.worker("bench")
    worker.start()
    worker.wait_ready()
    cpu_s, started = _cpu_s(worker), time.perf_counter()
    rig.publish(messages)
    rig.wait_settled(("project", "fold", "export-plain"))
    took_s = time.perf_counter() - started
    cpu_s = _cpu_s(worker) - cpu_s
    samples = parse(worker.get("/metrics")[1].decode())
    peak = _peak_bytes(worker)
    written = total(samples, "written_upserts_total")
    worker.stop()
    return {
        "messages": len(messages),
        "bytes_per_message": sum(len(message.value or b"") for message in messages) / len(messages),
        "messages_per_s": len(messages) / took_s,
        "upserts_per_s": written / took_s,
        "cpu_us_per_message": cpu_s / len(messages) * 1e6,
        "peak_rss_mib": peak / 2**20,
    }


def measure_floor(servers: str, messages: Sequence[SourceMessage], records: Sequence[bytes]) -> dict[str, float]:
    """Send the same bytes over as many hops with nothing but parsing and printing, then load the rows."""
    settings = Settings(bootstrap_servers=servers)
    values = [message.value for message in messages if message.value is not None]
    asyncio.run(_fill(settings, values))
    cpu_s, started = _own_cpu_s(), time.perf_counter()
    asyncio.run(_hop(settings, "floor-0", "floor-1", len(values)))
    asyncio.run(_hop(settings, "floor-1", "floor-2", len(values)))
    asyncio.run(_hop(settings, "floor-2", None, len(values)))
    _load(records)
    took_s = time.perf_counter() - started
    return {
        "messages": len(messages),
        "bytes_per_message": sum(map(len, values)) / len(messages),
        "messages_per_s": len(messages) / took_s,
        "upserts_per_s": len(records) / took_s,
        "cpu_us_per_message": (_own_cpu_s() - cpu_s) / len(messages) * 1e6,
    }


async def _fill(settings: Settings, values: Sequence[bytes]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(f"floor-{number}", _PARTITIONS, 1) for number in range(3)])
    await admin.close()
    producer = plain_producer(settings)
    await producer.start()
    writer = BatchWriter(producer)
    for number, value in enumerate(values):
        writer.append("floor-0", number % _PARTITIONS, b"", value)
    await writer.flush()
    await producer.stop()


async def _hop(settings: Settings, source: str, target: str | None, count: int) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.bootstrap_servers, auto_offset_reset="earliest")
    producer = plain_producer(settings)
    await consumer.start()
    await producer.start()
    consumer.assign([TopicPartition(source, number) for number in range(_PARTITIONS)])
    writer = BatchWriter(producer)
    done = 0
    while done < count:
        for place, polled in (await consumer.getmany(timeout_ms=500, max_records=_BATCH)).items():
            for message in polled:
                value = orjson.dumps(orjson.loads(message.value))
                if target is not None:
                    writer.append(target, place.partition, b"", value)
            done += len(polled)
        await writer.flush()
    await consumer.stop()
    await producer.stop()


def _load(records: Sequence[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory, duckdb.connect(f"{directory}/floor.duckdb") as connection:
        connection.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, record TEXT)")
        table = pa.table({"id": [str(number) for number in range(len(records))], "record": records})
        connection.register("loaded", table.cast(pa.schema([("id", pa.string()), ("record", pa.string())])))
        connection.execute("INSERT INTO rows SELECT id, record FROM loaded")


def _cpu_s(worker: WorkerProcess) -> float:
    assert worker._process is not None
    fields = Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _peak_bytes(worker: WorkerProcess) -> int:
    assert worker._process is not None
    status = Path(f"/proc/{worker._process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
