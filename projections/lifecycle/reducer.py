"""The state machine of an execution: one record and one transition give the next record, or the first reason why not.

Rules for editing this module: the order of the checks is behaviour (the first failure is what a producer is told) and
follows the reference step by step; nothing here looks at a clock, and neither argument is ever changed.
"""

from collections.abc import Callable, Mapping
from typing import Any

from projections.lifecycle.checks import (
    is_same_identity,
    is_same_surface,
    require_conversation,
    require_lease,
    require_nonblank,
    require_nonblank_if_given,
    require_nonnegative_integer,
    require_object,
    require_surface,
    require_terminal,
    require_time,
)
from projections.lifecycle.correlations import validate_correlations
from projections.lifecycle.ecmascript import (
    UNDEFINED,
    JsonObject,
    first_present,
    is_nullish,
    is_same,
    is_truthy,
    read,
    safe_integer,
)
from projections.lifecycle.errors import ExecutionTransitionError, invalid, ownership_lost
from projections.lifecycle.fencing import (
    Lease,
    refuse_owner_transition,
    require_ownership,
    require_prepared_owner,
    resolve_fencing,
    stamp_supervisor,
)
from projections.lifecycle.instants import instant_ms
from projections.lifecycle.phases import is_terminal_phase
from projections.lifecycle.targets import require_prepared_execution, require_target_conversation, stored_target


def reduce_execution_transition(
    current: JsonObject | None,
    transition: Any,
    options: Mapping[str, Any] | None = None,
) -> JsonObject:
    """Apply one transition to an execution record and give the next record, a new plain dict.

    ``current`` is None while there is no record; ``transition`` is parsed JSON of any shape; ``options`` may name the
    fencing mode (``{"fencing": {"kind": "supervisor", "lease": {supervisorId, generation, leaseUntil}}}``; the default
    fences by the row's own lease). The result shares nested values with its arguments, so all three are to be treated
    as immutable; no argument is changed.

    Times are compared in whole milliseconds and must be ISO 8601 (see ``instant_ms``); records keep their text.
    Revisions and generations are integers up to 2**53 - 1. The reducer is not idempotent: a transition that comes
    again is a ``revision_conflict``.

    Raises ExecutionTransitionError for the first check that fails, in the reference's order: fencing options; ids,
    expected revision, time; (``prepare``: revision 0, absent record, its own fields;) record exists (``not_found``),
    same execution, same revision (``revision_conflict``), time does not go back, phase is not terminal, owner events
    under a supervisor, fence and lease (``ownership_lost``), the fields of the kind. An unknown kind is noticed last.
    Where the reference crashes the reason is ``type_error`` (spec: titan 4).
    """
    supervisor = resolve_fencing(options)
    _require_envelope(transition)
    kind = read(transition, "kind")
    if kind == "prepare":
        return _prepare(current, transition, supervisor)
    if current is None:
        raise ExecutionTransitionError("not_found", "no_record")
    _require_successor(current, transition)
    if is_terminal_phase(read(current, "phase")):
        raise invalid("terminal")
    refuse_owner_transition(kind, supervisor)
    if kind == "claim_owner":
        return _claim_owner(current, transition)
    require_ownership(current, read(transition, "fence"), transition["occurredAt"], supervisor)
    apply = _FENCED.get(kind) if isinstance(kind, str) else None
    if apply is None:
        raise invalid("kind_unknown")
    return stamp_supervisor(apply(current, transition), supervisor)


def _require_envelope(transition: Any) -> None:
    require_nonblank(read(transition, "executionId"), "executionId")
    require_nonblank(read(transition, "eventId"), "eventId")
    expected = read(transition, "expectedRevision")
    require_nonnegative_integer(expected, "expectedRevision")
    require_time(read(transition, "occurredAt"), "occurredAt")
    if read(transition, "kind") == "prepare" and safe_integer(expected) != 0:
        raise ExecutionTransitionError("revision_conflict", "prepare_revision_not_zero")


def _require_successor(current: JsonObject, transition: JsonObject) -> None:
    if not is_same(read(read(current, "execution"), "executionId"), transition["executionId"]):
        raise invalid("execution_id_mismatch")
    if safe_integer(read(current, "revision")) != safe_integer(transition["expectedRevision"]):
        raise ExecutionTransitionError("revision_conflict", "revision_mismatch")
    if instant_ms(transition["occurredAt"]) < instant_ms(read(current, "lastObservedAt")):
        raise invalid("time_goes_back")


def _prepare(current: JsonObject | None, transition: JsonObject, supervisor: Lease) -> JsonObject:
    if current is not None:
        raise invalid("already_exists")
    execution = require_prepared_execution(transition)
    if not is_same(execution["executionId"], transition["executionId"]):
        raise invalid("prepared_execution_id_mismatch")
    agent = read(transition, "agent")
    require_nonblank_if_given(UNDEFINED if is_nullish(agent) else read(agent, "agentId"), "agent.agentId")
    require_nonblank(read(transition, "requestKey"), "requestKey")
    owner = require_prepared_owner(read(transition, "owner"), transition["occurredAt"], supervisor)
    record: JsonObject = {"execution": execution}
    if is_truthy(agent):
        # An agent that is no object names nobody; the reference would store its characters one by one.
        record["agent"] = dict(agent) if isinstance(agent, dict) else {}
    record |= {
        "harness": transition["harness"],
        "requestKey": transition["requestKey"],
        "target": stored_target(transition["target"]),
        "phase": "prepared",
        "revision": 1,
        "ownerGeneration": safe_integer(owner["generation"]),
        "owner": dict(owner),
        "preparedAt": transition["occurredAt"],
        "lastObservedAt": transition["occurredAt"],
    }
    if "correlations" in transition:
        record["correlations"] = validate_correlations(transition["correlations"])
    return record


def _claim_owner(current: JsonObject, transition: JsonObject) -> JsonObject:
    owner = require_lease(read(transition, "owner"), transition["occurredAt"])
    generation = safe_integer(read(current, "ownerGeneration"))
    if generation is None or safe_integer(owner["generation"]) != generation + 1:
        raise ownership_lost("owner_generation_not_next")
    held = read(current, "owner")
    if is_truthy(held) and instant_ms(read(held, "leaseUntil")) > instant_ms(transition["occurredAt"]):
        raise ownership_lost("lease_still_live")
    return _next(current, transition, {"ownerGeneration": generation + 1, "owner": dict(owner)})


def _begin_dispatch(current: JsonObject, transition: JsonObject) -> JsonObject:
    _require_phase(current, "prepared")
    return _next(current, transition, {"phase": "dispatching", "dispatchedAt": transition["occurredAt"]})


def _observe_launched(current: JsonObject, transition: JsonObject) -> JsonObject:
    """Record where a launch went; its phase waits for the harness to confirm."""
    _require_phase(current, "dispatching")
    runner_ref = _require_runner(current, transition)
    if not is_truthy(read(transition, "surface")):
        raise invalid("surface_missing")
    surface = _bind_surface(current, read(transition, "surface"))
    return _next(current, transition, {"runnerRef": runner_ref, **surface})


def _observe_running(current: JsonObject, transition: JsonObject) -> JsonObject:
    _require_phase(current, "dispatching", "recovery_required")
    runner_ref = _require_runner(current, transition)
    adapter = read(transition, "adapterExecution")
    conversation = read(transition, "conversation")
    if is_nullish(conversation):
        conversation = read(adapter, "conversation")
    changes: JsonObject = {
        "execution": _bind_conversation(current, conversation),
        "phase": "cancel_requested" if is_truthy(read(current, "cancellation")) else "running",
        "runnerRef": runner_ref,
        "adapterExecution": _bind_adapter(current, adapter, conversation),
        **_bind_surface(current, read(transition, "surface")),
    }
    return _next(current, transition, changes, removed=("recovery",))


def _identify_conversation(current: JsonObject, transition: JsonObject) -> JsonObject:
    """Bind the conversation, also onto the adapter's execution; without one the event changes the revision only."""
    _require_phase(current, "dispatching", "running", "cancel_requested", "recovery_required")
    conversation = read(transition, "conversation")
    changes: JsonObject = {"execution": _bind_conversation(current, conversation)}
    adapter = read(current, "adapterExecution")
    if is_truthy(adapter):
        observed = {"executionId": read(adapter, "executionId"), "conversation": conversation}
        changes["adapterExecution"] = _bind_adapter(current, observed, conversation)
    return _next(current, transition, changes)


def _request_cancellation(current: JsonObject, transition: JsonObject) -> JsonObject:
    _require_phase(current, "prepared", "dispatching", "running", "recovery_required")
    require_nonblank(read(transition, "reason"), "reason")
    cancellation = {"requestedAt": transition["occurredAt"], "reason": transition["reason"]}
    return _next(current, transition, {"phase": "cancel_requested", "cancellation": cancellation})


def _require_recovery(current: JsonObject, transition: JsonObject) -> JsonObject:
    _require_phase(current, "dispatching", "running", "cancel_requested")
    require_nonblank(read(transition, "evidence"), "evidence")
    recovery = {"requiredAt": transition["occurredAt"], "evidence": transition["evidence"]}
    return _next(current, transition, {"phase": "recovery_required", "recovery": recovery})


def _finish(current: JsonObject, transition: JsonObject) -> JsonObject:
    terminal = require_terminal(read(transition, "terminal"))
    outcome = terminal["outcome"]
    if is_same(read(current, "phase"), "prepared") and outcome not in ("failed", "cancelled"):
        raise invalid("finish_from_prepared")
    adapter = read(transition, "adapterExecution")
    conversation = read(transition, "conversation")
    if is_nullish(conversation):
        conversation = UNDEFINED if is_nullish(adapter) else read(adapter, "conversation")
    changes: JsonObject = {"execution": _bind_conversation(current, conversation)}
    if is_truthy(adapter):
        changes["adapterExecution"] = _bind_adapter(current, adapter, conversation)
    changes |= {"phase": outcome, "terminal": terminal, "finishedAt": transition["occurredAt"]}
    return _next(current, transition, changes, removed=("owner", "recovery"))


def _renew_owner(current: JsonObject, transition: JsonObject) -> JsonObject:
    until = read(transition, "leaseUntil")
    require_time(until, "leaseUntil")
    owner = current["owner"]
    if instant_ms(until) <= instant_ms(read(owner, "leaseUntil")):
        raise invalid("renewal_not_longer")
    return _next(current, transition, {"owner": {**owner, "leaseUntil": until}})


def _release_owner(current: JsonObject, transition: JsonObject) -> JsonObject:
    return _next(current, transition, {}, removed=("owner",))


_FENCED: dict[str, Callable[[JsonObject, JsonObject], JsonObject]] = {
    "begin_dispatch": _begin_dispatch,
    "observe_launched": _observe_launched,
    "observe_running": _observe_running,
    "identify_conversation": _identify_conversation,
    "request_cancellation": _request_cancellation,
    "require_recovery": _require_recovery,
    "finish": _finish,
    "renew_owner": _renew_owner,
    "release_owner": _release_owner,
}


def _next(
    current: JsonObject, transition: JsonObject, changes: JsonObject, removed: tuple[str, ...] = ()
) -> JsonObject:
    """Give the record one revision later; the expected revision has been found equal to the record's."""
    kept = {name: value for name, value in current.items() if name not in removed}
    revision = (safe_integer(transition["expectedRevision"]) or 0) + 1
    return {**kept, **changes, "revision": revision, "lastObservedAt": transition["occurredAt"]}


def _require_phase(current: JsonObject, *allowed: str) -> None:
    if read(current, "phase") not in allowed:
        raise invalid("phase_not_allowed")


def _require_runner(current: JsonObject, transition: JsonObject) -> Any:
    """Check what both observations carry, and that the runner has not changed."""
    runner_ref, known = read(transition, "runnerRef"), read(current, "runnerRef")
    require_nonblank(runner_ref, "runnerRef")
    require_nonblank(read(transition, "evidence"), "evidence")
    if is_truthy(known) and not is_same(known, runner_ref):
        raise invalid("runner_ref_changed")
    return runner_ref


def _bind_conversation(current: JsonObject, observed: Any) -> JsonObject:
    """Give the execution with an observed conversation bound to it; once bound it never changes."""
    execution: JsonObject = current["execution"]
    if not is_truthy(observed):
        return execution
    conversation = require_conversation(observed, read(current, "harness"))
    require_target_conversation(read(current, "target"), conversation, "conversation")
    known = read(execution, "conversation")
    if is_truthy(known) and not is_same_identity(known, conversation):
        raise invalid("conversation_changed")
    return {**execution, "conversation": conversation}


def _bind_adapter(current: JsonObject, value: Any, conversation: Any) -> JsonObject:
    """Give the adapter's execution: its id never changes, and every conversation that is known for it must agree."""
    observed = require_object(value, "adapterExecution")
    execution_id = read(observed, "executionId")
    require_nonblank(execution_id, "adapterExecution.executionId")
    known = read(current, "adapterExecution")
    if is_truthy(known) and not is_same(read(known, "executionId"), execution_id):
        raise invalid("adapter_execution_changed")
    known_conversation = UNDEFINED if is_nullish(known) else read(known, "conversation")
    candidates = (conversation, read(observed, "conversation"), known_conversation)
    identified = first_present(*candidates)
    if not is_truthy(identified):
        return {"executionId": execution_id}
    bound = require_conversation(identified, read(current, "harness"))
    require_target_conversation(read(current, "target"), bound, "adapter conversation")
    for candidate in candidates:
        if is_truthy(candidate) and not is_same_identity(candidate, bound):
            raise invalid("adapter_conversation_changed")
    return {"executionId": execution_id, "conversation": bound}


def _bind_surface(current: JsonObject, value: Any) -> JsonObject:
    """Give the change that an observed surface makes: none without one, and none is allowed to a known one."""
    if not is_truthy(value):
        return {}
    surface, known = require_surface(value), read(current, "surface")
    if is_truthy(known) and not is_same_surface(known, surface):
        raise invalid("surface_changed")
    return {"surface": surface}
