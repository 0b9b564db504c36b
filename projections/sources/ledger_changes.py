"""The ledger-changes topic: transitions, execution records, or both in one row (spec: titan 9.4)."""

from contextlib import suppress
from hashlib import blake2b
from typing import Any

import orjson

from projections.canonical import canonical_json
from projections.errors import ProjectionError
from projections.facts import Fact
from projections.fields import Row, checked_time, native_text, whole_number
from projections.ids import split_attempt_id
from projections.lifecycle.checks import IDENTITY_FIELDS
from projections.lifecycle.errors import ExecutionTransitionError
from projections.lifecycle.ledger_feed import require_execution_record, require_ledger_transition
from projections.lifecycle.sanitize import sanitize_record, sanitize_transition
from projections.sources.envelope import Event
from projections.text import storable_text

NOT_WORKFLOW = "not_workflow"
_IDENTITY = frozenset(IDENTITY_FIELDS)


def project_event(event: Event) -> tuple[list[Fact], str | None, list[str]]:
    """Project one ledger row, its deletion, or a tombstone of its execution.

    A row whose request key is no attempt id is counted as ignored, and still stands as a fact, so that the
    transitions which follow it do not wait for it.
    """
    if event.value is None:
        return _project_deletion(event), None, []
    parts = _parts(Row(event.value))
    execution_ids = {execution_id for _key, _version, execution_id, _body in parts}
    if len(execution_ids) != 1:
        raise ProjectionError("invalid_field", "record.execution.executionId")
    aggregate = f"execution:{execution_ids.pop()}"
    facts = [Fact(aggregate, key, version, body, event.source) for key, version, _id, body in parts]
    return facts, NOT_WORKFLOW if any(_is_foreign(body) for _k, _v, _i, body in parts) else None, []


def _is_foreign(body: dict[str, Any]) -> bool:
    row = body.get("body", body)
    return "requestKey" in row and split_attempt_id(row["requestKey"]) is None


_Part = tuple[str, tuple[int | str, ...], str, dict[str, Any]]


def _parts(row: Row) -> list[_Part]:
    """Take a row apart into (fact key, version, execution id, body)."""
    transition, record = row.json("transition"), row.json("record")
    if transition is None and record is None:
        whole = row.value
        if "expectedRevision" in whole:
            transition = whole
        else:
            record = whole
    parts: list[_Part] = []
    event_id = row.text_or_none("eventId") if transition is None else Row(transition, "transition").raw("eventId")
    try:
        if record is not None:
            parts.append(_record_part(require_execution_record(record), event_id))
        if transition is not None:
            parts.append(_transition_part(require_ledger_transition(transition)))
    except ExecutionTransitionError as error:
        raise ProjectionError(error.reason, error.field) from None
    return parts


def _record_part(record: dict[str, Any], event_id: Any) -> _Part:
    """Make a record's fact; it keeps the id of the event that it came with, by which a tombstone finds it."""
    checked_time(record["preparedAt"], "record.preparedAt")
    record = _with_prompt(record)
    execution_id = native_text(record["execution"]["executionId"], "record.execution.executionId")
    revision = whole_number(record["revision"], "record.revision")
    body = sanitize_record(record) | ({"eventId": event_id} if isinstance(event_id, str) else {})
    return "record", (revision,), execution_id, _storable(body)


def _transition_part(transition: dict[str, Any]) -> _Part:
    """Make a transition's fact; its version is the revision that the transition makes.

    Two bodies of one revision are told apart by all of their content, so a digest of it stands beside what is kept:
    the greater of what is kept counts, then the greater digest.
    """
    if transition["kind"] == "prepare":
        checked_time(transition["occurredAt"], "transition.occurredAt")
    revision = whole_number(transition["expectedRevision"], "transition.expectedRevision")
    execution_id = native_text(transition["executionId"], "transition.executionId")
    digest = blake2b(canonical_json(transition), digest_size=12).hexdigest()
    body = {"body": _storable(sanitize_transition(_with_prompt(transition))), "digest": digest}
    return f"transition:{revision}", (revision + 1,), execution_id, body


def _with_prompt(row: dict[str, Any]) -> dict[str, Any]:
    """Move a prompt that stands beside the execution into it, where a digest of it is kept."""
    found = {name: row[name] for name in ("prompt", "promptSha256") if row.get(name) is not None}
    execution = row.get("execution")
    return {**row, "execution": {**found, **execution}} if found and isinstance(execution, dict) else row


def _storable(value: dict[str, Any]) -> dict[str, Any]:
    """Escape what stores refuse in the texts that are only shown; a conversation's ref is made of its native texts."""
    _check_identities(value)
    with suppress(orjson.JSONEncodeError):
        text = orjson.dumps(value)
        # Nearly always there is nothing to escape, and one look at the text says so.
        if text.isascii() and b"\\u" not in text:
            return value
    return _escaped(value)


def _check_identities(value: dict[str, Any]) -> None:
    if value.keys() == _IDENTITY:
        for name, text in value.items():
            native_text(text, f"conversation.{name}")
        return
    for item in value.values():
        if type(item) is dict:
            _check_identities(item)


def _escaped(value: dict[str, Any]) -> dict[str, Any]:
    if value.keys() == _IDENTITY:
        return value
    return {
        name: storable_text(item) if type(item) is str else _escaped(item) if type(item) is dict else item
        for name, item in value.items()
    }


def _project_deletion(event: Event) -> list[Fact]:
    if event.before is not None and _is_whole(Row(event.before)):
        facts = []
        for key, version, execution_id, _body in _parts(Row(event.before)):
            facts.append(Fact(f"execution:{execution_id}", key, version, None, event.source))
        return facts
    if event.key_id is None:
        raise ProjectionError("missing_key")
    partition, offset = event.source
    event_id = Row(event.key_row).text_or_none("eventId")
    # The ledger's events are rows of their own: the key of one names it beside its execution.
    named = f"tombstone:{partition}" if event_id is None else f"tombstone-event:{partition}:{event_id}"
    return [Fact(f"execution:{event.key_id}", named, (offset,), body=True)]


def _is_whole(row: Row) -> bool:
    """Say whether a deleted row tells its version (change capture often keeps only the key)."""
    if row.is_filler("transition", "record", "kind", "phase"):
        return False
    return any(row.raw(name) is not None for name in ("transition", "record", "expectedRevision", "phase"))
