"""A process that writes batches into a sink until it is killed, and what it said it had written."""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from worker.sink import RecordKey

BATCH_ROWS = 50

_REPOSITORY = Path(__file__).parents[3]
_WRITER = """
import asyncio, sys
from tests.worker.sinks.destinations import POLICY, run_record, upsert
from worker.sink import open_sink

async def main():
    sink = open_sink(sys.argv[1], POLICY)
    await sink.open()
    for number in range(10_000):
        rows = range(int(sys.argv[2]))
        await sink.write([upsert(run_record(f"{number}-{row}", error="x" * 2_000), number) for row in rows])
        print(number, flush=True)

asyncio.run(main())
"""


def batches_of_a_killed_writer(url: str, delay_s: float) -> list[int]:
    """Let a process write batches 0, 1, … into a sink, kill it after a while, and give the batches it acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, url, str(BATCH_ROWS)], stdout=subprocess.PIPE, text=True, cwd=_REPOSITORY
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "0\n"
        time.sleep(delay_s)
        writer.send_signal(signal.SIGKILL)
        # Not `communicate`, which loses what `readline` has read beyond its line.
        return [0, *map(int, writer.stdout.read().split())]


def rows_by_batch(keys: Iterable[RecordKey]) -> dict[int, int]:
    """Count the rows that a sink holds of each batch, batches in order."""
    held = sorted(int(record_id.partition("-")[0]) for _kind, record_id in keys)
    return {number: len(list(group)) for number, group in itertools.groupby(held)}


def assert_whole(counts: dict[int, int], acknowledged: list[int]) -> None:
    """Every batch is there whole or not at all; all that were acknowledged are, and at most one more."""
    assert set(counts.values()) == {BATCH_ROWS}
    assert list(counts) == list(range(len(counts)))
    assert len(acknowledged) <= len(counts) <= len(acknowledged) + 1
