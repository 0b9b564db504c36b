"""The command `trace-projector`: options, exit codes, and one clear line for whatever goes wrong.

Exit codes: 0 done, 1 failed or with dead letters, 2 wrong usage or wrong settings, 130 interrupted.
"""

import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from worker.garbage import collect_rarely

if TYPE_CHECKING:
    # Settings take longer to load than all the rest of a command that needs none.
    from worker.settings import Settings
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

    def settings(self) -> "Settings":
        """Read the settings this invocation asked for."""
        from worker.settings import load_settings  # noqa: PLC0415

        return load_settings(self.config)


class LazyCommand(NamedTuple):
    """Where a command is to be imported from, and what the list of commands says of it."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported only when one of them is used; listing imports none."""

    def __init__(self, *args: Any, lazy: dict[str, LazyCommand] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            module, attribute, _summary = self.lazy[cmd_name]
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command by the table, and everything else as any command does."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._summary(name)) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def _summary(self, name: str) -> str:
        return self.lazy[name].summary if name in self.lazy else self.commands[name].get_short_help_str()


_EPILOG = """\b
Examples:
  trace-projector project fixtures/runs/example --to - --no-redact
  trace-projector project runs/ --to duckdb:traces.duckdb --no-redact
  trace-projector --config trace-projector.toml config
  trace-projector --config trace-projector.toml worker
  trace-projector explain run-7/review --from fixtures/runs/example

\b
Exit codes:
  0    done
  1    failed, or something is wrong with what was looked at
  2    wrong usage or wrong settings
  130  interrupted

\b
Completion, in the start-up file of bash (zsh and fish: zsh_source, fish_source):
  eval "$(_TRACE_PROJECTOR_COMPLETE=bash_source trace-projector)"
"""


_COMMANDS: Final = {
    "config": LazyCommand(
        "worker.commands.config", "config_command", "Print the effective settings as TOML, secrets masked."
    ),
    "dead-letters": LazyCommand(
        "worker.commands.dead_letters",
        "dead_letters_group",
        "List, show, count and redrive what could not be projected.",
    ),
    "demo": LazyCommand(
        "worker.commands.demo", "demo_command", "Run it all here: a broker, sample runs, a worker, traces."
    ),
    "doctor": LazyCommand(
        "worker.commands.doctor", "doctor_command", "Find what is wrong with an installation, and how to mend it."
    ),
    "drop": LazyCommand("worker.commands.generations", "drop_command", "Remove a generation that does not serve."),
    "erase": LazyCommand("worker.commands.erase", "erase_command", "Erase a run or a conversation, for good."),
    "explain": LazyCommand(
        "worker.commands.explain", "explain_command", "Print which messages made a record, or why there is none."
    ),
    "export": LazyCommand(
        "worker.commands.export", "export_group", "Look after the sinks of exports, and export to files."
    ),
    "generations": LazyCommand(
        "worker.commands.generations", "generations_group", "List the generations, and which one serves."
    ),
    "harnesses": LazyCommand(
        "worker.commands.harnesses", "harnesses_command", "Show which transcripts are on this machine."
    ),
    "ledger": LazyCommand("worker.commands.ledger", "ledger_group", "Look at execution ledgers."),
    "open": LazyCommand("worker.commands.open", "open_command", "Open the timeline of a run, or the list of runs."),
    "price": LazyCommand(
        "worker.commands.price", "price_command", "Print what a model costs at a time, in US dollars."
    ),
    "privacy": LazyCommand(
        "worker.commands.privacy", "privacy_command", "Say what becomes of every field of every record in an export."
    ),
    "project": LazyCommand("worker.commands.project", "project_command", "Project files into a sink, without Kafka."),
    "promote": LazyCommand(
        "worker.commands.generations", "promote_command", "Let readers see the records of another generation."
    ),
    "rebuild": LazyCommand(
        "worker.commands.generations", "rebuild_command", "Make all records anew, as the next generation."
    ),
    "replay": LazyCommand(
        "worker.commands.replay", "replay_command", "Project source messages again, in this generation."
    ),
    "report": LazyCommand(
        "worker.commands.report", "report_command", "Write the timeline of one run as one HTML file."
    ),
    "schema": LazyCommand(
        "worker.commands.schema", "schema_command", "Print a JSON Schema (2020-12), or the names there are."
    ),
    "ship": LazyCommand("worker.commands.ship", "ship_command", "Ship transcript files into the transcripts topic."),
    "start": LazyCommand("worker.commands.worker", "start_command", "Run the worker (another name for `worker`)."),
    "status": LazyCommand(
        "worker.commands.status", "status_command", "Show per role and partition what is done and what lags."
    ),
    "timeline": LazyCommand(
        "worker.commands.reports", "timeline_command", "Show the attempts, calls, gates and spend of one run."
    ),
    "topics": LazyCommand(
        "worker.commands.topics", "topics_group", "Create the topics that the worker needs, and check them."
    ),
    "usage": LazyCommand(
        "worker.commands.reports", "usage_command", "Sum up tokens, money and calls by day, model, source or run."
    ),
    "verify": LazyCommand(
        "worker.commands.verify", "verify_command", "Compare the records of generations, or an export's sink."
    ),
    "worker": LazyCommand("worker.commands.worker", "worker_command", "Run the worker: all roles, or those given."),
}
"""By name, every command but the few that are at home here."""


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    lazy=_COMMANDS,
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
    if os.environ.get("NO_COLOR"):
        # What people set who want no colours on a terminal either (no-color.org).
        context.color = False


@cli.command(
    "version",
    epilog="""\b
Examples:
  trace-projector version
  trace-projector version --json
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document: the projection's version, too.")
def version_command(*, as_json: bool) -> None:
    """Print the version."""
    import importlib.metadata  # noqa: PLC0415  (reads mail headers, and loads what that takes)

    try:
        version = importlib.metadata.version(PROGRAM)
    except importlib.metadata.PackageNotFoundError:
        version = None
    if not as_json:
        click.echo(f"{PROGRAM} {version or '(not installed: run from its source)'}")
        return
    import json  # noqa: PLC0415  (as above)
    import platform  # noqa: PLC0415

    from projections.version import PROJECTION_VERSION  # noqa: PLC0415

    document = {"program": PROGRAM, "version": version, "projectionVersion": PROJECTION_VERSION}
    click.echo(json.dumps(document | {"python": platform.python_version()}, indent=2))


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code; every failure is one line on standard error."""
    collect_rarely()
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
    except CommandFailed as error:
        return _fail(str(error), error.exit_code, debug=debug)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED, debug=debug)
    except BrokenPipeError:
        # The reader of our output went away (`… | head`); Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except _settings_error() as error:
        for problem in error.problems[:-1]:
            click.echo(f"{PROGRAM}: {problem}", err=True)
        return _fail(error.problems[-1], EXIT_USAGE, debug=debug)
    except Exception as error:  # noqa: BLE001  (the last line of defence: a user never sees a bare traceback)
        # Its text may hold anything, content included, so only its type is said.
        return _fail(f"internal error ({type(error).__name__}); run again with --debug", EXIT_FAILED, debug=debug)
    return result if isinstance(result, int) else 0


def _settings_error() -> "type[SettingsError]":
    """Give the error of unusable settings; Python asks for it only when something went wrong."""
    from worker.settings_sections import SettingsError  # noqa: PLC0415

    return SettingsError


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
