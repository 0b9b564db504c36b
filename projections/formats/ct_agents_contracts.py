"""The ct-agents session protocol as tables: the 21 event types, their payloads, the envelope and the session record.

Rules for editing this module: one line per field; an optional field is absent or of its type, never null; objects take
further keys unless they are closed. Paths of faults are written ``$.payload.content[0].text`` and name fields only; the
one place where a fault names a key of the data is an extra key of a closed payload, so paths are for callers, not logs.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

# The largest integer that a producer in JavaScript can count to.
COUNT_MAX: Final = 2**53 - 1

ORPHANED_CODE: Final = "TOOL_ORPHANED"


class Shape(Protocol):
    """The type of a value: it can list what is wrong with one."""

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List the paths that do not fit, starting at ``path``."""


class Text(NamedTuple):
    """Any text."""

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` unless the value is a text."""
        if not isinstance(value, str):
            yield path


class Number(NamedTuple):
    """Any JSON number; true and false are none."""

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` unless the value is a number."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            yield path


class Count(NamedTuple):
    """A whole number from 0 to 2^53-1; ``1.0`` is one."""

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` unless the value is a count."""
        if not is_count(value):
            yield path


class Flag(NamedTuple):
    """True or false."""

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` unless the value is a boolean."""
        if not isinstance(value, bool):
            yield path


class Unknown(NamedTuple):
    """Anything, null included."""

    def faults(self, _value: Any, _path: str) -> Iterator[str]:
        """List nothing."""
        return iter(())


class OneOf(NamedTuple):
    """One of these texts."""

    texts: tuple[str, ...]

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` unless the value is one of the texts."""
        if not isinstance(value, str) or value not in self.texts:
            yield path


class ListOf(NamedTuple):
    """A list whose items have one shape."""

    item: Shape

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` for anything but a list, else the faults of its items."""
        if not isinstance(value, list):
            yield path
            return
        for index, item in enumerate(value):
            yield from self.item.faults(item, f"{path}[{index}]")


class TextMap(NamedTuple):
    """An object from texts to texts, opaque to the protocol: any fault is a fault of the whole."""

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` unless the value is an object of texts."""
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            yield path


class Record(NamedTuple):
    """An object with required and optional fields; a closed one takes no others."""

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] = {}
    closed: bool = False

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` for anything but an object, else the faults of its fields."""
        if not isinstance(value, dict):
            yield path
            return
        for name, shape in self.required.items():
            if name in value:
                yield from shape.faults(value[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
        for name, shape in self.optional.items():
            if name in value:
                yield from shape.faults(value[name], f"{path}.{name}")
        if self.closed:
            yield from (f"{path}.{name}" for name in value.keys() - self.required.keys() - self.optional.keys())


class Tagged(NamedTuple):
    """A union of records told apart by their ``type``."""

    records: Mapping[str, Record]

    def faults(self, value: Any, path: str) -> Iterator[str]:
        """List ``path`` for anything but an object, ``path.type`` for an unknown type, else the record's faults."""
        if not isinstance(value, dict):
            yield path
            return
        named = value.get("type")
        record = self.records.get(named) if isinstance(named, str) else None
        if record is None:
            yield f"{path}.type"
        else:
            yield from record.faults(value, path)


def is_count(value: Any) -> bool:
    """Say whether a JSON value is a whole number from 0 to 2^53-1."""
    if isinstance(value, float):
        return value.is_integer() and 0 <= value <= COUNT_MAX
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX


def sorted_faults(faults: Iterable[str]) -> tuple[str, ...]:
    """Give a set of fault paths in text order."""
    return tuple(sorted(set(faults)))


TEXT, NUMBER, COUNT, FLAG, UNKNOWN = Text(), Number(), Count(), Flag(), Unknown()
TEXTS = ListOf(TEXT)
OBJECT = Record({})
EMPTY = Record({}, closed=True)

_PART = Tagged({
    "text": Record({"text": TEXT}),
    "image": Record({"mimeType": TEXT, "dataRef": TEXT}),
    "document": Record({"mimeType": TEXT, "dataRef": TEXT}, {"title": TEXT}),
})  # fmt: skip
_ACTION_KIND = OneOf(("ask_user", "tool_confirmation", "custom_tool_result"))
_ERROR = Record({"message": TEXT}, {"code": TEXT, "retryable": FLAG, "details": UNKNOWN})
_CONTEXT_REQUEST = Record({"kind": OneOf(("prompt_context",)), "keys": TEXTS})
_DISPLAY = Record({}, {"title": TEXT, "summary": TEXT})
_TRIGGER = Tagged({
    "user_message": Record({"inputSeqMax": COUNT}),
    "action_resolved": OBJECT,
    "resume_running": OBJECT,
    "retry": OBJECT,
})  # fmt: skip
_STOP_REASON = Tagged({
    "end_turn": OBJECT,
    "requires_action": Record({"eventIds": TEXTS}),
    "queued_tool": Record({"workIds": TEXTS}),
    "context_resolve": Record({"workIds": TEXTS}),
    "interrupted": Record({"eventId": TEXT}),
    "retries_exhausted": OBJECT,
    "error": Record({"message": TEXT}),
})  # fmt: skip

# A field of unknown type may be absent: JSON has no word for undefined.
PAYLOADS: Final[Mapping[str, Record]] = {
    "user.message": Record({"content": ListOf(_PART)}),
    "user.action.resolved": Record({"kind": _ACTION_KIND}, {"result": UNKNOWN}),
    "user.interrupt": Record({}, {"reason": TEXT}),
    "assistant.output.started": EMPTY,
    "assistant.output.completed": Record({"text": TEXT}),
    "assistant.reasoning.started": EMPTY,
    "assistant.reasoning.completed": Record(
        {"text": TEXT}, {"displayMode": OneOf(("summary", "full")), "providerState": OBJECT}
    ),
    "tool.called": Record({"toolName": TEXT}, {"providerToolCallId": TEXT, "input": UNKNOWN}),
    "tool.completed": Record({"toolName": TEXT}, {"result": UNKNOWN}),
    "tool.failed": Record({"toolName": TEXT, "error": _ERROR}),
    "tool.interrupted": Record({"toolName": TEXT, "reason": OneOf(("user_interrupt", "abort_signal"))}),
    "agent.action.requested": Record(
        {"kind": _ACTION_KIND},
        {
            "prompt": TEXT,
            "input": UNKNOWN,
            "allowedResults": ListOf(UNKNOWN),
            "resultSchema": OBJECT,
            "display": _DISPLAY,
            "expiresAt": TEXT,
        },
    ),
    "agent.context.resolved": Record({"workId": TEXT, "request": _CONTEXT_REQUEST, "snapshot": OBJECT}),
    "agent.context.failed": Record({"workId": TEXT, "request": _CONTEXT_REQUEST, "error": _ERROR}),
    "session.child.spawned": Record({"childSessionId": TEXT, "agentId": TEXT, "task": TEXT}),
    "session.status.running": Record({"inputSeqMax": COUNT, "trigger": _TRIGGER}),
    "session.status.idle": Record({"handledInputSeq": COUNT, "stopReason": _STOP_REASON}),
    "session.status.rescheduled": Record({}, {"retryAt": TEXT, "attempt": NUMBER, "reason": TEXT}),
    "session.status.terminated": Record({}, {"reason": TEXT}),
    "session.error": Record({"message": TEXT}, {"retryable": FLAG, "details": UNKNOWN}),
    "session.deleted": EMPTY,
}

EVENT = Record(
    {
        "id": TEXT,
        "seq": COUNT,
        "type": TEXT,
        "actor": Record({"type": OneOf(("user", "assistant", "tool", "system"))}, {"id": TEXT}),
        "createdAt": TEXT,
        "payload": UNKNOWN,
    },
    {"globalSeq": COUNT, "turnId": TEXT, "parentEventId": TEXT},
)

PERSISTED = Record({"sessionId": TEXT, "scope": TextMap()}, {"rootSessionId": TEXT, "idempotencyKey": TEXT})

SESSION_RECORD = Record(
    {
        "id": TEXT,
        "appId": TEXT,
        "scope": TextMap(),
        "harnessId": TEXT,
        "harnessVersion": NUMBER,
        "environmentId": TEXT,
        "environmentUpdatedAt": TEXT,
        "title": TEXT,
        "metadata": OBJECT,
        "createdAt": TEXT,
        "updatedAt": TEXT,
    },
    {"parentSessionId": TEXT, "rootSessionId": TEXT, "spawnedByEventId": TEXT, "deletedAt": TEXT},
)

HEARTBEAT = Record({"emittedAt": TEXT})
