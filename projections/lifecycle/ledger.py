"""An execution ledger in memory: it answers as the reference's durable ledger does, for tests and for dry runs."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from projections.canonical import canonical_json
from projections.errors import ProjectionError
from projections.lifecycle.checks import require_nonblank, require_nonnegative_integer, require_object, require_time
from projections.lifecycle.ecmascript import JsonObject, is_truthy, read
from projections.lifecycle.errors import ExecutionTransitionError, TransitionErrorCode
from projections.lifecycle.instants import instant_ms
from projections.lifecycle.phases import is_terminal_phase
from projections.lifecycle.reducer import reduce_execution_transition

RefusalKind = TransitionErrorCode | Literal["event_conflict"]

_LEASING_KINDS = ("prepare", "claim_owner")


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """The ledger's answer to one transition.

    When ``ok``: ``record`` is the record right after the transition; ``applied`` is false when the transition had been
    applied before and this is its receipt. Otherwise ``kind`` is the error code, ``reason`` and ``field`` say what was
    wrong (they hold nothing of the input), ``key`` is the correlation key at fault, and ``current`` is the record that
    stands in the way, if there is one.
    """

    ok: bool
    applied: bool = False
    record: JsonObject | None = None
    kind: RefusalKind | None = None
    reason: str | None = None
    field: str | None = None
    key: str | None = None
    current: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class _Event:
    """One applied transition: its canonical bytes, itself, and the record after it."""

    canonical: bytes
    transition: JsonObject
    record: JsonObject


class ExecutionLedger:
    """Executions and their events, fenced by each row's own owner lease.

    Make it without arguments. It has no clock: every ``apply`` is told what the ledger's clock reads. Everything that
    goes in or comes out is copied (spec: titan 4, "Ledger apply").
    """

    def __init__(self) -> None:
        self._records: dict[str, JsonObject] = {}
        self._events: dict[str, dict[str, _Event]] = {}
        self._execution_by_request_key: dict[str, str] = {}

    def get(self, execution_id: str) -> JsonObject | None:
        """Give the record of an execution, or None."""
        return deepcopy(self._records.get(execution_id))

    def find_by_request_key(self, request_key: str) -> JsonObject | None:
        """Give the record that a request key belongs to, or None."""
        return deepcopy(self._holder(request_key))

    def find_by_correlation(self, key: str, value: str) -> list[JsonObject]:
        """List the records that carry exactly this correlation, by the time they were prepared and their id."""
        found = [record for record in self._records.values() if record.get("correlations", {}).get(key) == value]
        return deepcopy(sorted(found, key=_age))

    def list_recoverable(self, limit: int = 100) -> list[JsonObject]:
        """List the first ``limit`` records that are not terminal, by the time they were prepared and their id."""
        if limit < 1:
            raise ValueError("limit must be at least 1")
        living = [record for record in self._records.values() if not is_terminal_phase(record["phase"])]
        return deepcopy(sorted(living, key=_age)[:limit])

    def events(self, execution_id: str) -> list[JsonObject]:
        """List the transitions that were applied to an execution, in revision order."""
        return [deepcopy(event.transition) for event in self._events.get(execution_id, {}).values()]

    def apply(self, transition: Any, now: str) -> LedgerOutcome:
        """Apply one transition while the ledger's clock reads ``now`` (ISO 8601).

        1. The transition must be JSON with a whole envelope.
        2. An event id that is known answers with the receipt of its first time, whatever has happened since, or, for
           another body (canonical JSON), with ``event_conflict``.
        3. The ledger's clock: no event from the future, no lease that has run out.
        4. A request key belongs to one execution.
        5. The reducer decides; what it accepts is stored with its receipt.

        Raises ValueError when ``now`` is no time.
        """
        now_ms = instant_ms(now)
        if math.isnan(now_ms):
            raise ValueError("now must be an ISO 8601 time")
        try:
            canonical = canonical_json(transition)
            _require_envelope(transition)
        except ExecutionTransitionError as error:
            return _refused(error, None)
        except ProjectionError as error:
            return LedgerOutcome(ok=False, kind="invalid_transition", reason=error.reason)
        receipt = self._events.get(transition["executionId"], {}).get(transition["eventId"])
        if receipt is None:
            return self._apply_new(deepcopy(transition), canonical, now_ms)
        if receipt.canonical != canonical:
            return LedgerOutcome(ok=False, kind="event_conflict", reason="event_id_reused")
        return LedgerOutcome(ok=True, record=deepcopy(receipt.record))

    def _apply_new(self, transition: JsonObject, canonical: bytes, now_ms: float) -> LedgerOutcome:
        execution_id: str = transition["executionId"]
        current = self._records.get(execution_id)
        try:
            _require_live(current, transition, now_ms)
            holder = self._holder(read(transition, "requestKey")) if transition["kind"] == "prepare" else None
            if holder is not None and holder["execution"]["executionId"] != execution_id:
                return LedgerOutcome(
                    ok=False, kind="event_conflict", reason="request_key_taken", current=deepcopy(holder)
                )
            record = reduce_execution_transition(current, transition)
        except ExecutionTransitionError as error:
            return _refused(error, current)
        self._records[execution_id] = record
        self._execution_by_request_key[record["requestKey"]] = execution_id
        self._events.setdefault(execution_id, {})[transition["eventId"]] = _Event(canonical, transition, record)
        return LedgerOutcome(ok=True, applied=True, record=deepcopy(record))

    def _holder(self, request_key: Any) -> JsonObject | None:
        execution_id = self._execution_by_request_key.get(request_key) if isinstance(request_key, str) else None
        return None if execution_id is None else self._records[execution_id]


def _age(record: JsonObject) -> tuple[str, str]:
    return record["preparedAt"], record["execution"]["executionId"]


def _refused(error: ExecutionTransitionError, current: JsonObject | None) -> LedgerOutcome:
    return LedgerOutcome(
        ok=False,
        kind=error.code,
        reason=error.reason,
        field=error.field,
        key=error.key,
        current=deepcopy(current),
    )


def _require_envelope(transition: Any) -> None:
    require_object(transition, "transition")
    for name in ("executionId", "eventId", "kind", "occurredAt"):
        require_nonblank(read(transition, name), name)
    require_nonnegative_integer(read(transition, "expectedRevision"), "expectedRevision")
    require_time(transition["occurredAt"], "occurredAt")


def _require_live(current: JsonObject | None, transition: JsonObject, now_ms: float) -> None:
    """Refuse what the ledger's clock rules out; a time that is none is left to the reducer."""
    gives_lease = transition["kind"] in _LEASING_KINDS
    new_owner = read(transition, "owner")
    if gives_lease and not (is_truthy(new_owner) and isinstance(read(new_owner, "leaseUntil"), str)):
        raise ExecutionTransitionError("invalid_transition", "owner_lease_missing")
    if instant_ms(transition["occurredAt"]) > now_ms:
        raise ExecutionTransitionError("invalid_transition", "event_in_future")
    if current is not None and "fence" in transition:
        owner = read(current, "owner")
        if not is_truthy(owner) or instant_ms(read(owner, "leaseUntil")) <= now_ms:
            raise ExecutionTransitionError("ownership_lost", "lease_expired_at_ledger_clock")
    if gives_lease and instant_ms(read(new_owner, "leaseUntil")) <= now_ms:
        raise ExecutionTransitionError("ownership_lost", "new_lease_already_expired")
    if transition["kind"] == "renew_owner" and instant_ms(read(transition, "leaseUntil")) <= now_ms:
        raise ExecutionTransitionError("ownership_lost", "renewed_lease_already_expired")
