"""`trace-projector config`: the effective settings as TOML, with every secret masked."""

import tomllib

import click

from worker.cli import Invocation
from worker.commands.broker import echo_json, json_option
from worker.settings_text import describe_settings


@click.command(
    "config",
    epilog="""\b
Examples:
  trace-projector config
  trace-projector --config trace-projector.toml config
  trace-projector --config trace-projector.toml config --json
  TRACE_PROJECTOR_GENERATION=2 trace-projector config
""",
)
@json_option
@click.pass_obj
def config_command(invocation: Invocation, *, as_json: bool) -> None:
    """Print the effective settings as TOML, secrets masked.

    What the settings file and the environment leave out is printed with its default. Digest keys and headers are never
    printed: `key_env` is followed by whether that variable is set, `key_file` is given by its name.
    """
    text = describe_settings(invocation.settings())
    if as_json:
        # The same document, so that neither says more than the other.
        echo_json(tomllib.loads(text))
    else:
        click.echo(text, nl=False)
