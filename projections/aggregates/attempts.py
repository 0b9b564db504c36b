"""Attempts: one per step, iteration and attempt that a snapshot, an ActiveStep or an execution shows."""

from typing import Any

from projections.aggregates.gates import RunGates
from projections.aggregates.run_state import Attempt, RunState
from projections.ids import split_attempt_id
from projections.text import MAX_SAFE_INTEGER, storable_text
from projections.times import TimeKey, time_key

_SCHEMA = "titan.trace/v1"
_TERMINAL = frozenset({"succeeded", "failed", "cancelled", "cancellation_unknown", "ended"})


def execution_rank(execution: dict[str, Any]) -> tuple[TimeKey, str]:
    """Give what decides between executions of one request key (decisions: competing inputs)."""
    return time_key(execution["preparedAt"]), execution["executionId"]


def find_attempts(state: RunState) -> list[Attempt]:
    """Find the attempts of a run, in order of step, iteration and number; their kinds are given afterwards."""
    found: dict[tuple[str, int, int], Attempt] = {}

    def attempt_of(step: str, iteration: int, attempt: int) -> Attempt:
        key = (step, iteration, attempt)
        if key not in found:
            found[key] = Attempt(state.run_id, *key)
        return found[key]

    for execution in state.executions:
        parts = split_attempt_id(execution["requestKey"])
        assert parts is not None
        attempt_of(parts.step, parts.iteration, parts.attempt).executions.append(execution)
    for active in state.actives:
        attempt_of(active["stepId"], active["iteration"], active["attempt"]).active = active
    for current in state.snapshot["active"] if state.snapshot else ():
        attempt_of(current["stepId"], current["iteration"], current["attempt"]).current = current
    highest: dict[tuple[str, int], int] = {}
    for step, iteration, number in found:
        highest[(step, iteration)] = max(number, highest.get((step, iteration), 0))
    for result in state.steps:
        place = (result["stepId"], result["iteration"])
        attempt_of(*place, highest.setdefault(place, 0)).result = result
    for attempt in found.values():
        attempt.is_last = attempt.attempt == highest[(attempt.step, attempt.iteration)]
        attempt.execution = max(attempt.executions, key=execution_rank, default=None)
    _give_usage(state, found)
    return [found[key] for key in sorted(found)]


def _give_usage(state: RunState, found: dict[tuple[str, int, int], Attempt]) -> None:
    for usage in state.usage:
        parts = split_attempt_id(usage["attemptId"])
        assert parts is not None
        attempt = found.get((parts.step, parts.iteration, parts.attempt))
        if attempt is not None:
            attempt.usage.append(usage)


def give_kinds(attempts: list[Attempt], gates: RunGates) -> None:
    """Decide each attempt's step kind: a result's operation, else what exists of it (decisions: step kind)."""
    human, policy = gates.human_times(), gates.policy_times()
    by_place: dict[tuple[str, int], str] = {}
    for attempt in attempts:
        place = (attempt.step, attempt.iteration)
        operation = attempt.result.get("operation") if attempt.result else None
        if operation:
            by_place[place] = operation
        elif attempt.executions or attempt.active or attempt.current:
            by_place.setdefault(place, "dispatch")
    for attempt in attempts:
        place = (attempt.step, attempt.iteration)
        attempt.first_gate_at = human.get(place)
        attempt.policy_at = policy.get(attempt.id)
        fallback = "assisted" if place in human else "authorize" if attempt.id in policy else "seed"
        attempt.kind = by_place.get(place, fallback)


def project_attempt(attempt: Attempt) -> dict[str, Any] | None:
    """Project one attempt; None while nothing says when it started."""
    at = attempt.start
    if at is None:
        return None
    record: dict[str, Any] = {
        "schema": _SCHEMA,
        "kind": "attempt",
        "id": attempt.id,
        "runId": storable_text(attempt.run_id),
        "at": at,
        "stepId": storable_text(attempt.step),
        "iteration": attempt.iteration,
        "attempt": attempt.attempt,
        "stepKind": attempt.kind,
    }
    record.update(_outcome(attempt))
    record.update(_result(attempt))
    return record


def _outcome(attempt: Attempt) -> dict[str, Any]:
    """Give execution, phase and outcome: the ledger's word for a dispatch, a result's existence for the rest."""
    execution = attempt.execution
    fields: dict[str, Any] = {}
    if execution is not None:
        fields["executionId"] = execution["executionId"]
        fields["phase"] = execution["phase"]
    if attempt.kind != "dispatch":
        if attempt.result is not None:
            fields["outcome"] = "succeeded"
        return fields
    if execution is None:
        return fields
    phase = execution["phase"]
    if phase in _TERMINAL:
        fields["outcome"] = "failed" if phase == "ended" else phase
        if phase == "ended":
            fields["retryable"] = False
        elif phase == "failed":
            fields.update({name: execution[name] for name in ("retryable", "error") if name in execution})
    elif phase == "recovery_required" or _recovery(attempt) is not None:
        fields["outcome"] = "recovery_required"
    return fields


def _recovery(attempt: Attempt) -> dict[str, Any] | None:
    """Give the recovery that the newest snapshot shows, until a result or a terminal phase is known."""
    execution = attempt.execution
    if attempt.result is not None or (execution is not None and execution["phase"] in _TERMINAL):
        return None
    return attempt.current.get("recovery") if attempt.current else None


def _result(attempt: Attempt) -> dict[str, Any]:
    """Give the rest in record order: signal, who ran it, conversation, model, usage and digests."""
    execution = attempt.execution or {}
    result = attempt.result or {}
    active = attempt.active or {}
    fields: dict[str, Any] = {}
    if "signal" in result:
        fields["signal"] = result["signal"]
    runner = execution.get("runnerRef") or active.get("runnerRef")
    if attempt.kind == "dispatch":
        # In a StepResult of a dispatch, agentId holds the runner.
        runner = runner or result.get("agentId")
        agent = {"agentId": execution["agentId"]} if "agentId" in execution else {}
    else:
        agent = {"agentId": result["agentId"]} if "agentId" in result else {}
    if runner:
        fields["runnerRef"] = runner
    fields.update(agent)
    if "conversation" in execution:
        fields["conversation"] = execution["conversation"]
    usage = _usage(attempt)
    if usage.get("model"):
        fields["model"] = usage["model"]
    if "completedAt" in result:
        fields["completedAt"] = result["completedAt"]
    if usage:
        fields["usage"] = usage["usage"]
    recovery = _recovery(attempt)
    if recovery is not None:
        fields["recovery"] = recovery
    prompt = execution.get("promptSha256") or active.get("promptSha256") or result.get("promptSha256")
    if prompt:
        fields["promptSha256"] = prompt
    if "outputSha256" in result:
        fields["outputSha256"] = result["outputSha256"]
    return fields


def _usage_rows(attempt: Attempt) -> list[dict[str, Any]]:
    """List what the attempt's conversations spent, in their order; any delta supersedes every snapshot."""
    deltas = [row for row in attempt.usage if row["basis"] == "delta"]
    return deltas or attempt.usage


def _usage(attempt: Attempt) -> dict[str, Any]:
    """Add up the usage of the attempt's conversations."""
    rows = _usage_rows(attempt)
    if not rows:
        return {}
    usage: dict[str, Any] = {"costUsd": _sums_up_to(rows)[-1]}
    for name, counter in (("inputTokens", "input"), ("outputTokens", "output")):
        counts = [row[counter] for row in rows if row[counter] is not None]
        # A sum that no record can hold is as good as unknown.
        if counts and sum(counts) <= MAX_SAFE_INTEGER:
            usage[name] = sum(counts)
    models = [row["model"] for row in attempt.usage if row["model"]]
    return {"usage": usage, "model": models[-1] if models else None}


def _sums_up_to(rows: list[dict[str, Any]]) -> list[float]:
    """Give the money before the first conversation, after it, and so on to the last.

    Money is added cost by cost from left to right. So a conversation starts with the sum of those before it
    (``start``); until it does, its own sum stands in.
    """
    sums: list[float] = [0]
    for row in rows:
        sums.append(row["usd"] if row["start"] == sums[-1] else sums[-1] + row["usd"] - row["start"])
    return sums


def usage_starts(attempt: Attempt) -> dict[tuple[str, str], float]:
    """Give the facts that tell conversations what those before them add up to."""
    rows = _usage_rows(attempt)
    return {
        (row["conversation"], f"usage-start:{attempt.id}"): start
        for row, start in zip(rows, _sums_up_to(rows), strict=False)
        if start
    }
