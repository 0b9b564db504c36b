"""`trace-projector config`: the effective settings as TOML, with every secret masked."""

import click

from worker.cli import Invocation
from worker.settings_text import describe_settings


@click.command(
    "config",
    epilog="""\b
Examples:
  trace-projector config
  trace-projector --config trace-projector.toml config
  TRACE_PROJECTOR_GENERATION=2 trace-projector config
""",
)
@click.pass_obj
def config_command(invocation: Invocation) -> None:
    """Print the effective settings as TOML, secrets masked.

    What the settings file and the environment leave out is printed with its default. Digest keys and headers are never
    printed: `key_env` is followed by whether that variable is set, `key_file` is given by its name.
    """
    click.echo(describe_settings(invocation.settings()), nl=False)
