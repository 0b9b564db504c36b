"""`trace-projector harnesses`: which transcripts are on this machine, and where; nothing of them is read but whose."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson

from worker.cli import Invocation
from worker.commands.project import check_harness
from worker.harnesses import HARNESSES
from worker.harnesses.contract import Harness, Place, Wanted
from worker.harnesses.discovery import (
    Discovery,
    Found,
    NotWritten,
    Unavailable,
    chosen_places,
    default_places,
    discover,
    find_conversation,
)
from worker.views.text import shown

_FILES_SHOWN_MAX = 20


def places_of(names: tuple[str, ...], paths: tuple[Path, ...]) -> dict[str, list[Place] | Unavailable]:
    """Give the places to look into: the chosen paths for the one named harness, or every harness's own places."""
    for name in names:
        check_harness(name)
    if paths:
        if len(names) != 1:
            raise click.UsageError("PATHs are of one harness; say which by --harness NAME")
        return {names[0]: chosen_places(HARNESSES[names[0]], paths)}
    return {name: default_places(HARNESSES[name], os.environ) for name in names or HARNESSES}


@click.command(
    "harnesses",
    epilog="""\b
Examples:
  trace-projector harnesses
  trace-projector harnesses --conversation 0fae0449-64d3-4788-8622-d3a47d82c14b --cwd ~/src/app
  trace-projector harnesses --harness harn runs/
  trace-projector harnesses --json
""",
)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--harness", "names", metavar="NAME", multiple=True, help="Only this one; may be given again.")
@click.option("--conversation", metavar="ID", help="Only the files of the conversation with this native id.")
@click.option(
    "--cwd",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where that conversation's program ran: a hint where to look first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a harness.")
@click.pass_obj
def harnesses_command(
    invocation: Invocation,
    paths: tuple[Path, ...],
    *,
    names: tuple[str, ...],
    conversation: str | None,
    cwd: Path | None,
    as_json: bool,
) -> None:
    """Show which transcripts are found on this machine, not written yet, or unavailable.

    Claude Code is looked for in CLAUDE_CONFIG_DIR or ~/.claude, Codex in CODEX_HOME or ~/.codex; the others, and these
    two elsewhere, by PATH and one --harness.
    """
    del invocation  # nothing of the settings says where transcripts are
    wanted = None if conversation is None else Wanted(conversation, None if cwd is None else str(cwd.absolute()))
    for name, places in places_of(names, paths).items():
        found = places if isinstance(places, Unavailable) else _look(HARNESSES[name], places, wanted)
        if as_json:
            click.echo(orjson.dumps({"harness": name, **_fields(found)}).decode())
            continue
        for line in _lines(name, found):
            click.echo(line)


def _look(harness: Harness, places: list[Place], wanted: Wanted | None) -> Discovery:
    return discover(places) if wanted is None else find_conversation(harness, places, wanted)


def _fields(found: Discovery) -> dict[str, Any]:
    if isinstance(found, Unavailable):
        return {"outcome": "unavailable", "reason": found.reason}
    passed_over = [{"path": shown(str(path)), "reason": reason} for path, reason in found.passed_over]
    if isinstance(found, NotWritten):
        return {
            "outcome": "not written",
            "expected": [shown(str(path)) for path in found.expected],
            "passedOver": passed_over,
        }
    files = [{"path": shown(str(file.path)), "bytes": file.size_bytes} for file in found.files]
    return {"outcome": "found", "files": files, "passedOver": passed_over}


def _lines(name: str, found: Discovery) -> Iterator[str]:
    if isinstance(found, Unavailable):
        yield f"{name:<12} unavailable: {found.reason}"
        return
    if isinstance(found, NotWritten):
        yield f"{name:<12} not written; expected at"
        for path in found.expected:
            yield f"  {shown(str(path))}"
    else:
        yield from _found_lines(name, found)
    for path, reason in found.passed_over:
        yield f"  passed over {shown(str(path))}: {reason}"


def _found_lines(name: str, found: Found) -> Iterator[str]:
    size_bytes = sum(file.size_bytes for file in found.files)
    yield f"{name:<12} found {len(found.files)} files, {size_bytes:,} bytes"
    for file in found.files[:_FILES_SHOWN_MAX]:
        yield f"  {file.size_bytes:>13,}  {shown(str(file.path))}"
    if (rest := len(found.files) - _FILES_SHOWN_MAX) > 0:
        yield f"  and {rest} more (--json lists all)"
