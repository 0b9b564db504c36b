"""Ledger rows without content: what a record or a transition may carry into a fact.

A sanitized transition reduces exactly as the full one does, and to the sanitized record; so facts need no content. Two
rules make that true. A text that is only checked for being there becomes ``WITHHELD``. And what is wrong stays wrong:
a value that the reducer refuses is left out or replaced by an empty one that is refused at the same step.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from projections.canonical import digest_of_json, digest_of_text
from projections.lifecycle.checks import IDENTITY_FIELDS, is_nonblank, require_process_exit
from projections.lifecycle.correlations import CORRELATIONS_MAX, validate_correlations
from projections.lifecycle.ecmascript import UNDEFINED, JsonObject, is_nullish, is_truthy, read, safe_integer
from projections.lifecycle.errors import ExecutionTransitionError
from projections.lifecycle.instants import instant_ms
from projections.lifecycle.phases import EXECUTION_PHASES, TARGET_KINDS, TRANSITION_KINDS

WITHHELD: Final = "withheld"
"""Stands where a text was that nobody downstream may see."""

_SHA256 = re.compile(r"[0-9a-f]{64}")

Keeper = Callable[[Any], Any]
"""Gives what is kept of a value, UNDEFINED when nothing is."""


def sanitize_transition(transition: Mapping[str, Any]) -> JsonObject:
    """Give a ledger transition without content.

    Kept: the envelope, identities (execution, agent, adapter, conversations, target, surface), request key, harness,
    runner, fence and lease, times, correlations, and the outcome with ``retryable`` and the reason of a failure. A
    result becomes null; reasons of cancellations and all evidence become ``WITHHELD``; a prompt becomes its SHA-256
    (a given ``promptSha256`` wins). Everything else is dropped (spec: titan 9.4, decisions "Digests without content").
    """
    kind = transition.get("kind")
    fields = _TRANSITIONS.get(kind, _FENCED) if isinstance(kind, str) else _FENCED
    return _kept(fields, transition)


def sanitize_record(record: Mapping[str, Any]) -> JsonObject:
    """Give an execution record without content; the same is kept as of transitions, plus phase and revision."""
    return _kept(_RECORD, record)


def _kept(fields: Mapping[str, Keeper], value: Mapping[str, Any]) -> JsonObject:
    # Of what is not there nothing is kept, whatever keeps it: every keeper gives UNDEFINED for UNDEFINED.
    return {
        name: item for name, keep in fields.items() if name in value and (item := keep(value[name])) is not UNDEFINED
    }


def _placeholder(value: Any) -> Any:
    """Stand for a value that should be an object and is not: absent, false in a condition, or neither."""
    if is_nullish(value):
        return UNDEFINED
    return [] if is_truthy(value) else ""


def _object(fields: Mapping[str, Keeper]) -> Keeper:
    def keep(value: Any) -> Any:
        return _kept(fields, value) if isinstance(value, dict) else _placeholder(value)

    return keep


def _one_of(allowed: tuple[str, ...]) -> Keeper:
    def keep(value: Any) -> Any:
        return value if value in allowed else UNDEFINED

    return keep


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else UNDEFINED


def _optional_text(value: Any) -> Any:
    # A value that may be absent is refused when it is there and no text, null included.
    return value if value is UNDEFINED or isinstance(value, str) else ""


def _withheld(value: Any) -> Any:
    return WITHHELD if is_nonblank(value) else UNDEFINED


def _time(value: Any) -> Any:
    return UNDEFINED if math.isnan(instant_ms(value)) else value


def _integer(value: Any) -> Any:
    number = safe_integer(value)
    return UNDEFINED if number is None else number


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else UNDEFINED


def _sha256(value: Any) -> Any:
    return value if isinstance(value, str) and _SHA256.fullmatch(value) else UNDEFINED


def _result(value: Any) -> Any:
    return value if value is UNDEFINED else None


def _process_exit(value: Any) -> Any:
    """Drop a proper exit, which nothing downstream reads; leave a wrong one wrong."""
    if value is UNDEFINED:
        return UNDEFINED
    try:
        require_process_exit(value)
    except ExecutionTransitionError:
        return []
    return UNDEFINED


def _correlations(value: Any) -> Any:
    if value is UNDEFINED:
        return UNDEFINED
    try:
        return validate_correlations(value)
    except ExecutionTransitionError:
        return []


def _stored_correlations(value: Any) -> Any:
    """Keep the good entries of a record's correlations: nothing refuses a record that the ledger has written."""
    if not isinstance(value, dict):
        return UNDEFINED
    good: dict[str, str] = {}
    for key, text in value.items():
        entry = _correlations({key: text})
        if isinstance(entry, dict) and len(good) < CORRELATIONS_MAX:
            good |= entry
    return good


_identity = _object(dict.fromkeys(IDENTITY_FIELDS, _text))


def _predecessor_conversation(value: Any) -> Any:
    # Unlike other conversations this one may be absent but not null.
    return _identity(value) if value is UNDEFINED or isinstance(value, dict) else []


def _prepared_conversation(value: Any) -> Any:
    # Before an execution starts, every value that counts as false says the same: no conversation yet.
    return _identity(value) if is_truthy(value) else UNDEFINED


def _stored_identity(value: Any) -> Any:
    """Keep a record's conversation when it is whole: an id is made of it, and nothing has refused the record."""
    is_whole = isinstance(value, dict) and all(is_nonblank(value.get(name)) for name in IDENTITY_FIELDS)
    return _identity(value) if is_whole else UNDEFINED


def _execution(keep_conversation: Keeper) -> Keeper:
    fields = _object({"executionId": _text, "conversation": keep_conversation})

    def keep(value: Any) -> Any:
        digest = _prompt_digest(value) if isinstance(value, dict) else UNDEFINED
        return fields(value) if digest is UNDEFINED else {**fields(value), "promptSha256": digest}

    return keep


def _prompt_digest(execution: JsonObject) -> Any:
    given = _sha256(read(execution, "promptSha256"))
    prompt = read(execution, "prompt")
    if given is not UNDEFINED or is_nullish(prompt):
        return given
    return digest_of_json(prompt) if isinstance(prompt, dict | list) else digest_of_text(prompt)


def _terminal(value: Any) -> Any:
    if not isinstance(value, dict):
        return UNDEFINED
    outcome = read(value, "outcome")
    fields = _TERMINALS.get(outcome) if isinstance(outcome, str) else None
    return {} if fields is None else {"outcome": outcome, **_kept(fields, value)}


_TERMINALS: dict[str, dict[str, Keeper]] = {
    "succeeded": {"result": _result},
    "failed": {"reason": _text, "retryable": _flag},
    "cancelled": {"reason": _withheld},
    "cancellation_unknown": {"reason": _withheld, "evidence": _withheld},
    "ended": {"evidence": _withheld, "exit": _process_exit},
}

_agent = _object({"agentId": _optional_text})
_adapter = _object({"executionId": _text, "conversation": _identity})
_surface = _object({"kind": _text, "host": _text, "nativeId": _text, "owned": _flag})
_fence = _object({"supervisorId": _text, "generation": _integer})
_lease = _object({"supervisorId": _text, "generation": _integer, "leaseUntil": _time})
_predecessor = _object(
    {"agent": _object({"agentId": _text}), "executionId": _optional_text, "conversation": _predecessor_conversation}
)
_handoff = _object(
    {
        "handoffId": _text,
        "lineageId": _text,
        "generation": _integer,
        "predecessor": _predecessor,
        "brief": _object({"ref": _withheld, "sha256": _sha256, "bytes": _integer}),
    }
)
_target = _object(
    {
        "kind": _one_of(TARGET_KINDS),
        "namespace": _text,
        "pinnedNativeId": _optional_text,
        "conversation": _identity,
        "parent": _identity,
        "handoff": _handoff,
    }
)

_ENVELOPE: dict[str, Keeper] = {
    "kind": _one_of(TRANSITION_KINDS),
    "executionId": _text,
    "eventId": _text,
    "expectedRevision": _integer,
    "occurredAt": _time,
}
_FENCED: dict[str, Keeper] = {**_ENVELOPE, "fence": _fence}
_TRANSITIONS: dict[str, dict[str, Keeper]] = {
    "prepare": {
        **_ENVELOPE,
        "execution": _execution(_prepared_conversation),
        "agent": _agent,
        "harness": _text,
        "requestKey": _text,
        "target": _target,
        "owner": _lease,
        "correlations": _correlations,
    },
    "observe_launched": {**_FENCED, "runnerRef": _text, "surface": _surface, "evidence": _withheld},
    "observe_running": {
        **_FENCED,
        "runnerRef": _text,
        "adapterExecution": _adapter,
        "conversation": _identity,
        "surface": _surface,
        "evidence": _withheld,
    },
    "identify_conversation": {**_FENCED, "conversation": _identity},
    "request_cancellation": {**_FENCED, "reason": _withheld},
    "require_recovery": {**_FENCED, "evidence": _withheld},
    "finish": {**_FENCED, "terminal": _terminal, "adapterExecution": _adapter, "conversation": _identity},
    "claim_owner": {**_ENVELOPE, "owner": _lease},
    "renew_owner": {**_FENCED, "leaseUntil": _time},
}

_RECORD: dict[str, Keeper] = {
    "execution": _execution(_stored_identity),
    "agent": _object({"agentId": _text}),
    "harness": _text,
    "requestKey": _text,
    "target": _target,
    "phase": _one_of(EXECUTION_PHASES),
    "revision": _integer,
    "ownerGeneration": _integer,
    "owner": _lease,
    "runnerRef": _text,
    "adapterExecution": _object({"executionId": _text, "conversation": _stored_identity}),
    "surface": _surface,
    "preparedAt": _time,
    "dispatchedAt": _time,
    "cancellation": _object({"requestedAt": _time, "reason": _withheld}),
    "recovery": _object({"requiredAt": _time, "evidence": _withheld}),
    "finishedAt": _time,
    "lastObservedAt": _time,
    "terminal": _terminal,
    "correlations": _stored_correlations,
}
