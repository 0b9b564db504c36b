"""`trace-projector project`: files in, a sink replaced whole, and a summary of what happened to every message."""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from worker.cli import EXIT_FAILED, EXIT_USAGE, CommandFailed, Invocation
from worker.commands.broker import echo_json
from worker.harnesses import HARNESSES
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.source_files import SourceFile, SourceFileError, find_source_files
from worker.transcripts.files import PassedOver


def transcript_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say that paths are native transcript files."""
    for option in (
        click.option(
            "--native-id",
            metavar="ID",
            help="Conversation of the one transcript file, where the file does not name it.",
        ),
        click.option("--namespace", metavar="NAME", help="Namespace (corpus, host, account) of the transcript files."),
        click.option("--harness", metavar="NAME", help="PATHs are native transcript files, of claude-code or another."),
    ):
        command = option(command)
    return command


def unbound_option(meaning: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command that projects files the option that says what becomes of an unbound conversation."""
    return click.option(
        "--unbound", type=click.Choice(["hold", "standalone"]), default="standalone", show_default=True, help=meaning
    )


def source_files_or_fail(
    paths: tuple[Path, ...], settings: Settings, harness: str | None, namespace: str | None, native_id: str | None
) -> tuple[list[SourceFile], list[PassedOver]]:
    """Find the files to read, and turn what is wrong into one line."""
    if harness is None and (namespace is not None or native_id is not None):
        raise click.UsageError("--namespace and --native-id go with --harness")
    if harness is not None:
        check_harness(harness)
    try:
        return find_source_files(paths, settings, harness=harness, namespace=namespace, native_id=native_id)
    except SourceFileError as error:
        raise CommandFailed(str(error), EXIT_USAGE if error.usage else EXIT_FAILED) from error


def check_harness(harness: str) -> None:
    """Refuse the name of a harness whose transcripts nobody knows."""
    if harness not in HARNESSES:
        raise click.UsageError(f"no transcripts of harness {harness} can be read; there are: {', '.join(HARNESSES)}")


@click.command(
    "project",
    epilog="""\b
Examples:
  trace-projector project fixtures/runs/example --to - --no-redact
  trace-projector project topics/ --to duckdb:traces.duckdb --no-redact
  trace-projector project topics/ --to duckdb:traces.duckdb --no-redact --json
  trace-projector --config my.toml project topics/ --to jsonl:traces.jsonl --export public
  trace-projector project ~/.claude/projects --harness claude-code --namespace laptop \\
      --to duckdb:mine.duckdb --no-redact --estimate-costs
""",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--to", "url", metavar="URL", required=True, help="duckdb:PATH, jsonl:PATH, or - for JSONL on standard output."
)
@click.option("--export", "export_name", metavar="NAME", help="Redact as this export of the settings does.")
@click.option("--no-redact", is_flag=True, help="Write records as they are, as sensitive as the sources.")
@click.option(
    "--estimate-costs",
    is_flag=True,
    help="Estimate the costs that no source gives, as the setting estimate_costs does, by prices_file or our table.",
)
@unbound_option("What becomes of a conversation that no execution is bound to: nothing yet, or a run of its own.")
@transcript_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON document; not with --to -.")
@click.pass_obj
def project_command(  # noqa: PLR0913  (one argument per option)
    invocation: Invocation,
    paths: tuple[Path, ...],
    *,
    url: str,
    export_name: str | None,
    no_redact: bool,
    estimate_costs: bool,
    unbound: Any,
    harness: str | None,
    namespace: str | None,
    native_id: str | None,
    as_json: bool,
) -> int:
    """Project files into a sink, without Kafka.

    PATH is a directory of `<topic>.jsonl` files (workflow-runs, gate-decisions, ledger-changes, transcripts,
    erasures; one message value a line, or {"key": ID, "value": null} for a tombstone), one such file, or, with
    --harness, transcript files or directories of them.

    The target is written beside its place and replaces it whole at the end. Exit code 1 means that there were dead
    letters; everything else was written all the same.
    """
    if as_json and url == "-":
        raise click.UsageError("--to - gives standard output to the records, and --json to the summary; take one")
    settings = invocation.settings()
    export = _export(settings, export_name, no_redact=no_redact)
    files, passed_over = source_files_or_fail(paths, settings, harness, namespace, native_id)

    # Imported late: a mistyped option should not wait for a database driver.
    from worker.file_mode import TargetError, file_policy, project_files  # noqa: PLC0415
    from worker.price_file import estimate_prices, load_prices  # noqa: PLC0415

    prices = load_prices(settings) if estimate_costs else estimate_prices(settings, export)
    policy = file_policy(export, prices)
    for warning in policy.warnings:
        click.echo(f"warning: {warning}", err=True)
    try:
        with progress(files) as on_bytes:
            tally = asyncio.run(project_files(files, url, policy, settings.limits, unbound, on_bytes))
    except SourceFileError as error:
        raise CommandFailed(str(error)) from error
    except TargetError as error:
        raise CommandFailed(str(error), EXIT_USAGE if error.usage else EXIT_FAILED) from error
    for path, reason in passed_over:
        click.echo(f"passed over   {path}: {reason}", err=True)
    if as_json:
        amounts = {} if prices is None else {"amounts": Counter(tally.amounts.values()), "priceTable": prices.version}
        echo_json(summary_json(tally) | amounts)
        return EXIT_FAILED if tally.dead_letter_count else 0
    for line in summary_lines(tally):
        click.echo(line, err=True)
    if prices is not None:
        click.echo(f"{_row('amounts', Counter(tally.amounts.values()))} by price table {prices.version}", err=True)
    return EXIT_FAILED if tally.dead_letter_count else 0


def _export(settings: Settings, name: str | None, *, no_redact: bool) -> ExportSettings | None:
    """Give the export to redact by, or None when the user said not to redact; anything in between is refused."""
    if name is None:
        if not no_redact:
            raise click.UsageError("say how records leave: --export NAME redacts them, --no-redact does not")
        return None
    export = settings.export_named(name)
    if export.redact == no_redact:
        said = f"export {name} redacts, and --no-redact says not to" if no_redact else f"export {name} does not redact"
        raise click.UsageError(f"{said}; give one of --export NAME (a redacting one) and --no-redact")
    return export


@contextlib.contextmanager
def progress(files: list[SourceFile]) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("projecting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("projecting", total=sum(file.size_bytes for file in files))
        yield lambda size: progress.advance(task, size)


def summary_json(tally: Any) -> dict[str, Any]:
    """Give what happened to every message as JSON; nothing in it is of a message's content."""
    return {
        "messages": tally.messages,
        "facts": tally.facts,
        "records": tally.records,
        "held": tally.held,
        "ignored": _named(tally.ignored),
        "deadLetters": _named(tally.dead),
        "deadLettersInPart": _named(tally.partial),
        "refused": [
            {"place": one.place, "reason": one.reason, "field": one.field, "partial": one.is_partial}
            for one in tally.refused
        ],
    }


def summary_lines(tally: Any) -> Iterator[str]:
    """Say what happened to every message, in a fixed order; no line holds anything of a message's content."""
    yield _row("messages", tally.messages)
    yield f"{'facts':<13} {tally.facts}"
    yield _row("records", tally.records)
    if tally.held:
        yield _row("held", tally.held)
    if tally.ignored:
        yield _row("ignored", _named(tally.ignored))
    letters = _named(tally.dead) + Counter(
        {f"{name} (in part)": count for name, count in _named(tally.partial).items()}
    )
    yield _row("dead letters", letters)
    for letter in tally.refused:
        part = " (a part of it)" if letter.is_partial else ""
        yield f"  {letter.place}: {letter.reason}{f' in {letter.field}' if letter.field else ''}{part}"
    if (rest := tally.dead_letter_count - len(tally.refused)) > 0:
        yield f"  and {rest} more"


def _named(counts: "Counter[tuple[str, str]]") -> "Counter[str]":
    return Counter({f"{source} {reason}": count for (source, reason), count in counts.items()})


def _row(name: str, counts: "Counter[str]") -> str:
    parts = ", ".join(f"{key} {count}" for key, count in sorted(counts.items()))
    return f"{name:<13} {counts.total()}{f' ({parts})' if parts else ''}"
