"""`trace-projector topics`: the topics that the worker needs, made and looked at."""

import asyncio
import logging

import click
import structlog

from worker.cli import EXIT_FAILED, CommandFailed, Invocation
from worker.commands.broker import echo_findings, echo_json, json_option, on_broker
from worker.settings import Settings


@click.group("topics")
def topics_group() -> None:
    """Create the topics that the worker needs, and check them."""


@topics_group.command(
    "create",
    epilog="""\b
Examples:
  trace-projector --config trace-projector.toml topics create
  trace-projector topics create --sources --partitions 4
""",
)
@click.option("--sources", is_flag=True, help="Create missing source topics too (for a try; producers own them).")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Partitions of created source topics.",
)
@json_option
@click.pass_obj
def topics_create_command(invocation: Invocation, *, sources: bool, partitions: int, as_json: bool) -> None:
    """Create the topics of this application that are missing: facts, records, dead letters, erasures."""
    settings = invocation.settings()
    topics = asyncio.run(_create(settings, partitions if sources else None))
    if as_json:
        echo_json({"topics": topics})
        return
    for topic in topics:
        click.echo(topic)


async def _create(settings: Settings, source_partitions: int | None) -> list[str]:
    from worker.source_topics import SourceTopicError, create_source_topics  # noqa: PLC0415
    from worker.topics import StartError, own_topics, prepare_topics  # noqa: PLC0415

    # The worker logs what it creates; this command prints it.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        created = [] if source_partitions is None else await create_source_topics(settings, source_partitions)
        await prepare_topics(settings, ())
    except (SourceTopicError, StartError) as error:
        raise CommandFailed(str(error)) from error
    return [*created, *own_topics(settings)]


@topics_group.command(
    "check",
    epilog="""\b
Examples:
  trace-projector --config trace-projector.toml topics check
  trace-projector --config trace-projector.toml topics check --strict --json

Exit codes: 0 nothing is wrong, 1 something is, 2 the settings cannot be read.
""",
)
@click.option("--strict", is_flag=True, help="Warnings make exit code 1, too.")
@json_option
@click.pass_obj
def topics_check_command(invocation: Invocation, *, strict: bool, as_json: bool) -> int:
    """Check the topics of this application and of its sources: there, kept as they have to be, replicated.

    What `doctor` says of topics, and nothing else; each finding names the command or setting that mends it. Nothing is
    written.
    """
    from worker.doctor.topics import examine_topics  # noqa: PLC0415  (late, like every heavy import of a command)

    findings, topics = on_broker(examine_topics(invocation.settings()))
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        echo_json({"ok": not findings, "findings": [finding._asdict() for finding in findings], "topics": topics})
    else:
        echo_findings(findings)
        told = f"errors: {errors}, warnings: {len(findings) - errors}" if findings else "nothing is wrong"
        click.echo(f"{told} (looked at {len(topics)} topics)")
    return EXIT_FAILED if errors or (strict and findings) else 0
