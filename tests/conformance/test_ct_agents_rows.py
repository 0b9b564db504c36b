"""Rows of ctagents/*.jsonl: the readers of ct-agents sessions, and the classes of an event's fields."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from projections.formats import ct_agents
from projections.formats import ct_agents_reader as reader
from tests.conformance.rows import Row, assert_rows, differs, load_rows


def named(rows: list[Row]) -> list[Row]:
    return [{"name": row["id"], **row} for row in rows]


def with_errors(written: dict[str, Any], errors: Iterable[str]) -> dict[str, Any]:
    listed = list(errors)
    return {**written, "errors": listed} if listed else written


def dropped_json(dropped: Iterable[reader.Dropped]) -> list[dict[str, Any]]:
    return [{"index": item.index, "reason": item.reason} for item in dropped]


def know_type(row: Row) -> str | None:
    return differs({"known": reader.is_session_event_type(row["input"]["value"])}, row["expect"])


def validate(row: Row) -> str | None:
    check = {
        "validateEvent": reader.validate_event,
        "validatePersistedEvent": reader.validate_persisted_event,
    }[row["op"]]
    validation = check(row["input"]["event"])
    return differs(with_errors({"class": validation.event_class}, validation.errors), row["expect"])


def fold(row: Row) -> str | None:
    folded = reader.fold_events(row["input"]["events"])
    actual: dict[str, Any] = {"state": folded.state.as_json()}
    if folded.dropped:
        actual["dropped"] = dropped_json(folded.dropped)
    return differs(actual, row["expect"])


def ingest(row: Row) -> str | None:
    ingested = reader.ingest_persisted(row["input"]["events"])
    accepted = {session: [event["id"] for event in events] for session, events in ingested.accepted_by_session.items()}
    return differs({"acceptedBySession": accepted, "dropped": dropped_json(ingested.dropped)}, row["expect"])


def parse(row: Row) -> str | None:
    envelope = reader.parse_envelope(row["input"]["envelope"])
    actual: dict[str, Any] = {"kind": envelope.kind}
    if envelope.event is not None:
        actual["eventId"] = envelope.event["id"]
    if envelope.value is not None:
        actual["value"] = envelope.value
    return differs(with_errors(actual, envelope.errors), row["expect"])


def fold_stream(row: Row) -> str | None:
    return differs({"state": reader.fold_stream(row["input"]["envelopes"]).state.as_json()}, row["expect"])


def validate_record(row: Row) -> str | None:
    errors = reader.validate_session_record(row["input"]["record"])
    return differs(with_errors({"valid": not errors}, errors), row["expect"])


CHECKS: dict[str, Callable[[Row], str | None]] = {
    "isSessionEventType": know_type,
    "validateEvent": validate,
    "validatePersistedEvent": validate,
    "foldEvents": fold,
    "ingestPersisted": ingest,
    "parseEnvelope": parse,
    "foldStream": fold_stream,
    "validateSessionRecord": validate_record,
}


def check(row: Row) -> str | None:
    return CHECKS[row["op"]](row)


def test_the_21_core_types_are_known_and_nothing_else(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "ctagents/event_types.jsonl")), check)


def test_events_are_core_application_or_invalid_as_in_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "ctagents/event_validation.jsonl")), check)


def test_events_fold_into_the_state_of_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "ctagents/state_fold.jsonl")), check)


def test_stored_events_are_accepted_and_dropped_as_in_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "ctagents/ingest.jsonl")), check)


def test_envelopes_and_streams_read_as_in_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "ctagents/envelopes.jsonl")), check)


def test_session_records_are_valid_or_faulty_as_in_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "ctagents/session_record.jsonl")), check)


MARKED = "ZZMARKEDZZ"
# What a line fact may hold of a field: the value, or only its digest.
IN_CLEAR = {"id", "fact", "digest", "namespace"}
DIGESTED = {"sha256-only"}
# Two fields are used and enter no record: one orders the events, of the other only a digest is kept.
USED = {("*", "seq"), ("*", "idempotencyKey")}


def classes(vectors: Path) -> dict[tuple[str, str], str]:
    return {(row["event"], row["path"]): row["trace"] for row in load_rows(vectors, "ctagents/field_classes.jsonl")}


def rows_of(table: Any, prefix: str) -> set[tuple[str, str]]:
    """Give a table's fields as the rows name them: those of every event under ``*``."""
    return {(event if path.startswith(prefix) else "*", path) for event, paths in table.items() for path in paths}


def test_only_fields_that_a_trace_may_hold_are_read(vectors: Path) -> None:
    known = classes(vectors)
    allowed = {field for field, trace in known.items() if trace in IN_CLEAR} | USED
    assert allowed >= rows_of(ct_agents.READS, "payload.")
    digested = {field for field, trace in known.items() if trace in DIGESTED} | USED
    assert digested >= rows_of(ct_agents.DIGESTS, "payload.")


def stored(kind: str, payload: Any) -> dict[str, Any]:
    return {
        "id": "e",
        "seq": 1,
        "type": kind,
        "actor": {"type": "user", "id": "u"},
        "createdAt": "2026-05-01T08:00:00Z",
        "payload": payload,
        "parentEventId": "p",
        "sessionId": "s",
        "scope": {},
    }


PAYLOADS: dict[str, dict[str, Any]] = {
    "tool.called": {"toolName": "read"},
    "tool.completed": {"toolName": "read"},
    "tool.failed": {"toolName": "read", "error": {"message": ""}},
    "tool.interrupted": {"toolName": "read", "reason": "abort_signal"},
    "assistant.output.completed": {"text": ""},
    "agent.action.requested": {"kind": "ask_user"},
    "user.action.resolved": {"kind": "ask_user"},
}


def with_marked(value: dict[str, Any], path: str, kind: str) -> dict[str, Any]:
    name, _dot, rest = path.partition(".")
    if rest:
        return {**value, name: with_marked(value.get(name, {}), rest, kind)}
    marked: Any = {"array": [MARKED], "object": {MARKED: MARKED}}.get(kind.removesuffix("?"), MARKED)
    return {**value, MARKED if name == "*" else name: marked}


def leak(row: Row) -> str | None:
    for kind, payload in PAYLOADS.items():
        if row["event"] in {"*", kind}:
            body = ct_agents.read_line(with_marked(stored(kind, payload), row["path"], row["type"]), b"line")
            if isinstance(body, str):
                return f"{kind} said {body}, so nothing was checked"
            if MARKED in json.dumps(body):
                return f"is in the line fact of {kind}"
    return None


def test_no_field_that_a_trace_may_not_hold_reaches_a_line_fact(vectors: Path) -> None:
    rows = [
        {"name": f"{row['event']} {row['path']}", **row}
        for row in load_rows(vectors, "ctagents/field_classes.jsonl")
        # Numbers and enumerations hold no marked text; the other events make no line fact at all.
        if row["type"].removesuffix("?") in {"string", "unknown", "object", "array"}
        and row["event"] in {"*", *PAYLOADS}
    ]
    hidden = [row for row in rows if row["trace"] not in IN_CLEAR]
    assert {row["trace"] for row in hidden} == {"never", "drop", "sha256-only"}
    assert_rows(hidden, leak)


def test_events_without_a_place_in_a_trace_make_no_line_fact(vectors: Path) -> None:
    kinds = {event for event, _path in classes(vectors)} - {"*", *PAYLOADS}
    assert {ct_agents.read_line(stored(kind, MARKED), b"line") for kind in kinds} == {"no_trace_line"}
