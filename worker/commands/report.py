"""`trace-projector report`: a run's timeline as one file that a browser shows without anything else."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from worker.cli import CommandFailed, Invocation
from worker.commands.reports import no_run_text, place_options, places_of, records_of


@click.command(
    "report",
    epilog="""\b
Examples:
  trace-projector report run-7 --html run-7.html --from fixtures/runs/example
  trace-projector report run-7 --html run-7.html --from duckdb:traces.duckdb
  trace-projector report run-7 --html - --from jsonl:traces.jsonl > run-7.html

Exit codes: 0 written, 1 there is no such run or a file had dead letters, 2 wrong usage.
""",
)
@click.argument("run_id", metavar="RUN")
@click.argument("more_places", metavar="[URL|PATH]...", nargs=-1)
@click.option(
    "--html",
    "target",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Where to write it; - is standard output.",
)
@place_options
@click.pass_obj
def report_command(
    invocation: Invocation,
    /,
    run_id: str,
    more_places: tuple[str, ...],
    *,
    target: Path,
    places: tuple[str, ...],
    **origin: Any,
) -> int:
    """Write the timeline of one run as one HTML file, script and style in it, that asks nothing of any network.

    It shows what was read: what comes from files is not redacted, and the page says so; what comes from a sink is
    redacted as its export was.
    """
    from projections.reports.timeline import RECORD_KINDS_READ, timeline  # noqa: PLC0415  (late, as everywhere)
    from worker.web.render import View, render_report  # noqa: PLC0415

    found = places_of(invocation, places + more_places, **origin)
    records, code = records_of(found, RECORD_KINDS_READ, run_id)
    laid_out = timeline(records, run_id)
    if laid_out is None:
        raise CommandFailed(no_run_text(run_id, found, records))
    page = render_report(View("", False if found.files else None), laid_out).encode("utf-8", "backslashreplace")
    if str(target) == "-":
        sys.stdout.buffer.write(page)
    else:
        _write(target, page)
    return code


def _write(target: Path, page: bytes) -> None:
    """Put the file in its place at once, for nobody but its owner, since it may be unredacted."""
    try:
        descriptor, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(page)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandFailed(f"cannot write {target}: {error.strerror or type(error).__name__}") from error
