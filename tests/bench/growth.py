"""Whether a message costs more the more there is: time and memory of the core alone, along ever longer traffic.

Traffic flows through the projection and one fold, derived facts included, in a process of its own. The fold keeps
everything in memory, or lets go what has not been touched for long, as a worker does whose state is on disk. Along the
way windows are compared: the time of a message in them stands beside the bare parsing and printing of the same bytes,
measured in between, because machines are noisy. A ratio of 1 is flat. Making the traffic is not measured.
"""

import gc
import multiprocessing
import os
import time
from collections import defaultdict
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
from worker.garbage import collect_rarely

_CHUNK_MESSAGES = 250
# Of the units of a workload, what one window spans to either side; the first window lets caches warm up.
_WINDOW_SHARE = 0.15
# What one of four partitions keeps by the default of limits.state_facts_max.
FACTS_MAX = 1_000
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


Shelf = dict[str, dict[bytes, bytes]]
"""Stands for the disk: by aggregate, the facts as the log holds them."""


class Workload(NamedTuple):
    """Messages, what the size of a state is counted in, and the sizes at which a message's cost is compared.

    ``facts_max`` is how many facts stay in memory, None for all.
    """

    name: str
    messages: Callable[[], Iterable[SourceMessage]]
    kind: str | None
    sizes: Sequence[int]
    facts_max: int | None = None


class Chunk(NamedTuple):
    """What some messages in a row cost, and how large the state was behind them."""

    size: int
    messages: int
    to_floor: float
    cpu_s: float
    resident_bytes: int


def workloads(records: Sequence[int], calls: int, runs: int) -> list[Workload]:
    """Give the ways to grow: many records, one conversation without end, many small runs."""
    of_calls, of_runs = ([count // 5, count // 2, count * 8 // 10] for count in (calls, runs))
    return [
        Workload("records", traffic, None, records),
        Workload("records_let_go", traffic, None, records, FACTS_MAX),
        Workload("huge_run", lambda: one_huge_run(calls), "call", of_calls),
        Workload("huge_run_let_go", lambda: one_huge_run(calls), "call", of_calls, FACTS_MAX),
        Workload("small_runs", lambda: small_runs(runs), "run", of_runs),
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
    collect_rarely()
    workload = workloads(*sizes)[index]
    chunks = list(run(workload))
    smallest, *larger = workload.sizes
    cost = {size: median(chunk.to_floor for chunk in window(chunks, size)) for size in workload.sizes}
    figures: dict[str, float] = {f"time_to_floor_{size}": value for size, value in cost.items()}
    figures |= {f"growth_{workload.name}_time_{size}": cost[size] / cost[smallest] for size in larger}
    if workload.facts_max is None:
        held = {size: bytes_per_message(chunks, size) for size in workload.sizes}
        figures |= {f"bytes_per_message_{size}": value for size, value in held.items()}
        figures |= {f"growth_{workload.name}_memory_{size}": held[size] / held[smallest] for size in larger}
    spent_s, messages = sum(chunk.cpu_s for chunk in chunks), sum(chunk.messages for chunk in chunks)
    return {"us_per_message": spent_s / messages * 1e6, "messages": messages, **figures}


def window(chunks: Sequence[Chunk], size: int) -> Sequence[Chunk]:
    """Give the chunks around a size of the state."""
    low, high = size * (1 - _WINDOW_SHARE), size * (1 + _WINDOW_SHARE)
    found = [chunk for chunk in chunks if low <= chunk.size <= high]
    assert found, f"no chunk ends around {size}"
    return found


def bytes_per_message(chunks: Sequence[Chunk], size: int) -> float:
    """Tell what a message adds to what is resident, on the way from half of a size to that size."""
    half, whole = (next(n for n, chunk in enumerate(chunks) if chunk.size >= at) for at in (size / 2, size))
    messages = sum(chunk.messages for chunk in chunks[half + 1 : whole + 1])
    return (chunks[whole].resident_bytes - chunks[half].resident_bytes) / messages


def run(workload: Workload) -> Iterator[Chunk]:
    """Project and fold in chunks until the largest size is behind us."""
    shelf: Shelf = defaultdict(dict)
    load = None if workload.facts_max is None else lambda name: [decode_fact(*row) for row in shelf[name].items()]
    fold, offset, known = Fold(generation=1, load=load), 0, set[int]()
    messages, most = iter(workload.messages()), workload.sizes[-1] * (1 + _WINDOW_SHARE)
    while len(known) < most and (chunk := list(islice(messages, _CHUNK_MESSAGES))):
        floor_s = _floor_s(chunk)
        started = time.process_time()
        facts = [fact for number, message in enumerate(chunk) for fact in _projected(message, offset + number)]
        changes, offset = _folded(fold, facts, offset, None if load is None else shelf)
        if workload.facts_max is not None:
            fold.let_go(workload.facts_max)
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


def _folded(fold: Fold, facts: list[Fact], offset: int, shelf: Shelf | None) -> tuple[list[Change], int]:
    """Fold facts and what follows from them; gives the changes and the next offset."""
    changes: list[Change] = []
    while facts:
        result = fold.apply(list(enumerate(facts, offset)))
        offset += len(facts)
        changes += result.changes
        if shelf is not None:
            _shelve(shelf, facts, result.superseded)
        facts = list(result.facts)
    return changes, offset


def _shelve(shelf: Shelf, facts: Iterable[Fact], superseded: Iterable[bytes]) -> None:
    for fact in facts:
        key, value = encode_fact(fact)
        shelf[fact.aggregate][key] = value
    for key in superseded:
        shelf[decode_fact(key, b"null").aggregate].pop(key, None)


def resident_bytes() -> int:
    """Tell what this process has resident, once nothing waits to be let go."""
    gc.collect(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
