"""The run aggregate: snapshots, gates, executions and usage in; run, attempt and gate records out."""

from typing import Any

from projections.aggregates.attempts import (
    execution_rank,
    find_attempts,
    give_kinds,
    project_attempt,
    usage_starts,
)
from projections.aggregates.emitter import Emitter
from projections.aggregates.gates import RunGates
from projections.aggregates.run_state import Attempt, RunState
from projections.facts import Fact, FactSet
from projections.text import storable_text
from projections.times import time_key

CORRELATIONS_MAX = 32

_SCHEMA = "titan.trace/v1"


class Run:
    """One workflow run, the only writer of its run, attempt and gate records."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._facts = FactSet()
        self._emitter = Emitter()
        self.is_held = False
        self.counters: dict[str, int] = {}

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous."""
        return self._facts.join(fact).superseded

    def emit(self) -> Emitter:
        """Project the run's records and what it tells artifacts and conversations."""
        self.is_held, self.counters = False, {}
        if self._facts.body("erased") is not None:
            self._emitter.replace([], self._erasures())
            return self._emitter
        state = RunState(self._run_id, self._facts)
        attempts = find_attempts(state)
        gates = RunGates(state, attempts)
        give_kinds(attempts, gates)
        records = [record for attempt in attempts if (record := project_attempt(attempt)) is not None]
        # An attempt waits for a time that could be its start, and the run counts as held until then.
        self.is_held = len(records) < len(attempts)
        records += gates.records()
        correlations = _correlations(attempts)
        if state.snapshot is not None:
            records.insert(0, _project_run(state.run_id, state.snapshot, correlations))
        self.counters["late_gate_closes"] = gates.late_close_count
        self.counters["dropped_correlations"] = max(len(correlations) - CORRELATIONS_MAX, 0)
        starts = {fact: start for attempt in attempts for fact, start in usage_starts(attempt).items()}
        self._emitter.replace(records, {**_artifact_facts(state, attempts), **starts})
        return self._emitter

    def _erasures(self) -> dict[tuple[str, str], Any]:
        """Tell every conversation that the run's executions had, or that is a run of its own, to drop what it owned."""
        refs = {body["boundTo"] for _id, body in self._facts.with_prefix("execution:") if body.get("boundTo")}
        refs |= {f"conversation:{native}" for native, _body in self._facts.with_prefix("conversation:conversation:")}
        return {(ref, f"run-erased:{self._run_id}"): True for ref in refs}


def _project_run(run_id: str, snapshot: dict[str, Any], correlations: dict[str, str]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "schema": _SCHEMA,
        "kind": "run",
        "id": storable_text(run_id),
        "runId": storable_text(run_id),
        "at": snapshot["startedAt"],
        "workflowName": snapshot["workflowName"],
        "status": snapshot["status"],
    }
    for name in ("completedAt", "error"):
        if name in snapshot:
            record[name] = snapshot[name]
    if correlations:
        record["correlations"] = {key: correlations[key] for key in sorted(correlations)[:CORRELATIONS_MAX]}
    if "paramsSha256" in snapshot:
        record["paramsSha256"] = snapshot["paramsSha256"]
    return record


def _correlations(attempts: list[Attempt]) -> dict[str, str]:
    """Unite the correlations of a run: of two values of a key, that of the earliest attempt, then the smaller id.

    Of one attempt's executions the one that counts goes first, then the later ones.
    """
    united: dict[str, str] = {}
    for attempt in sorted(attempts, key=lambda attempt: (time_key(attempt.start), attempt.id)):
        for execution in sorted(attempt.executions, key=execution_rank, reverse=True):
            for key, value in execution.get("correlations", {}).items():
                united.setdefault(key, value)
    return united


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
