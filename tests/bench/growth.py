"""Whether a message costs more the more there is: time and memory of the core alone, along ever longer traffic.

Traffic flows through the projection and one fold in memory, derived facts included, in a process of its own. Along the
way windows are compared: the time of a message in them stands beside the bare parsing and printing of the same bytes,
measured in between, because machines are noisy. A ratio of 1 is flat. Making the traffic is not measured.
"""

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import orjson

from projections.facts import Fact, decode_fact, encode_fact
from projections.fold import Change, Fold
from projections.sources import project_message
from tests.bench.traffic import one_huge_run, small_runs, traffic
from tests.worlds.world import SourceMessage

_CHUNK_MESSAGES = 500
# Of the units of a workload, what one window spans to either side; the first window lets caches warm up.
_WINDOW_SHARE = 0.15
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Workload(NamedTuple):
    """Messages, what the size of a state is counted in, and the sizes at which a message's cost is compared."""

    name: str
    messages: Callable[[], Iterable[SourceMessage]]
    kind: str | None
    sizes: Sequence[int]


class Chunk(NamedTuple):
    """What some messages in a row cost, and how large the state was behind them."""

    size: int
    messages: int
    to_floor: float
    cpu_s: float
    resident_bytes: int


def workloads(records: Sequence[int], calls: int, runs: int) -> list[Workload]:
    """Give the three ways to grow: many records, one conversation without end, many small runs."""
    return [
        Workload("records", traffic, None, records),
        Workload("huge_run", lambda: one_huge_run(calls), "call", [calls // 10, calls // 2, calls * 8 // 10]),
        Workload("small_runs", lambda: small_runs(runs), "run", [runs // 10, runs // 2, runs * 8 // 10]),
    ]


def measure_all(records: Sequence[int], calls: int, runs: int) -> dict[str, dict[str, float]]:
    """Measure all workloads, each in a process of its own; ratios are to the smallest size."""
    sizes = (tuple(records), calls, runs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context, max_tasks_per_child=1) as pool:
        rows = list(pool.map(measure, range(len(workloads(*sizes))), [sizes] * len(workloads(*sizes))))
    ratios = {name: value for row in rows for name, value in row.items() if name.startswith("growth_")}
    named = zip(workloads(*sizes), rows, strict=True)
    return {"ratios": ratios, **{work.name: {k: v for k, v in row.items() if k not in ratios} for work, row in named}}


def measure(index: int, sizes: tuple[Sequence[int], int, int]) -> dict[str, float]:
    """Run one workload and compare its windows."""
    workload = workloads(*sizes)[index]
    base_bytes = resident_bytes()
    chunks = list(run(workload))
    windows = {size: window(chunks, size) for size in workload.sizes}
    first, *later = windows.values()
    figures: dict[str, float] = {}
    for size, found in windows.items():
        figures[f"us_per_message_{size}"] = sum(chunk.cpu_s for chunk in found) / _messages(found) * 1e6
        figures[f"bytes_per_message_{size}"] = (found[-1].resident_bytes - base_bytes) / _messages_until(chunks, found)
    for size, found in zip(workload.sizes[1:], later, strict=True):
        figures[f"growth_{workload.name}_time_{size}"] = _cost(found) / _cost(first)
        smallest = figures[f"bytes_per_message_{workload.sizes[0]}"]
        figures[f"growth_{workload.name}_memory_{size}"] = figures[f"bytes_per_message_{size}"] / smallest
    return figures


def window(chunks: Sequence[Chunk], size: int) -> Sequence[Chunk]:
    """Give the chunks around a size of the state."""
    low, high = size * (1 - _WINDOW_SHARE), size * (1 + _WINDOW_SHARE)
    found = [chunk for chunk in chunks if low <= chunk.size <= high]
    assert found, f"no chunk ends around {size}"
    return found


def _cost(chunks: Sequence[Chunk]) -> float:
    return median(chunk.to_floor for chunk in chunks)


def _messages(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.messages for chunk in chunks)


def _messages_until(chunks: Sequence[Chunk], found: Sequence[Chunk]) -> int:
    return _messages(chunks[: chunks.index(found[-1]) + 1])


def run(workload: Workload) -> Iterator[Chunk]:
    """Project and fold in chunks until the largest size is behind us."""
    fold, offset, known = Fold(generation=1), 0, set[int]()
    messages, most = iter(workload.messages()), workload.sizes[-1] * (1 + _WINDOW_SHARE)
    while len(known) < most and (chunk := list(islice(messages, _CHUNK_MESSAGES))):
        floor_s = _floor_s(chunk)
        started = time.process_time()
        facts = [fact for number, message in enumerate(chunk) for fact in _projected(message, offset + number)]
        changes, offset = _folded(fold, facts, offset)
        spent_s = time.process_time() - started
        known |= {hash((change.kind, change.id)) for change in changes if workload.kind in (None, change.kind)}
        yield Chunk(len(known), len(chunk), spent_s / floor_s, spent_s, resident_bytes())


def _floor_s(chunk: Sequence[SourceMessage]) -> float:
    """Tell how long bare parsing and printing of the same bytes takes, the best of three."""
    values = [message.value for message in chunk if message.value is not None]
    times = []
    for _ in range(3):
        started = time.process_time()
        for value in values:
            orjson.dumps(orjson.loads(value))
        times.append(time.process_time() - started)
    return min(times)


def _projected(message: SourceMessage, offset: int) -> list[Fact]:
    facts = project_message(message.topic, message.key, message.value, 0, offset).facts
    # Through the log and back, as between the roles: what is kept is no part of the message's own objects.
    return [decode_fact(*encode_fact(fact)) for fact in facts]


def _folded(fold: Fold, facts: list[Fact], offset: int) -> tuple[list[Change], int]:
    """Fold facts and what follows from them; gives the changes and the next offset."""
    changes: list[Change] = []
    while facts:
        result = fold.apply(list(enumerate(facts, offset)))
        offset += len(facts)
        changes += result.changes
        facts = list(result.facts)
    return changes, offset


def resident_bytes() -> int:
    """Tell what this process has resident, once nothing waits to be let go."""
    gc.collect(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
