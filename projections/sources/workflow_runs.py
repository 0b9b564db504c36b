"""The workflow-runs topic: snapshots of WorkflowRun rows (spec: titan 9.1), newest revision first.

A snapshot's fact carries the policy gates and artifacts that ride in it, so precedence and deletion come free. Every
ActiveStep is also a fact of its own, because only an older revision may have shown it.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import orjson

from projections.errors import ProjectionError
from projections.facts import Fact
from projections.fields import Row, whole_number
from projections.ids import RUN_ID_PATTERN, split_attempt_id
from projections.sources.artifacts import read_artifact
from projections.sources.envelope import Event
from projections.sources.gates import read_policy_gate

RUN_STATUSES = ("running", "paused", "cancelling", "recovery_required", "completed", "failed", "cancelled")
STEP_KINDS = ("dispatch", "seed", "assisted", "authorize")
RECOVERY_KINDS = ("legacy_unrecoverable", "not_found", "ownership_lost", "unknown")

_Step = tuple[dict[str, Any] | None, list[str]]
"""What a step's result says, None when it is refused, and the issues that were found in it."""

# Every snapshot of a run repeats the results of those before it, and reading one is most of what a snapshot costs.
KNOWN_STEPS: dict[tuple[str, bytes], _Step] = {}
KNOWN_STEPS_MAX = 4_096

_GATES = "titan.trace.gates"
_ARTIFACTS = "titan.trace.artifacts"


def project_event(event: Event) -> tuple[list[Fact], str | None, list[str]]:
    """Project one run snapshot, or the deletion of a run."""
    if event.value is None:
        return _project_deletion(event), None, []
    row = Row(event.value)
    run_id = row.native("id")
    if not RUN_ID_PATTERN.fullmatch(run_id):
        raise row.refuse("id")
    aggregate = f"run:{run_id}"
    version = (row.count("revision"),)
    issues: list[str] = []
    actives = _read_actives(row, issues)
    body = _read_snapshot(row, run_id, actives, issues)
    facts = [Fact(aggregate, "snapshot", version, body, event.source)]
    facts += [
        Fact(aggregate, f"active:{step['iteration']}:{step['attempt']}:{step['stepId']}", version, step, event.source)
        for step in actives
    ]
    return facts, None, issues


def _project_deletion(event: Event) -> list[Fact]:
    """Hide the row at its own version, or, without a version, what the topic published before."""
    if event.key_id is None:
        raise ProjectionError("missing_key")
    aggregate = f"run:{event.key_id}"
    before = None if event.before is None else Row(event.before)
    if before is not None and before.raw("revision") is not None and not before.is_filler("status"):
        return [Fact(aggregate, "deletion", (before.count("revision"),), None, event.source)]
    partition, offset = event.source
    return [Fact(aggregate, f"tombstone:{partition}", (offset,), body=True)]


def _read_snapshot(row: Row, run_id: str, actives: list[dict[str, Any]], issues: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "workflowName": row.text("workflowName"),
        "status": row.one_of("status", RUN_STATUSES),
        "startedAt": row.time("startedAt"),
    }
    if row.has("completedAt"):
        body["completedAt"] = row.time_or_none("completedAt")
    if row.has("error"):
        body["error"] = row.text_or_none("error")
    params = row.digest("params", "paramsSha256", as_json=True)
    if params is not None:
        body["paramsSha256"] = params
    body["active"] = actives
    body["steps"] = _read_steps(row, run_id, issues)
    return body


def _read_actives(row: Row, issues: list[str]) -> list[dict[str, Any]]:
    found = []
    for step in _checked_members(row, "activeSteps", issues):
        try:
            found.append(_read_active(step))
        except ProjectionError as error:
            issues.append(f"active_step_{error.reason}")
    return found


def _checked_members(row: Row, name: str, issues: list[str]) -> list[Row]:
    value = row.json(name)
    if isinstance(value, dict | list):
        items = list(value.values()) if isinstance(value, dict) else list(value)
        whole = [item for item in items if isinstance(item, dict)]
        issues.extend(["step_not_an_object"] * (len(items) - len(whole)))
        return [Row(item, name) for item in whole]
    if value is not None:
        raise row.refuse(name)
    return []


def _read_active(step: Row) -> dict[str, Any]:
    body: dict[str, Any] = {
        "stepId": step.native("stepId"),
        "iteration": _active_iteration(step),
        "attempt": step.count("attempt"),
        "startedAt": step.time("startedAt"),
    }
    runner = step.text_or_none("runnerRef")
    if runner:
        body["runnerRef"] = runner
    prompt = step.digest("prompt", "promptSha256")
    if prompt is not None:
        body["promptSha256"] = prompt
    recovery = step.row_or_none("recovery")
    if recovery is not None:
        body["recovery"] = {
            "kind": recovery.one_of("kind", RECOVERY_KINDS),
            "observedAt": recovery.time("observedAt"),
        }
    return body


def _active_iteration(step: Row) -> int:
    """Read the iteration of an ActiveStep: a number of its own, else the end of ``iterKey`` (``<step>:<n>``)."""
    if step.has("iteration"):
        return step.count("iteration")
    digits = step.text("iterKey").rpartition(":")[2]
    if not (digits.isascii() and digits.isdigit()):
        raise step.refuse("iterKey")
    return whole_number(int(digits), step.where("iterKey"))


def _read_steps(row: Row, run_id: str, issues: list[str]) -> list[dict[str, Any]]:
    found = []
    for step in _checked_members(row, "stepResults", issues):
        body, of_step = _read_step_once(step, run_id)
        issues += of_step
        if body is not None:
            found.append(body)
    return found


def _read_step_once(step: Row, run_id: str) -> _Step:
    """Read a step's result, or take what was read when an earlier snapshot of the run held the same."""
    try:
        text = orjson.dumps(step.value)
    except orjson.JSONEncodeError:
        # It holds a lone surrogate.
        return _read_step(step, run_id)
    # A digest, because a result holds content, and what is kept for later must not.
    key = (run_id, blake2b(text).digest())
    known = KNOWN_STEPS.get(key)
    if known is None:
        if len(KNOWN_STEPS) >= KNOWN_STEPS_MAX:
            KNOWN_STEPS.clear()
        known = KNOWN_STEPS[key] = _read_step(step, run_id)
    return known


def _read_step(step: Row, run_id: str) -> _Step:
    issues: list[str] = []
    try:
        return _read_result(step, run_id, issues), issues
    except ProjectionError as error:
        return None, [*issues, f"step_result_{error.reason}"]


def _read_result(step: Row, run_id: str, issues: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "stepId": step.native("stepId"),
        "iteration": step.count("iteration"),
        "completedAt": step.time("completedAt"),
    }
    if step.raw("operation") is not None:
        body["operation"] = step.one_of("operation", STEP_KINDS)
    for name in ("agentId", "signal"):
        if step.has(name):
            body[name] = step.text_or_none(name)
    for name, digest in (("output", "outputSha256"), ("prompt", "promptSha256")):
        found = step.digest(name, digest)
        if found is not None:
            body[digest] = found
    data = step.json("data")
    if isinstance(data, dict):
        gates = _read_entries(data.get(_GATES), lambda entry: _read_own_gate(entry, run_id), "gates", issues)
        artifacts = _read_entries(data.get(_ARTIFACTS), read_artifact, "artifacts", issues)
        body |= {key: entries for key, entries in (("gates", gates), ("artifacts", artifacts)) if entries}
    return body


def _read_own_gate(entry: Row, run_id: str) -> dict[str, Any]:
    """Read a policy gate of this run: a record has one writer, so a run says nothing of another run's gates."""
    gate = read_policy_gate(entry)
    attempt = split_attempt_id(gate["attemptId"])
    if attempt is None or attempt.run != run_id:
        raise ProjectionError("foreign_run", entry.where("id"))
    return gate


def _read_entries(
    value: Any, read: Callable[[Row], dict[str, Any]], name: str, issues: list[str]
) -> list[dict[str, Any]]:
    """Read the entries that ride in a step's data; a broken one is an issue and costs nothing else."""
    found = []
    for entry in value if isinstance(value, list) else [] if value is None else [value]:
        try:
            found.append(read(Row(entry, name)))
        except ProjectionError as error:
            issues.append(f"{name}_{error.reason}")
    return found
