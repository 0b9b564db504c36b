"""The gate record of a policy decision, as the engine that decided would write it (spec: titan 9.3)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from projections.errors import ProjectionError
from projections.ids import attempt_id, policy_gate_id
from projections.records import SCHEMA, Record
from projections.text import JS_SPACE, MAX_SAFE_INTEGER

POLICY_TABLE: Final = "F5"
ROW_WITHOUT_RULE: Final = "no-rule"

# A person's answer is in the human gate's record, so the decision that asked for it has no verdict of its own.
_VERDICTS: Final[dict[str, str | None]] = {"allow": "allow", "deny": "deny", "approved": None, "refused": None}
_LEADING_INTEGER: Final = re.compile(f"[{JS_SPACE}]*([0-9]{{1,16}})(?![0-9])")


def policy_gate_record(
    run: str, step: str, iteration: int, outcome: Mapping[str, Any], *, table_version: str, at: str
) -> Record:
    """Make the gate record of a decision at a step.

    ``outcome`` is the decision's ``{verdict, ruleId, reason?}``, verdict one of allow, deny, approved, refused; ``at``
    is when it was decided. The attempt is 0: a decision is never retried.

    Raises ``invalid_field`` (verdict), and what ``attempt_id`` and ``policy_gate_id`` raise.
    """
    verdict = outcome.get("verdict")
    if not isinstance(verdict, str) or verdict not in _VERDICTS:
        raise ProjectionError("invalid_field", "verdict")
    rule = outcome.get("ruleId")
    row = ROW_WITHOUT_RULE if rule is None else rule
    attempt = attempt_id(run, step, iteration, 0)
    record: Record = {
        "schema": SCHEMA,
        "kind": "gate",
        "id": policy_gate_id(attempt, POLICY_TABLE, row),
        "runId": run,
        "attemptId": attempt,
        "at": at,
        "gateKind": "policy",
        "verdict": _VERDICTS[verdict],
        "decidedBy": f"policy:{POLICY_TABLE}",
        "policyRule": {"table": POLICY_TABLE, "rowId": row, "version": table_version_number(table_version)},
    }
    reason = outcome.get("reason")
    if isinstance(reason, str):
        record["reason"] = reason
    return record


def table_version_number(version: str) -> int:
    """Number of a rule table's version: its leading integer (``2.0.0-rc.1`` is 2), 0 where there is none."""
    match = _LEADING_INTEGER.match(version)
    number = 0 if match is None else int(match[1])
    return number if number <= MAX_SAFE_INTEGER else 0
