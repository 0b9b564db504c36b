"""`trace-projector usage` and `trace-projector timeline`: reports over records, from sinks or straight from files."""

import difflib
import json
import os
import sys
import zoneinfo
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from worker.cli import EXIT_FAILED, EXIT_USAGE, CommandFailed, Invocation
from worker.commands.project import progress, source_files_or_fail, transcript_options
from worker.settings import Settings, mask_url

NEAR_RUNS_MAX = 3
# How wide to print when it is no terminal that is printed on and COLUMNS does not say: all of a table, some chart.
TABLE_CELLS = 10_000
CHART_CELLS = 160


class Places(NamedTuple):
    """Where records come from: sinks that are read back, and files that are projected."""

    urls: list[str]
    files: list[Any]
    settings: Settings
    prices: Any


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the records come from."""
    for option in (
        click.option(
            "--estimate-costs",
            is_flag=True,
            help="Of files: estimate the costs that no source gives, as `project` does.",
        ),
        transcript_options,
        click.option(
            "--from",
            "places",
            metavar="URL|PATH",
            multiple=True,
            help="duckdb:PATH or jsonl:PATH of an export, or files as for `project`.  [default: the one export's]",
        ),
    ):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command(
    "usage",
    epilog="""\b
Examples:
  trace-projector usage --from duckdb:traces.duckdb
  trace-projector usage --by model --since 2026-11-01 --tz Europe/Berlin --from jsonl:traces.jsonl
  trace-projector usage --by run --csv --from fixtures/runs/demo
  trace-projector usage --by day --from ~/.claude/projects --harness claude-code --namespace laptop --estimate-costs
""",
)
@click.argument("more_places", metavar="[URL|PATH]...", nargs=-1)
@click.option(
    "--by",
    type=click.Choice(["day", "model", "source", "run"]),
    default="day",
    show_default=True,
    help="What to sum by.",
)
@click.option("--since", metavar="TIME", help="From this day or time on: 2026-11-03, 2026-11-03T09:00, …+02:00.")
@click.option("--until", metavar="TIME", help="To the end of this day, or before this time.")
@click.option("--tz", "zone_name", default="UTC", show_default=True, help="Time zone of days, as in Europe/Berlin.")
@place_options
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV, unknown sums as empty cells.")
@click.pass_obj
def usage_command(  # noqa: PLR0913  (one argument per option)
    invocation: Invocation,
    /,
    more_places: tuple[str, ...],
    *,
    by: Any,
    since: str | None,
    until: str | None,
    zone_name: str,
    places: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    **origin: Any,
) -> int:
    """Sum up tokens, money and calls by day, model, source or run.

    Everything is counted once: of one conversation responses count rather than counters, and the last reading of a
    counter rather than those before. What a source does not say stays unknown, and is counted beside the known sum.

    Conversations that belong to no run are runs of their own when files are read. Exit code 1 means that a file had
    dead letters; the rest was counted all the same.
    """
    if as_json and as_csv:
        raise click.UsageError("give one of --json and --csv")
    from projections.errors import ProjectionError  # noqa: PLC0415  (late, like every heavy import of a command)
    from projections.reports.days import moment_text, window_of  # noqa: PLC0415
    from projections.reports.usage_report import RECORD_KINDS_READ, report_json, usage_report  # noqa: PLC0415
    from worker.views.text import Screen  # noqa: PLC0415
    from worker.views.usage import usage_csv, usage_table  # noqa: PLC0415

    zone = _zone(zone_name)
    try:
        window = window_of(since, until, zone)
    except ProjectionError as error:
        raise click.UsageError(_window_problem(error)) from error
    records, code = records_of(places_of(invocation, places + more_places, **origin), RECORD_KINDS_READ)
    report = usage_report(records, by, zone, window)
    if as_csv:
        click.echo(usage_csv(report), nl=False)
    elif as_json:
        bounds = {name: None if bound is None else moment_text(bound) for name, bound in window._asdict().items()}
        _echo_json({"by": by, "timeZone": zone_name, **bounds, **report_json(report)})
    else:
        _show(lambda console: usage_table(report, Screen.of(console)), TABLE_CELLS)
    return code


@click.command(
    "timeline",
    epilog="""\b
Examples:
  trace-projector timeline run-7 --from fixtures/runs/example
  trace-projector timeline run-7 --from duckdb:traces.duckdb
  trace-projector timeline run-7 --json --from jsonl:traces.jsonl
""",
)
@click.argument("run_id", metavar="RUN")
@click.argument("more_places", metavar="[URL|PATH]...", nargs=-1)
@place_options
@json_option
@click.pass_obj
def timeline_command(
    invocation: Invocation,
    /,
    run_id: str,
    more_places: tuple[str, ...],
    *,
    places: tuple[str, ...],
    as_json: bool,
    **origin: Any,
) -> int:
    """Show the attempts, calls, gates and spend of one run against time.

    `usage --by run` lists the ids of runs. Exit code 1 means that there is no such run or that a file had dead
    letters.
    """
    from projections.reports.timeline import RECORD_KINDS_READ, timeline  # noqa: PLC0415  (late, as above)
    from projections.reports.timeline_model import timeline_json  # noqa: PLC0415
    from worker.views.text import Screen  # noqa: PLC0415
    from worker.views.timeline import timeline_lines  # noqa: PLC0415

    found = places_of(invocation, places + more_places, **origin)
    records, code = records_of(found, RECORD_KINDS_READ, run_id)
    laid_out = timeline(records, run_id)
    if laid_out is None:
        raise CommandFailed(no_run_text(run_id, found, records))
    if as_json:
        _echo_json(timeline_json(laid_out))
    else:
        _show(lambda console: timeline_lines(laid_out, Screen.of(console)), CHART_CELLS)
    return code


def places_of(
    invocation: Invocation,
    places: tuple[str, ...],
    *,
    estimate_costs: bool,
    harness: str | None,
    namespace: str | None,
    native_id: str | None,
) -> Places:
    """Tell sinks from files, and take the only export there is when nothing was said."""
    from worker.price_file import estimate_prices, load_prices  # noqa: PLC0415
    from worker.record_reader import is_sink_url  # noqa: PLC0415

    settings = invocation.settings()
    places = places or (_only_sink(settings),)
    urls = [place for place in places if is_sink_url(place)]
    paths = tuple(Path(place) for place in places if not is_sink_url(place))
    files: list[Any] = []
    for path in paths:
        if path.suffix == ".duckdb":
            raise click.UsageError(f"{path} is no source file; for an export's file say duckdb:{path}")
    if paths or harness is not None:
        files, passed_over = source_files_or_fail(paths, settings, harness, namespace, native_id)
        for path, reason in passed_over:
            click.echo(f"passed over   {path}: {reason}", err=True)
    prices = load_prices(settings) if estimate_costs else estimate_prices(settings, None)
    return Places(urls, files, settings, prices)


def _only_sink(settings: Settings) -> str:
    sinks = [export.sink for export in settings.exports]
    if len(sinks) == 1:
        return sinks[0]
    known = ", ".join(map(mask_url, sinks)) or "none"
    raise click.UsageError(f"say where the records are: --from URL|PATH (sinks of the settings: {known})")


def records_of(places: Places, kinds: Collection[str], run_id: str | None = None) -> tuple[list[Any], int]:
    """Read all records, and give the exit code that what happened on the way comes to."""
    from worker.local_fold import Tally  # noqa: PLC0415
    from worker.record_reader import RecordsUnreadable  # noqa: PLC0415
    from worker.record_sources import project_records, read_records  # noqa: PLC0415
    from worker.source_files import SourceFileError  # noqa: PLC0415

    tally = Tally()
    try:
        records = list(read_records(places.urls, kinds, run_id))
        if places.files:
            with progress(places.files) as on_bytes:
                records += project_records(places.files, kinds, places.settings.limits, places.prices, tally, on_bytes)
    except RecordsUnreadable as error:
        raise CommandFailed(str(error), EXIT_USAGE if error.is_usage else EXIT_FAILED) from error
    except SourceFileError as error:
        raise CommandFailed(str(error)) from error
    if tally.dead_letter_count:
        click.echo(f"dead letters  {tally.dead_letter_count} are not in this report; `project` names them", err=True)
    return records, EXIT_FAILED if tally.dead_letter_count else 0


def no_run_text(run_id: str, places: Places, records: Iterable[Any]) -> str:
    """Say that there is no such run, and which have names like it."""
    from worker.record_sources import read_records  # noqa: PLC0415
    from worker.views.text import shown  # noqa: PLC0415

    known = {record["id"] for record in records if record["kind"] == "run"}
    known |= {record["id"] for record in read_records(places.urls, ("run",))}
    near = difflib.get_close_matches(run_id, sorted(known), n=NEAR_RUNS_MAX)
    near += [known_id for known_id in sorted(known) if known_id.startswith(run_id) and known_id not in near]
    hint = f"; near it: {', '.join(map(shown, near[:NEAR_RUNS_MAX]))}" if near else ""
    return f"no run {shown(run_id)} among {len(known)} runs{hint}"


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise click.UsageError(f"no time zone is named {name} (as in Europe/Berlin or UTC)") from error


def _window_problem(error: Any) -> str:
    if error.reason == "empty_window":
        return "nothing lies between --since and --until"
    return f"--{error.field} is no day or time: 2026-11-03, 2026-11-03T09:00, or with Z or an offset behind it"


def _echo_json(value: Any) -> None:
    # Escaped to ASCII, so that no name can do anything to a terminal.
    click.echo(json.dumps(value, indent=2))


def _show(renderables: Callable[[Any], Iterable[Any]], cells: int) -> None:
    """Print for people: with colours on a terminal and without anywhere else."""
    from rich.console import Console  # noqa: PLC0415

    is_measured = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    console = Console(width=None if is_measured else cells, markup=False, highlight=False, emoji=False)
    for renderable in renderables(console):
        console.print(renderable)
