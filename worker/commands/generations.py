"""`trace-projector generations`, `rebuild`, `promote` and `drop`: another generation beside the one that serves."""

import sys
from collections.abc import Callable

import click

from worker.cli import CommandFailed, Invocation
from worker.commands.broker import echo_json, echo_table, json_option, on_broker, time_text

stalled_option = click.option(
    "--stalled-after-s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Give up when nothing moves for so long.",
)


def show_behind() -> Callable[[str, int], None]:
    """Show on a terminal how far roles are behind."""
    shown: dict[str, int] = {}

    def show(role: str, behind: int) -> None:
        if sys.stderr.isatty() and shown.get(role) != behind:
            shown[role] = behind
            click.echo(f"{role}: {behind:,} behind", err=True)

    return show


@click.group(
    "generations",
    invoke_without_command=True,
    epilog="""\b
Examples:
  trace-projector generations
  trace-projector generations --json
""",
)
@json_option
@click.pass_context
def generations_group(context: click.Context, *, as_json: bool) -> None:
    """List the generations: which one serves, and of which projection each is.

    A generation is bound to one version of the projection, and to its topics as they were when it was started. A worker
    that finds something else stops and says what to do.
    """
    if context.invoked_subcommand is not None:
        return
    from worker.generations.binding import generation_rows, list_generations  # noqa: PLC0415  (late, as elsewhere)

    rows = generation_rows(on_broker(list_generations(context.obj.settings())))
    if as_json:
        echo_json(rows)
        return
    shown = [
        (row["generation"], row["state"], row["projectionVersion"], row["origin"], time_text(row["startedAt"]))  # type: ignore[arg-type]
        for row in rows
    ]
    if shown:
        echo_table(("generation", "state", "version", "made from", "started"), shown, numbers=("generation", "version"))
    else:
        click.echo("no generation was ever started: start a worker", err=True)


@generations_group.command(
    "accept",
    epilog="""\b
Examples:
  trace-projector generations accept
""",
)
@json_option
@click.pass_obj
def accept_command(invocation: Invocation, *, as_json: bool) -> None:
    """Take the source topics as they are now for those of this generation.

    For topics that were given more partitions, or made anew with the same messages. What a source has lost stays lost,
    and a tombstone hides only what its own partition held.
    """
    from worker.generations.binding import accept_topics  # noqa: PLC0415  (late, as elsewhere)

    taken = on_broker(accept_topics(invocation.settings()))
    if as_json:
        echo_json({"accepted": list(taken)})
        return
    for text in taken:
        click.echo(f"accepted: {text}")
    if not taken:
        click.echo("the topics are as this generation knows them", err=True)


@click.command(
    "rebuild",
    epilog="""\b
Examples:
  trace-projector rebuild
  trace-projector rebuild --from-facts
  trace-projector rebuild --accept-loss --no-fill
""",
)
@click.option("--accept-loss", is_flag=True, help="Build from what the sources still hold.")
@click.option("--from-facts", is_flag=True, help="Build from the facts of the serving generation, then from sources.")
@click.option("--no-fill", is_flag=True, help="Only start it; workers with generation = N then fill it.")
@stalled_option
@json_option
@click.pass_obj
def rebuild_command(
    invocation: Invocation, *, accept_loss: bool, from_facts: bool, no_fill: bool, stalled_after_s: float, as_json: bool
) -> None:
    """Make all records anew, as the next generation, while the one that serves goes on.

    It has facts, records and groups of its own. This command starts it and runs its roles until they have caught up;
    its exports are filled out of sight beside the present ones. Run it again after an interruption, or to catch up.
    Then `verify` compares the two, and `promote` lets readers see the new one.

    With --from-facts the facts that the serving generation has of the sources are taken over. That is enough where only
    what follows from facts has changed, and the only way where a source no longer reaches back.
    """
    from worker.groups import GroupInUse  # noqa: PLC0415  (late, as elsewhere)
    from worker.lanes import StopWorkerError  # noqa: PLC0415
    from worker.progress import Stalled  # noqa: PLC0415
    from worker.rebuild import LossRefused, begin, fill  # noqa: PLC0415
    from worker.sink import SinkRefused  # noqa: PLC0415

    if accept_loss and from_facts:
        raise click.UsageError("--from-facts loses nothing that --accept-loss would have to accept")
    settings = invocation.settings()
    try:
        rebuilding = on_broker(begin(settings, accept_loss=accept_loss, from_facts=from_facts))
        generation = rebuilding.settings.generation
        click.echo(f"generation {generation} {'was started' if rebuilding.is_new else 'goes on'}", err=True)
        if not no_fill:
            on_broker(fill(rebuilding, stalled_after_s, show_behind()))
            click.echo(f"generation {generation} has caught up; next: verify, promote", err=True)
        if as_json:
            echo_json({"generation": generation, "isNew": rebuilding.is_new, "hasCaughtUp": not no_fill})
    except (GroupInUse, LossRefused, SinkRefused, Stalled, StopWorkerError) as error:
        raise CommandFailed(str(error)) from error


@click.command(
    "promote",
    epilog="""\b
Examples:
  trace-projector promote
  trace-projector promote 2
""",
)
@click.argument("generation", required=False, type=click.IntRange(min=1))
@stalled_option
@json_option
@click.pass_obj
def promote_command(invocation: Invocation, *, generation: int | None, stalled_after_s: float, as_json: bool) -> None:
    """Let readers see the records of GENERATION (default: the newest), all at once for each export.

    It waits until that generation has caught up, so a worker of it, or `rebuild`, has to have run. Files change in one
    step each; workers of both generations hear of it and go on, the old one out of sight until it is dropped, so that
    it can be promoted again. Run this where the exports' files are.
    """
    from worker.progress import Stalled  # noqa: PLC0415  (late, as elsewhere)
    from worker.promotion import PromotionRefused, promote  # noqa: PLC0415
    from worker.sink import SinkRefused  # noqa: PLC0415
    from worker.sink_switch import instead_of_switching  # noqa: PLC0415

    settings = invocation.settings()
    try:
        chosen, switched = on_broker(promote(settings, generation, stalled_after_s, show_behind()))
    except (PromotionRefused, SinkRefused, Stalled) as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        exports = [{"name": one.export.name, "isSwitched": one.is_switched} for one in switched]
        echo_json({"generation": chosen, "exports": exports})
    for one in () if as_json else switched:
        told = "switched" if one.is_switched else f"cannot be switched: {instead_of_switching(one.export.sink)}"
        click.echo(f"export {one.export.name}: {told}")
    click.echo(f"generation {chosen} serves", err=True)
    if settings.generation != chosen:
        click.echo(f"set generation = {chosen} in the settings for what is to come", err=True)


@click.command(
    "drop",
    epilog="""\b
Examples:
  trace-projector drop 1 --dry-run
  trace-projector drop 1
""",
)
@click.argument("generation", type=click.IntRange(min=1))
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@json_option
@click.pass_obj
def drop_command(invocation: Invocation, *, generation: int, dry_run: bool, as_json: bool) -> None:
    """Remove a GENERATION that does not serve: its topics, its groups, and its rows beside sinks.

    Nothing brings it back. Its workers have to be stopped.
    """
    from worker.groups import GroupInUse  # noqa: PLC0415  (late, as elsewhere)
    from worker.promotion import PromotionRefused, drop  # noqa: PLC0415
    from worker.sink import SinkRefused  # noqa: PLC0415

    try:
        dropped = on_broker(drop(invocation.settings(), generation, dry_run=dry_run))
    except (GroupInUse, PromotionRefused, SinkRefused) as error:
        raise CommandFailed(str(error)) from error
    beside = [export.name for export in dropped.beside]
    if as_json:
        echo_json(
            {
                "generation": generation,
                "dryRun": dry_run,
                "topics": dropped.topics,
                "groups": dropped.groups,
                "rowsOfExports": beside,
            }
        )
        return
    for kind, names in (("topic", dropped.topics), ("group", dropped.groups), ("rows of export", beside)):
        for name in names:
            click.echo(f"{kind} {name}")
    click.echo("dry run, nothing removed" if dry_run else f"generation {generation} is dropped", err=True)
