"""`trace-projector verify`: two generations, or a sink and its log, record by record."""

from typing import Any

import click

from worker.cli import EXIT_FAILED, EXIT_USAGE, CommandFailed, Invocation
from worker.commands.broker import echo_json, on_broker
from worker.commands.generations import show_behind, stalled_option


@click.command(
    "verify",
    epilog="""\b
Examples:
  trace-projector verify
  trace-projector verify 1 2 --json
  trace-projector verify --export plain
""",
)
@click.argument("generations", metavar="[A B]", nargs=-1, type=click.IntRange(min=1))
@click.option("--export", "export_name", metavar="NAME", help="Compare this export's sink with the records log.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@stalled_option
@click.pass_obj
def verify_command(
    invocation: Invocation,
    *,
    generations: tuple[int, ...],
    export_name: str | None,
    as_json: bool,
    stalled_after_s: float,
) -> int:
    """Compare the records of generations A and B (default: the one that serves and the newest other).

    Both are waited for until they have caught up. The digests of runs are compared first, and where they differ each
    record and each of its fields is named, without what is in it. With --export a sink is compared with what its log
    and its policy say that it should hold.

    Exit code 1 means that there is a difference.
    """
    if len(generations) not in (0, 2) or (generations and export_name is not None):
        raise click.UsageError("give two generations, or none, or --export NAME")
    from worker.progress import Stalled  # noqa: PLC0415  (late, as elsewhere)
    from worker.record_reader import RecordsUnreadable  # noqa: PLC0415
    from worker.sink import SinkRefused  # noqa: PLC0415
    from worker.verify import NotComparable, verify_export, verify_generations  # noqa: PLC0415

    settings = invocation.settings()
    try:
        if export_name is not None:
            export = settings.export_named(export_name)
            verdict = on_broker(verify_export(settings, export, stalled_after_s, show_behind()))
        else:
            pair = (generations[0], generations[1]) if generations else None
            verdict = on_broker(verify_generations(settings, pair, stalled_after_s, show_behind()))
    except RecordsUnreadable as error:
        raise CommandFailed(str(error), EXIT_USAGE if error.is_usage else EXIT_FAILED) from error
    except (NotComparable, SinkRefused, Stalled) as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        echo_json(_json(verdict))
    else:
        _echo(verdict)
    return EXIT_FAILED if verdict.differences else 0


def _json(verdict: Any) -> dict[str, Any]:
    names = [side.name for side in verdict.sides]
    return {
        "sides": [side._asdict() for side in verdict.sides],
        "differences": [
            {
                "runId": one.run_id,
                "kind": one.kind,
                "id": one.id,
                "onlyIn": None if one.only_in is None else names[one.only_in],
                "fields": list(one.fields),
            }
            for one in verdict.differences
        ],
    }


def _echo(verdict: Any) -> None:
    from worker.views.text import shown  # noqa: PLC0415

    names = [side.name for side in verdict.sides]
    for one in verdict.differences:
        told = f"differs in {', '.join(one.fields)}" if one.only_in is None else f"only in {names[one.only_in]}"
        click.echo(f"run {shown(one.run_id)}  {one.kind} {shown(one.id)}  {told}")
    for side in verdict.sides:
        click.echo(f"{side.name}: {side.runs:,} runs, {side.records:,} records, digest {side.digest}", err=True)
    count = len(verdict.differences)
    click.echo(f"{count:,} records differ" if count else "equal", err=True)
