"""Rows of ctagents/*.jsonl: the readers of ct-agents sessions."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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
