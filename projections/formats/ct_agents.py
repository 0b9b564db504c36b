"""ct-agents sessions: one stored event (or one stream envelope) a line; ``seq`` orders them and nothing else does.

Rules for editing this module: a field of an event becomes a fact only if ``READS`` names it, or ``DIGESTS`` and then
only as its digest; everything else is content. An event that makes a record, or closes one, is held against the
protocol; all others say nothing to a trace and are not looked at (spec: transcripts 3.2 and 3.3, decisions).
"""

import re
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from projections.canonical import digest_of_json, digest_of_text, sha256_hex
from projections.errors import ProjectionError
from projections.fields import checked_time, native_text
from projections.formats.assembly import Item, Items, Position, span_of
from projections.formats.ct_agents_reader import parse_envelope, validate_event, validate_persisted_event
from projections.ids import SHA256_PATTERN, ConversationIdentity, conversation_ref
from projections.text import JS_SPACE, encode_component, is_blank, storable_text

READS: Final[Mapping[str, tuple[str, ...]]] = {
    "*": ("id", "seq", "turnId", "parentEventId", "createdAt"),
    "tool.called": ("payload.toolName",),
    "agent.action.requested": ("payload.expiresAt",),
    "user.action.resolved": ("actor.type", "actor.id"),
}
"""The fields that are read, by event type; ``seq`` orders, and enters no record."""

DIGESTS: Final[Mapping[str, tuple[str, ...]]] = {
    "*": ("idempotencyKey",),
    "agent.action.requested": ("payload.prompt", "payload.input"),
}
"""The fields of which a digest is kept; that of an idempotency key tells repeats apart, and enters no record."""

_OUTPUT_NAME = "assistant.output"
_SPACES = re.compile(f"[{JS_SPACE}]+")
_FAULT_FIELD = re.compile(r"\$\.([A-Za-z]+)")


def read_line(value: Any, line: bytes, _ordinal: int | None = None) -> dict[str, Any] | str:
    """Read one parsed event or envelope; gives a line fact's body, or the reason why it says nothing to a trace.

    Body: ``len``, ``sha`` (the span), ``at``, ``id``, ``seq``, ``key`` (a digest, where the event has an idempotency
    key), ``turn`` (where it has one), and one of ``call`` (a tool's name), ``output`` (true), ``request`` {expiresAt,
    promptSha256, payloadSha256}, ``close`` [call's event id, isError], ``resolve`` [request's event id, decidedBy].
    """
    if not isinstance(value, dict):
        raise ProjectionError("not_an_object", "line")
    event = _unwrap(value) if "kind" in value and "type" not in value else value
    if event is None:
        return "no_trace_line"
    kind = event.get("type")
    if not isinstance(kind, str):
        raise ProjectionError("invalid_field", "line.type")
    read = _READERS.get(kind)
    if read is None:
        return "no_trace_line"
    _check(event)
    found = read(event)
    if isinstance(found, str):
        return found
    return {"len": len(line), "sha": sha256_hex(line), **_core(event), **found}


def _unwrap(value: dict[str, Any]) -> dict[str, Any] | None:
    """Give the event of a stream envelope; None for a heartbeat or a kind of a later protocol."""
    envelope = parse_envelope(value)
    if envelope.kind == "invalid":
        raise ProjectionError("invalid_envelope", "line")
    return envelope.event


def _check(event: dict[str, Any]) -> None:
    is_stored = "sessionId" in event or "scope" in event
    errors = (validate_persisted_event if is_stored else validate_event)(event).errors
    if errors:
        # Further down a path may name keys of the data, so only the event's own field is told.
        field = _FAULT_FIELD.match(errors[0])
        raise ProjectionError("invalid_event", None if field is None else f"line.{field[1]}")


def _core(event: dict[str, Any]) -> dict[str, Any]:
    core: dict[str, Any] = {
        "at": checked_time(event["createdAt"], "line.createdAt"),
        "id": native_text(event["id"], "line.id"),
        "seq": int(event["seq"]),
    }
    key = event.get("idempotencyKey")
    if isinstance(key, str):
        core["key"] = digest_of_text(key)
    turn = event.get("turnId")
    if isinstance(turn, str) and not is_blank(turn):
        core["turn"] = native_text(turn, "line.turnId")
    return core


def _parent(event: dict[str, Any]) -> str | None:
    """Give the event that a closing event names: nothing but its parent ties a result to a call."""
    parent = event.get("parentEventId")
    return None if parent is None or is_blank(parent) else native_text(parent, "line.parentEventId")


def _read_call(event: dict[str, Any]) -> dict[str, Any]:
    name = event["payload"]["toolName"]
    return {"call": "unknown" if is_blank(name) else storable_text(name)}


def _read_output(_event: dict[str, Any]) -> dict[str, Any]:
    return {"output": True}


def _read_close(event: dict[str, Any]) -> dict[str, Any] | str:
    parent = _parent(event)
    return "no_trace_line" if parent is None else {"close": [parent, _CLOSED_AS[event["type"]]]}


def _read_request(event: dict[str, Any]) -> dict[str, Any]:
    payload = event["payload"]
    request: dict[str, Any] = {}
    if "expiresAt" in payload:
        request["expiresAt"] = checked_time(payload["expiresAt"], "line.payload.expiresAt")
    for name, given, digest in _REQUEST_DIGESTS:
        found = _digest(payload, name, given, digest)
        if found is not None:
            request[given] = found
    return {"request": request}


def _digest(payload: dict[str, Any], name: str, given: str, digest: Callable[[Any], str]) -> str | None:
    """Digest a content field; a digest that the source gives beside or instead of it wins (decisions)."""
    ready = payload.get(given)
    if ready is not None:
        if not isinstance(ready, str) or SHA256_PATTERN.fullmatch(ready) is None:
            raise ProjectionError("invalid_field", f"line.payload.{given}")
        return ready
    value = payload.get(name)
    return None if value is None else digest(value)


_REQUEST_DIGESTS: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("prompt", "promptSha256", digest_of_text),
    ("input", "payloadSha256", digest_of_json),
)


def _read_resolution(event: dict[str, Any]) -> dict[str, Any] | str:
    parent = _parent(event)
    return "no_trace_line" if parent is None else {"resolve": [parent, _decided_by(event["actor"])]}


def _decided_by(actor: dict[str, Any]) -> str | None:
    name = actor.get("id")
    if actor["type"] != "user" or not name:
        return None
    # An actor's label holds no white space (decisions: decidedBy).
    return f"human:{_SPACES.sub(lambda found: encode_component(found.group()), storable_text(name))}"


_CLOSED_AS: Final[Mapping[str, bool | None]] = {
    "tool.completed": False,
    "tool.failed": True,
    # An interrupted call neither succeeded nor failed.
    "tool.interrupted": None,
}

_READERS: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any] | str]]] = {
    "tool.called": _read_call,
    "assistant.output.completed": _read_output,
    "agent.action.requested": _read_request,
    "user.action.resolved": _read_resolution,
    **dict.fromkeys(_CLOSED_AS, _read_close),
}


_CLOSES: Final[Mapping[str, str]] = {"close": "call", "resolve": "request"}
_OPENS: Final = ("call", "output", "request")


class _Event(NamedTuple):
    """An event in the session's order; the position only tells copies of one event apart."""

    seq: int
    id: str
    position: Position
    body: dict[str, Any]

    @property
    def rank(self) -> tuple[int, str, Position]:
        """Give what orders events, without the body."""
        return self[:3]

    def claims(self) -> list[tuple[str, Any]]:
        """List what only one event of a session may have: its id, its idempotency key, its seq."""
        key = [("key", self.body["key"])] if "key" in self.body else []
        return [("id", self.id), *key, ("seq", self.seq)]

    def subject(self) -> tuple[str, str]:
        """Name what the event opens or closes: a call, an output or a request, by the id of the opening event."""
        for word, opened in _CLOSES.items():
            if word in self.body:
                return opened, self.body[word][0]
        return next(word for word in _OPENS if word in self.body), self.id


class CtAgentsAssembly(Items):
    """Tool calls, model outputs and human gates of one session.

    The same in whatever order the events come: an event competes only with those that claim its id, key or seq, and
    only among the events that open or close something; the others are no line facts.
    """

    def __init__(self, identity: ConversationIdentity) -> None:
        super().__init__(identity)
        self._ref = conversation_ref(identity)
        self._scope = self._ref.removeprefix("conversation:")
        self._claimants: dict[tuple[str, Any], list[_Event]] = {}
        self._accepted: set[tuple[int, str, Position]] = set()
        self._opened: dict[tuple[str, str], _Event] = {}
        self._closers: dict[tuple[str, str], list[_Event]] = {}
        self._made: dict[tuple[str, str], Item] = {}

    def add(self, position: Position, body: dict[str, Any]) -> None:
        """Take one event; the order does not matter."""
        event = _Event(body["seq"], body["id"], position, body)
        is_contested = False
        for claim in event.claims():
            claimants = self._claimants.setdefault(claim, [])
            claimants.append(event)
            is_contested = is_contested or len(claimants) > 1
        if not is_contested:
            self._switch(event, is_accepted=True)
            return
        taken: set[tuple[str, Any]] = set()
        for rival in self._rivals(event):
            # The lowest seq, then id, keeps its claims; an event that is dropped claims nothing.
            is_accepted = taken.isdisjoint(rival.claims())
            if is_accepted:
                taken.update(rival.claims())
            if is_accepted is not (rival.rank in self._accepted):
                self._switch(rival, is_accepted=is_accepted)

    def _rivals(self, event: _Event) -> list[_Event]:
        """Give the event and all that compete with it, directly or through others, in the session's order."""
        found = {event.rank: event}
        waiting = [event]
        while waiting:
            for claim in waiting.pop().claims():
                for rival in self._claimants[claim]:
                    if rival.rank not in found:
                        found[rival.rank] = rival
                        waiting.append(rival)
        return [found[rank] for rank in sorted(found)]

    def _switch(self, event: _Event, *, is_accepted: bool) -> None:
        (self._accepted.add if is_accepted else self._accepted.discard)(event.rank)
        subject = event.subject()
        if any(word in event.body for word in _CLOSES):
            closers = self._closers.setdefault(subject, [])
            if is_accepted:
                insort(closers, event, key=lambda closer: closer.rank)
            else:
                closers.remove(event)
        elif is_accepted:
            self._opened[subject] = event
        elif self._opened.get(subject) is event:
            del self._opened[subject]
        self._refresh(subject)

    def _refresh(self, subject: tuple[str, str]) -> None:
        """Bring the item of a call, output or request up to what is known of it."""
        event, item = self._opened.get(subject), self._made.get(subject)
        if event is None:
            self.withdraw([] if item is None else [item], withdrawn=True)
            return
        closers = self._closers.get(subject, [])
        # The first closing event after the opening one counts; an earlier one closes nothing.
        after = bisect_right(closers, event.seq, key=lambda closer: closer.seq)
        closer = closers[after] if after < len(closers) else None
        kind, native_id, fields = _SHOWN[subject[0]](self, event, closer)
        if item is None:
            item = self._made[subject] = self.put(Item(kind, native_id, event.body["at"], fields), "")
        item.at, item.fields = event.body["at"], fields
        self.withdraw([item], withdrawn=False)
        self.touch(item)

    def call(self, event: _Event, closer: _Event | None) -> tuple[str, str, dict[str, Any]]:
        """Show a tool call; it is no error and no success until its closing event says so."""
        is_error = None if closer is None else closer.body["close"][1]
        native_id = f"call:{self._scope}:{encode_component(event.id)}"
        return "call", native_id, self._call_fields("tool", event.body["call"], event, is_error=is_error)

    def output(self, event: _Event, _closer: _Event | None) -> tuple[str, str, dict[str, Any]]:
        """Show a model's answer; no event names the model."""
        native_id = f"response:{self._scope}:{encode_component(event.id)}"
        return "call", native_id, self._call_fields("model", _OUTPUT_NAME, event, is_error=False)

    def _call_fields(self, kind: str, name: str, event: _Event, *, is_error: bool | None) -> dict[str, Any]:
        turn = event.body.get("turn")
        return {
            "callKind": kind,
            "name": name,
            "namespace": None,
            "conversation": self._ref,
            **({} if turn is None else {"turn": f"turn:{self._scope}:{encode_component(turn)}"}),
            "isError": is_error,
            "span": span_of(event.position, event.body),
        }

    def request(self, event: _Event, closer: _Event | None) -> tuple[str, str, dict[str, Any]]:
        """Show an action request as a human gate; its result is free text, so it has no verdict."""
        request = event.body["request"]
        fields: dict[str, Any] = {"gateKind": "human", "status": "pending" if closer is None else "resolved"}
        fields["verdict"] = None
        if closer is not None:
            if closer.body["resolve"][1] is not None:
                fields["decidedBy"] = closer.body["resolve"][1]
            fields["resolvedAt"] = closer.body["at"]
        fields |= {name: request[name] for name in ("expiresAt", "promptSha256", "payloadSha256") if name in request}
        # Ids of human gates are exported in clear, so this one must not spell the conversation (decisions).
        native_id = sha256_hex(f"{self._ref}\n{event.id}".encode())
        return "gate", f"ct-agents:{native_id}", fields


_SHOWN: Final[Mapping[str, Callable[..., tuple[str, str, dict[str, Any]]]]] = {
    "call": CtAgentsAssembly.call,
    "output": CtAgentsAssembly.output,
    "request": CtAgentsAssembly.request,
}
