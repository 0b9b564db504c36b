"""One record as its page shows it: every field, what it leads to, and the records that belong to it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from projections.reports.spend import Record, moment_of
from worker.views.text import shown

RELATED_MAX: Final = 100
VALUE_CHARACTERS_MAX: Final = 4_000
"""A longer text is cut on the page; sinks have all of it."""


class Target(NamedTuple):
    """Where a value leads: a record, or with the kind ``timeline`` a run's timeline."""

    kind: str
    id: str


class Field(NamedTuple):
    """One field: its path (``span.byteOffset``), its value as text, and what it leads to."""

    path: str
    text: str
    target: Target | None


class RecordView(NamedTuple):
    """A record, and others of its run beside it: those it names first, then those that name it, in the order of time.

    ``left_out`` counts those beyond the limit.
    """

    kind: str
    id: str
    at: str
    fields: tuple[Field, ...]
    span: tuple[Field, ...]
    related: tuple[tuple[str, Record], ...]
    left_out: int


def view_record(records: Iterable[Record], kind: str, record_id: str) -> RecordView | None:
    """Lay out one record among those of its run; None when it is not there."""
    known = {(record["kind"], record["id"]): record for record in records}
    record = known.get((kind, record_id))
    if record is None:
        return None
    flat = list(_flat(record, ""))
    related = list(_related(record, known))
    span = tuple(Field(path, text, None) for path, text in flat if path.startswith("span."))
    fields = tuple(
        Field(path, text, _target(path, record, known)) for path, text in flat if not path.startswith("span.")
    )
    return RecordView(
        kind, record_id, record["at"], fields, span, tuple(related[:RELATED_MAX]), max(0, len(related) - RELATED_MAX)
    )


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}[{index}]")
    else:
        yield path, _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = shown(str(value)[: VALUE_CHARACTERS_MAX + 1])
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}…"


def _target(path: str, record: Record, known: Mapping[tuple[str, str], Record]) -> Target | None:
    if path == "runId":
        return Target("timeline", record["runId"])
    if path == "attemptId" and ("attempt", record["attemptId"]) in known:
        return Target("attempt", record["attemptId"])
    return None


def _related(record: Record, known: Mapping[tuple[str, str], Record]) -> Iterator[tuple[str, Record]]:
    """Yield records beside this one, each once, with what they are to it."""
    mine = record["kind"], record["id"]
    attempt_id = record["id"] if record["kind"] == "attempt" else record.get("attemptId")
    others = sorted(
        (other for key, other in known.items() if key != mine and other["kind"] != "run"),
        key=lambda other: (moment_of(other["at"]), other["kind"], other["id"]),
    )
    for other in others:
        if record["kind"] == "attempt" and other.get("attemptId") == attempt_id:
            yield "in this attempt", other
        elif other["kind"] == "attempt" and other["id"] == attempt_id:
            yield "its attempt", other
        elif record["kind"] in ("call", "cost") and _is_same_response(record, other):
            yield "of the same transcript line", other
        elif _step(record) is not None and _step(record) == _step(other):
            yield "another attempt at the step", other


def _is_same_response(record: Record, other: Record) -> bool:
    span = record.get("span")
    return span is not None and span == other.get("span")


def _step(record: Record) -> tuple[str, int] | None:
    return (record["stepId"], record["iteration"]) if record["kind"] == "attempt" else None
