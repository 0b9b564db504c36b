"""ct-agents events: what becomes a fact, which events are refused, and that nothing but seq orders them."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from projections.canonical import digest_of_json, digest_of_text, sha256_hex
from projections.errors import ProjectionError
from projections.formats import ct_agents_reader
from projections.formats.assembly import Position
from projections.formats.ct_agents import CtAgentsAssembly, read_line
from projections.ids import ConversationIdentity
from projections.records import parse_trace_record
from tests.projections.formats.bindings import binding
from tests.worlds.cluster import clean_pass, random_pass
from tests.worlds.world import SourceMessage

IDENTITY = ConversationIdentity("ct-agents", "app-1", "sess_1")
REF = "conversation:ct-agents:app-1:sess_1"


def event(seq: int, kind: str, payload: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": f"e{seq}",
        "seq": seq,
        "type": kind,
        "actor": {"type": "user", "id": "u-9"},
        "createdAt": f"2026-05-01T08:{seq // 60:02d}:{seq % 60:02d}.000Z",
        "payload": payload,
        "sessionId": "sess_1",
        "scope": {"tenant": "ZZSECRETZZ"},
        **fields,
    }


def called(seq: int, **fields: Any) -> dict[str, Any]:
    return event(seq, "tool.called", {"toolName": "read_doc", "input": "ZZSECRETZZ"}, **fields)


def closed(seq: int, parent: str, kind: str = "tool.completed", **fields: Any) -> dict[str, Any]:
    error = {"message": "ZZSECRETZZ", "code": "TOOL_ORPHANED"}
    payload: dict[str, Any] = {"toolName": "read_doc", "reason": "abort_signal", "error": error}
    return event(seq, kind, payload, parentEventId=parent, **fields)


def answered(seq: int, **fields: Any) -> dict[str, Any]:
    return event(seq, "assistant.output.completed", {"text": "ZZSECRETZZ"}, **fields)


def requested(seq: int, **payload: Any) -> dict[str, Any]:
    return event(seq, "agent.action.requested", {"kind": "ask_user", **payload})


def resolved(seq: int, parent: str, **fields: Any) -> dict[str, Any]:
    payload = {"kind": "ask_user", "result": "ZZSECRETZZ"}
    return event(seq, "user.action.resolved", payload, parentEventId=parent, **fields)


def body_of(value: Any) -> dict[str, Any]:
    body = read_line(value, json.dumps(value).encode())
    assert isinstance(body, dict)
    return body


def shown(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Give what an assembly shows of some events, each at the place that it has when it comes alone."""
    assembly = CtAgentsAssembly(IDENTITY)
    for value in events:
        body = read_line(value, json.dumps(value).encode())
        if isinstance(body, dict):
            assembly.add(Position(f"ct-agents:app-1:sess_1#{value['seq']}", 0, 0), body)
    return {item.native_id: {"at": item.at, **item.fields} for item in assembly.items if not item.withdrawn}


def gate_id(event_id: str) -> str:
    return "ct-agents:" + sha256_hex(f"{REF}\n{event_id}".encode())


CALL = "call:ct-agents:app-1:sess_1:e1"


@pytest.mark.parametrize(
    ("closing", "is_error"),
    [
        ([], None),
        ([closed(2, "e1")], False),
        ([closed(2, "e1", "tool.failed")], True),
        ([closed(2, "e1", "tool.interrupted")], None),
        ([closed(3, "e1", "tool.failed"), closed(2, "e1")], False),
        ([closed(0, "e1")], None),
        ([closed(2, "other"), event(3, "tool.completed", {"toolName": "read_doc"})], None),
        ([resolved(2, "e1")], None),
    ],
)
def test_a_call_is_closed_by_the_first_closing_event_after_it_that_names_it(closing: list[Any], is_error: Any) -> None:
    for events in ([called(1), *closing], [*closing, called(1)]):
        assert shown(events)[CALL]["isError"] is is_error


def test_an_output_is_a_model_call_of_its_turn() -> None:
    record = shown([answered(1, turnId="t/1")])["response:ct-agents:app-1:sess_1:e1"]
    assert (record["callKind"], record["name"], record["namespace"]) == ("model", "assistant.output", None)
    assert (record["turn"], record["isError"]) == ("turn:ct-agents:app-1:sess_1:t%2F1", False)


def test_a_request_is_a_pending_gate_with_digests_of_its_texts() -> None:
    payload = {"prompt": "ZZSECRETZZ?", "input": {"b": 1.0, "a": "ZZSECRETZZ"}, "expiresAt": "2026-05-02T00:00:00Z"}
    assert shown([requested(1, **payload)])[gate_id("e1")] == {
        "at": "2026-05-01T08:00:01.000Z",
        "gateKind": "human",
        "status": "pending",
        "verdict": None,
        "expiresAt": "2026-05-02T00:00:00Z",
        "promptSha256": digest_of_text("ZZSECRETZZ?"),
        "payloadSha256": digest_of_json({"a": "ZZSECRETZZ", "b": 1}),
    }


def test_an_input_that_is_text_is_digested_as_json_text_even_when_it_looks_like_an_object() -> None:
    digest = body_of(requested(1, input='{"a":1}'))["request"]["payloadSha256"]
    assert digest == sha256_hex(b'"{\\"a\\":1}"')


def test_a_digest_that_the_source_gives_wins_over_the_content() -> None:
    given = {"promptSha256": "a" * 64, "payloadSha256": "b" * 64}
    assert body_of(requested(1, prompt="x", **given))["request"] == given
    with pytest.raises(ProjectionError, match=r"invalid_field: line\.payload\.promptSha256"):
        read_line(requested(1, promptSha256="ZZSECRETZZ"), b"")


@pytest.mark.parametrize(
    ("actor", "decided_by"),
    [
        ({"type": "user", "id": "u-9"}, "human:u-9"),
        ({"type": "user", "id": "a b\u3000c"}, "human:a%20b%E3%80%80c"),
        ({"type": "user", "id": ""}, None),
        ({"type": "user"}, None),
        ({"type": "system", "id": "s"}, None),
    ],
)
def test_only_a_user_with_an_id_decides(actor: dict[str, str], decided_by: str | None) -> None:
    gate = shown([requested(1), resolved(2, "e1", actor=actor)])[gate_id("e1")]
    assert (gate["status"], gate["verdict"], gate["resolvedAt"]) == ("resolved", None, "2026-05-01T08:00:02.000Z")
    assert gate.get("decidedBy") == decided_by


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (event(1, "user.message", {}), "no_trace_line"),
        (event(1, "workspace.saved", {}), "no_trace_line"),
        (event(1, "tool.completed", {"toolName": "x"}), "no_trace_line"),
        (event(1, "user.action.resolved", {"kind": "ask_user"}), "no_trace_line"),
        (resolved(1, " "), "no_trace_line"),
        ({"kind": "heartbeat", "emittedAt": "now"}, "no_trace_line"),
        ({"kind": "snapshot", "state": {}}, "no_trace_line"),
    ],
)
def test_what_says_nothing_to_a_trace_is_counted_by_a_bounded_reason(value: Any, reason: str) -> None:
    assert read_line(value, b"") == reason


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([], "not_an_object: line"),
        ({}, "invalid_field: line.type"),
        ({**called(1), "type": 5}, "invalid_field: line.type"),
        ({**called(1), "seq": -1}, "invalid_event: line.seq"),
        ({**called(1), "payload": {"ZZSECRETZZ": 1}}, "invalid_event: line.payload"),
        ({**called(1), "scope": {"ZZSECRETZZ": 1}}, "invalid_event: line.scope"),
        ({**called(1), "id": " "}, "invalid_field: line.id"),
        ({**called(1), "createdAt": "ZZSECRETZZ"}, "invalid_time: line.createdAt"),
        (requested(1, expiresAt="ZZSECRETZZ"), "invalid_time: line.payload.expiresAt"),
        ({"kind": "event", "event": {"id": "ZZSECRETZZ"}}, "invalid_envelope: line"),
    ],
)
def test_a_broken_event_is_refused_with_a_field_name_and_no_content(value: Any, error: str) -> None:
    with pytest.raises(ProjectionError) as raised:
        read_line(value, b"")
    assert str(raised.value) == error


def test_an_event_in_an_envelope_is_read_like_a_stored_one() -> None:
    plain = {name: value for name, value in called(1).items() if name not in {"sessionId", "scope"}}
    line = b"the bytes of the line"
    enveloped = read_line({"kind": "event", "event": plain}, line)
    assert enveloped == read_line(plain, line) == read_line(called(1), line)


def test_texts_that_no_store_takes_are_escaped_and_ids_are_kept() -> None:
    records = shown([{**called(1), "id": "e\x00", "turnId": "\ufffd", "payload": {"toolName": "\ud800"}}])
    record = records["call:ct-agents:app-1:sess_1:e%00"]
    assert (record["name"], record["turn"]) == ("\ufffdd800", "turn:ct-agents:app-1:sess_1:%EF%BF%BD")


@pytest.mark.parametrize("field", ["id", "turnId", "parentEventId"])
def test_an_id_that_cannot_be_encoded_refuses_the_event(field: str) -> None:
    with pytest.raises(ProjectionError, match=f"lone_surrogate: line.{field}"):
        read_line({**closed(2, "e1"), field: "\ud800"}, b"")


def random_events(random: Random) -> list[dict[str, Any]]:
    """Make the events of a session, some of which fight for one id, key or seq."""
    makers: list[Callable[[int], dict[str, Any]]] = [
        called,
        answered,
        requested,
        lambda seq: closed(seq, f"e{random.randrange(1, 12)}", random.choice(["tool.completed", "tool.failed"])),
        lambda seq: resolved(seq, f"e{random.randrange(1, 12)}"),
    ]
    events = [random.choice(makers)(random.randrange(1, 14)) for _ in range(random.randrange(2, 16))]
    for value in events:
        if random.random() < 0.3:
            value["idempotencyKey"] = random.choice("kl")
        if random.random() < 0.2:
            value["id"] = f"e{random.randrange(1, 14)}"
    return events


@pytest.mark.parametrize("seed", range(40))
def test_what_is_shown_agrees_with_the_reader_and_not_with_the_order_of_arrival(seed: int) -> None:
    random = Random(seed)
    # One position holds one line, so of events on one seq with one id only the first is sent at all.
    events = list({(value["seq"], value["id"]): value for value in random_events(random)}.values())
    records = shown(events)
    for _ in range(5):
        random.shuffle(events)
        assert shown(events) == records
    accepted = ct_agents_reader.ingest_persisted(events).accepted_by_session["sess_1"]
    opening = {"tool.called", "assistant.output.completed", "agent.action.requested"}
    assert len(records) == sum(value["type"] in opening for value in accepted)
    state = ct_agents_reader.fold_events(events).state
    pending = {gate_id(name) for name in state.pending_action_event_ids}
    assert {name for name, record in records.items() if record.get("status") == "pending"} == pending
    unclosed = {f"call:ct-agents:app-1:sess_1:{name}" for name in state.open_tool_call_event_ids}
    tools = {name for name, record in records.items() if record.get("callKind") == "tool" and record["isError"] is None}
    assert tools == unclosed


def messages_of(events: list[dict[str, Any]], *, one_file: bool) -> list[SourceMessage]:
    source = {"harness": "ct-agents", "namespace": "app-1", "nativeId": "sess_1", "format": "ct-agents"}
    messages, offset = [], 0
    for value in events:
        line = json.dumps(value)
        name = "ct-agents:app-1:sess_1:events.jsonl" if one_file else f"ct-agents:app-1:sess_1#{value['seq']}"
        place = {"source": {**source, "sourceId": name}, "byteOffset": offset if one_file else 0, "line": line}
        messages.append(SourceMessage("transcripts", None, json.dumps(place).encode()))
        offset += len(line) + 1
    return messages


@pytest.mark.parametrize("attempts", [0, 1, 2])
@pytest.mark.parametrize("one_file", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_any_schedule_gives_the_same_bytes(seed: int, one_file: bool, attempts: int) -> None:
    messages = messages_of(random_events(Random(seed)), one_file=one_file)
    conversation = {"harness": "ct-agents", "namespace": "app-1", "nativeId": "sess_1"}
    for number in range(attempts):
        start = f"2026-05-01T08:00:0{number * 5}Z"
        messages.append(binding(conversation, f"workflow:run-{number}:draft:0:0", at=start))
    clean = clean_pass(messages, unbound="standalone")
    for schedule in range(4):
        assert random_pass(messages, schedule, unbound="standalone").records == clean.records
    for record in clean.records.values():
        parse_trace_record(json.loads(record))
    assert b"ZZSECRETZZ" not in b"".join(clean.records.values())
