"""Rows per second into every sink that this machine has a destination for: new rows, newer ones, and the same again.

Rows are records of generated worlds, redacted. Each figure has the time until the sink says that they are durable, and
stands beside DuckDB's of the same run.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import orjson

from projections.privacy import Policy, redact
from tests.worker.sinks.destinations import DESTINATIONS, POLICY, Destination
from tests.worlds.cluster import clean_pass
from tests.worlds.world import World
from worker.sink import Sink, Upsert, open_sink

BATCH = 5_000
REFERENCE = "duckdb"


def measure_all(row_count: int) -> dict[str, dict[str, float]]:
    """Measure every destination that is here, by its scheme."""
    rows = make_rows(row_count)
    with tempfile.TemporaryDirectory() as directory:
        figures = {
            name: measure(destination(_made(Path(directory) / name)), rows)
            for name, destination in DESTINATIONS.items()
            if destination.is_here() and destination.is_kept_between_opens
        }
    reference = figures[REFERENCE]
    for figure in figures.values():
        figure["to_duckdb"] = figure["insert_per_s"] / reference["insert_per_s"]
    return figures


def make_rows(count: int) -> list[Upsert]:
    """Make so many rows, each of another id."""
    policy = Policy(key="a key of more than thirty-two bytes")
    rows: dict[tuple[str, str], Upsert] = {}
    for seed in itertools.count():
        for data in clean_pass(World(seed).messages, unbound="standalone").records.values():
            record = redact(orjson.loads(data), policy)
            row = Upsert(record["kind"], record["id"], 1, len(rows), record, orjson.dumps(record))
            rows.setdefault(row.key, row)
            if len(rows) == count:
                return list(rows.values())
    raise AssertionError


def measure(destination: Destination, rows: Sequence[Upsert]) -> dict[str, float]:
    """Write all rows three times: new, as newer versions, and as they are already there."""
    newer = [row._replace(offset=row.offset + len(rows)) for row in rows]

    async def story() -> dict[str, float]:
        sink = open_sink(destination.url, POLICY)
        await sink.open()
        try:
            return {
                "insert_per_s": await _rate(sink, rows),
                "update_per_s": await _rate(sink, newer),
                "repeat_per_s": await _rate(sink, newer),
            }
        finally:
            await sink.close()

    figures = asyncio.run(story())
    kept = destination.records()
    assert len(kept) == len(rows), "every row is there once"
    return {"rows": len(rows), **figures}


async def _rate(sink: Sink, rows: Sequence[Upsert]) -> float:
    start = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        await sink.write(rows[first : first + BATCH])
    return len(rows) / (time.perf_counter() - start)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
