"""`trace-projector worker`, alias `start`."""

import click

from worker.cli import Invocation

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
