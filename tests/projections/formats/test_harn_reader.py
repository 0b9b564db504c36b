"""Harn artifacts: limits, cursors, strictness and the fold, beyond what the conformance rows say."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.formats import harn_reader
from projections.formats.harn_contracts import AGENT_RESULT, NEVER, ReadFailure, VersionedValue, trace_class
from projections.formats.harn_json import display, parse_json, to_int
from projections.formats.harn_reader import Cursor, Event, FileFault, Issue, Page

# The time an example takes is no property of the readers.
LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
WORDS = st.text('ab\x00 \u00fc\u2028\ufeff\U0001f600"\\[{', max_size=5)

REQUEST = {
    "type": "provider_call_request",
    "timestamp": "1790000000.150",
    "iteration": 0,
    "call_id": "call-a1",
    "model": "acme-large",
    "provider": "acme",
    "message_count": 3,
    "tool_format": "native",
}
RESPONSE = {
    "type": "provider_call_response",
    "timestamp": "1790000001.900",
    "iteration": 0,
    "call_id": "call-a1",
    "provider": "acme",
    "model": "acme-large",
    "input_tokens": 812,
    "output_tokens": 64,
}
PROMPT = {"type": "system_prompt", "timestamp": "1", "hash": "h", "content_hash": "b", "content": "plan"}


def lines_of(*rows: Any) -> bytes:
    return b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


def page_of(data: bytes, **options: Any) -> Page:
    page = harn_reader.read_page(data, **options)
    assert isinstance(page, Page)
    return page


def all_pages(data: bytes, **options: Any) -> list[Page]:
    pages = [page_of(data, **options)]
    while not pages[-1].done:
        pages.append(page_of(data, cursor=pages[-1].next_cursor, **options))
    return pages


def failure_of(source: bytes | FileFault, **options: Any) -> str:
    failure = harn_reader.read_page(source, **options)
    assert isinstance(failure, ReadFailure)
    return failure.kind


ROW = st.sampled_from([
    json.dumps(REQUEST),
    json.dumps(RESPONSE),
    json.dumps(PROMPT),
    json.dumps({**RESPONSE, "input_tokens": "x"}),
    json.dumps({"type": "message", "content": "zwölf"}),
    json.dumps({**REQUEST, "schema_version": 9}),
    "{bad",
    "[]",
    "",
    " \u3000",
])  # fmt: skip
FILES = st.builds(
    lambda rows, ends, last: "".join(map(str.__add__, rows, ends)).encode() + last.encode(),
    st.lists(ROW, min_size=12, max_size=12),
    st.lists(st.sampled_from(["\n", "\r\n"]), max_size=12),
    ROW,
)


@LAW
@given(FILES, st.integers(1, 5), st.integers(250, 600))
def test_any_page_size_gives_the_same_events_and_issues(data: bytes, max_records: int, max_bytes: int) -> None:
    whole = page_of(data)
    pages = all_pages(data, max_records=max_records, max_bytes=max_bytes)
    assert [event for page in pages for event in page.events] == list(whole.events)
    assert sorted(issue for page in pages for issue in page.issues) == sorted(whole.issues)
    assert pages[-1].next_cursor == whole.next_cursor


@LAW
@given(FILES, st.data())
def test_a_file_read_up_to_any_line_end_and_resumed_gives_the_same_events(data: bytes, draw: st.DataObject) -> None:
    ends = [index + 1 for index, byte in enumerate(data) if byte == 0x0A] or [0]
    cut = draw.draw(st.sampled_from(ends))
    head = page_of(data[:cut])
    tail = page_of(data, cursor=head.next_cursor)
    assert [*head.events, *tail.events] == list(page_of(data).events)


@LAW
@given(FILES, st.integers(1, 4))
def test_the_folded_context_does_not_depend_on_the_page_size(data: bytes, max_records: int) -> None:
    whole = harn_reader.fold_context(data)
    assert isinstance(whole, VersionedValue)
    paged = harn_reader.fold_context(data, max_records=max_records)
    assert isinstance(paged, VersionedValue)
    assert paged.value == whole.value
    counted = page_of(data).events
    assert whole.value["event_count"] == len(counted)


@LAW
@given(st.binary(max_size=400))
def test_no_bytes_make_the_readers_raise(data: bytes) -> None:
    assert isinstance(harn_reader.read_page(data), Page | ReadFailure)
    assert isinstance(harn_reader.fold_context(data), VersionedValue | ReadFailure)
    assert isinstance(harn_reader.read_agent_result(data), VersionedValue | ReadFailure)


JSON_VALUES = st.recursive(
    # Beyond 64 bits Harn's parser gives floats, which has a test of its own.
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@LAW
@given(st.sampled_from([REQUEST, RESPONSE, PROMPT]), st.dictionaries(st.sampled_from(sorted(RESPONSE)), JSON_VALUES))
def test_no_json_value_in_a_field_makes_the_reader_raise(row: dict[str, Any], changes: dict[str, Any]) -> None:
    page = page_of(lines_of({**row, **changes}))
    assert len(page.events) + len(page.issues) == 1


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"[" * 10_000 + b"]" * 10_000, id="depth 10,000"),
        pytest.param(b'{"a":' * 10_000, id="unclosed depth 10,000"),
        pytest.param(b'{"type":"x"}' + b"\x00" * 64, id="trailing NULs"),
        pytest.param(b"\x00" * 64, id="NULs only"),
        pytest.param(b'{"type":"\\ud800"}', id="lone surrogate"),
        pytest.param(b"9" * 400, id="integer past a double"),
        pytest.param(b'{"a":' + b"9" * 5_000 + b"}", id="five thousand digits"),
    ],
)
def test_a_broken_line_is_one_malformed_issue_and_its_neighbours_are_read(line: bytes) -> None:
    page = page_of(lines_of(REQUEST, line + b"\n", RESPONSE))
    assert [event.line for event in page.events] == [1, 3]
    assert [(issue.line, issue.failure.kind) for issue in page.issues] == [(2, "malformed")]


def test_a_line_over_the_page_limit_fails_the_page_that_starts_with_it_and_no_earlier_one() -> None:
    data = lines_of(REQUEST, b'{"type":"message","content":"' + b"x" * 10_000_000 + b'"}\n', RESPONSE)
    first = page_of(data)
    assert (len(first.events), first.done) == (1, False)
    assert failure_of(data, cursor=first.next_cursor) == "file_too_large"
    assert len(page_of(data, max_bytes=harn_reader.MAX_BYTES_LIMIT).events) == 3


def test_a_line_that_is_no_utf8_fails_its_page() -> None:
    data = lines_of(REQUEST, b'{"type":"\xff"}\n')
    assert failure_of(data) == "invalid_data"
    assert len(page_of(data, max_records=1).events) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_records": 0},
        {"max_records": 10_001},
        {"max_records": True},
        {"max_records": 1.0},
        {"max_bytes": 0},
        {"max_bytes": 16 * 1024 * 1024 + 1},
        {"cursor": Cursor(-1, 1)},
        {"cursor": Cursor(0, 0)},
        {"cursor": Cursor(1, 1)},
    ],
)
def test_a_limit_or_cursor_out_of_range_is_invalid_input(options: dict[str, Any]) -> None:
    assert failure_of(b"", **options) == "invalid_input"


@pytest.mark.parametrize("fault", list(FileFault))
def test_a_file_fault_is_told_by_its_kind(fault: FileFault) -> None:
    assert failure_of(fault) == fault.value
    folded = harn_reader.fold_context(fault)
    assert isinstance(folded, ReadFailure)
    assert folded.kind == ("missing" if fault is FileFault.NOT_FOUND else "malformed")


def test_reprs_hold_no_content() -> None:
    secret = "SECRET-WORDS"
    page = page_of(lines_of({**PROMPT, "content": secret}, {"type": secret, "x": secret}, {"type": [secret], "y": 1}))
    assert len(page.events) == 3
    assert secret not in repr(page)
    assert secret not in repr(harn_reader.fold_context(lines_of({**PROMPT, "content": secret})))
    for text in (secret.encode(), json.dumps({"status": secret}).encode()):
        assert secret not in repr(harn_reader.read_agent_result(text))


def test_issues_say_nothing_of_the_line_but_field_names_of_the_contract() -> None:
    page = page_of(lines_of({**RESPONSE, "text": 5, "SECRET": "SECRET", "model": ["SECRET"]}))
    assert [type(issue) for issue in page.issues] == [Issue]
    assert "SECRET" not in repr(page)


def test_an_agent_result_keeps_its_exact_text_when_read_and_when_refused() -> None:
    text = '{"status" : "done","final_status":"","stop_reason":"","session_id":""}\n'
    read = harn_reader.read_agent_result(text.encode())
    assert isinstance(read, VersionedValue)
    assert read.raw == text
    refused = harn_reader.read_agent_result(b"{}")
    assert isinstance(refused, ReadFailure)
    assert refused.raw == "{}"


def test_a_field_outside_a_contract_is_content() -> None:
    assert trace_class(AGENT_RESULT, "surprise") == NEVER
    assert trace_class(AGENT_RESULT, "status.inner") == NEVER
    assert trace_class(AGENT_RESULT, "llm.input_tokens") == "count"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (True, 1),
        (2.9, 2),
        (-2.9, -2),
        (float(2**63), None),
        (-float(2**63), -(2**63)),
        ("+7", 7),
        ("\u00a0-7\n", -7),
        ("\x1c7", None),
        ("0" * 5_000 + "7", 7),
        ("9" * 5_000, None),
        ("9223372036854775808", None),
        ("1_0", None),
        ("\u0661", None),
        ("", None),
        (None, None),
        ([1], None),
    ],
)
def test_to_int_converts_as_the_runtime_does(value: object, expected: int | None) -> None:
    assert to_int(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "5"),
        (2.0, "2.0"),
        (1.5, "1.5"),
        (1e20, "100000000000000000000"),
        (1e-7, "0.0000001"),
        (-0.0, "-0.0"),
        (False, "false"),
        ([None, "a", [1]], "[nil, a, [1]]"),
        ({"b": 1, "a": {"c": True}}, "{a: {c: true}, b: 1}"),
    ],
)
def test_display_writes_a_tag_as_the_runtime_does(value: object, expected: str) -> None:
    assert display(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775808", float(2**63)),
        (b"18446744073709551615", float(2**64)),
        (b"[-0]", [-0.0]),
        (b'"12345678901234567890 -0"', "12345678901234567890 -0"),
        (b'{"a":"[[","a":1}', {"a": 1}),
    ],
)
def test_numbers_become_the_types_that_the_runtime_gives_them(text: bytes, expected: object) -> None:
    assert repr(parse_json(text)) == repr(expected)


@LAW
@given(st.integers(120, 135), st.booleans())
def test_the_deepest_nesting_is_127_brackets_in_texts_not_counted(depth: int, in_objects: bool) -> None:
    opening, closing = (b'{"[":', b"}") if in_objects else (b"[", b"]")
    text = opening * depth + b'"\\"[[[["' + closing * depth
    if depth <= 127:
        parse_json(text)
    else:
        with pytest.raises(ProjectionError, match="too_deep"):
            parse_json(text)


@LAW
@given(JSON_VALUES)
def test_parsing_agrees_with_the_standard_parser_on_ordinary_json(value: Any) -> None:
    text = json.dumps(value).encode()
    assert parse_json(text) == json.loads(text)


def test_events_are_values() -> None:
    one, two = page_of(lines_of(REQUEST)).events, page_of(lines_of(REQUEST)).events
    assert one == two
    assert isinstance(one[0], Event)
