"""`trace-projector explain`: which source messages made a record, or why there is none."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from worker.cli import EXIT_FAILED, CommandFailed, Invocation
from worker.commands.broker import echo_json, json_option
from worker.commands.project import source_files_or_fail, transcript_options
from worker.settings import Settings
from worker.source_files import SourceFileError, SourceMessage, read_messages

MESSAGES_SHOWN_MAX = 200


@click.command(
    "explain",
    epilog="""\b
Examples:
  trace-projector explain run-7/review --from fixtures/runs/example
  trace-projector explain workflow:run-7:draft:0:1 --from fixtures/runs/example
  trace-projector explain run-7 --json --from fixtures/runs/example
  trace-projector --config my.toml explain run-7 --from kafka:
  trace-projector --config my.toml explain hmac-sha256:… --export public --from kafka://broker:9092
""",
)
@click.argument("record_id", metavar="ID")
@click.argument("more_places", metavar="[URL|PATH]...", nargs=-1)
@click.option(
    "--from",
    "places",
    metavar="URL|PATH",
    multiple=True,
    required=True,
    help="Where the source messages are: files as for `project`, kafka: (the settings' brokers) or kafka://HOST:PORT.",
)
@click.option("--export", "export_name", metavar="NAME", help="ID is a redacted one of this export.")
@click.option(
    "--unbound",
    type=click.Choice(["hold", "standalone"]),
    help="As it was projected; by default standalone for files, and the setting for Kafka.",
)
@transcript_options
@json_option
@click.pass_obj
def explain_command(  # noqa: PLR0913  (one argument per option)
    invocation: Invocation,
    record_id: str,
    more_places: tuple[str, ...],
    *,
    places: tuple[str, ...],
    export_name: str | None,
    unbound: Any,
    harness: str | None,
    namespace: str | None,
    native_id: str | None,
    as_json: bool,
) -> int:
    """Print which source messages made the record ID, or why nothing was made.

    Of the messages that reach the record, a set is printed that makes it byte for byte and of which none can be
    spared. Exit code 1 means that there is no such record.
    """
    settings = invocation.settings()
    # `--from A B` reads as one option with two values, and so it is taken.
    places += more_places
    urls = [place for place in places if place.startswith("kafka:")]
    paths = tuple(Path(place) for place in places if not place.startswith("kafka:"))
    files = source_files_or_fail(paths, settings, harness, namespace, native_id)[0] if paths else []

    from worker.explain import collect, explain  # noqa: PLC0415  (late, like every heavy import of a command)
    from worker.record_subject import subject_of  # noqa: PLC0415

    def messages() -> Iterator[SourceMessage]:
        for file in files:
            yield from read_messages(file, settings.limits)
        for url in urls:
            yield from _kafka_messages(url, settings)

    how = unbound or ("standalone" if paths else settings.unbound)
    subject = subject_of(record_id)
    try:
        evidence = collect(messages(), settings.limits, subject)
    except SourceFileError as error:
        raise CommandFailed(str(error)) from error
    if export_name is not None:
        record_id = _clear_id(record_id, settings, export_name, evidence, how)
        subject = subject_of(record_id)
    explanations = explain(record_id, subject, evidence, how)
    message_count = evidence.tally.messages.total()
    if as_json:
        echo_json({"messages": message_count, "records": [_json(explanation) for explanation in explanations]})
    else:
        for explanation in explanations:
            for line in explanation_lines(explanation, message_count):
                click.echo(line)
    return EXIT_FAILED if explanations[0].kind is None else 0


def _json(explanation: Any) -> dict[str, Any]:
    return {
        "id": explanation.id,
        "kind": explanation.kind,
        "madeBy": [{"source": part.source, "place": part.place} for part in explanation.made_by],
        "isSmallest": explanation.is_smallest,
        "idle": dict(explanation.idle),
        "reasons": explanation.reasons,
        "refusals": [
            {"source": one.source, "place": one.place, "outcome": one.outcome} for one in explanation.refusals
        ],
    }


def explanation_lines(explanation: Any, message_count: int) -> Iterator[str]:
    """Write an explanation for a person; no line holds anything of a message's content."""
    if explanation.kind is None:
        yield f"{explanation.id}: no such record"
        for reason in explanation.reasons:
            yield f"  {reason}"
        for refusal in explanation.refusals[:MESSAGES_SHOWN_MAX]:
            yield f"  {refusal.source:<15} {refusal.place}: {refusal.outcome}"
        return
    made_by = explanation.made_by
    yield f"{explanation.kind} {explanation.id}: made by {len(made_by)} of {message_count} messages"
    for part in made_by[:MESSAGES_SHOWN_MAX]:
        yield f"  {part.source:<15} {part.place}"
    if len(made_by) > MESSAGES_SHOWN_MAX:
        yield f"  and {len(made_by) - MESSAGES_SHOWN_MAX} more"
    if not explanation.is_smallest:
        yield "  (too many to try one by one: some of these may not be needed)"
    if explanation.idle:
        counts: Counter[str] = explanation.idle
        listed = ", ".join(f"{source} {count}" for source, count in sorted(counts.items()))
        yield f"  {counts.total()} more messages are about the same things and change nothing in it ({listed})"


def _clear_id(redacted_id: str, settings: Settings, export_name: str, evidence: Any, unbound: Any) -> str:
    """Find the record whose id an export redacts to the one that was given."""
    from worker.explain import find_redacted  # noqa: PLC0415

    found = find_redacted(redacted_id, settings.export_named(export_name), evidence, unbound)
    if found is None:
        raise CommandFailed(f"no record of these sources has that id in export {export_name}")
    return found


def _kafka_messages(url: str, settings: Settings) -> list[SourceMessage]:
    from worker.source_topics import SourceTopicError, read_source_topics  # noqa: PLC0415

    servers = url.removeprefix("kafka:").removeprefix("//").rstrip("/")
    chosen = settings.model_copy(update={"bootstrap_servers": servers}) if servers else settings
    try:
        return asyncio.run(read_source_topics(chosen))
    except SourceTopicError as error:
        raise CommandFailed(str(error)) from error
