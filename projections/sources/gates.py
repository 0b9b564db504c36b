"""Gate rows: human gates (spec: titan 9.2) and policy decisions in their three shapes (spec: titan 9.3).

Prompts and payloads become digests here; a fact of a gate holds what a gate record holds.
"""

import re
from typing import Any

from projections.fields import Row, storable_as_is
from projections.ids import (
    ACTOR_PATTERN,
    ATTEMPT_ID_PATTERN,
    HUMAN_GATE_ID_PATTERN,
    POLICY_GATE_ID_PATTERN,
    policy_gate_id,
    split_attempt_id,
)
from projections.policy_gates import table_version_number
from projections.text import JS_SPACE, encode_component, is_blank, storable_text

GATE_STATUSES = ("pending", "resolved", "cancelled", "expired")
POLICY_VERDICTS = ("allow", "deny", "revise")

_OWNER_CLASSES = frozenset({"owner-terminal", "owner-remote"})
_VERDICTS = {
    **dict.fromkeys(("approve", "approved", "allow", "pass"), "allow"),
    **dict.fromkeys(("refuse", "refused", "reject", "rejected", "deny", "denied"), "deny"),
    **dict.fromkeys(("revise", "needs_revision"), "revise"),
}
_SPACES = re.compile(f"[{JS_SPACE}]+")


def read_human_gate(row: Row) -> dict[str, Any]:
    """Read one GateRecord row; the result holds the gate record's fields, with ``at`` for createdAt."""
    gate_id = row.native("id")
    if not HUMAN_GATE_ID_PATTERN.fullmatch(gate_id):
        raise row.refuse("id")
    status = row.one_of("status", GATE_STATUSES)
    body: dict[str, Any] = {"id": gate_id, "at": row.time("createdAt"), "status": status}
    payload = row.json("payload")
    # Producers leave the last payload in place when a gate is cancelled; only a resolved gate decided anything.
    if status == "resolved":
        body["verdict"] = verdict_of(payload)
    decided_by = _actor(row)
    if decided_by is not None:
        body["decidedBy"] = decided_by
    rule = row.row_or_none("rule")
    if rule is not None:
        body["policyRule"] = {
            "table": rule.text("table"),
            "rowId": rule.text("ruleId"),
            "version": table_version_number(rule.text("version")),
        }
    for name in ("resolvedAt", "expiresAt"):
        time = row.time_or_none(name)
        if time is not None:
            body[name] = time
    reason = _reason(row, status, payload)
    if reason is not None:
        body["reason"] = reason
    for content, digest, as_json in (("prompt", "promptSha256", False), ("payload", "payloadSha256", True)):
        found = row.digest(content, digest, as_json=as_json)
        if found is not None:
            body[digest] = found
    return body


def verdict_of(payload: Any) -> str | None:
    """Give what a payload decided: allow, deny or revise; None when its words say none of them."""
    if not isinstance(payload, dict):
        return None
    for name in ("decision", "signal"):
        word = payload.get(name)
        if isinstance(word, str) and word in _VERDICTS:
            return _VERDICTS[word]
    return None


def encode_spaces(name: str) -> str:
    """Percent-encode the white space of an actor's name, which its label may not hold."""
    return _SPACES.sub(lambda found: encode_component(found.group()), name)


def _actor(row: Row) -> str | None:
    actor = row.row_or_none("resolvedBy")
    if actor is None:
        return None
    label = "human" if actor.text("class") in _OWNER_CLASSES else "agent"
    return f"{label}:{encode_spaces(actor.text('id'))}"


def _reason(row: Row, status: str, payload: Any) -> str | None:
    if status == "resolved":
        reason = payload.get("reason") if isinstance(payload, dict) else None
        # What people put into a payload has no fixed shape: only a text is a reason.
        return storable_text(reason) if isinstance(reason, str) else None
    return row.text_or_none("reason") if status == "cancelled" else None


def is_policy_gate(row: Row) -> bool:
    """Say whether a row of the gate topic is a policy decision (a record or an evidence record)."""
    gate_id = row.raw("id")
    return (
        row.raw("gateKind") == "policy"
        or (row.has("spanId") and row.has("traceId"))
        or (isinstance(gate_id, str) and "#policy:" in gate_id)
    )


def read_policy_gate(row: Row) -> dict[str, Any]:
    """Read a policy gate: a complete record, an evidence record, or an entry without an envelope.

    The result holds the fields of the gate record that the row has; ``attemptId`` always, ``runId`` unless the
    attempt id says it, ``at`` only when the row has one.
    """
    attempt_id, gate_id = _policy_ids(row)
    body: dict[str, Any] = {"id": gate_id, "attemptId": attempt_id}
    at = row.time_or_none("at")
    if at is not None:
        body["at"] = at
    if row.has("status"):
        body["status"] = row.one_of("status", GATE_STATUSES)
    if row.has("verdict"):
        verdict = row.raw("verdict")
        body["verdict"] = None if verdict is None else row.one_of("verdict", POLICY_VERDICTS)
    decided_by = row.text_or_none("decidedBy")
    if decided_by:
        body["decidedBy"] = encode_spaces(decided_by)
        if not ACTOR_PATTERN.fullmatch(body["decidedBy"]):
            raise row.refuse("decidedBy")
    rule = row.row_or_none("policyRule")
    if rule is not None:
        body["policyRule"] = {
            "table": rule.text("table"),
            "rowId": rule.text("rowId"),
            "version": rule.count("version"),
        }
    for name in ("resolvedAt", "expiresAt"):
        time = row.time_or_none(name)
        if time is not None:
            body[name] = time
    reason = row.text_or_none("reason")
    if reason is not None:
        body["reason"] = reason
    for content, digest, as_json in (("prompt", "promptSha256", False), ("payload", "payloadSha256", True)):
        found = row.digest(content, digest, as_json=as_json)
        if found is not None:
            body[digest] = found
    return body


def _policy_ids(row: Row) -> tuple[str, str]:
    """Give (attempt id, gate id); a gate id outside the grammar is built again with encoded parts."""
    given = row.native("id")
    if POLICY_GATE_ID_PATTERN.fullmatch(given):
        return _attempt_of(given.partition("#policy:")[0], row), storable_as_is(given, row.where("id"))
    named = (row.raw("attemptId"), row.raw("spanId"), given.partition("#policy:")[0])
    attempt_id = next((name for name in named if isinstance(name, str) and ATTEMPT_ID_PATTERN.fullmatch(name)), "")
    _attempt_of(attempt_id, row)
    rule = row.row_or_none("policyRule")
    if rule is not None:
        return attempt_id, policy_gate_id(attempt_id, rule.native("table"), rule.native("rowId"))
    rebuilt = encoded_policy_gate_id(given, attempt_id)
    if rebuilt is None:
        raise row.refuse("id")
    return attempt_id, rebuilt


def _attempt_of(attempt_id: str, row: Row) -> str:
    if split_attempt_id(attempt_id) is None:
        raise row.refuse("attemptId")
    return storable_as_is(attempt_id, row.where("attemptId"))


def encoded_policy_gate_id(given: str, attempt_id: str) -> str | None:
    """Build a policy gate id again from one whose parts were not encoded; None when it names no row."""
    table, found, row_id = given.partition("#policy:")[2].partition(":")
    return policy_gate_id(attempt_id, table, row_id) if found and not is_blank(table) and not is_blank(row_id) else None
