"""Reading ct-agents sessions: which events are valid, the state they add up to, stream envelopes, session records.

The fold is a function of the set of events: ``seq`` orders them, never arrival, ``createdAt`` or ``globalSeq``, and a
second event on a seq, id or idempotency key is dropped by a rule that does not look at arrival either.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from projections.formats.ct_agents_contracts import (
    EVENT,
    HEARTBEAT,
    ORPHANED_CODE,
    PAYLOADS,
    PERSISTED,
    SESSION_RECORD,
    sorted_faults,
)

EventClass = Literal["core", "app", "invalid"]
DropReason = Literal["invalid", "duplicate_id", "duplicate_idempotency_key", "seq_conflict"]


class Validation(NamedTuple):
    """What an event is: of a core type, of an application (opaque payload, kept), or invalid with the faulty paths."""

    event_class: EventClass
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Dropped:
    """An event that takes no part: its place in the arrival order, and why."""

    index: int
    reason: DropReason


@dataclass(frozen=True, slots=True)
class SessionState:
    """The derived state of one session. A stop reason may hold an error message, so it stays out of reprs."""

    status: str = "idle"
    last_seq: int = 0
    handled_input_seq: int = 0
    stop_reason: dict[str, Any] | None = field(default=None, repr=False)
    active_input_seq_max: int | None = None
    pending_user_message_event_ids: tuple[str, ...] = ()
    pending_action_event_ids: tuple[str, ...] = ()
    open_tool_call_event_ids: tuple[str, ...] = ()
    orphaned_tool_call_event_ids: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Give the protocol's DerivedSessionState: camelCase, unset fields left out, lists in seq order."""
        state: dict[str, Any] = {
            "status": self.status,
            "lastSeq": self.last_seq,
            "handledInputSeq": self.handled_input_seq,
        }
        if self.stop_reason is not None:
            state["stopReason"] = self.stop_reason
        if self.active_input_seq_max is not None:
            state["activeInputSeqMax"] = self.active_input_seq_max
        return {
            **state,
            "pendingUserMessageEventIds": list(self.pending_user_message_event_ids),
            "pendingActionEventIds": list(self.pending_action_event_ids),
            "openToolCallEventIds": list(self.open_tool_call_event_ids),
            "orphanedToolCallEventIds": list(self.orphaned_tool_call_event_ids),
        }


class Folded(NamedTuple):
    """A session's state and the events that took no part, by arrival."""

    state: SessionState
    dropped: tuple[Dropped, ...]


class Ingested(NamedTuple):
    """The accepted events of each session in seq order, and the dropped ones by arrival."""

    accepted_by_session: dict[str, tuple[dict[str, Any], ...]]
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message of a session's stream. ``value`` is the kind of an unknown envelope, which a reader survives."""

    kind: Literal["event", "heartbeat", "unknown", "invalid"]
    event: dict[str, Any] | None = field(default=None, repr=False)
    value: str | None = field(default=None, repr=False)
    errors: tuple[str, ...] = ()


def is_session_event_type(value: str) -> bool:
    """Say whether a text is exactly one of the 21 core event types."""
    return value in PAYLOADS


def validate_event(event: Any) -> Validation:
    """Check a session event (any parsed JSON value); a type that is not core makes it an application event."""
    return _validation(event, EVENT.faults(event, "$"))


def validate_persisted_event(event: Any) -> Validation:
    """Check a stored event: a session event with its session, its scope and perhaps an idempotency key."""
    faults = [*EVENT.faults(event, "$"), *PERSISTED.faults(event, "$")]
    return _validation(event, faults)


def _validation(event: Any, faults: Iterable[str]) -> Validation:
    named = event.get("type") if isinstance(event, dict) else None
    payload = PAYLOADS.get(named) if isinstance(named, str) else None
    found = list(faults)
    if payload is not None and "payload" in event:
        found += payload.faults(event["payload"], "$.payload")
    if found:
        return Validation("invalid", sorted_faults(found))
    return Validation("core" if payload is not None else "app")


def validate_session_record(record: Any) -> tuple[str, ...]:
    """Check a session record (any parsed JSON value); gives the faulty paths, none when it is valid."""
    return sorted_faults(SESSION_RECORD.faults(record, "$"))


def fold_events(events: Sequence[Any]) -> Folded:
    """Fold the events of one session, in any order, into its derived state."""
    accepted, dropped = _accept(enumerate(events), validate_event)
    return Folded(_fold(accepted), _in_arrival_order(dropped))


def ingest_persisted(events: Sequence[Any]) -> Ingested:
    """Sort stored events of any sessions into one sequence per session, each without invalid and repeated events."""
    sessions: dict[str, list[tuple[int, Any]]] = {}
    dropped: list[Dropped] = []
    for index, event in enumerate(events):
        if validate_persisted_event(event).event_class == "invalid":
            dropped.append(Dropped(index, "invalid"))
        else:
            sessions.setdefault(event["sessionId"], []).append((index, event))
    accepted_by_session: dict[str, tuple[dict[str, Any], ...]] = {}
    for session, members in sessions.items():
        accepted, repeated = _accept(members, validate_persisted_event)
        accepted_by_session[session] = tuple(accepted)
        dropped += repeated
    return Ingested(accepted_by_session, _in_arrival_order(dropped))


def _in_arrival_order(dropped: Iterable[Dropped]) -> tuple[Dropped, ...]:
    return tuple(sorted(dropped))


def _accept(
    events: Iterable[tuple[int, Any]], validate: Callable[[Any], Validation]
) -> tuple[list[dict[str, Any]], list[Dropped]]:
    """Keep one event per id, idempotency key and seq: the one with the lowest (seq, id, arrival)."""
    valid: list[tuple[int, Any]] = []
    dropped: list[Dropped] = []
    for index, event in events:
        if validate(event).event_class == "invalid":
            dropped.append(Dropped(index, "invalid"))
        else:
            valid.append((index, event))
    valid.sort(key=lambda member: (member[1]["seq"], member[1]["id"], member[0]))
    accepted: list[dict[str, Any]] = []
    taken: set[tuple[str, Any]] = set()
    for index, event in valid:
        claims = list(_claims(event))
        reason = next((reason for reason, claim in claims if claim in taken), None)
        if reason is None:
            taken.update(claim for _, claim in claims)
            accepted.append(event)
        else:
            dropped.append(Dropped(index, reason))
    return accepted, dropped


def _claims(event: Mapping[str, Any]) -> Iterator[tuple[DropReason, tuple[str, Any]]]:
    yield "duplicate_id", ("id", event["id"])
    key = event.get("idempotencyKey")
    if isinstance(key, str):
        yield "duplicate_idempotency_key", ("key", key)
    yield "seq_conflict", ("seq", event["seq"])


def parse_envelope(envelope: Any) -> Envelope:
    """Read one stream envelope: an event, a heartbeat, a kind of a later protocol, or something invalid."""
    kind = envelope.get("kind") if isinstance(envelope, dict) else None
    if not isinstance(envelope, dict) or not isinstance(kind, str):
        return Envelope("invalid", errors=("$.kind" if isinstance(envelope, dict) else "$",))
    read = _ENVELOPES.get(kind)
    return Envelope("unknown", value=kind) if read is None else read(envelope)


def _event_envelope(envelope: Mapping[str, Any]) -> Envelope:
    event = envelope.get("event")
    errors = validate_event(event).errors
    if errors:
        return Envelope("invalid", errors=tuple(f"$.event{path[1:]}" for path in errors))
    return Envelope("event", event=event)


def _heartbeat_envelope(envelope: Mapping[str, Any]) -> Envelope:
    errors = sorted_faults(HEARTBEAT.faults(envelope, "$"))
    return Envelope("invalid", errors=errors) if errors else Envelope("heartbeat")


_ENVELOPES: Final[Mapping[str, Callable[[Mapping[str, Any]], Envelope]]] = {
    "event": _event_envelope,
    "heartbeat": _heartbeat_envelope,
}


def fold_stream(envelopes: Sequence[Any]) -> Folded:
    """Fold the events of one session's stream; heartbeats, unknown kinds and repeats change nothing.

    Dropped indexes count envelopes; an invalid envelope is dropped as ``invalid``.
    """
    members: list[tuple[int, Any]] = []
    invalid: list[Dropped] = []
    for index, envelope in enumerate(map(parse_envelope, envelopes)):
        if envelope.kind == "event":
            members.append((index, envelope.event))
        elif envelope.kind == "invalid":
            invalid.append(Dropped(index, "invalid"))
    accepted, dropped = _accept(members, validate_event)
    return Folded(_fold(accepted), _in_arrival_order([*invalid, *dropped]))


def _fold(events: Iterable[Mapping[str, Any]]) -> SessionState:
    fold = _Fold()
    for event in events:
        fold.last_seq = int(event["seq"])
        step = _STEPS.get(event["type"])
        if step is not None:
            step(fold, event)
    return fold.state()


class _Fold:
    """The working state of a fold; the maps keep seq order because events come in it."""

    def __init__(self) -> None:
        self.status = "idle"
        self.last_seq = 0
        self.handled_input_seq = 0
        self.stop_reason: dict[str, Any] | None = None
        self.active_input_seq_max: int | None = None
        self.messages: dict[str, int] = {}
        self.actions: dict[str, bool] = {}
        self.calls: dict[str, str] = {}

    def message(self, event: Mapping[str, Any]) -> None:
        self.messages[event["id"]] = int(event["seq"])

    def action(self, event: Mapping[str, Any]) -> None:
        self.actions[event["id"]] = True

    def resolve(self, event: Mapping[str, Any]) -> None:
        if event.get("parentEventId") in self.actions:
            self.actions[event["parentEventId"]] = False

    def call(self, event: Mapping[str, Any]) -> None:
        self.calls[event["id"]] = "open"

    def close(self, event: Mapping[str, Any]) -> None:
        parent = event.get("parentEventId")
        # Only the first closing event after its call counts.
        if parent is None or self.calls.get(parent) != "open":
            return
        error = event["payload"].get("error") if event["type"] == "tool.failed" else None
        self.calls[parent] = "orphaned" if error is not None and error.get("code") == ORPHANED_CODE else "closed"

    def running(self, event: Mapping[str, Any]) -> None:
        self._set_status("running")
        self.active_input_seq_max = int(event["payload"]["inputSeqMax"])

    def idle(self, event: Mapping[str, Any]) -> None:
        self._set_status("idle")
        self.stop_reason = event["payload"]["stopReason"]
        self.handled_input_seq = max(self.handled_input_seq, int(event["payload"]["handledInputSeq"]))

    def rescheduled(self, _event: Mapping[str, Any]) -> None:
        self._set_status("rescheduled")

    def terminated(self, _event: Mapping[str, Any]) -> None:
        self._set_status("terminated")

    def _set_status(self, status: str) -> None:
        # A stop reason belongs to an idle session, an input in work to a running one.
        self.status = status
        self.stop_reason = None
        self.active_input_seq_max = None

    def state(self) -> SessionState:
        return SessionState(
            status=self.status,
            last_seq=self.last_seq,
            handled_input_seq=self.handled_input_seq,
            stop_reason=self.stop_reason,
            active_input_seq_max=self.active_input_seq_max,
            pending_user_message_event_ids=tuple(
                message for message, seq in self.messages.items() if seq > self.handled_input_seq
            ),
            pending_action_event_ids=tuple(action for action, pending in self.actions.items() if pending),
            open_tool_call_event_ids=tuple(call for call, status in self.calls.items() if status == "open"),
            orphaned_tool_call_event_ids=tuple(call for call, status in self.calls.items() if status == "orphaned"),
        )


# Every other type, application events included, moves last_seq and nothing else.
_STEPS: Final[Mapping[str, Callable[[_Fold, Mapping[str, Any]], None]]] = {
    "user.message": _Fold.message,
    "agent.action.requested": _Fold.action,
    "user.action.resolved": _Fold.resolve,
    "tool.called": _Fold.call,
    "tool.completed": _Fold.close,
    "tool.failed": _Fold.close,
    "tool.interrupted": _Fold.close,
    "session.status.running": _Fold.running,
    "session.status.idle": _Fold.idle,
    "session.status.rescheduled": _Fold.rescheduled,
    "session.status.terminated": _Fold.terminated,
}
