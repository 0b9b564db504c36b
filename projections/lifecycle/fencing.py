"""Fencing: who may write to an execution, by the row's own lease or by one lease of the whole supervisor."""

from collections.abc import Mapping
from typing import Any

from projections.lifecycle.checks import require_fence, require_lease, require_time
from projections.lifecycle.ecmascript import JsonObject, first_present, is_same, is_truthy, read, safe_integer
from projections.lifecycle.errors import invalid, ownership_lost
from projections.lifecycle.instants import instant_ms

_OWNER_KINDS = ("claim_owner", "renew_owner", "release_owner")

Lease = JsonObject | None
"""The supervisor's lease; None when every row is fenced by its own."""


def resolve_fencing(options: Mapping[str, Any] | None) -> Lease:
    """Read the fencing mode out of the options of a reduction.

    ``{"fencing": {"kind": "supervisor", "lease": …}}`` gives the lease; no options, no fencing or
    ``{"kind": "execution"}`` give None.
    """
    fencing = first_present(read(dict(options or {}), "fencing"), {"kind": "execution"})
    kind = read(fencing, "kind")
    if kind == "execution":
        return None
    if kind != "supervisor":
        raise invalid("fencing_kind_unknown")
    lease = require_fence(read(fencing, "lease"))
    require_time(read(lease, "leaseUntil"), "fencing.lease.leaseUntil")
    return lease


def require_prepared_owner(owner: Any, occurred_at: str, supervisor: Lease) -> JsonObject:
    """Give the lease that a ``prepare`` stores: generation 1, or exactly the supervisor's lease."""
    lease = require_lease(owner, occurred_at)
    if supervisor is None:
        if safe_integer(lease["generation"]) != 1:
            raise invalid("initial_generation_not_one")
    elif not all(is_same(read(lease, name), supervisor[name]) for name in ("supervisorId", "generation", "leaseUntil")):
        raise ownership_lost("prepare_owner_not_lease")
    return lease


def refuse_owner_transition(kind: Any, supervisor: Lease) -> None:
    """Refuse the events of a row's own lease where the supervisor's lease is the only one."""
    if supervisor is not None and kind in _OWNER_KINDS:
        raise invalid("owner_event_under_supervisor")


def require_ownership(current: JsonObject, value: Any, occurred_at: str, supervisor: Lease) -> None:
    """Refuse a fenced transition whose fence does not match, or whose lease has run out when it occurs."""
    fence = require_fence(value)
    if supervisor is not None:
        _require_supervisor(current, fence, occurred_at, supervisor)
        return
    owner = read(current, "owner")
    if not is_truthy(owner) or not _is_same_fence(owner, fence):
        raise ownership_lost("fence_mismatch")
    if instant_ms(read(owner, "leaseUntil")) <= instant_ms(occurred_at):
        raise ownership_lost("lease_expired")


def _require_supervisor(current: JsonObject, fence: JsonObject, occurred_at: str, supervisor: JsonObject) -> None:
    if not _is_same_fence(supervisor, fence):
        raise ownership_lost("supervisor_fence_mismatch")
    if instant_ms(supervisor["leaseUntil"]) <= instant_ms(occurred_at):
        raise ownership_lost("supervisor_lease_expired")
    # The row's own lease is not looked at: a restarted supervisor adopts its rows whatever their age.
    owner = first_present(read(current, "owner"), {})
    if not is_same(read(owner, "supervisorId"), fence["supervisorId"]):
        raise ownership_lost("other_supervisor")
    row_generation = safe_integer(read(current, "ownerGeneration"))
    if row_generation is not None and row_generation > supervisor["generation"]:
        raise ownership_lost("newer_generation")


def _is_same_fence(left: Any, right: JsonObject) -> bool:
    return all(is_same(read(left, name), right[name]) for name in ("supervisorId", "generation"))


def stamp_supervisor(record: JsonObject, supervisor: Lease) -> JsonObject:
    """Adopt a written record into the supervisor's lease; a record without an owner gets none."""
    if supervisor is None:
        return record
    adopted = {**record, "ownerGeneration": safe_integer(supervisor["generation"])}
    if is_truthy(read(record, "owner")):
        adopted["owner"] = dict(supervisor)
    return adopted
