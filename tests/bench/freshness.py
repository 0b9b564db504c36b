"""How long a message takes until its row can be read: from publishing it to seeing its row from another process.

Traffic comes at an even pace; one message in twenty is a probe, the first snapshot of a run of its own, whose row is
told by its id. A process of its own looks for the rows of probes: in a DuckDB file whenever the file has changed (it
attaches the file, asks and detaches it; while it has the file, the worker's next write has to wait), in PostgreSQL
every few milliseconds. So a figure holds everything: the broker, three roles, the sink's write, and the look.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median, quantiles

import duckdb
import orjson
import psycopg
from aiokafka import AIOKafkaProducer

from projections.facts import partition_of
from tests.bench.site import PARTITIONS, Site, cpu_s, one_broker, pid_of, site_on
from tests.bench.traffic import traffic
from tests.integration.pipeline import WorkerProcess
from tests.stores import postgresql
from tests.worlds.world import SourceMessage

Seen = dict[str, float]
"""When (``time.monotonic``, which all processes share) the row of a probe was first there."""

Look = Callable[[str, "Queue[Seen]", Event], None]
"""Looks for the rows of probes in a process of its own, until it is over."""

_PROBE_EVERY = 20
_PREFIX = "probe-"
_PROBES_SQL = f"SELECT id FROM {{place}}trace_run WHERE id LIKE '{_PREFIX}%'"  # noqa: S608
_LOOK_S = 0.005
_TICK_S = 0.01
_WARM_UP_S = 2.0
_PATIENCE_S = 30.0
_SCHEMA = "freshness"


def measure_all(seconds: float, rates: Sequence[int] = (500, 2_000)) -> dict[str, dict[str, float]]:
    """Measure at these rates (messages per second), each for so long, into every sink that is here."""
    rows: dict[str, dict[str, float]] = {}
    with one_broker() as (cluster, directory):
        for name in ("duckdb", "postgresql"):
            if name == "postgresql" and not postgresql.is_here():
                continue
            sink = None if name == "duckdb" else postgresql.server().url(_SCHEMA)
            with site_on(cluster, directory, f"fresh-{name}", sink) as site:
                look: Look = read_duckdb if name == "duckdb" else read_postgresql
                place = str(site.duckdb_path) if name == "duckdb" else str(postgresql.server().port)
                rows[name] = measure(site, look, place, seconds, rates)
    return rows


def measure(site: Site, look: Look, place: str, seconds: float, rates: Sequence[int]) -> dict[str, float]:
    """Publish at each rate to one worker while a process of its own looks for rows."""
    worker = site.start("worker")
    site.wait_assigned([worker], ("project", "fold", "export:bench"))
    messages = traffic()
    figures: dict[str, float] = {}
    for rate in rates:
        before = _counts(worker)
        spent_s = cpu_s(pid_of(worker))
        sent, seen = _published_and_seen(site, look, place, _with_probes(messages, rate), rate, seconds + _WARM_UP_S)
        spent_s = cpu_s(pid_of(worker)) - spent_s
        flushes, retries = (now - then for now, then in zip(_counts(worker), before, strict=True))
        first = min(sent.values()) + _WARM_UP_S
        waits_ms = [(seen[name] - at) * 1e3 for name, at in sent.items() if at >= first]
        figures |= {
            f"freshness_{rate}_p50_ms": median(waits_ms),
            f"freshness_{rate}_p99_ms": quantiles(waits_ms, n=100, method="inclusive")[98],
            f"probes_{rate}": len(waits_ms),
            f"cores_busy_{rate}": spent_s / (seconds + _WARM_UP_S),
            f"flushes_per_s_{rate}": flushes / (seconds + _WARM_UP_S),
            f"busy_retries_{rate}": retries,
        }
    worker.stop()
    return figures


def _counts(worker: WorkerProcess) -> tuple[float, float]:
    """Tell how often the sink was written, and how often it could not be because somebody read it."""
    role = "export:bench"
    return worker.total("settled_batches_total", role=role), worker.total("retries_total", role=role)


def _with_probes(messages: Iterator[SourceMessage], rate: int) -> Iterator[tuple[str | None, SourceMessage]]:
    """Put a probe, with its id, before every so many messages."""
    number = 0
    while True:
        name = f"{_PREFIX}{rate}-{number}"
        number += 1
        run = {"id": name, "workflowName": "probe", "status": "running", "revision": 1, "stepResults": {}}
        run |= {"activeSteps": {}, "startedAt": "2026-11-01T00:00:00.000Z", "currentStep": None, "params": {}}
        yield name, SourceMessage("workflow-runs", name.encode(), orjson.dumps(run))
        for message in islice(messages, _PROBE_EVERY - 1):
            yield None, message


def _published_and_seen(
    site: Site,
    look: Look,
    place: str,
    messages: Iterator[tuple[str | None, SourceMessage]],
    rate: int,
    seconds: float,
) -> tuple[Mapping[str, float], Seen]:
    """Publish for a while; gives when each probe was published and when its row was seen."""
    context = multiprocessing.get_context("spawn")
    found: Queue[Seen] = context.Queue()
    is_over = context.Event()
    reader = context.Process(target=look, args=(place, found, is_over), daemon=True)
    reader.start()
    seen: Seen = {}
    try:
        # Its first word says that it looks.
        found.get(timeout=_PATIENCE_S)
        sent = asyncio.run(_publish(site, messages, rate, seconds))
        while sent.keys() - seen.keys():
            seen |= found.get(timeout=_PATIENCE_S)
    finally:
        is_over.set()
        reader.join(_PATIENCE_S)
        if reader.is_alive():
            reader.kill()
    return sent, seen


async def _publish(
    site: Site, messages: Iterator[tuple[str | None, SourceMessage]], rate: int, seconds: float
) -> Mapping[str, float]:
    """Publish at an even pace, catching up when a tick came late; gives when each probe was handed over."""
    sent: dict[str, float] = {}
    producer = AIOKafkaProducer(bootstrap_servers=site.kafka.bootstrap_servers, acks="all")
    await producer.start()
    started, done = time.monotonic(), 0
    while (passed_s := time.monotonic() - started) < seconds:
        for name, message in islice(messages, max(0, int(passed_s * rate) - done)):
            done += 1
            if name is not None:
                sent[name] = time.monotonic()
            place = partition_of((message.key or b"").decode("latin-1"), PARTITIONS)
            await producer.send(site.topic(message.topic), value=message.value, key=message.key, partition=place)
        await asyncio.sleep(_TICK_S)
    await producer.stop()
    assert done >= 0.9 * rate * seconds, f"only {done / seconds:.0f} messages/s could be published"
    return sent


# ------------------------------------------------------------------------------------------------ the reading process


def read_duckdb(place: str, found: "Queue[Seen]", is_over: Event) -> None:
    """Look into a DuckDB file whenever it has changed, and say which probes are new.

    DuckDB itself is started once. Starting it takes ten times as long as a look, and a try that finds the file held
    half as long: a reader that does both some hundred times a second takes a core from what is measured.
    """
    path, looked_at = Path(place), 0
    engine = duckdb.connect(config={"threads": 1})

    def look() -> list[str] | None:
        nonlocal looked_at
        changed = path.stat().st_mtime_ns
        if changed == looked_at:
            return None
        try:
            engine.execute(f"ATTACH '{place}' AS sink (READ_ONLY)")
        except duckdb.IOException:
            # The worker is writing it.
            return None
        names = [str(name) for (name,) in engine.execute(_PROBES_SQL.format(place="sink.")).fetchall()]
        engine.execute("DETACH sink")
        looked_at = changed
        return names

    _look_until(look, found, is_over)


def read_postgresql(place: str, found: "Queue[Seen]", is_over: Event) -> None:
    """Ask PostgreSQL again and again, and say which probes are new."""
    server = f"host=127.0.0.1 port={place} user={postgresql.USER} password={postgresql.PASSWORD} dbname=postgres"
    ask = _PROBES_SQL.format(place="")
    with psycopg.connect(server, options=f"-csearch_path={_SCHEMA}", autocommit=True) as connection:
        _look_until(lambda: [name for (name,) in connection.execute(ask).fetchall()], found, is_over)


def _look_until(look: Callable[[], list[str] | None], found: "Queue[Seen]", is_over: Event) -> None:
    known: set[str] = set(look() or ())
    found.put({})
    while not is_over.wait(_LOOK_S):
        names = look()
        at = time.monotonic()
        if fresh := set(names or ()) - known:
            known |= fresh
            found.put(dict.fromkeys(fresh, at))
