"""The gate-decisions topic: human gate rows, policy evidence records and complete policy gate records.

Every row of a gate is a fact of its own, told apart by its body: which close counts is the run's projection to
choose, and the deletion of one row is final for that body only.
"""

from hashlib import blake2b
from typing import Any

from projections.canonical import canonical_json
from projections.errors import ProjectionError
from projections.facts import Fact
from projections.fields import Row
from projections.ids import ATTEMPT_ID_PATTERN, POLICY_GATE_ID_PATTERN, run_of_gate_id, split_attempt_id
from projections.sources.envelope import Event
from projections.sources.gates import encoded_policy_gate_id, is_policy_gate, read_human_gate, read_policy_gate

_POLICY_BODY = ("at", "decidedBy", "policyRule", "verdict", "reason")


def project_event(event: Event) -> tuple[list[Fact], str | None, list[str]]:
    """Project one gate row, its deletion, or a tombstone of its id."""
    if event.value is not None:
        return [_gate_fact(Row(event.value), event, deleted=False)], None, []
    if event.before is not None and _is_whole(event.before):
        return [_gate_fact(Row(event.before), event, deleted=True)], None, []
    if event.key_id is None:
        raise ProjectionError("missing_key")
    gate_id = _gate_id_of_key(event.key_id)
    run_id = run_of_gate_id(gate_id)
    if run_id is None:
        # A tombstone of something that is no gate hides nothing.
        return [], "unknown_key", []
    partition, offset = event.source
    return [Fact(f"run:{run_id}", f"tombstone-gate:{partition}:{gate_id}", (offset,), body=True)], None, []


def _is_whole(before: Any) -> bool:
    """Say whether a deleted row names its body (change capture often keeps only the key)."""
    row = Row(before)
    if row.is_filler("status", "decidedBy", "verdict"):
        return False
    named = _POLICY_BODY if is_policy_gate(row) else ("createdAt",)
    return any(row.raw(name) is not None for name in named)


def _gate_id_of_key(key_id: str) -> str:
    """Give the gate id that rows of a key have: a policy gate's parts may stand in the key as they were."""
    attempt_id, is_policy, _row = key_id.partition("#policy:")
    if not is_policy or POLICY_GATE_ID_PATTERN.fullmatch(key_id) or not ATTEMPT_ID_PATTERN.fullmatch(attempt_id):
        return key_id
    return encoded_policy_gate_id(key_id, attempt_id) or key_id


def _run_of(gate_id: str) -> str:
    run_id = run_of_gate_id(gate_id)
    assert run_id is not None, "a human gate's id was checked when it was read"
    return run_id


def _gate_fact(row: Row, event: Event, *, deleted: bool) -> Fact:
    if is_policy_gate(row):
        gate = read_policy_gate(row)
        label = "record" if row.has("schema") else "evidence"
        parts = split_attempt_id(gate["attemptId"])
        assert parts is not None
        aggregate, key = f"run:{parts.run}", f"policy:{label}"
    else:
        gate = read_human_gate(row)
        aggregate, key = f"run:{_run_of(gate['id'])}", f"gate:{gate['status']}"
    digest = blake2b(canonical_json(gate), digest_size=12).hexdigest()
    return Fact(aggregate, f"{key}:{digest}:{gate['id']}", (), None if deleted else gate, event.source)
