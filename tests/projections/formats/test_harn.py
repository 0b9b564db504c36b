"""Harn lines: what becomes a fact, which rows are refused, and that the order of arrival changes nothing."""

import json
from typing import Any

import pytest

from projections.canonical import sha256_hex
from projections.errors import ProjectionError
from projections.formats.assembly import Position
from projections.formats.harn import HarnAssembly, read_line
from projections.ids import ConversationIdentity
from projections.records import parse_trace_record
from tests.worlds.cluster import clean_pass, random_pass
from tests.worlds.world import SourceMessage

IDENTITY = ConversationIdentity("harn", "host-a", "sess-41")
SOURCE = {
    "harness": "harn",
    "namespace": "host-a",
    "nativeId": "sess-41",
    "sourceId": "harn:host-a:sess-41:agent-llm/llm_transcript.jsonl",
    "format": "harn",
}


def response(call: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "provider_call_response",
        "timestamp": "1790000001.900",
        "iteration": 0,
        "call_id": call,
        "provider": "acme",
        "model": "acme-large",
        "input_tokens": 812,
        "output_tokens": 64,
        **fields,
    }


def dispatch(call: str, outcome: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "resolved_dispatch",
        "timestamp": "1790000001.905",
        "iteration": 0,
        "call_id": call,
        "provider": "acme",
        "model": "acme-large",
        "wire_format": "openai_compat",
        "tool_format": "native",
        "outcome_kind": outcome,
        **fields,
    }


def result(**fields: Any) -> dict[str, Any]:
    counts = ("iterations", "duration_ms", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    named = dict.fromkeys(("status", "final_status", "stop_reason"), "done")
    return {**named, "session_id": "sess-41", "llm": dict.fromkeys(counts, 5), **fields}


def body_of(value: Any) -> dict[str, Any]:
    body = read_line(value, b"line")
    assert isinstance(body, dict)
    return body


def assembled(*rows: dict[str, Any]) -> HarnAssembly:
    assembly = HarnAssembly(IDENTITY)
    for index, row in enumerate(rows):
        assembly.add(Position(SOURCE["sourceId"], index * 1_000, 0), body_of(row))
    return assembly


def shown(*rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item.native_id: {"at": item.at, **item.fields} for item in assembled(*rows).items if not item.withdrawn}


RESPONSE_ID = "response:harn:host-a:sess-41:c"


def test_the_span_is_of_the_lines_own_bytes() -> None:
    body = read_line(response("c"), b"as written\r")
    assert isinstance(body, dict)
    assert (body["len"], body["sha"]) == (11, sha256_hex(b"as written\r"))


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        ("1790000001.900", "2026-09-21T14:13:21.900Z"),
        ("0.001", "1970-01-01T00:00:00.001Z"),
        ("253402300799.999", "9999-12-31T23:59:59.999Z"),
        ("2026-09-21T14:13:21.9+02:00", "2026-09-21T14:13:21.9+02:00"),
    ],
)
def test_times_become_iso_utc_with_milliseconds_or_stay_as_they_are(timestamp: str, at: str) -> None:
    assert body_of(response("c", timestamp=timestamp))["at"] == at


@pytest.mark.parametrize(
    "timestamp", ["", "now", "1790000001", "1790000001.9", "-1.000", "253402300800.000", "1.000\n", "\u0661.000"]
)
def test_a_time_that_does_not_parse_refuses_the_row(timestamp: str) -> None:
    with pytest.raises(ProjectionError, match=r"invalid_time: line\.timestamp"):
        read_line(response("c", timestamp=timestamp), b"")


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, (812, 64, None, None)),
        ({"cache_read_tokens": 512, "cache_write_tokens": 300}, (812, 64, 512, 300)),
        ({"cache_read_tokens": 512, "cache_write_tokens": 301}, (1625, 64, 512, 301)),
        ({"cache_read_tokens": None}, (812, 64, None, None)),
        ({"input_tokens": 8.12e2, "output_tokens": 64.0}, (812, 64, None, None)),
        ({"input_tokens": 0, "output_tokens": 0}, (0, 0, None, None)),
    ],
)
def test_cache_counts_are_inside_the_input_unless_they_exceed_it(fields: dict[str, Any], tokens: Any) -> None:
    found = body_of(response("c", **fields))["response"]["tokens"]
    assert tuple(found.values()) == (*tokens, None, None)
    assert all(count is None or type(count) is int for count in found.values())


@pytest.mark.parametrize(("cost", "usd"), [(0.5, 0.5), (0, 0), (2.0, 2), (-0.1, None), (None, None)])
def test_a_missing_or_negative_cost_is_unknown_and_zero_is_zero(cost: object, usd: object) -> None:
    found = body_of(response("c", cost_usd=cost))["response"]["usd"]
    assert (found, type(found)) == (usd, type(usd))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"input_tokens": "x"}, "schema_invalid: line.input_tokens"),
        ({"input_tokens": 1.5}, "schema_invalid: line.input_tokens"),
        ({"input_tokens": True}, "schema_invalid: line.input_tokens"),
        ({"input_tokens": -1}, "count_out_of_range: line.input_tokens"),
        ({"input_tokens": 2**53}, "count_out_of_range: line.input_tokens"),
        ({"cache_read_tokens": -1}, "count_out_of_range: line.cache_read_tokens"),
        ({"input_tokens": 2**53 - 2, "cache_read_tokens": 2**53 - 1}, "count_out_of_range: line.input_tokens"),
        ({"cache_hit": "ZZSECRETZZ"}, "schema_invalid: line.cache_hit"),
        ({"call_id": " "}, "invalid_field: line.call_id"),
        ({"schema_version": 3}, "version_mismatch"),
    ],
)
def test_a_row_that_breaks_its_contract_is_refused_with_a_field_name_and_no_content(
    fields: dict[str, Any], error: str
) -> None:
    with pytest.raises(ProjectionError) as raised:
        read_line(response("c", **fields), b"")
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"type": "provider_call_request"}, "no_trace_line"),
        ({"type": "system_prompt", "hash": 17}, "no_trace_line"),
        ({"type": "message", "content": "x"}, "unknown_family"),
        ({"type": ["provider_call_response"]}, "unknown_family"),
        ({"type": None}, "unknown_family"),
        ({}, "unknown_family"),
        (dispatch("c", "served"), "no_trace_line"),
        (dispatch("c", "empty_completion_transient_recovered"), "no_trace_line"),
        (result(llm=None), "no_trace_line"),
    ],
)
def test_rows_that_say_nothing_to_a_trace_are_counted_by_a_bounded_reason(value: Any, reason: str) -> None:
    assert read_line(value, b"") == reason


def test_a_line_that_is_no_object_is_refused() -> None:
    with pytest.raises(ProjectionError, match="not_an_object: line"):
        read_line([1], b"")


def test_only_calls_with_an_id_and_a_name_are_taken_each_once() -> None:
    entries = [
        {"id": "t1", "name": "read", "arguments": "ZZSECRETZZ"},
        {"id": "t1", "name": "write"},
        {"id": "", "name": "x"},
        {"id": "t2"},
        {"id": 3, "name": "x"},
        "ZZSECRETZZ",
    ]
    assert body_of(response("c", parsed_tool_calls=entries))["calls"] == [["t1", "read"]]
    assert body_of(response("c", parsed_tool_calls=[], tool_calls=entries))["calls"] == [["t1", "read"]]
    assert "calls" not in body_of(response("c", tool_calls="ZZSECRETZZ"))


def test_a_failed_dispatch_without_a_response_is_a_failed_call_without_a_cost() -> None:
    records = shown(dispatch("c", "usage_limit"))
    assert records.keys() == {RESPONSE_ID}
    assert (records[RESPONSE_ID]["isError"], records[RESPONSE_ID]["at"]) == (True, "2026-09-21T14:13:21.905Z")


def test_a_failed_dispatch_marks_its_response_and_leaves_its_time_and_span() -> None:
    answered, marked = shown(response("c")), shown(response("c"), dispatch("c", "empty_completion_terminal"))
    assert marked.keys() == answered.keys()
    assert marked[RESPONSE_ID] == {**answered[RESPONSE_ID], "isError": True}


def test_a_later_response_of_one_call_replaces_everything_the_earlier_one_said() -> None:
    first = response("c", parsed_tool_calls=[{"id": "t1", "name": "a"}, {"id": "t2", "name": "b"}])
    second = response("c", timestamp="1790000009.000", output_tokens=70, tool_calls=[{"id": "t2", "name": "c"}])
    records = shown(first, dispatch("c", "provider_error"), second)
    assert {record["at"] for record in records.values()} == {"2026-09-21T14:13:29.000Z"}
    assert records[RESPONSE_ID]["isError"] is False
    assert records[f"cost:{RESPONSE_ID}"]["measurement"]["tokens"]["output"] == 70
    tools = {record["name"] for record in records.values() if record.get("callKind") == "tool"}
    assert tools == {"c"}


def test_tool_calls_of_two_responses_never_share_an_id() -> None:
    pairs = [("a#b", "c"), ("a", "b#c"), ("a%23b", "c")]
    rows = [response(call, tool_calls=[{"id": tool, "name": "n"}]) for call, tool in pairs]
    tools = {name for name, record in shown(*rows).items() if record.get("callKind") == "tool"}
    assert len(tools) == len(pairs)


def test_missing_names_become_unknown_or_null() -> None:
    record = shown(response("c", model="", provider=" "))[RESPONSE_ID]
    assert (record["name"], record["namespace"]) == ("unknown", None)


def test_an_agent_result_is_a_snapshot_of_its_session_even_where_other_fields_are_written_differently() -> None:
    live = result(tools={"calls": []}, cost_usd=1.5, text="ZZSECRETZZ")
    item = next(iter(assembled(live).items))
    assert item.native_id == "cost:conversation:harn:host-a:sess-41:conversation:sess-41:agent-result"
    assert item.measurement is not None
    assert item.measurement["cost"] == {"usd": 1.5, "kind": "estimate"}
    assert item.measurement["tokens"]["input"] == 15
    assert "ZZSECRETZZ" not in json.dumps(body_of(live))


def test_texts_that_no_store_takes_are_escaped_and_ids_are_kept() -> None:
    row = response("c\x00", model="m\x00", tool_calls=[{"id": "t\ufffd", "name": "\udfff"}])
    assert body_of(row)["calls"] == [["t\ufffd", "\ufffddfff"]]
    records = shown(row)
    assert records["response:harn:host-a:sess-41:c%00"]["name"] == "m\ufffd0000"
    cost = records["cost:response:harn:host-a:sess-41:c%00"]
    assert (cost["measurement"]["responseId"], cost["measurement"]["model"]) == ("c\ufffd0000", "m\ufffd0000")
    assert "call:harn:host-a:sess-41:c%00%23t%EF%BF%BD" in records


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (response("\ud800"), "call_id"),
        (response("c", tool_calls=[{"id": "\ud800", "name": "n"}]), "tool_calls.id"),
        (result(session_id="\ud800"), "session_id"),
    ],
)
def test_an_id_that_cannot_be_encoded_refuses_the_row(row: dict[str, Any], field: str) -> None:
    with pytest.raises(ProjectionError, match=f"lone_surrogate: line.{field}"):
        read_line(row, b"")


def messages_of(lines: list[bytes]) -> list[SourceMessage]:
    messages, offset = [], 0
    for line in lines:
        value = {"source": SOURCE, "byteOffset": offset, "line": line.decode()}
        messages.append(SourceMessage("transcripts", None, json.dumps(value).encode()))
        offset += len(line) + 1
    return messages


def lines_of_a_run() -> list[bytes]:
    rows: list[dict[str, Any]] = []
    for index in range(12):
        call = f"call-{index % 9}"
        rows.append({"type": "provider_call_request", "call_id": call})
        tools = [{"id": f"t{tool}", "name": "read", "arguments": "ZZSECRETZZ"} for tool in range(index % 3)]
        usage = {"input_tokens": index * 7, "output_tokens": index, "cost_usd": index / 10}
        if index % 4 != 3:
            rows.append(response(call, timestamp=f"17900000{index:02d}.100", parsed_tool_calls=tools, **usage))
        outcome = "provider_error" if index % 3 == 0 else "served"
        rows.append(dispatch(call, outcome, timestamp=f"17900000{index:02d}.200"))
    lines = [json.dumps(row).encode() for row in rows]
    broken = [b"{bad", b"", b"\x00\x00", b'{"type":"\\ud800"}', b"[" * 10_000, b'{"type":"message"}' + b"\x00" * 8]
    return [*lines[:9], *broken, *lines[9:], json.dumps(result()).encode()]


@pytest.mark.parametrize("seed", range(12))
def test_any_order_with_repetitions_batches_and_crashes_gives_the_same_bytes(seed: int) -> None:
    messages = messages_of(lines_of_a_run())
    clean = clean_pass(messages, unbound="standalone")
    assert random_pass(messages, seed, unbound="standalone").records == clean.records
    for record in clean.records.values():
        parse_trace_record(json.loads(record))
    assert b"ZZSECRETZZ" not in b"".join(clean.records.values())


def test_a_broken_line_costs_nothing_but_itself() -> None:
    cluster = clean_pass(messages_of(lines_of_a_run()), unbound="standalone")
    assert sorted(cluster.dead) == ["line_invalid_json", "line_too_deep"]
    kinds = [json.loads(record)["kind"] for record in cluster.records.values()]
    assert (kinds.count("run"), kinds.count("cost")) == (1, 8)
