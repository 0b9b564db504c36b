"""ct-agents sessions: validation, order-free folding, envelopes, beyond what the conformance rows say."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.formats import ct_agents_reader as reader
from projections.formats.ct_agents_contracts import PAYLOADS

# The time an example takes is no property of the readers.
LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
WORDS = st.text("ab\x00 \u00fc\ud800$.[", max_size=5)


def event(seq: int, kind: str = "user.message", payload: Any = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"e{seq}",
        "seq": seq,
        "type": kind,
        "actor": {"type": "user"},
        "createdAt": "2026-05-01T08:00:00Z",
        "payload": {"content": []} if payload is None else payload,
        **fields,
    }


def called(seq: int) -> dict[str, Any]:
    return event(seq, "tool.called", {"toolName": "read"})


def closed(seq: int, parent: str, code: str = "") -> dict[str, Any]:
    return event(seq, "tool.failed", {"toolName": "read", "error": {"message": "", "code": code}}, parentEventId=parent)


def running(seq: int, input_seq: int) -> dict[str, Any]:
    return event(seq, "session.status.running", {"inputSeqMax": input_seq, "trigger": {"type": "retry"}})


def idle(seq: int, handled: int) -> dict[str, Any]:
    payload = {"handledInputSeq": handled, "stopReason": {"type": "end_turn"}}
    return event(seq, "session.status.idle", payload)


EVENTS = st.lists(
    st.one_of(
        st.builds(event, st.integers(1, 9)),
        st.builds(called, st.integers(1, 9)),
        st.builds(
            closed, st.integers(1, 9), st.sampled_from(["e1", "e2", "e3"]), st.sampled_from(["", "TOOL_ORPHANED"])
        ),
        st.builds(running, st.integers(1, 9), st.integers(0, 5)),
        st.builds(idle, st.integers(1, 9), st.integers(0, 5)),
        st.builds(event, st.integers(1, 9), st.just("app.saved"), st.none(), idempotencyKey=st.sampled_from("kl")),
    ),
    max_size=8,
    unique_by=lambda item: item["seq"],
)


@LAW
@given(EVENTS, st.randoms(use_true_random=False))
def test_the_state_does_not_depend_on_the_order_of_arrival(events: list[Any], random: Any) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)
    assert reader.fold_events(shuffled).state == reader.fold_events(events).state


@LAW
@given(EVENTS)
def test_repeated_events_change_nothing_and_are_dropped(events: list[Any]) -> None:
    once, twice = reader.fold_events(events), reader.fold_events([*events, *events])
    assert twice.state == once.state
    assert len(twice.dropped) == len(once.dropped) + len(events)


@LAW
@given(EVENTS)
def test_a_stream_gives_the_state_of_its_events_whatever_stands_between_them(events: list[Any]) -> None:
    between: list[Any] = [{"kind": "heartbeat", "emittedAt": "now"}, {"kind": "snapshot"}, {"kind": "event"}, None]
    envelopes = [[{"kind": "event", "event": item}, *between] for item in events]
    streamed = reader.fold_stream(list(itertools.chain.from_iterable(envelopes)))
    assert streamed.state == reader.fold_events(events).state


@LAW
@given(EVENTS, EVENTS)
def test_sessions_do_not_touch_each_other(one: list[Any], other: list[Any]) -> None:
    def stored(events: list[Any], session: str) -> list[Any]:
        return [{**item, "sessionId": session, "scope": {}} for item in events]

    both = reader.ingest_persisted([*stored(one, "a"), *stored(other, "b")]).accepted_by_session
    assert both.get("a") == reader.ingest_persisted(stored(one, "a")).accepted_by_session.get("a")
    assert both.get("b") == reader.ingest_persisted(stored(other, "b")).accepted_by_session.get("b")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@LAW
@given(JSON_VALUES, st.sampled_from(sorted(PAYLOADS)), st.dictionaries(st.sampled_from(sorted(event(1))), JSON_VALUES))
def test_no_json_value_makes_a_reader_raise(value: Any, kind: str, changes: dict[str, Any]) -> None:
    for candidate in (value, event(1, kind, value), {**event(1, kind, {}), **changes}):
        validated = reader.validate_event(candidate)
        assert (validated.event_class == "invalid") is bool(validated.errors)
        assert reader.validate_persisted_event(candidate).event_class == "invalid"
        assert reader.parse_envelope(candidate).kind == "invalid"
        assert reader.validate_session_record(candidate)
    assert reader.parse_envelope({"kind": "event", "event": value}).kind == "invalid"


def test_no_depth_of_an_opaque_payload_is_walked() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert reader.validate_event(event(1, "app.saved", deep)).event_class == "app"
    assert reader.validate_event(event(1, "tool.called", {"toolName": "x", "input": deep})).event_class == "core"


def test_whole_floats_are_counts_and_order_like_integers() -> None:
    state = reader.fold_events([event(2), {**event(1), "seq": 1.0}, {**event(3), "seq": 2**53}]).state
    assert json.dumps(state.as_json()["lastSeq"]) == "2"
    assert state.pending_user_message_event_ids == ("e1", "e2")


def test_one_id_of_a_dropped_event_does_not_block_a_later_one() -> None:
    # e2 loses its seq to e1 and so never takes the key that it shares with e3.
    events = [event(1), {**event(1), "id": "e2", "idempotencyKey": "k"}, event(3, idempotencyKey="k")]
    folded = reader.fold_events(events)
    assert [(item.index, item.reason) for item in folded.dropped] == [(1, "seq_conflict")]
    assert folded.state.pending_user_message_event_ids == ("e1", "e3")


def test_an_event_that_repeats_both_id_and_key_is_a_duplicate_id() -> None:
    events = [event(1, idempotencyKey="k"), event(1, idempotencyKey="k")]
    assert [item.reason for item in reader.fold_events(events).dropped] == ["duplicate_id"]


@pytest.mark.parametrize("kind", sorted(PAYLOADS))
def test_every_core_type_is_known_and_refuses_a_payload_that_is_no_object(kind: str) -> None:
    assert reader.is_session_event_type(kind)
    assert reader.validate_event(event(1, kind, [])).errors == ("$.payload",)


def test_there_are_21_core_types() -> None:
    assert len(PAYLOADS) == 21


def test_reprs_hold_no_content() -> None:
    secret = "SECRET-WORDS"
    stop = {"handledInputSeq": 0, "stopReason": {"type": "error", "message": secret}}
    assert secret not in repr(reader.fold_events([event(1, "session.status.idle", stop)]))
    assert secret not in repr(reader.parse_envelope({"kind": secret}))
    assert secret not in repr(reader.parse_envelope({"kind": "event", "event": event(1, secret, {"x": secret})}))
