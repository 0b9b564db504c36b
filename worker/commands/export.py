"""`trace-projector export`: an export's sink read anew, an export to files, and whether such files are whole."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from worker.cli import EXIT_FAILED, EXIT_USAGE, CommandFailed, Invocation
from worker.commands.broker import echo_json, json_option, on_broker
from worker.commands.project import (
    source_files_or_fail,
    summary_json,
    summary_lines,
    transcript_options,
    unbound_option,
)
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.source_files import SourceFile


@click.group("export")
def export_group() -> None:
    """Look after the sinks of exports, and export to files."""


@export_group.command(
    "resync",
    epilog="""\b
Examples:
  trace-projector export resync public
""",
)
@click.argument("name")
@json_option
@click.pass_obj
def resync_command(invocation: Invocation, *, name: str, as_json: bool) -> None:
    """Read all records of export NAME again and remove rows that are no longer there.

    For an export that stood still for longer than deletions are kept, for one whose policy has changed (another key,
    profile or filter, other public_repos, other prices), and for a sink that was changed by something else. The new
    sink is filled beside the old one and takes its place in one step. Workers with this export have to be stopped
    meanwhile.
    """
    from worker.groups import GroupInUse  # noqa: PLC0415  (late, like every heavy import of a command)
    from worker.resync import resync  # noqa: PLC0415
    from worker.sink import SinkBusy, SinkFailed, SinkRefused  # noqa: PLC0415

    settings = invocation.settings()
    export = settings.export_named(name)
    try:
        resynced = on_broker(resync(settings, export, _show_offsets))
    except (GroupInUse, SinkBusy, SinkFailed, SinkRefused) as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        echo_json({"export": name, **resynced._asdict()})
        return
    withheld = f", {resynced.withheld:,} of them cannot leave" if resynced.withheld else ""
    click.echo(f"export {name} is read anew from {resynced.messages:,} messages{withheld}", err=True)


def _show_offsets(done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{done:,} of {total:,} offsets", nl=False, err=True)


@export_group.command(
    "run",
    epilog="""\b
Examples:
  trace-projector --config my.toml export run public --to public-2026-11/
  trace-projector --config my.toml export run public --to out/ --from topics/
""",
)
@click.argument("name")
@click.option(
    "--to", "directory", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Directory of the files."
)
@click.option(
    "--from",
    "paths",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Files or directories as for `project`.  [default: the records log]",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["jsonl", "parquet"]),
    default="jsonl",
    show_default=True,
    help="What the files are.",
)
@unbound_option("With --from: what becomes of a conversation that no execution is bound to.")
@transcript_options
@json_option
@click.pass_obj
def run_command(  # noqa: PLR0913  (one argument per option)
    invocation: Invocation,
    *,
    name: str,
    directory: Path,
    paths: tuple[Path, ...],
    file_format: str,
    unbound: Any,
    harness: str | None,
    namespace: str | None,
    native_id: str | None,
    as_json: bool,
) -> int:
    """Write the records of export NAME, as its policy and filter let them out, into files of a directory, once.

    One file per kind, rows in the order of their ids, and `manifest.json`, which is written last: rows, bytes and
    SHA-256 of each file, the offsets that were read, and the policy. The same offsets give the same files. A directory
    that holds an export under another policy, or anything else, is refused.

    Exit code 1 means that it failed or, with --from, that there were dead letters; the rest was written all the same.
    """
    from worker.local_fold import Tally  # noqa: PLC0415  (late, as above)

    if not paths and (harness, namespace, native_id) != (None, None, None):
        raise click.UsageError("--harness, --namespace and --native-id go with --from")
    settings = invocation.settings()
    export = settings.export_named(name)
    tally = Tally()
    if paths:
        files, passed_over = source_files_or_fail(paths, settings, harness, namespace, native_id)
        for path, reason in passed_over:
            click.echo(f"passed over   {path}: {reason}", err=True)
        manifest = _export_files(settings, export, files, directory, file_format, unbound, tally)
        for line in () if as_json else summary_lines(tally):
            click.echo(line, err=True)
    else:
        manifest = _export_log(settings, export, directory, file_format)
    if as_json:
        document = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)
        echo_json({"manifest": document} | ({"summary": summary_json(tally)} if paths else {}))
        return EXIT_FAILED if tally.dead_letter_count else 0
    withheld = f"; {manifest.withheld:,} messages cannot leave" if manifest.withheld else ""
    rows = sum(file.rows for file in manifest.files if file.kind != "pricing")
    click.echo(f"export {name}: {rows:,} records in {len(manifest.files)} files of {directory}{withheld}", err=True)
    return EXIT_FAILED if tally.dead_letter_count else 0


def _export_log(settings: Settings, export: ExportSettings, directory: Path, file_format: str) -> Any:
    from worker.export_policy import policy_for  # noqa: PLC0415  (late, as above)
    from worker.file_exports.run import collect_log, export_to_files  # noqa: PLC0415

    with _failures():
        policy = policy_for(settings, export)
        _warn(policy)
        return export_to_files(
            export.name,
            policy,
            directory,
            file_format,
            lambda spill: on_broker(collect_log(settings, policy, spill, _show_offsets)),
        )


def _export_files(
    settings: Settings,
    export: ExportSettings,
    files: list[SourceFile],
    directory: Path,
    file_format: str,
    unbound: Any,
    tally: Any,
) -> Any:
    from worker.file_exports.run import collect_files, export_to_files  # noqa: PLC0415  (late, as above)
    from worker.file_mode import file_policy  # noqa: PLC0415
    from worker.price_file import estimate_prices  # noqa: PLC0415

    with _failures():
        policy = file_policy(export, estimate_prices(settings, export))
        _warn(policy)
        return export_to_files(
            export.name,
            policy,
            directory,
            file_format,
            lambda spill: collect_files(files, policy, settings.limits, unbound, tally, spill),
        )


def _warn(policy: Any) -> None:
    for warning in policy.warnings:
        click.echo(f"warning: {warning}", err=True)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn what is wrong outside of the program into the one line of a command."""
    from worker.file_exports.spill import FilesRefused  # noqa: PLC0415  (late, as above)
    from worker.sink import SinkRefused  # noqa: PLC0415
    from worker.source_files import SourceFileError  # noqa: PLC0415

    try:
        yield
    except (FilesRefused, SinkRefused, SourceFileError) as error:
        raise CommandFailed(str(error)) from error


@export_group.command(
    "verify",
    epilog="""\b
Examples:
  trace-projector export verify public-2026-11/
""",
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify_files_command(*, directory: Path, as_json: bool) -> int:
    """Compare the files of an export with its manifest.

    Exit code 1 means that a file is missing, truncated, altered or extra, or that the manifest is; each is named.
    """
    from worker.file_exports.files import verify_files  # noqa: PLC0415  (late, as above)
    from worker.file_exports.spill import FilesRefused  # noqa: PLC0415
    from worker.views.text import shown  # noqa: PLC0415

    try:
        problems = verify_files(directory)
    except FilesRefused as error:
        raise CommandFailed(str(error), EXIT_USAGE) from error
    if as_json:
        echo_json({"problems": [problem._asdict() for problem in problems]})
    else:
        for problem in problems:
            click.echo(f"{shown(problem.name)} {problem.problem}")
        click.echo(f"{len(problems):,} files are not as they were written" if problems else "whole", err=True)
    return EXIT_FAILED if problems else 0
