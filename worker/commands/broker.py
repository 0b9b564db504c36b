"""What the commands share, most of all those that talk to a broker: how they run, fail, take times and print."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import click

from worker.cli import CommandFailed

_Result = TypeVar("_Result")
_AGO = re.compile(r"([0-9]+)(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

TIME_HELP = "a day or time (2026-11-03, 2026-11-03T09:00Z; UTC unless it says otherwise) or so long ago (90m, 2h, 7d)"


def on_broker(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the work of a command, and turn what is wrong outside of the program into its one line."""
    import structlog  # noqa: PLC0415  (late, like every heavy import of a command)

    from worker.kafka import quiet_abandoned_futures  # noqa: PLC0415
    from worker.topic_scan import BrokerFailed  # noqa: PLC0415
    from worker.topics import StartError  # noqa: PLC0415

    # The worker logs what it does; a command prints it.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        with asyncio.Runner() as runner:
            quiet_abandoned_futures(runner.get_loop())
            return runner.run(work)
    except (BrokerFailed, StartError) as error:
        raise CommandFailed(str(error)) from error


class TimeWindow(NamedTuple):
    """Milliseconds since 1970: from ``since_ms`` on, before ``until_ms``; None where it is open."""

    since_ms: int | None
    until_ms: int | None

    def holds(self, timestamp_ms: int) -> bool:
        """Whether a time lies in it."""
        return (self.since_ms is None or self.since_ms <= timestamp_ms) and (
            self.until_ms is None or timestamp_ms < self.until_ms
        )


def time_window(since: str | None, until: str | None) -> TimeWindow:
    """Read the options --since and --until."""
    from projections.errors import ProjectionError  # noqa: PLC0415
    from projections.reports.days import window_of  # noqa: PLC0415

    now = time.time()
    try:
        window = window_of(_instant(since, now), _instant(until, now), UTC)
    except ProjectionError as error:
        if error.reason == "empty_window":
            raise click.UsageError("nothing lies between --since and --until") from error
        raise click.UsageError(f"--{error.field} is no time: give {TIME_HELP}") from error
    bounds = [None if bound is None else bound[0] * 1000 + int(f"{bound[1]}000"[:3]) for bound in window]
    return TimeWindow(*bounds)


def _instant(text: str | None, now: float) -> str | None:
    ago = _AGO.fullmatch(text.strip()) if text is not None else None
    if ago is None:
        return text
    return datetime.fromtimestamp(now - int(ago[1]) * _SECONDS[ago[2]], UTC).isoformat()


def time_text(timestamp_ms: int) -> str:
    """Write a message's time as UTC; a message may have none."""
    if timestamp_ms < 0:
        return "-"
    return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def echo_findings(findings: Iterable[Any]) -> None:
    """Print what is wrong and how to mend it; coloured on a terminal."""
    colours = {"error": "red", "warning": "yellow"}
    for finding in findings:
        severity = click.style(finding.severity.upper(), fg=colours[finding.severity], bold=True)
        click.echo(f"{severity} {finding.about} [{finding.code}]\n  {finding.problem}\n  fix: {finding.fix}\n")


def echo_json(value: Any) -> None:
    """Print one JSON document, escaped to ASCII so that nothing in it can do anything to a terminal."""
    click.echo(json.dumps(value, indent=2))


def echo_table(header: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()) -> None:
    """Print a table; the columns named as numbers are set to the right."""
    right = set(numbers)
    cells = [list(header), *([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())
