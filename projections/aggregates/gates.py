"""Gates of a run: human gates, of which the earliest close counts, and policy gates from three places."""

from typing import Any

from projections.aggregates.run_state import Attempt, RunState
from projections.canonical import canonical_json
from projections.ids import attempt_id, split_gate_id
from projections.text import storable_text
from projections.times import time_key

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

Gate = dict[str, Any]
Place = tuple[str, int]


class RunGates:
    """The gates of a run, one body each: human gates with their step and iteration, and policy gates."""

    def __init__(self, state: RunState, attempts: list[Attempt]) -> None:
        self._run_id = state.run_id
        steps = {attempt.step for attempt in attempts}
        places = {(attempt.step, attempt.iteration) for attempt in attempts}
        self._human = [(_place_of(row["id"], steps, places), row) for row in _choose_rows(state)]
        self._policy = _choose_policy_gates(state)
        closes = (sum(row["status"] != "pending" for row in rows) for rows in state.gates.values())
        self.late_close_count = sum(count - 1 for count in closes if count > 1)
        """Closes that came after another one and changed nothing."""

    def human_times(self) -> dict[Place, str]:
        """Give when the human gate of each step and iteration was opened."""
        times: dict[Place, str] = {}
        for place, row in self._human:
            times[place] = min(row["at"], times.get(place, row["at"]), key=time_key)
        return times

    def policy_times(self) -> dict[str, str]:
        """Give when the policy gate of each attempt id decided."""
        times: dict[str, str] = {}
        for gate in self._policy:
            if "at" in gate:
                times[gate["attemptId"]] = min(gate["at"], times.get(gate["attemptId"], gate["at"]), key=time_key)
        return times

    def records(self) -> list[dict[str, Any]]:
        """Project the gates; a policy gate waits until something says when it decided."""
        human = [self._record(row, attempt_id(self._run_id, *place, 0), "human") for place, row in self._human]
        return human + [self._record(gate, gate["attemptId"], "policy") for gate in self._policy if "at" in gate]

    def _record(self, gate: Gate, attempt: str, kind: str) -> dict[str, Any]:
        return {
            "schema": _SCHEMA,
            "kind": "gate",
            "id": storable_text(gate["id"]),
            "runId": storable_text(self._run_id),
            "attemptId": attempt,
            "at": gate["at"],
            "gateKind": kind,
            **{name: gate[name] for name in _FIELDS if name in gate},
        }


def _choose_rows(state: RunState) -> list[Gate]:
    """Choose one row per human gate: the earliest close, a tie by canonical JSON; pending only without any close."""
    chosen = []
    for _gate_id, rows in sorted(state.gates.items()):
        closes = [row for row in rows if row["status"] != "pending"]
        if closes:
            chosen.append(min(closes, key=lambda row: (time_key(row.get("resolvedAt")), canonical_json(row))))
        else:
            chosen.append(max(rows, key=canonical_json))
    return chosen


def _place_of(gate_id: str, steps: set[str], places: set[Place]) -> Place:
    """Give step and iteration of a human gate, which its id alone does not tell."""
    found = split_gate_id(gate_id, steps, places)
    assert found is not None, "a human gate's id was checked when it was read"
    return found


def _choose_policy_gates(state: RunState) -> list[Gate]:
    """Choose one body per policy gate: a StepResult's, then a complete record, then evidence (decisions)."""
    offers: dict[str, list[tuple[int, bytes, Gate]]] = {}
    for step in state.steps:
        for gate in step.get("gates", ()):
            offer = (2, canonical_json(gate), {"completedAt": step["completedAt"], **gate})
            offers.setdefault(gate["id"], []).append(offer)
    for rank, policies in ((1, state.policy_records), (0, state.policy_evidence)):
        for gate_id, rows in policies.items():
            offers.setdefault(gate_id, []).extend((rank, canonical_json(row), row) for row in rows)
    chosen = []
    for gate_id, offered in sorted(offers.items()):
        gate = max(offered, key=lambda row: row[:2])[2]
        evidence_times = [row["at"] for row in state.policy_evidence.get(gate_id, ()) if "at" in row]
        evidence_at = min(evidence_times, key=time_key, default=None)
        at = gate.get("at") or evidence_at or gate.get("completedAt")
        chosen.append({**gate, "at": at} if at else gate)
    return chosen
