"""`trace-projector export`: an export's sink, read anew."""

import sys

import click

from worker.cli import CommandFailed, Invocation
from worker.cli_broker import on_broker


@click.group("export")
def export_group() -> None:
    """Look after the sinks of exports."""


@export_group.command(
    "resync",
    epilog="""\b
Examples:
  trace-projector export resync public
""",
)
@click.argument("name")
@click.pass_obj
def resync_command(invocation: Invocation, *, name: str) -> None:
    """Read all records of export NAME again and remove rows that are no longer there.

    For an export that stood still for longer than deletions are kept, for one whose policy has changed (another key,
    other public_repos, other prices), and for a sink that was changed by something else. The new sink is filled beside
    the old one and takes its place in one step. Workers with this export have to be stopped meanwhile.
    """
    from worker.groups import GroupInUse  # noqa: PLC0415  (late, like every heavy import of a command)
    from worker.resync import resync  # noqa: PLC0415
    from worker.sink import SinkBusy, SinkFailed, SinkRefused  # noqa: PLC0415

    settings = invocation.settings()
    export = settings.export_named(name)

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{done:,} of {total:,} offsets", nl=False, err=True)

    try:
        resynced = on_broker(resync(settings, export, show))
    except (GroupInUse, SinkBusy, SinkFailed, SinkRefused) as error:
        raise CommandFailed(str(error)) from error
    withheld = f", {resynced.withheld:,} of them cannot leave" if resynced.withheld else ""
    click.echo(f"export {name} is read anew from {resynced.messages:,} messages{withheld}", err=True)
