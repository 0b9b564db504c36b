"""Robota history entries: what becomes a fact, and what the assembly makes of a history in any order."""

import itertools
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.formats.assembly import Position
from projections.formats.robota import READS, read_line
from projections.formats.robota_assembly import RobotaAssembly
from projections.formats.robota_session import normalize_session
from projections.ids import ConversationIdentity
from projections.records import parse_trace_record

SESSION = ConversationIdentity("robota", "host", "session-1")
AT = "2026-09-24T00:01:00.000Z"
Entry = dict[str, Any]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def usage(total: int, scope: str | None = None) -> Entry:
    source = {} if scope is None else {"source": {"scope": scope, "label": "SECRET"}}
    return {
        "kind": "exact",
        "scope": "turn",
        "totalTokens": total,
        "promptTokens": total,
        "contextUsedTokens": 1,
        "contextMaxTokens": 2,
        "contextUsedPercentage": 50,
        "costStatus": "estimated",
        "costUsd": total / 1000,
        **source,
    }


def trace(number: int) -> str:
    return f"{number:032x}"


def entry(entry_id: str, kind: str, data: Any, at: str = AT) -> Entry:
    return {"id": entry_id, "timestamp": at, "category": "event", "type": kind, "data": data}


def summary(entry_id: str, total: int, scope: str | None = None) -> Entry:
    return entry(entry_id, "usage-summary", usage(total, scope))


def observation(entry_id: str, turn: str, total: int | None, root: int | None = None, scope: str = "main") -> Entry:
    data: Entry = {"usageObservationId": turn, "turnId": turn, "outcome": "success", "source": {"scope": scope}}
    if total is not None:
        data["usage"] = usage(total)
    if root is not None:
        data["promptExecutionTraceId"] = trace(root)
    return entry(entry_id, "usage-observation", data)


def traced(entry_id: str, kind: str, root: int, span: int, **data: Any) -> Entry:
    ids = {"traceId": trace(root), "spanId": f"{span:016x}", "startedAt": AT, "outcome": "success"}
    return entry(entry_id, kind, {**ids, **data, "content": "SECRET"})


def op(entry_id: str, span_id: str) -> Entry:
    return entry(entry_id, "span", {"spanId": span_id, "op": "search", "durationMs": 3, "args": "SECRET"})


def facts_of(history: Iterable[Entry], session: str = "session-1") -> list[tuple[Position, Entry]]:
    facts = []
    for ordinal, one in enumerate(history):
        line = json.dumps(one).encode()
        body = read_line(one, line, ordinal)
        if not isinstance(body, str):
            facts.append((Position(f"robota:host:{session}#{one['id']}", 0, 0), body))
    return facts


def assemble(facts: Iterable[tuple[Position, Entry]], identity: ConversationIdentity = SESSION) -> RobotaAssembly:
    assembly = RobotaAssembly(identity)
    for position, body in facts:
        assembly.add(position, body)
    return assembly


def shown(assembly: RobotaAssembly) -> dict[str, Any]:
    return {item.native_id: {"at": item.at, **item.fields} for item in assembly.items if not item.withdrawn}


def claimed(assembly: RobotaAssembly) -> dict[str, Any]:
    return {meeting: claim for meeting, claim in assembly.claims.items() if claim is not None}


def names(history: Iterable[Entry]) -> set[str]:
    return {native_id.removeprefix("cost:conversation:") for native_id in shown(assemble(facts_of(history)))}


HISTORIES = st.lists(
    st.one_of(
        st.builds(summary, st.just("summary"), st.integers(1, 2), st.sampled_from([None, "tool"])),
        st.builds(
            observation,
            st.just("observation"),
            st.sampled_from(["t1", "t2", "t3"]),
            st.sampled_from([None, 1, 2]),
            st.sampled_from([None, 1, 2]),
            st.sampled_from(["main", "tool"]),
        ),
        st.builds(traced, st.just("call"), st.just("provider-call-trace"), st.integers(1, 2), st.integers(1, 3)),
        st.builds(traced, st.just("body"), st.just("tool-body-trace"), st.integers(1, 2), st.integers(4, 6)),
        st.builds(op, st.just("op"), st.sampled_from(["span_a", "span_b", "span_c", "span_d"])),
    ),
    max_size=12,
).map(lambda entries: [one | {"id": f"{one['id']}-{number}"} for number, one in enumerate(entries)])


@given(HISTORIES, st.randoms(use_true_random=False))
def test_a_history_gives_the_same_records_in_whatever_order_its_entries_come(history: list[Entry], random: Any) -> None:
    facts = facts_of(history)
    in_order, shuffled = assemble(facts), assemble(random.sample(facts, len(facts)))
    assert shown(shuffled) == shown(in_order)
    assert claimed(shuffled) == claimed(in_order)


@given(HISTORIES)
def test_costs_are_those_that_the_reference_counts(history: list[Entry]) -> None:
    normalized = normalize_session({"id": "session-1", "history": history}).observations
    counted: dict[str, Any] = {}
    for one in normalized:
        told = one.observation.get("usage")
        scope = one.observation["turnId"] if one.legacy else one.id
        if told is not None:
            counted.setdefault(f"{scope}:{one.legacy}", told["totalTokens"])
    seen = {
        f"{fields['measurement']['scopeId']}:{fields['measurement']['epoch'] == 'summary'}": fields["measurement"]
        for fields in shown(assemble(facts_of(history))).values()
        if "measurement" in fields
    }
    assert {scope: measurement["tokens"]["total"] for scope, measurement in seen.items()} == counted


@given(HISTORIES)
def test_what_is_shown_is_a_valid_record_without_content(history: list[Entry]) -> None:
    facts = facts_of(history)
    assert "SECRET" not in repr(facts)
    for item in assemble(facts).items:
        head = {"schema": "titan.trace/v1", "kind": item.kind, "id": item.native_id, "runId": "run", "at": item.at}
        parse_trace_record({**head, **item.fields})


def test_a_call_belongs_to_the_turn_of_its_prompt_even_when_the_prompt_is_told_later() -> None:
    history = [traced("c", "provider-call-trace", 1, 1, callId="call-1"), observation("o", "t1", None, 1)]
    fields = shown(assemble(facts_of(history)))["response:robota:host:session-1:call-1"]
    assert fields["turn"] == "turn:robota:host:session-1:t1"
    assert list(fields) == ["at", "callKind", "name", "namespace", "conversation", "turn", "isError", "span"]


@pytest.mark.parametrize(
    ("history", "told"),
    [
        # The session writes operations, the summary, then the traces and the observation of one turn.
        ([op("a", "a"), summary("s", 1), traced("b", "tool-body-trace", 1, 1), observation("o", "t", 1, 1)], {1}),
        ([traced("b", "tool-body-trace", 1, 1), op("a", "a"), observation("o", "t", None, 1)], {1}),
        # A turn of an older program has operations only.
        ([op("a", "a"), summary("s", 1), traced("b", "tool-body-trace", 1, 1), observation("o", "t", 2, 1)], {1, "a"}),
        (
            [op("a", "a"), observation("o", "t", 1), traced("b", "tool-body-trace", 1, 1), observation("p", "u", 2, 1)],
            {1, "a"},
        ),
        ([op("a", "a"), traced("b", "tool-body-trace", 1, 1)], {1, "a"}),
        # A consulted model does not end the turn that consulted it.
        (
            [
                op("a", "a"),
                observation("c", "advisor", 7, None, "tool"),
                summary("d", 7, "tool"),
                traced("b", "tool-body-trace", 1, 1),
                observation("o", "t", 1, 1),
            ],
            {1},
        ),
    ],
)
def test_operations_are_calls_only_in_turns_without_tool_bodies(history: list[Entry], told: set[Any]) -> None:
    calls = {native_id.rsplit(":", 1)[1] for native_id in names(history) if native_id.startswith("call:")}
    assert calls == {f"{one:016x}" if isinstance(one, int) else one for one in told}


def test_an_observation_and_its_summary_are_one_cost() -> None:
    assert names([summary("s", 5), observation("o", "t", 5)]) == {"robota:host:session-1:turn:t:observation"}
    assert names([summary("s", 4), observation("o", "t", 5)]) == {
        "robota:host:session-1:turn:t:observation",
        "robota:host:session-1:turn:legacy%3As:summary",
    }


def test_a_turn_that_is_told_twice_counts_as_it_was_first_told() -> None:
    history = [observation("o1", "t", 3), observation("o2", "t", 9)]
    (fields,) = shown(assemble(facts_of(history))).values()
    assert fields["measurement"]["tokens"]["total"] == 3
    assert fields["span"]["sourceId"].endswith("#o1")


def in_any_order(facts: list[tuple[Position, Entry]]) -> dict[str, Any]:
    """Give what is shown of entries, which must be the same in whatever order they come."""
    expected = shown(assemble(facts))
    assert all(shown(assemble(order)) == expected for order in itertools.permutations(facts))
    return expected


def placed(*entries: tuple[str, int, Entry]) -> list[tuple[Position, Entry]]:
    """Give the facts of entries that stand at an offset of a source; each one's ordinal is its place here."""
    found: list[tuple[Position, Entry]] = []
    for ordinal, (source_id, offset, one) in enumerate(entries):
        body = read_line(one, json.dumps(one).encode(), ordinal)
        assert not isinstance(body, str)
        found.append((Position(source_id, offset, 0), body))
    return found


def test_summaries_that_share_an_id_vanish_together_whichever_of_them_an_observation_tells_again() -> None:
    history = placed(("a", 0, summary("s", 1)), ("b", 0, observation("o", "t", 1)), ("c", 0, summary("s", 2)))
    assert set(in_any_order(history)) == {"cost:conversation:robota:host:session-1:turn:t:observation"}


def test_a_tool_body_takes_the_place_of_a_later_operation_of_its_span() -> None:
    history = placed(
        *(("a", 0, traced("body", "tool-body-trace", 1, 7)), ("b", 0, op("op", f"{7:016x}"))),
        *(("c", 0, traced("other", "tool-body-trace", 2, 8)), ("d", 0, observation("o", "t", None, 2))),
    )
    found = in_any_order(history)
    assert {row["name"] for row in found.values()} == {"tool_body"}
    assert set(found) == {f"call:robota:host:session-1:{span:016x}" for span in (7, 8)}


def test_an_entry_without_a_time_has_that_of_the_nearest_earlier_entry_of_its_source_else_of_the_next() -> None:
    def timeless(one: Entry) -> Entry:
        return one | {"timestamp": None}

    def timed(one: Entry, second: int) -> Entry:
        return one | {"timestamp": f"2026-09-24T00:01:0{second}Z"}

    history = placed(
        *(("file", 0, timeless(op("a", "span_a"))), ("file", 100, timed(op("b", "span_b"), 1))),
        *(("file", 200, timeless(summary("s", 5))), ("file", 300, timed(op("c", "span_c"), 2))),
        *(("file", 400, timeless(op("e", "span_e"))), ("other", 0, timeless(op("d", "span_d")))),
    )
    found = in_any_order(history)
    by_end = {native_id.rsplit(":", 1)[1]: row["at"] for native_id, row in found.items()}
    assert by_end == {
        "span_a": "2026-09-24T00:01:01Z",
        "span_b": "2026-09-24T00:01:01Z",
        "summary": "2026-09-24T00:01:01Z",
        "span_c": "2026-09-24T00:01:02Z",
        "span_e": "2026-09-24T00:01:02Z",
        "span_d": None,
    }


def test_entries_that_claim_one_ordinal_are_added_up_in_the_order_of_their_sources() -> None:
    entries = [observation("o1", "t1", 1), observation("o2", "t2", 2), observation("o3", "t3", 3)]
    same_ordinal = [(position, {**body, "ordinal": 3}) for position, body in facts_of(entries)]
    for order in itertools.permutations(same_ordinal):
        items = sorted(assemble(order).items, key=lambda item: item.order[:4])
        assert [item.fields["span"]["sourceId"].rsplit("#")[1] for item in items] == ["o1", "o2", "o3"]


def test_what_a_fork_copied_counts_in_one_of_both_sessions() -> None:
    history = [
        op("a", "a"),
        summary("s", 1),
        traced("c", "provider-call-trace", 1, 1),
        traced("b", "tool-body-trace", 1, 2),
        observation("o", "t", 7, 1),
    ]
    fork = ConversationIdentity("robota", "host", "session-2")
    own = [traced("d", "provider-call-trace", 3, 9)]
    one = assemble(facts_of(history))
    other = assemble(facts_of([*history, *own], "session-2"), fork)
    shared = one.claims.keys() & other.claims.keys()
    assert shared == one.claims.keys()
    for meeting in shared:
        claims = {
            "conversation:robota:host:session-1": one.claims[meeting],
            "conversation:robota:host:session-2": other.claims[meeting],
        }
        one.answer(meeting, claims)
        other.answer(meeting, claims)
    assert shown(one) == shown(assemble(facts_of(history)))
    assert set(shown(other)) == {"response:robota:host:session-2:0000000000000009"}
    for meeting in shared:
        other.answer(meeting, {"conversation:robota:host:session-2": other.claims[meeting]})
    assert len(shown(other)) == len(shown(one)) + 1


def test_a_summary_that_an_observation_tells_again_is_left_to_the_other_sessions() -> None:
    assembly = assemble(facts_of([summary("s", 5)]))
    (claim,) = claimed(assembly)
    late = Position("robota:host:session-1#o", 0, 0), read_line(observation("o", "t", 5), b"line", 1)
    assert isinstance(late[1], dict)
    assembly.add(late[0], late[1])
    assert assembly.claims[claim] is None
    assert claim in assembly.new_claims


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (entry("e", "user", {"content": "SECRET"}), "no_trace_line"),
        (entry("e", "tool-start", {"toolName": "Bash"}), "no_trace_line"),
        ({"type": ["span"]}, "no_trace_line"),
        (entry("e", "span", None), "unreadable_entry"),
        (entry("e", "span", {"spanId": "s"}), "unreadable_entry"),
        (entry("e", "usage-summary", {"totalTokens": 1}), "unreadable_entry"),
        (entry("e", "usage-observation", {"turnId": "t"}), "unreadable_entry"),
        (traced("e", "provider-call-trace", 1, 1, disposition="cache-hit"), "not_invoked"),
        (traced("e", "provider-call-trace", 1, 1, disposition=None), "not_invoked"),
    ],
)
def test_an_entry_that_says_nothing_to_a_trace_has_a_reason(one: Entry, reason: str) -> None:
    assert read_line(one, b"line", 0) == reason


@pytest.mark.parametrize(
    ("one", "reason", "field"),
    [
        ([], "not_an_object", "line"),
        (entry("e", "span", {"spanId": " ", "op": "x"}), "invalid_field", "line.data.spanId"),
        (entry("e", "span", {"spanId": "s", "op": "x"}, at="yesterday"), "invalid_time", "line.timestamp"),
        (entry("e", "usage-summary", usage(1) | {"totalTokens": 0.5}), "invalid_count", "line.data.totalTokens"),
        (entry("e", "usage-summary", usage(1) | {"totalTokens": 1e21}), "count_out_of_range", "line.data.totalTokens"),
        (summary("", 1), "invalid_field", "line.id"),
        (entry("e", "provider-call-trace", {}), "invalid_field", "line.data.spanId"),
        (traced("e", "provider-call-trace", 1, 1, callId="\ud800"), "lone_surrogate", "line.data.callId"),
    ],
)
def test_an_entry_that_can_never_be_projected_is_refused_without_its_content(one: Any, reason: str, field: str) -> None:
    with pytest.raises(ProjectionError) as caught:
        read_line(one, b"line", 0)
    assert (caught.value.reason, caught.value.field) == (reason, field)


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        ("2026-09-24T00:01:00+09:00", "2026-09-24T00:01:00+09:00"),
        ("2026-09-24", "2026-09-24T00:00:00.000Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (None, None),
    ],
)
def test_a_timestamp_is_kept_as_written_where_records_can_hold_it(timestamp: Any, at: str | None) -> None:
    body = read_line(
        {"id": "e", "timestamp": timestamp, "type": "span", "data": {"spanId": "s", "op": "x"}}, b"line", 0
    )
    assert isinstance(body, dict)
    assert body["at"] == at


@given(st.sampled_from(sorted(READS)), JSON, st.dictionaries(st.sampled_from(["id", "timestamp", "data"]), JSON))
def test_no_json_value_breaks_the_reader(kind: str, data: Any, other: Entry) -> None:
    for value in ({"id": "e", "type": kind, "data": data}, {"type": kind, **other}, data):
        with suppress(ProjectionError):
            assert isinstance(read_line(value, b"line", None), dict | str)
