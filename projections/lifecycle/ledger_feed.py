"""The ledger as a feed: rows in any order, late or twice, fold to the record that the ledger itself holds.

A feed carries what a ledger has accepted: transitions, records, or both. So the fold trusts the ledger about leases,
whose renewals it may never see, and about nothing else: a row that does not reduce is refused, and what follows waits.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from projections.lifecycle.checks import (
    require_nonblank,
    require_nonnegative_integer,
    require_object,
    require_positive_integer,
    require_time,
)
from projections.lifecycle.ecmascript import JsonObject, read, safe_integer
from projections.lifecycle.errors import ExecutionTransitionError, invalid
from projections.lifecycle.phases import EXECUTION_PHASES, TRANSITION_KINDS
from projections.lifecycle.reducer import reduce_execution_transition

_LEASE_REFUSALS = ("initial_generation_not_one", "fence_mismatch", "lease_expired")
_NEVER_EXPIRES = "9999-12-31T23:59:59.999Z"


class ExecutionFold(NamedTuple):
    """What the rows of one execution come to.

    ``record`` is the folded execution record; ``held_count`` is how many transitions wait behind a missing or refused
    revision; ``refused_count`` is how many rows were looked at and do not reduce.
    """

    record: JsonObject | None
    held_count: int
    refused_count: int


def require_ledger_transition(value: Any) -> JsonObject:
    """Give a transition whose envelope is whole and whose kind is known, so that it can take its place in a fold.

    Raises ExecutionTransitionError (``invalid_transition``). Nothing else is checked: only the fold knows the record
    that the transition changes (spec: titan 4).
    """
    transition = require_object(value, "transition")
    require_nonblank(read(transition, "executionId"), "executionId")
    require_nonblank(read(transition, "eventId"), "eventId")
    require_nonnegative_integer(read(transition, "expectedRevision"), "expectedRevision")
    require_time(read(transition, "occurredAt"), "occurredAt")
    if read(transition, "kind") not in TRANSITION_KINDS:
        raise invalid("kind_unknown", "kind")
    return transition


def require_execution_record(value: Any) -> JsonObject:
    """Give an execution record that has what a trace and later transitions rest on.

    Checked: execution id, harness, request key, target, phase, revision, owner generation, prepared and last observed
    time. Optional fields are taken as the ledger wrote them. Raises ExecutionTransitionError (``invalid_transition``).
    """
    record = require_object(value, "record")
    execution = require_object(read(record, "execution"), "execution")
    require_nonblank(read(execution, "executionId"), "execution.executionId")
    require_nonblank(read(record, "harness"), "harness")
    require_nonblank(read(record, "requestKey"), "requestKey")
    require_object(read(record, "target"), "target")
    if read(record, "phase") not in EXECUTION_PHASES:
        raise invalid("phase_unknown", "phase")
    require_positive_integer(read(record, "revision"), "revision")
    require_positive_integer(read(record, "ownerGeneration"), "ownerGeneration")
    require_time(read(record, "preparedAt"), "preparedAt")
    require_time(read(record, "lastObservedAt"), "lastObservedAt")
    return record


def fold_execution(record: JsonObject | None, transitions: Mapping[int, JsonObject]) -> ExecutionFold:
    """Fold the rows of one execution: the newest record known, then every transition that follows without a gap.

    ``record`` is the record of the greatest revision that any row carried, or None; ``transitions`` holds one
    transition per expected revision. Those below the record's revision are part of it already. Takes full rows and
    sanitized ones alike, changes neither, and never raises: a row that does not reduce is refused and holds what
    follows it; a record without a usable revision is refused and stands for nothing.
    """
    revision = 0 if record is None else safe_integer(record.get("revision"))
    refused_count = 0
    if revision is None:
        record, revision, refused_count = None, 0, 1
    while (transition := transitions.get(revision)) is not None:
        try:
            record = _accept(record, transition)
        except ExecutionTransitionError:
            refused_count += 1
            break
        revision += 1
    held_count = sum(expected > revision for expected in transitions)
    return ExecutionFold(record, held_count, refused_count)


def _accept(current: JsonObject | None, transition: JsonObject) -> JsonObject:
    """Reduce a transition that a ledger has accepted, whichever way that ledger fences.

    Rows do not say how they were fenced. Under a supervisor's lease the first generation need not be 1, a restarted
    supervisor writes with a higher generation, and the row's lease may run out while the supervisor's was renewed
    elsewhere; each of these looks like a lost lease at first and is tried again under the lease that the row implies.
    """
    try:
        return reduce_execution_transition(current, transition)
    except ExecutionTransitionError as error:
        if error.reason not in _LEASE_REFUSALS:
            raise
    if current is None:
        lease = transition["owner"]
        return reduce_execution_transition(None, transition, {"fencing": {"kind": "supervisor", "lease": lease}})
    lease = {**transition["fence"], "leaseUntil": _NEVER_EXPIRES}
    adopted = reduce_execution_transition(current, transition, {"fencing": {"kind": "supervisor", "lease": lease}})
    return _with_known_lease(adopted, current)


def _with_known_lease(adopted: JsonObject, current: JsonObject) -> JsonObject:
    """Put back the end of the lease that the row last showed: how long the supervisor's own runs is not known."""
    owner = adopted.get("owner")
    if not isinstance(owner, dict):
        return adopted
    known = {name: value for name, value in current["owner"].items() if name == "leaseUntil"}
    fence = {"supervisorId": owner["supervisorId"], "generation": owner["generation"]}
    return {**adopted, "owner": {**fence, **known}}
