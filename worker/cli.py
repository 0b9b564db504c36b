"""The command `trace-projector`: options, exit codes, and one clear line for whatever goes wrong.

Exit codes: 0 done, 1 failed or with dead letters, 2 wrong usage or wrong settings, 130 interrupted.
"""

import importlib.metadata
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import click

from worker.settings import Settings, load_settings
from worker.settings_sections import SettingsError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
PROGRAM = "trace-projector"


class CommandFailed(Exception):  # noqa: N818  (an outcome of a command, not a fault of the program)
    """A command that could not do what it was asked; its text is the line that the user sees."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class Invocation(NamedTuple):
    """The global options of one invocation."""

    config: Path | None
    debug: bool

    def settings(self) -> Settings:
        """Read the settings this invocation asked for."""
        return load_settings(self.config)


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported only when one of them is used or listed."""

    modules: dict[str, tuple[str, str]]

    def __init__(self, *args: Any, modules: dict[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.modules:
            module, attribute = self.modules[cmd_name]
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)


_EPILOG = """\b
Examples:
  trace-projector project fixtures/runs/example --to - --no-redact
  trace-projector project runs/ --to duckdb:traces.duckdb --no-redact
  trace-projector --config trace-projector.toml config
  trace-projector --config trace-projector.toml worker
  trace-projector explain run-7/review --from fixtures/runs/example
"""


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    modules={
        "config": ("worker.commands.config", "config_command"),
        "dead-letters": ("worker.commands.dead_letters", "dead_letters_group"),
        "demo": ("worker.commands.demo", "demo_command"),
        "doctor": ("worker.commands.doctor", "doctor_command"),
        "drop": ("worker.commands.generations", "drop_command"),
        "erase": ("worker.commands.erase", "erase_command"),
        "explain": ("worker.commands.explain", "explain_command"),
        "export": ("worker.commands.export", "export_group"),
        "generations": ("worker.commands.generations", "generations_group"),
        "harnesses": ("worker.commands.harnesses", "harnesses_command"),
        "ledger": ("worker.commands.ledger", "ledger_group"),
        "open": ("worker.commands.open", "open_command"),
        "price": ("worker.commands.price", "price_command"),
        "privacy": ("worker.commands.privacy", "privacy_command"),
        "project": ("worker.commands.project", "project_command"),
        "promote": ("worker.commands.generations", "promote_command"),
        "rebuild": ("worker.commands.generations", "rebuild_command"),
        "replay": ("worker.commands.replay", "replay_command"),
        "report": ("worker.commands.report", "report_command"),
        "schema": ("worker.commands.schema", "schema_command"),
        "ship": ("worker.commands.ship", "ship_command"),
        "start": ("worker.commands.worker", "start_command"),
        "status": ("worker.commands.status", "status_command"),
        "timeline": ("worker.commands.reports", "timeline_command"),
        "topics": ("worker.commands.worker", "topics_group"),
        "usage": ("worker.commands.reports", "usage_command"),
        "verify": ("worker.commands.verify", "verify_command"),
        "worker": ("worker.commands.worker", "worker_command"),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="TRACE_PROJECTOR_CONFIG",
    help="Settings file (TOML). The environment (TRACE_PROJECTOR_…) wins over it.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(context: click.Context, config: Path | None, *, debug: bool) -> None:
    """Project workflow runs, gates, ledger changes and transcripts into deterministic traces."""
    context.obj = Invocation(config, debug)


@cli.command("version")
def version_command() -> None:
    """Print the version."""
    try:
        version = importlib.metadata.version(PROGRAM)
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed: run from its source)"
    click.echo(f"{PROGRAM} {version}")


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code; every failure is one line on standard error."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    debug = "--debug" in arguments
    if not debug:
        # Without logging set up, Python would print the client's complaints beside our own line. The worker sets it up.
        logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        result = cli.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        return _fail(_usage_line(error), error.exit_code, debug=debug)
    except SettingsError as error:
        for problem in error.problems[:-1]:
            click.echo(f"{PROGRAM}: {problem}", err=True)
        return _fail(error.problems[-1], EXIT_USAGE, debug=debug)
    except CommandFailed as error:
        return _fail(str(error), error.exit_code, debug=debug)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED, debug=debug)
    except BrokenPipeError:
        # The reader of our output went away (`… | head`); Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001  (the last line of defence: a user never sees a bare traceback)
        # Its text may hold anything, content included, so only its type is said.
        return _fail(f"internal error ({type(error).__name__}); run again with --debug", EXIT_FAILED, debug=debug)
    return result if isinstance(result, int) else 0


def _usage_line(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{text} (see {error.ctx.command_path} --help)"
    return text


def _fail(message: str, exit_code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    click.echo(f"{PROGRAM}: {message}", err=True)
    return exit_code
