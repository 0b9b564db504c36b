"""`trace-projector replay`: source messages projected once more, beside running workers or by them."""

import re
import sys
from typing import Any

import click

from worker.cli import EXIT_INTERRUPTED, CommandFailed, Invocation
from worker.commands.broker import TIME_HELP, echo_json, echo_table, on_broker, time_window

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/s)?")


class _RateType(click.ParamType):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _RATE.fullmatch(str(value))
        if match is None or not float(match[1]):
            self.fail("give messages a second, as in 500/s", param, ctx)
        return float(match[1])


@click.command(
    "replay",
    epilog="""\b
Examples:
  trace-projector replay --dry-run
  trace-projector replay --topic transcripts --since 7d --rate 2000/s
  trace-projector replay --from-offsets workflow-runs/0/1042 --from-offsets workflow-runs/1/988
  trace-projector replay --move-offsets --since 2026-11-03
""",
)
@click.option("--topic", "topics", multiple=True, help="Only this source topic; may be given again.")
@click.option("--since", metavar="TIME", help=f"Messages since {TIME_HELP}.  [default: the beginning]")
@click.option("--until", metavar="TIME", help="Messages before this only.")
@click.option(
    "--from-offsets", "offsets", metavar="TOPIC/PARTITION/OFFSET", multiple=True, help="From here; may be given again."
)
@click.option("--rate", type=_RateType(), metavar="RATE", help="At most so many messages a second, as in 500/s.")
@click.option(
    "--move-offsets", is_flag=True, help="Move the group's offsets instead; workers do it when started again."
)
@click.option("--accept-loss", is_flag=True, help="With --move-offsets: pass over messages that nobody has read.")
@click.option("--dry-run", is_flag=True, help="Read and count, and write or move nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def replay_command(  # noqa: PLR0913  (one argument per option)
    invocation: Invocation,
    *,
    topics: tuple[str, ...],
    since: str | None,
    until: str | None,
    offsets: tuple[str, ...],
    rate: float | None,
    move_offsets: bool,
    accept_loss: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Project source messages again, in this generation, at any time.

    Without --move-offsets this process reads what the workers have already committed and publishes the facts once more;
    workers may run meanwhile. Where the projection has not changed, nothing changes and no sink is written. Ctrl-C
    pauses: it prints how to go on.

    With --move-offsets the workers read it again themselves. Their group must have no members then: stop the workers,
    or those with the role project, move, and start them again.
    """
    from worker.groups import GroupInUse  # noqa: PLC0415  (late, like every heavy import of a command)
    from worker.replay import ReplayRefused, Selection  # noqa: PLC0415

    window = time_window(since, until)
    selection = Selection(frozenset(topics), window.since_ms, window.until_ms, _offsets(offsets))
    if move_offsets and rate is not None:
        raise click.UsageError("--rate is for this process; workers whose offsets were moved go at their own speed")
    if accept_loss and not move_offsets:
        raise click.UsageError("--accept-loss goes with --move-offsets")
    settings = invocation.settings()
    try:
        if move_offsets:
            return _move(settings, selection, dry_run=dry_run, accept_loss=accept_loss, as_json=as_json)
        return _replay(settings, selection, rate, dry_run=dry_run, as_json=as_json)
    except (GroupInUse, ReplayRefused) as error:
        raise CommandFailed(str(error)) from error


def _offsets(texts: tuple[str, ...]) -> dict[Any, int]:
    from worker.kafka import TopicPartition  # noqa: PLC0415

    found = {}
    for text in texts:
        topic, _, rest = text.partition("/")
        partition, _, offset = rest.partition("/")
        if not (topic and partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
            raise click.UsageError(f"{text} is no TOPIC/PARTITION/OFFSET such as workflow-runs/0/1042")
        found[TopicPartition(topic, int(partition))] = int(offset)
    return found


def _replay(settings: Any, selection: Any, rate: float | None, *, dry_run: bool, as_json: bool) -> int:
    from worker.replay import replay  # noqa: PLC0415

    shows = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if shows:
            click.echo(f"\r{done:,} of {total:,} offsets", nl=False, err=True)

    replayed = on_broker(replay(settings, selection, rate=rate, dry_run=dry_run, on_progress=show))
    if shows:
        click.echo(err=True)
    tally = replayed.tally
    if as_json:
        echo_json(
            {
                "dryRun": dry_run,
                "messages": tally.messages,
                "projected": tally.projected,
                "facts": replayed.facts,
                "ignored": dict(tally.ignored),
                "deadLettered": dict(tally.dead_lettered),
                "rest": [f"{place.topic}/{place.partition}/{offset}" for place, offset in replayed.rest.items()],
            }
        )
    else:
        prefix = "dry run, nothing written: " if dry_run else ""
        click.echo(
            f"{prefix}{tally.messages:,} messages: {tally.projected:,} projected ({replayed.facts:,} facts), "
            f"{sum(tally.ignored.values()):,} ignored, {sum(tally.dead_lettered.values()):,} dead-lettered",
            err=True,
        )
    if not replayed.rest:
        return 0
    words = [f"--from-offsets {place.topic}/{place.partition}/{offset}" for place, offset in replayed.rest.items()]
    click.echo(f"paused; to go on: replay {' '.join(words)}", err=True)
    return EXIT_INTERRUPTED


def _move(settings: Any, selection: Any, *, dry_run: bool, accept_loss: bool, as_json: bool) -> int:
    from worker.replay import move_offsets  # noqa: PLC0415

    moves = on_broker(move_offsets(settings, selection, dry_run=dry_run, accept_loss=accept_loss))
    if as_json:
        rows = [
            {**move._asdict(), "place": f"{move.place.topic}/{move.place.partition}/{move.target}"} for move in moves
        ]
        echo_json({"dryRun": dry_run, "moves": rows})
        return 0
    header = ("topic", "partition", "committed", "goes on at", "read again", "passed over")
    rows_shown = [
        (*move.place, "-" if move.committed is None else move.committed, move.target, move.again, move.passed_over)
        for move in moves
    ]
    if rows_shown:
        echo_table(header, rows_shown, numbers=header[1:])
    again = sum(move.again for move in moves)
    told = "dry run, nothing moved: " if dry_run else ""
    click.echo(f"{told}{again:,} messages to be read again when workers with the role project start", err=True)
    return 0
