"""`trace-projector ledger show`: the execution records that a ledger dump folds to, one line each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson

from worker.cli import EXIT_FAILED, EXIT_USAGE, CommandFailed, Invocation

DEAD_LETTERS_SHOWN_MAX = 20

_HEADINGS = ("EXECUTION", "PHASE", "REV", "REQUEST KEY", "HARNESS", "AGENT", "RUNNER", "PREPARED", "LAST SEEN", "NOTES")


class Row(NamedTuple):
    """One execution: its folded record (None until its first row is known) and what is wrong with its rows."""

    execution_id: str
    record: dict[str, Any] | None
    held_count: int
    refused_count: int
    conflict_count: int


@click.group("ledger")
def ledger_group() -> None:
    """Look at execution ledgers."""


@ledger_group.command(
    "show",
    epilog="""\b
Examples:
  trace-projector ledger show fixtures/runs/example/ledger-changes.jsonl
  trace-projector ledger show dump.jsonl --json | jq -r 'select(.phase == "failed") | .requestKey'
""",
)
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One execution record a line, as JSON.")
@click.pass_obj
def ledger_show_command(invocation: Invocation, *, path: Path, as_json: bool) -> int:
    """Fold a ledger dump and print its executions, by the time they were prepared.

    FILE holds one message of the ledger-changes topic a line: a transition, an execution record, or both, in any order
    and as often as they like. Content (results, reasons of cancellations, evidence, prompts) is withheld.

    Transitions behind a missing one wait, and are said to. Exit code 1 means that lines could not be read as ledger
    rows; the others were folded all the same.
    """
    from worker.views.text import shown  # noqa: PLC0415  (late, like every heavy import of a command)

    rows, letters, letter_count = _fold_file(path, invocation.settings().limits)
    if as_json:
        for row in rows:
            if row.record is not None:
                click.echo(orjson.dumps(row.record))
        for row in rows:
            for note in _notes(row):
                click.echo(f"{shown(row.execution_id)}: {note}", err=True)
    else:
        for line in table_lines(rows):
            click.echo(line)
    for letter in letters:
        click.echo(letter, err=True)
    if letter_count > len(letters):
        click.echo(f"and {letter_count - len(letters)} more", err=True)
    return EXIT_FAILED if letter_count else 0


def _fold_file(path: Path, limits: Any) -> tuple[list[Row], list[str], int]:
    """Fold the messages of a file as the worker would; gives its executions and the lines that are no ledger rows."""
    from projections.aggregates.execution import Execution  # noqa: PLC0415
    from worker.local_fold import facts_of, project_source_message  # noqa: PLC0415
    from worker.source_files import SourceFile, SourceFileError, read_messages  # noqa: PLC0415

    executions: dict[str, Execution] = {}
    letters: list[str] = []
    letter_count = 0
    if not path.is_file():
        raise CommandFailed(f"{path}: {'is a directory' if path.is_dir() else 'no such file'}", EXIT_USAGE)
    try:
        for message in read_messages(SourceFile(path, "ledger-changes", 0, None, path.stat().st_size), limits):
            outcome = project_source_message(message, limits)
            if outcome.dead is not None:
                letter_count += 1
                if len(letters) < DEAD_LETTERS_SHOWN_MAX:
                    letters.append(f"{message.place}: {outcome.dead}{f' in {outcome.field}' if outcome.field else ''}")
            for fact in facts_of(outcome):
                name = fact.aggregate.partition(":")[2]
                executions.setdefault(name, Execution(name)).join(fact)
    except SourceFileError as error:
        raise CommandFailed(str(error)) from error
    rows = [
        Row(name, *execution.folded, execution.counters["event_conflicts"]) for name, execution in executions.items()
    ]
    known = (row for row in rows if row.record is not None or row.held_count or row.refused_count)
    return sorted(known, key=_age), letters, letter_count


def _age(row: Row) -> tuple[Any, ...]:
    from projections.lifecycle import instant_ms  # noqa: PLC0415

    if row.record is None:
        return (True, 0, row.execution_id)
    return (False, instant_ms(row.record["preparedAt"]), row.execution_id)


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Write executions as a table for people: a line each, under headings."""
    cells = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADINGS))]
    for row in cells:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    from worker.views.text import shown  # noqa: PLC0415

    record = row.record or {}
    seen = (
        record.get("phase"),
        str(record.get("revision", 0)),
        record.get("requestKey"),
        record.get("harness"),
        (record.get("agent") or {}).get("agentId"),
        record.get("runnerRef"),
        record.get("preparedAt"),
        record.get("lastObservedAt"),
    )
    # An id is anything but blank; a line break in one would break the table.
    return tuple(map(shown, (row.execution_id, *(text or "-" for text in seen), ", ".join(_notes(row)))))


def _notes(row: Row) -> Iterator[str]:
    revision = 0 if row.record is None else row.record["revision"]
    if row.refused_count:
        yield f"the transition at revision {revision} does not reduce"
    if row.held_count:
        plural = "s wait" if row.held_count > 1 else " waits"
        yield f"{row.held_count} transition{plural} for revision {revision}"
    if row.conflict_count:
        yield f"{row.conflict_count} revision{'s' if row.conflict_count > 1 else ''} with two bodies"
