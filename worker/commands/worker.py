"""`trace-projector worker` (alias `start`) and `trace-projector topics`."""

import asyncio
import logging

import click
import structlog

from worker.cli import CommandFailed, Invocation
from worker.settings import Settings

WORKER_HELP = """Run the worker: all roles, or those given.

    Every role is one consumer group, so any number of workers may run side by side. A worker stops on Ctrl-C or SIGTERM
    after finishing what it holds.
"""
_WORKER_EPILOG = """\b
Examples:
  trace-projector --config trace-projector.toml worker
  trace-projector --config trace-projector.toml worker --role project --role fold
  trace-projector --config trace-projector.toml worker --role export:public
"""
_role_option = click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="project, fold, export or export:NAME; may be given again."
)


def _run_worker(invocation: Invocation, roles: tuple[str, ...]) -> int:
    settings = invocation.settings()
    if roles:
        settings = settings.with_roles(roles)
    from worker.app import run_worker  # noqa: PLC0415  (Faust takes a second to load)

    return run_worker(settings)


@click.command("worker", help=WORKER_HELP, epilog=_WORKER_EPILOG)
@_role_option
@click.pass_obj
def worker_command(invocation: Invocation, roles: tuple[str, ...]) -> int:
    """Run the worker."""
    return _run_worker(invocation, roles)


@click.command(
    "start", help=WORKER_HELP, short_help="Run the worker (another name for `worker`).", epilog=_WORKER_EPILOG
)
@_role_option
@click.pass_obj
def start_command(invocation: Invocation, roles: tuple[str, ...]) -> int:
    """Run the worker."""
    return _run_worker(invocation, roles)


@click.group("topics")
def topics_group() -> None:
    """Create the topics that the worker needs."""


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
@click.pass_obj
def topics_create_command(invocation: Invocation, *, sources: bool, partitions: int) -> None:
    """Create the topics of this application that are missing: facts, records, dead letters, erasures."""
    settings = invocation.settings()
    for topic in asyncio.run(_create(settings, partitions if sources else None)):
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
