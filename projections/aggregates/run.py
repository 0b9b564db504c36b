"""The run aggregate: snapshots, gates, executions and usage in; run, attempt and gate records out."""

from typing import Any

from projections.aggregates.attempts import Attempt, find_attempts, project_attempt
from projections.aggregates.emitter import Emitter
from projections.aggregates.gates import project_gates
from projections.facts import Fact, FactSet
from projections.times import time_key

CORRELATIONS_MAX = 32

_SCHEMA = "titan.trace/v1"


class RunState:
    """What the facts of one run say, picked out of the fact set once per projection."""

    def __init__(self, run_id: str, facts: FactSet) -> None:
        self.run_id = run_id
        deleted_up_to = int((facts.version("deletion") or (-1,))[0])
        tombstones = facts.tombstones("tombstone:")

        def standing(prefix: str) -> list[Any]:
            found = facts.standing(prefix, lambda fact: tombstones.get(_partition(fact), -1))
            return [fact.body for fact in found if int(fact.version[0]) > deleted_up_to]

        snapshots = standing("snapshot")
        self.snapshot: dict[str, Any] | None = snapshots[0] if snapshots else None
        self.steps: list[dict[str, Any]] = self.snapshot["steps"] if self.snapshot else []
        self.actives: list[dict[str, Any]] = standing("active:")
        self.executions = [body for _id, body in facts.with_prefix("execution:")]
        self.usage = [body for _key, body in facts.with_prefix("usage:")]
        gate_tombstones = facts.tombstones("tombstone-gate:")

        def gates(prefix: str) -> dict[str, list[Fact]]:
            rows: dict[str, list[Fact]] = {}
            for fact in facts.standing(
                prefix, lambda fact: gate_tombstones.get(f"{_partition(fact)}:{_gate_id(fact)}", -1)
            ):
                rows.setdefault(_gate_id(fact), []).append(fact)
            return rows

        self.gates = {gate_id: [fact.body for fact in rows] for gate_id, rows in gates("gate:").items()}
        self.policy_records = gates("policy:record:")
        self.policy_evidence = gates("policy:evidence:")


def _partition(fact: Fact) -> str:
    assert fact.source is not None
    return str(fact.source[0])


def _gate_id(fact: Fact) -> str:
    """Give the gate id at the end of a fact key ``gate:<status>:<digest>:<id>`` or ``policy:<label>:<digest>:<id>``."""
    return fact.key.split(":", 3)[3]


class Run:
    """One workflow run, the only writer of its run, attempt and gate records."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._facts = FactSet()
        self._emitter = Emitter()
        self.is_held = False

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous."""
        return self._facts.join(fact).superseded

    def emit(self) -> Emitter:
        """Project the run's records and what it tells artifacts and conversations."""
        if self._facts.body("erased") is not None:
            self._emitter.replace([], self._erasures())
            return self._emitter
        state = RunState(self._run_id, self._facts)
        attempts = find_attempts(state)
        records = [record for attempt in attempts if (record := project_attempt(attempt)) is not None]
        # An attempt waits for a time that could be its start, and the run counts as held until then.
        self.is_held = len(records) < len(attempts)
        records += project_gates(state, attempts)
        if state.snapshot is not None:
            records.insert(0, _project_run(state, attempts))
        self._emitter.replace(records, _artifact_facts(state, attempts))
        return self._emitter

    def _erasures(self) -> dict[tuple[str, str], Any]:
        """Tell every conversation that the run's executions had to drop what the run owned."""
        refs = {body["boundTo"] for _id, body in self._facts.with_prefix("execution:") if body.get("boundTo")}
        return {(ref, f"run-erased:{self._run_id}"): True for ref in refs}


def _project_run(state: RunState, attempts: list[Attempt]) -> dict[str, Any]:
    snapshot = state.snapshot
    assert snapshot is not None
    record: dict[str, Any] = {
        "schema": _SCHEMA,
        "kind": "run",
        "id": state.run_id,
        "runId": state.run_id,
        "at": snapshot["startedAt"],
        "workflowName": snapshot["workflowName"],
        "status": snapshot["status"],
    }
    for name in ("completedAt", "error"):
        if name in snapshot:
            record[name] = snapshot[name]
    correlations = _correlations(attempts)
    if correlations:
        record["correlations"] = correlations
    if "paramsSha256" in snapshot:
        record["paramsSha256"] = snapshot["paramsSha256"]
    return record


def _correlations(attempts: list[Attempt]) -> dict[str, str]:
    """Unite the executions' correlations: of two values of one key, that of the earliest attempt start counts."""
    rows = [(time_key(row["preparedAt"]), attempt.id, row) for attempt in attempts for row in attempt.executions]
    united: dict[str, str] = {}
    for _start, _attempt, execution in sorted(rows, key=lambda row: (row[0], row[1], row[2]["executionId"])):
        for key, value in execution.get("correlations", {}).items():
            united.setdefault(key, value)
    return {key: united[key] for key in sorted(united)[:CORRELATIONS_MAX]}


def _artifact_facts(state: RunState, attempts: list[Attempt]) -> dict[tuple[str, str], Any]:
    """Collect, per artifact, what the newest snapshot says about it."""
    last = {(attempt.step, attempt.iteration): attempt.id for attempt in attempts if attempt.is_last}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for step in state.steps:
        for entry in step.get("artifacts", ()):
            attempt_id = entry.get("attemptId") or last[(step["stepId"], step["iteration"])]
            told = {**entry, "at": entry.get("at") or step["completedAt"], "attemptId": attempt_id}
            found.setdefault((f"artifact:{entry['id']}", f"run:{state.run_id}"), []).append(told)
    return dict(found)
