"""`python -m tests.bench`: how fast core, worker and sinks are; a table for people, bench.json for machines.

docs/performance.md says how to read it. With ``--full`` what grows is measured at its full sizes, which takes an hour.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench import core, freshness, growth, load, pipeline, processes, ready, sinks
from tests.bench.peers import contest

Figures = Mapping[str, Mapping[str, float]]

# More do not fit beside each other.
_COLUMNS_MAX = 10
# Smaller values, ratios among them, are shown with two digits.
_FINE_MAX = 100


class Sizes(NamedTuple):
    """How much is measured; of two, what `--full` takes."""

    peer_messages: int = 20_000
    process_messages: int = 20_000
    process_counts: tuple[int, ...] = (1, 2)
    freshness_s: float = 5.0
    load_messages: int = 50_000
    growth_records: tuple[int, ...] = (10_000, 30_000)
    growth_calls: int = 10_000
    growth_runs: int = 800
    starts: int = 3


QUICK = Sizes()
FULL = Sizes(
    peer_messages=50_000,
    process_messages=50_000,
    process_counts=(1, 2, 4),
    freshness_s=60.0,
    load_messages=1_000_000,
    growth_records=(10_000, 100_000, 1_000_000),
    growth_calls=100_000,
    growth_runs=10_000,
    starts=10,
)

_PARTS: Mapping[str, tuple[Callable[[argparse.Namespace, Sizes], Figures], str]] = {
    "core": (lambda arguments, _: core.measure_all(arguments.messages), "messages per second and core"),
    "pipeline": (lambda arguments, _: pipeline.measure_all(arguments.published), "a whole worker beside the floor"),
    "peers": (lambda _, sizes: contest.measure_all(sizes.peer_messages), "a whole worker beside other frameworks"),
    "sinks": (lambda arguments, _: sinks.measure_all(arguments.rows), "rows per second, and inserts beside DuckDB's"),
    "processes": (
        lambda _, sizes: processes.measure_all(sizes.process_messages, sizes.process_counts),
        "one worker process and more, on the cores of this machine",
    ),
    "freshness": (lambda _, sizes: freshness.measure_all(sizes.freshness_s), "from a message to its row, milliseconds"),
    "load": (lambda _, sizes: load.measure_all(sizes.load_messages), "memory, replay and restore of one worker"),
    "growth": (
        lambda _, sizes: growth.measure_all(sizes.growth_records, sizes.growth_calls, sizes.growth_runs),
        "what a message costs the more there is",
    ),
    "ready": (lambda _, sizes: ready.measure_all(sizes.starts), "from the start of a process to /readyz"),
}


def show(title: str, figures: Figures) -> None:
    """Print one part: a row per workload, or, where each row has columns of its own, a line per figure."""
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    if len(columns) > _COLUMNS_MAX:
        table = Table("workload", "figure", "value", title=title)
        for name, row in figures.items():
            for column, value in row.items():
                table.add_row(name, column, _cell(value))
            table.add_section()
    else:
        table = Table("workload", *columns, title=title)
        for name, row in figures.items():
            table.add_row(name, *(_cell(row.get(column)) for column in columns))
    Console(width=170).print(table)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:,.{2 if abs(value) < _FINE_MAX else 0}f}"


def main() -> int:
    """Measure the parts that are asked for, print the tables and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", choices=sorted(_PARTS), help="only this part")
    parser.add_argument("--messages", type=int, default=20_000, help="messages per workload of the core (20000)")
    parser.add_argument("--published", type=int, default=30_000, help="messages through the whole worker (30000)")
    parser.add_argument("--rows", type=int, default=20_000, help="rows per sink (20000)")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="where the figures go")
    parser.add_argument("--full", action="store_true", help="full sizes of what grows; takes an hour")
    arguments = parser.parse_args()
    machine = {"python": sys.version.split()[0], "machine": platform.machine(), "system": platform.platform()}
    measured: dict[str, object] = {"machine": machine}
    for name, (measure, title) in _PARTS.items():
        if arguments.only in (None, name):
            figures = measure(arguments, FULL if arguments.full else QUICK)
            show(f"{title}, Python {machine['python']}", figures)
            measured[name] = figures
    arguments.out.write_text(json.dumps(measured, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
