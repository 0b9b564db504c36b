"""`trace-projector erase`: everything about a run or a conversation goes, for good."""

from typing import Any

import click

from worker.cli import CommandFailed, Invocation
from worker.commands.broker import echo_json, echo_table, on_broker
from worker.settings import mask_url


@click.command(
    "erase",
    epilog="""\b
Examples:
  trace-projector erase --run run-7
  trace-projector erase --conversation conversation:claude-code:laptop:0a6f… --wait
""",
)
@click.option("--run", "run_id", metavar="ID", help="Erase this run, and the calls and costs of its attempts.")
@click.option(
    "--conversation", "ref", metavar="REF", help="Erase this conversation: conversation:HARNESS:NAMESPACE:ID."
)
@click.option("--wait", "waits", is_flag=True, help="Wait until running workers have taken it out of every export.")
@click.option(
    "--stalled-after-s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="With --wait: give up when nothing moves for so long.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def erase_command(
    invocation: Invocation, *, run_id: str | None, ref: str | None, waits: bool, stalled_after_s: float, as_json: bool
) -> None:
    """Erase a run or a conversation, for good.

    The erasure is a message on a topic of its own that keeps everything and that every generation reads. Its rows leave
    all sinks, and neither a replay nor a rebuild nor a binding that comes later brings them back. Nothing undoes it.

    The messages themselves stay in the source topics, which belong to their producers.
    """
    from worker.erasure import Erasure, InvalidErasure, erase, wait_for_erasure  # noqa: PLC0415  (late, as elsewhere)
    from worker.progress import Stalled  # noqa: PLC0415

    if (run_id is None) == (ref is None):
        raise click.UsageError("give one of --run and --conversation")
    settings = invocation.settings()
    try:
        erasure = Erasure.of("run", run_id) if run_id is not None else Erasure.of("conversation", ref or "")
    except InvalidErasure as error:
        raise click.UsageError(str(error)) from error
    erased = on_broker(erase(settings, erasure))
    if as_json:
        echo_json(_json(erased))
    else:
        _echo(erased)
    if waits:
        try:
            on_broker(wait_for_erasure(settings, stalled_after_s))
        except Stalled as error:
            raise CommandFailed(f"the erasure is durable, but {error}") from error
        click.echo("gone from every export", err=True)


def _json(erased: Any) -> dict[str, Any]:
    exports = [{"name": export.name, "sink": mask_url(export.sink)} for export in erased.exports]
    return {
        "topic": erased.place.topic,
        "partition": erased.place.partition,
        "offset": erased.offset,
        "held": dict(erased.held),
        "exports": exports if erased.held else [],
    }


def _echo(erased: Any) -> None:
    topic, partition = erased.place
    click.echo(f"durable in topic {topic} partition {partition} offset {erased.offset}", err=True)
    if not erased.held:
        click.echo("no record of it was in the records log, so no export holds any", err=True)
        return
    told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(erased.held.items()))
    click.echo(f"records it takes out: {told}", err=True)
    if erased.exports:
        echo_table(("export", "sink"), [(export.name, mask_url(export.sink)) for export in erased.exports])
    else:
        click.echo("these settings have no exports; other settings of the same application may", err=True)
