"""Gates of a run: human gates, of which the earliest close counts, and policy gates from three places."""

from typing import TYPE_CHECKING, Any

from projections.canonical import canonical_json
from projections.ids import attempt_id, split_gate_id
from projections.text import storable_text
from projections.times import time_key

if TYPE_CHECKING:
    from projections.aggregates.attempts import Attempt
    from projections.aggregates.run import RunState

_SCHEMA = "titan.trace/v1"
_FIELDS = (
    "status",
    "verdict",
    "decidedBy",
    "policyRule",
    "resolvedAt",
    "expiresAt",
    "reason",
    "promptSha256",
    "payloadSha256",
)


def choose_rows(state: "RunState") -> list[dict[str, Any]]:
    """Choose one row per human gate: the earliest close, a tie by canonical JSON; pending only without any close."""
    chosen = []
    for _gate_id, rows in sorted(state.gates.items()):
        closes = [row for row in rows if row["status"] != "pending"]
        if closes:
            chosen.append(min(closes, key=lambda row: (time_key(row.get("resolvedAt")), canonical_json(row))))
        else:
            chosen.append(max(rows, key=canonical_json))
    return chosen


def count_late_closes(state: "RunState") -> int:
    """Count the closes that came after another one and changed nothing."""
    closes = (sum(row["status"] != "pending" for row in rows) for rows in state.gates.values())
    return sum(count - 1 for count in closes if count > 1)


def _place(state: "RunState", gate_id: str, attempts: list["Attempt"]) -> tuple[str, int]:
    """Give step and iteration of a human gate, which its id alone does not tell."""
    known = {attempt.step for attempt in attempts}
    found = split_gate_id(gate_id, known, {(attempt.step, attempt.iteration) for attempt in attempts})
    assert found is not None, state.run_id
    return found


def gate_times(state: "RunState", attempts: list["Attempt"]) -> tuple[dict[tuple[str, int], str], dict[str, str]]:
    """Give when the human gate of a (step, iteration) was opened, and when the policy gate of an attempt decided."""
    human: dict[tuple[str, int], str] = {}
    for row in choose_rows(state):
        place = _place(state, row["id"], attempts)
        human[place] = min(row["at"], human.get(place, row["at"]), key=time_key)
    policy: dict[str, str] = {}
    for gate in _policy_gates(state):
        if "at" in gate:
            held = policy.get(gate["attemptId"], gate["at"])
            policy[gate["attemptId"]] = min(gate["at"], held, key=time_key)
    return human, policy


def _policy_gates(state: "RunState") -> list[dict[str, Any]]:
    """Choose one body per policy gate: a StepResult's, then a complete record, then evidence (decisions)."""
    offers: dict[str, list[tuple[int, bytes, dict[str, Any]]]] = {}
    for step in state.steps:
        for gate in step.get("gates", ()):
            offers.setdefault(gate["id"], []).append(
                (2, canonical_json(gate), {"completedAt": step["completedAt"], **gate})
            )
    evidence_at: dict[str, str] = {}
    for rank, policies in ((1, state.policy_records), (0, state.policy_evidence)):
        for gate_id, rows in policies.items():
            offers.setdefault(gate_id, []).extend((rank, canonical_json(row), row) for row in rows)
    for gate_id, evidence in state.policy_evidence.items():
        times = [row["at"] for row in evidence if "at" in row]
        if times:
            evidence_at[gate_id] = min(times, key=time_key)
    chosen = []
    for gate_id, offered in sorted(offers.items()):
        gate = max(offered, key=lambda row: row[:2])[2]
        at = gate.get("at") or evidence_at.get(gate_id) or gate.get("completedAt")
        chosen.append({**gate, "at": at} if at else gate)
    return chosen


def project_gates(state: "RunState", attempts: list["Attempt"]) -> list[dict[str, Any]]:
    """Project the gates of a run."""
    records = []
    for row in choose_rows(state):
        step, iteration = _place(state, row["id"], attempts)
        records.append(_record(row, state.run_id, attempt_id(state.run_id, step, iteration, 0), "human"))
    records += [
        _record(gate, state.run_id, gate["attemptId"], "policy") for gate in _policy_gates(state) if "at" in gate
    ]
    return records


def _record(gate: dict[str, Any], run_id: str, attempt: str, kind: str) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "kind": "gate",
        "id": storable_text(gate["id"]),
        "runId": storable_text(run_id),
        "attemptId": attempt,
        "at": gate["at"],
        "gateKind": kind,
        **{name: gate[name] for name in _FIELDS if name in gate},
    }
