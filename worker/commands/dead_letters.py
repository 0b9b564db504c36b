"""`trace-projector dead-letters`: list them, look at one, count them, and project their messages again."""

import base64
from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from worker.cli import EXIT_FAILED, CommandFailed, Invocation
from worker.commands.broker import TIME_HELP, echo_json, echo_table, on_broker, time_text, time_window

LIST_LIMIT = 100
REDRIVE_LIMIT = 10_000
_VERDICTS = {
    "projected": "projected",
    "ignored": "ignored",
    "partial": "partly refused",
    "refused": "still refused",
    "gone": "gone",
    "foreign": "no source message",
}


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which letters are meant."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
        click.option("--until", metavar="TIME", help="Only letters written before this."),
        click.option("--since", metavar="TIME", help=f"Only letters written since {TIME_HELP}."),
        click.option("--reason", "reasons", multiple=True, help="Only this reason code; may be given again."),
        click.option("--topic", "topics", multiple=True, help="Only about this topic; may be given again."),
    ):
        command = option(command)
    return command


def _limit_option(default: int, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--limit", type=click.IntRange(min=1), default=default, show_default=True, help=f"{what} at most so many."
    )


def _filter(topics: tuple[str, ...], reasons: tuple[str, ...], since: str | None, until: str | None) -> Any:
    from worker.dead_letters.box import LetterFilter  # noqa: PLC0415  (late, like every heavy import of a command)

    return LetterFilter(frozenset(topics), frozenset(reasons), *time_window(since, until))


@click.group("dead-letters")
def dead_letters_group() -> None:
    """List, show, count and redrive the messages that could not be projected.

    A letter says where its message stands and why it was refused, never what it says.
    """


@dead_letters_group.command(
    "list",
    epilog="""\b
Examples:
  trace-projector dead-letters list
  trace-projector dead-letters list --topic workflow-runs --reason invalid_json --since 2h
""",
)
@filter_options
@_limit_option(LIST_LIMIT, "Print")
@click.pass_obj
def list_command(invocation: Invocation, /, *, as_json: bool, limit: int, **which: Any) -> None:
    """List dead letters in the order of their topics, partitions and offsets."""
    from worker.dead_letters.box import list_letters  # noqa: PLC0415  (late, as above)

    letters = on_broker(list_letters(invocation.settings(), _filter(**which)))
    if as_json:
        shown = [_letter_json(kept) for kept in letters[:limit]]
        echo_json({"letters": shown, "count": len(letters), "leftOut": max(0, len(letters) - limit)})
        return
    rows = [
        (
            kept.name,
            kept.letter.reason + (" (a part)" if kept.letter.is_partial else ""),
            kept.letter.field or "-",
            kept.letter.byte_length,
            time_text(kept.letter.timestamp_ms),
            time_text(kept.written_ms),
        )
        for kept in letters[:limit]
    ]
    if rows:
        header = ("message", "reason", "field", "bytes", "sent", "dead-lettered")
        echo_table(header, rows, numbers=("bytes",))
    if len(letters) > limit:
        click.echo(f"{len(letters) - limit:,} more; --limit prints them", err=True)
    click.echo(f"{len(letters):,} dead letters", err=True)


@dead_letters_group.command(
    "stats",
    epilog="""\b
Examples:
  trace-projector dead-letters stats
  trace-projector dead-letters stats --since 7d --json
""",
)
@filter_options
@click.pass_obj
def stats_command(invocation: Invocation, /, *, as_json: bool, **which: Any) -> None:
    """Count dead letters by topic and reason."""
    from worker.dead_letters.box import count_letters, list_letters  # noqa: PLC0415  (late, as above)

    counts = count_letters(on_broker(list_letters(invocation.settings(), _filter(**which))))
    if as_json:
        echo_json(
            [
                {
                    "topic": count.topic,
                    "reason": count.reason,
                    "letters": count.letters,
                    "partial": count.partial,
                    "oldest": count.oldest_ms,
                    "newest": count.newest_ms,
                }
                for count in counts
            ]
        )
        return
    if counts:
        header = ("topic", "reason", "letters", "of parts", "oldest", "newest")
        rows = [(*count[:4], time_text(count.oldest_ms), time_text(count.newest_ms)) for count in counts]
        echo_table(header, rows, numbers=("letters", "of parts"))
    click.echo(f"{sum(count.letters for count in counts):,} dead letters", err=True)


@dead_letters_group.command(
    "show",
    epilog="""\b
Examples:
  trace-projector dead-letters show workflow-runs/0/1042
  trace-projector dead-letters show workflow-runs/0/1042 --content
""",
)
@click.argument("place", metavar="TOPIC/PARTITION/OFFSET")
@click.option("--content", is_flag=True, help="Read the message from its topic and print it, as sensitive as it is.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def show_command(invocation: Invocation, place: str, *, content: bool, as_json: bool) -> int:
    """Show one dead letter; its message only with --content."""
    from worker.dead_letters.box import look_at  # noqa: PLC0415  (late, as above)

    topic, partition, offset = _place(place)
    kept, found = on_broker(look_at(invocation.settings(), topic, partition, offset, with_message=content))
    if kept is None:
        raise CommandFailed(f"there is no dead letter about {place}; `dead-letters list` lists them")
    document = _letter_json(kept)
    if found is not None and found.message is not None:
        document["content"] = {"key": _bytes_json(found.message.key), "value": _bytes_json(found.message.value)}
    if as_json:
        echo_json(document)
    else:
        _echo_letter(kept, document)
    if found is not None and found.message is None:
        click.echo(f"the message cannot be read: {found.gone}", err=True)
        return EXIT_FAILED
    return 0


@dead_letters_group.command(
    "redrive",
    epilog="""\b
Examples:
  trace-projector dead-letters redrive --dry-run
  trace-projector dead-letters redrive --topic workflow-runs --reason invalid_field --limit 500
  trace-projector dead-letters redrive --place workflow-runs/0/1042
""",
)
@filter_options
@click.option("--place", "places", metavar="TOPIC/PARTITION/OFFSET", multiple=True, help="Only this one; repeatable.")
@click.option("--dry-run", is_flag=True, help="Say what would become of each, and write nothing.")
@_limit_option(REDRIVE_LIMIT, "Redrive")
@click.pass_obj
def redrive_command(
    invocation: Invocation,
    /,
    *,
    as_json: bool,
    places: tuple[str, ...],
    dry_run: bool,
    limit: int,
    **which: Any,
) -> int:
    """Project the messages of dead letters again, as this release does it; workers may go on meanwhile.

    Each message is read again from its topic by its offset. A letter is taken back once the facts are durable. One
    whose message is refused again, or is not there any more, stays. Exit code 1 means that some stayed.
    """
    from worker.redrive import redrive  # noqa: PLC0415  (late, as above)

    for place in places:
        _place(place)
    wanted = _filter(**which)._replace(names=frozenset(places))
    results = on_broker(redrive(invocation.settings(), wanted, limit, dry_run=dry_run))
    missing = sorted(wanted.names - {result.kept.name for result in results})
    if missing and len(results) < limit:
        raise CommandFailed(f"there is no such dead letter about {missing[0]}; `dead-letters list` lists them")
    counts = Counter(result.verdict for result in results)
    staying = [result for result in results if not result.is_settled]
    if as_json:
        rows = [
            {**_letter_json(one.kept), "verdict": one.verdict, "detail": one.detail, "facts": one.facts}
            for one in results
        ]
        echo_json({"dryRun": dry_run, "counts": dict(counts), "letters": rows})
    else:
        for one in staying:
            click.echo(f"{one.kept.name}  stays: {_VERDICTS[one.verdict]}: {one.detail}")
        told = ", ".join(f"{counts[verdict]:,} {text}" for verdict, text in _VERDICTS.items() if counts[verdict])
        prefix = "dry run, nothing written: " if dry_run else ""
        click.echo(f"{prefix}{len(results):,} dead letters: {told or 'nothing to redrive'}", err=True)
    return EXIT_FAILED if staying else 0


# ------------------------------------------------------------------------------------------------------------ printing


def _place(text: str) -> tuple[str, int, int]:
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.partition("/")
    if not (topic and partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        raise click.UsageError(f"{text} is no TOPIC/PARTITION/OFFSET such as workflow-runs/0/1042")
    return topic, int(partition), int(offset)


def _letter_json(kept: Any) -> dict[str, Any]:
    from worker.dead_letters.letter import letter_json  # noqa: PLC0415  (late, as above)

    letter = kept.letter
    return {**letter_json(letter), "lastOffset": letter.last_offset, "deadLetteredAt": kept.written_ms}


def _echo_letter(kept: Any, document: dict[str, Any]) -> None:
    from worker.views.text import shown  # noqa: PLC0415

    for name in (
        "topic",
        "partition",
        "offset",
        "lastOffset",
        "reason",
        "field",
        "byteLength",
        "projectionVersion",
        "partial",
    ):
        value = document[name]
        text = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        click.echo(f"{name:<18} {text}")
    click.echo(f"{'timestamp':<18} {time_text(kept.letter.timestamp_ms)}")
    click.echo(f"{'deadLetteredAt':<18} {time_text(kept.written_ms)}")
    for name, data in document.get("content", {}).items():
        text = "null" if data is None else shown(data["text"]) if "text" in data else f"base64 {data['base64']}"
        click.echo(f"{name:<18} {text}")


def _bytes_json(data: bytes | None) -> dict[str, str] | None:
    """Give bytes as text, or in base64 where they are no UTF-8."""
    if data is None:
        return None
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
