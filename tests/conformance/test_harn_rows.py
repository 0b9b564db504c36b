"""Rows of harn/*.jsonl: the readers of Harn's artifacts, and the classes of its fields."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from projections.formats import harn
from projections.formats.harn_contracts import (
    AGENT_RESULT,
    COUNT,
    FACT,
    FAMILIES,
    ID,
    NEVER,
    TRANSCRIPT_CONTEXT,
    Contract,
    Field,
    ListOf,
    Problem,
    ReadFailure,
    Record,
    Scalar,
    VersionedValue,
    trace_class,
)
from projections.formats.harn_reader import (
    START,
    Cursor,
    FileFault,
    Page,
    Span,
    check_context_contract,
    fold_context,
    read_agent_result,
    read_page,
)
from tests.conformance.rows import Row, assert_rows, differs, load_rows

FAULTS = {"absent": FileFault.NOT_FOUND, "directory": FileFault.IS_A_DIRECTORY}
OPTIONS = ("max_records", "max_bytes")
CONTRACTS = {**FAMILIES, "agent_result": AGENT_RESULT, "transcript_context": TRANSCRIPT_CONTEXT}


def named(rows: list[Row]) -> list[Row]:
    return [{"name": row["id"], **row} for row in rows]


def source_of(row: Row) -> bytes | FileFault:
    given = row["input"]
    if "text" in given:
        return str(given["text"]).encode()
    if "bytesB64" in given:
        return base64.b64decode(given["bytesB64"])
    return FAULTS[given["path"]]


def options_of(row: Row) -> dict[str, Any]:
    """Give the options that the readers know; unknown ones are ignored, as the rows want it."""
    given = row.get("options", {})
    known: dict[str, Any] = {name: given[name] for name in OPTIONS if name in given}
    if "cursor" in given:
        known["cursor"] = Cursor(given["cursor"]["offset"], given["cursor"]["line"])
    return known


def problem_json(problem: Problem) -> dict[str, Any]:
    said = {"path": problem.path, "missing": problem.missing, "expected": problem.expected, "got": problem.got}
    written: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    return {**written, "noUnionMatch": True} if problem.no_union_match else written


def in_any_order(problems: list[Any]) -> list[Any]:
    return sorted(problems, key=lambda problem: json.dumps(problem, sort_keys=True))


def failure_json(failure: ReadFailure) -> dict[str, Any]:
    written: dict[str, Any] = {"kind": failure.kind}
    if failure.problems:
        written["problems"] = in_any_order([problem_json(problem) for problem in failure.problems])
    if failure.supported_versions:
        written |= {"foundVersion": failure.found_version, "supportedVersions": list(failure.supported_versions)}
    return written


def span_json(span: Span) -> dict[str, Any]:
    return {"byteOffset": span.byte_offset, "byteLength": span.byte_length, "contentHash": span.content_hash}


def page_json(page: Page, expected: dict[str, Any]) -> dict[str, Any]:
    """Write a page as the rows do; an event's value only where the row gives one."""
    with_value = {event["line"] for event in expected["events"] if "value" in event}
    events = []
    for event in page.events:
        written = {"line": event.line, "offset": event.offset, "recognized": event.recognized, "tag": event.tag}
        if event.recognized:
            written["version"] = event.version
        if event.line in with_value:
            written["value"] = event.value
        events.append({**written, "span": span_json(event.span)})
    issues = [
        {**failure_json(issue.failure), "line": issue.line, "offset": issue.offset, "span": span_json(issue.span)}
        for issue in page.issues
    ]
    cursor = {"line": page.next_cursor.line, "offset": page.next_cursor.offset}
    return {"events": events, "issues": issues, "nextCursor": cursor, "done": page.done}


def sorted_problems(page: dict[str, Any]) -> dict[str, Any]:
    issues = [
        {**issue, "problems": in_any_order(issue["problems"])} if "problems" in issue else issue
        for issue in page["issues"]
    ]
    return {**page, "issues": issues}


def read_one_page(row: Row) -> str | None:
    page = read_page(source_of(row), **options_of(row))
    if isinstance(page, ReadFailure):
        return differs({"ok": False, "error": failure_json(page)}, row["expect"])
    if not row["expect"]["ok"]:
        return "read a page where none was expected"
    return differs(page_json(page, row["expect"]["page"]), sorted_problems(row["expect"]["page"]))


def read_all_pages(row: Row) -> str | None:
    expected = row["expect"]
    options = options_of(row)
    cursor, error = options.pop("cursor", START), None
    pages: list[Page] = []
    while error is None and (not pages or not pages[-1].done):
        page = read_page(source_of(row), **options, cursor=cursor)
        if isinstance(page, ReadFailure):
            error = failure_json(page)
        else:
            pages.append(page)
            cursor = page.next_cursor
    if len(pages) != len(expected["pages"]):
        return f"gave {len(pages)} pages, expected {len(expected['pages'])}"
    actual: dict[str, Any] = {
        "ok": error is None,
        "pages": [page_json(page, wanted) for page, wanted in zip(pages, expected["pages"], strict=True)],
    }
    if error is not None:
        actual["error"] = error
    return differs(actual, {**expected, "pages": [sorted_problems(page) for page in expected["pages"]]})


def versioned_json(result: VersionedValue | ReadFailure) -> dict[str, Any]:
    if isinstance(result, ReadFailure):
        return {"ok": False, "error": failure_json(result)}
    return {"ok": True, "id": result.id, "version": result.version}


def with_sorted_problems(expected: dict[str, Any]) -> dict[str, Any]:
    error = expected.get("error", {})
    if "problems" not in error:
        return expected
    return {**expected, "error": {**error, "problems": in_any_order(error["problems"])}}


def fold(row: Row) -> str | None:
    folded = fold_context(source_of(row), **options_of(row))
    actual = versioned_json(folded)
    if isinstance(folded, VersionedValue):
        actual["context"] = folded.value
    return differs(actual, row["expect"])


def read_result(row: Row) -> str | None:
    source = source_of(row)
    result = read_agent_result(source)
    actual = versioned_json(result)
    if isinstance(result, ReadFailure):
        actual["error"]["rawKept"] = result.raw is not None
    if result.raw is not None and (not isinstance(source, bytes) or result.raw.encode() != source):
        return "did not keep the exact text"
    return differs(actual, with_sorted_problems(row["expect"]))


def check_contract(row: Row) -> str | None:
    actual = versioned_json(check_context_contract(row["input"]["value"]))
    return differs(actual, with_sorted_problems(row["expect"]))


CHECKS: dict[str, Callable[[Row], str | None]] = {
    "readPage": read_one_page,
    "readAllPages": read_all_pages,
    "foldContext": fold,
    "readAgentResult": read_result,
    "checkContextContract": check_contract,
}


def check(row: Row) -> str | None:
    return CHECKS[row["op"]](row)


def test_each_row_becomes_the_event_or_issue_that_the_runtime_makes_of_it(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "harn/events.jsonl")), check)


def test_pages_end_and_fail_where_the_runtime_ends_and_fails_them(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "harn/pages.jsonl")), check)


def test_transcripts_fold_into_the_context_of_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "harn/context_fold.jsonl")), check)


def test_agent_results_are_read_or_refused_as_in_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "harn/agent_result.jsonl")), check)


def test_persisted_contexts_meet_or_break_their_contract_as_in_each_row(vectors: Path) -> None:
    assert_rows(named(load_rows(vectors, "harn/context_contract.jsonl")), check)


def field_at(contract: Contract, path: str) -> Field | None:
    *outer, name = path.split(".")
    record: Any = contract.record
    for step in outer:
        record = record.fields[step].type
    return record.fields.get(name) if isinstance(record, Record) else None


def type_words(field: Field) -> set[str]:
    """Give the ways in which the rows write a field's type."""
    match field.type:
        case Scalar(()):
            return {"unknown"}
        case Scalar(("string",)):
            return {"string", "string|null", "literal"}
        case Scalar(("int",)):
            return {"int", "int|null"}
        case Scalar(("int", "float")):
            return {"number", "number|null"}
        case Scalar(("int", "float", "string")):
            return {"number|string"}
        case Scalar((word,)):
            return {word}
        case ListOf() | Scalar():
            return set()
        case Record():
            return {"ThinkingConfig", "ServedContext", "AgentTraceSummary"}


def check_field(row: Row) -> str | None:
    contract = CONTRACTS.get(row["contract"])
    if contract is None:
        # Whatever an unknown family holds is content: no contract, so no field of it can be read.
        return differs(row["trace"], NEVER)
    field = field_at(contract, row["path"])
    if field is None:
        return "is in no contract"
    if row["class"] == "guaranteed" and not field.required:
        return "is guaranteed, but not required by the contract"
    if row["type"] not in type_words(field):
        return f"has the type {field.type}, expected {row['type']}"
    return differs(trace_class(contract, row["path"]), row["trace"])


def test_every_field_has_the_type_and_the_trace_class_of_its_row(vectors: Path) -> None:
    rows = load_rows(vectors, "harn/field_classes.jsonl")
    assert_rows([{"name": f"{row['contract']}.{row['path']}", **row} for row in rows], check_field)


def test_the_rows_know_every_top_level_field_of_the_contracts(vectors: Path) -> None:
    rows = load_rows(vectors, "harn/field_classes.jsonl")
    known = {(row["contract"], row["path"].partition(".")[0]) for row in rows}
    assert known >= {(name, field) for name, contract in CONTRACTS.items() for field in contract.record.fields}


MARKED_TEXT = "ZZMARKEDZZ"
MARKED_NUMBER = 987_654_321
# A whole row of each family that becomes a line fact, with everything that a fact takes.
FACT_ROWS: dict[str, dict[str, Any]] = {
    "provider_call_response": {
        "type": "provider_call_response",
        "timestamp": "1790000001.900",
        "iteration": 0,
        "call_id": "c",
        "provider": "p",
        "model": "m",
        "input_tokens": 1,
        "output_tokens": 1,
        "parsed_tool_calls": [{"id": "t", "name": "read"}],
    },
    "resolved_dispatch": {
        "type": "resolved_dispatch",
        "timestamp": "1790000001.900",
        "iteration": 0,
        "call_id": "c",
        "provider": "p",
        "model": "m",
        "wire_format": "w",
        "tool_format": "t",
        "outcome_kind": "provider_error",
    },
    "agent_result": {
        "status": "s",
        "final_status": "s",
        "stop_reason": "s",
        "session_id": "s",
        "llm": dict.fromkeys(
            (
                "iterations",
                "duration_ms",
                "input_tokens",
                "output_tokens",
                "cache_read_tokens",
                "cache_write_tokens",
            ),
            1,
        ),
    },
}


def marked(row: Row) -> list[Any]:
    """Give marked values that the type of a field allows."""
    kind = row["type"]
    if kind == "unknown":
        return [MARKED_TEXT, [{"arguments": MARKED_TEXT}], {MARKED_TEXT: MARKED_NUMBER}]
    if kind.startswith(("int", "number")):
        return [MARKED_NUMBER]
    return [MARKED_TEXT] if kind.startswith("string") else []


def with_value(value: dict[str, Any], path: str, marked_value: Any) -> dict[str, Any]:
    name, _dot, rest = path.partition(".")
    return {**value, name: with_value(value.get(name, {}), rest, marked_value) if rest else marked_value}


def leak(row: Row) -> str | None:
    template = FACT_ROWS[row["contract"]]
    for value in marked(row):
        body = harn.read_line(with_value(template, row["path"], value), b"line")
        if isinstance(body, str):
            return f"said {body}, so nothing was checked"
        if MARKED_TEXT in json.dumps(body) or str(MARKED_NUMBER) in json.dumps(body):
            return "is in the line fact"
    return None


def test_no_field_but_facts_ids_and_counts_reaches_a_line_fact(vectors: Path) -> None:
    rows = [
        {"name": f"{row['contract']}.{row['path']}", **row}
        for row in load_rows(vectors, "harn/field_classes.jsonl")
        # Nested fields of a record that may be absent would need the rest of it; no such record is read at all.
        if row["contract"] in FACT_ROWS and row["path"].partition(".")[0] not in {"terminal", "tools", "thinking"}
    ]
    # A version that nobody knows has the row refused, so it reaches nothing.
    assert_rows([row for row in rows if row["trace"] not in {FACT, ID, COUNT} and row["class"] != "version"], leak)


def test_only_fields_that_a_trace_may_hold_are_read(vectors: Path) -> None:
    allowed = {
        (row["contract"], row["path"].partition(".")[0])
        for row in load_rows(vectors, "harn/field_classes.jsonl")
        if row["trace"] in {FACT, ID, COUNT}
    }
    assert allowed >= {(family, name) for family, names in harn.READS.items() for name in names}


def test_rows_of_families_that_say_nothing_to_a_trace_make_no_line_fact(vectors: Path) -> None:
    tags = {row["contract"] for row in load_rows(vectors, "harn/field_classes.jsonl")} - FACT_ROWS.keys()
    said = {harn.read_line({"type": tag, "x": MARKED_TEXT}, b"line") for tag in tags}
    assert said == {"no_trace_line", "unknown_family"}
