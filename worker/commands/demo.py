"""`trace-projector demo`: everything on one machine in one command, from sample messages to traces in a database."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click

from worker.cli import CommandFailed, Invocation

SETTLE_TIMEOUT_S = 60.0
_POLL_S = 0.25


@click.command(
    "demo",
    epilog="""\b
Examples:
  trace-projector demo
  trace-projector demo --once
  trace-projector demo --dir /tmp/my-demo --port 19092
""",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".demo"),
    show_default=True,
    help="Where database, settings and log go; cleared first.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="Port of the broker, if free."
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory of sample runs.  [default: fixtures/runs of the source checkout]",
)
@click.option("--once", is_flag=True, help="Stop when all traces are there, as it does when not on a terminal.")
@click.pass_obj
def demo_command(invocation: Invocation, *, directory: Path, port: int, runs: Path | None, once: bool) -> None:
    """Start a broker on loopback, publish sample runs, project them, and show the traces as they land."""
    del invocation  # the demo writes settings of its own
    from worker.demo import RUNS_DIRECTORY, Demo, DemoError  # noqa: PLC0415  (broker, driver and all)
    from worker.embedded_broker import EmbeddedBrokerError  # noqa: PLC0415
    from worker.source_files import SourceFileError  # noqa: PLC0415
    from worker.source_topics import SourceTopicError  # noqa: PLC0415

    interruption = Interruption()
    try:
        with Demo(directory, broker_port=port, runs=runs or RUNS_DIRECTORY) as demo:
            _show(demo, interruption, is_once=once or not sys.stdout.isatty())
    except (DemoError, EmbeddedBrokerError, SourceFileError, SourceTopicError) as error:
        raise CommandFailed(str(error)) from error


class Interruption:
    """Ctrl-C and SIGTERM, which end what is going on, and are remembered.

    Where an object is just being disposed of, Python ignores what a handler raises; whoever looks later still knows.
    """

    def __init__(self) -> None:
        self._is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._ask)

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt when somebody asked for it."""
        if self._is_asked:
            raise KeyboardInterrupt


def _show(demo: Any, interruption: Interruption, *, is_once: bool) -> None:
    started = time.monotonic()
    demo.start(click.echo)
    expected = demo.expected()
    seen: list[Any] = []
    while demo.records() != expected:
        interruption.check()
        demo.check()
        if time.monotonic() - started > SETTLE_TIMEOUT_S:
            raise CommandFailed(f"the traces did not land within {SETTLE_TIMEOUT_S:.0f} s; see {demo.log}")
        seen = _print_news(demo, seen, started)
        time.sleep(_POLL_S)
    interruption.check()
    _print_news(demo, seen, started)
    # The page reads the database too, so it is asked before anybody queries that by hand.
    address = demo.timeline_address()
    _print_end(demo, len(expected))
    click.echo(f"\ntimeline   {address}")
    if is_once:
        click.echo("           answered; off a terminal, or with --once, the demo ends here and its pages with it")
        return
    click.echo("\nThe worker goes on consuming, and showing it. Ctrl-C stops it, and leaves the database.")
    try:
        while True:
            interruption.check()
            demo.check()
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        click.echo("\nstopping")


def _print_news(demo: Any, seen: list[Any], started: float) -> list[Any]:
    """Print the traces that are new or have changed."""
    rows: list[Any] = demo.runs()
    for row in rows:
        if row not in seen:
            tokens = f"{row.tokens:>9,} tokens" if row.tokens is not None else f"{'':>9}"
            click.echo(
                f"{time.monotonic() - started:5.1f} s  {row.run_id[:8]}  {row.workflow:<10} {row.status:<10}"
                f" {row.attempts:>2} attempts, {row.retries} retried, {row.calls:>2} calls, {row.open_gates} open gates"
                f" {tokens}"
            )
    return rows


def _print_end(demo: Any, record_count: int) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from worker.demo import EXAMPLE_QUERY  # noqa: PLC0415

    click.echo(f"\n{record_count} records, byte for byte what `trace-projector project` makes of the same messages")
    click.echo(f"database   {demo.database}")
    click.echo(f"settings   {demo.config}")
    click.echo(f"try        {_query_command(demo, EXAMPLE_QUERY)}\n")
    table = Table(box=None, pad_edge=False)
    names, rows = demo.query(EXAMPLE_QUERY)
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console(width=110).print(table)


def _query_command(demo: Any, sql: str) -> str:
    flat = " ".join(sql.split())
    code = f'import duckdb; duckdb.connect("{demo.database}", read_only=True).sql("{flat}").show()'
    return f"{sys.executable} -c '{code}'"
