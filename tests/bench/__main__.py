"""`python -m tests.bench`: how fast core, worker and sinks are; a table for people, bench.json for machines."""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import core, pipeline, sinks

Figures = Mapping[str, Mapping[str, float]]

_PARTS: Mapping[str, tuple[Callable[[argparse.Namespace], Figures], str]] = {
    "core": (lambda arguments: core.measure_all(arguments.messages), "messages per second and core"),
    "pipeline": (lambda arguments: pipeline.measure_all(arguments.published), "a whole worker beside the floor"),
    "sinks": (lambda arguments: sinks.measure_all(arguments.rows), "rows per second, and inserts beside DuckDB's"),
}


def show(title: str, figures: Figures) -> None:
    """Print one part: a row per workload, ratios with two digits and everything else without."""
    columns = list(next(iter(figures.values())))
    table = Table("workload", *columns, title=title)
    for name, row in figures.items():
        table.add_row(name, *(_cell(column, row.get(column)) for column in columns))
    Console(width=170).print(table)


def _cell(column: str, value: float | None) -> str:
    return "–" if value is None else f"{value:,.{2 if 'to_' in column else 0}f}"


def main() -> int:
    """Measure the parts that are asked for, print the tables and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", choices=sorted(_PARTS), help="only this part")
    parser.add_argument("--messages", type=int, default=20_000, help="messages per workload of the core (20000)")
    parser.add_argument("--published", type=int, default=30_000, help="messages through the whole worker (30000)")
    parser.add_argument("--rows", type=int, default=20_000, help="rows per sink (20000)")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="where the figures go")
    arguments = parser.parse_args()
    machine = {"python": sys.version.split()[0], "machine": platform.machine(), "system": platform.platform()}
    measured: dict[str, object] = {"machine": machine}
    for name, (measure, title) in _PARTS.items():
        if arguments.only in (None, name):
            figures = measure(arguments)
            show(f"{title}, Python {machine['python']}", figures)
            measured[name] = figures
    arguments.out.write_text(json.dumps(measured, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
