"""Rows of titan/trace_parse.jsonl, titan/trace_parse_raw_json.jsonl and titan/policy_gates.jsonl."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from projections.decode import decode_json
from projections.errors import ProjectionError, TraceParseError
from projections.policy_gates import policy_gate_record
from projections.records import parse_trace_envelope, parse_trace_record, parse_trace_record_loose
from tests.conformance.rows import Row, assert_rows, differs, load_rows

FILES = ["titan/trace_parse.jsonl", "titan/trace_parse_raw_json.jsonl"]
PARSERS: dict[str, Callable[[Any], Any]] = {
    "strict": parse_trace_record,
    "loose": parse_trace_record_loose,
    "envelope": parse_trace_envelope,
}
# Paths and codes are the weaker half of the contract.
ISSUES_THAT_AGREE_MIN = 0.95


def parsed(row: Row) -> dict[str, Any]:
    try:
        value = row["input"] if "input" in row else decode_json(row["input_text"].encode("utf-8"))
        return {"ok": True, "input": value, "value": PARSERS[row["mode"]](value)}
    except TraceParseError as error:
        return {"ok": False, "issues": error.issues}
    except ProjectionError:
        # A number beyond a double, for one, is refused before there is a record to name its field.
        return {"ok": False, "issues": None}


def check(row: Row) -> str | None:
    expected, actual = row["expected"], parsed(row)
    if actual["ok"] != expected["ok"]:
        return f"ok is {actual['ok']}, expected {expected['ok']}: {actual.get('issues')}"
    if not expected["ok"]:
        return None
    return differs(actual["value"], actual["input"] if expected.get("unchanged") else expected["value"])


def issue_set(issues: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{issue['path']} {issue['code']} {sorted(issue.get('keys', []))}" for issue in issues)


@pytest.mark.parametrize("name", FILES)
def test_every_record_is_taken_or_refused_as_in_its_row(vectors: Path, name: str) -> None:
    assert_rows(load_rows(vectors, name), check)


@pytest.mark.parametrize("name", FILES)
def test_most_refusals_name_the_paths_and_codes_of_their_row(vectors: Path, name: str) -> None:
    rows = [row for row in load_rows(vectors, name) if not row["expected"]["ok"]]
    refused = [(row, issues) for row in rows if (issues := parsed(row)["issues"]) is not None]
    other = [row["name"] for row, issues in refused if issue_set(issues) != issue_set(row["expected"]["issues"])]
    allowed = max(3, round(len(refused) * (1 - ISSUES_THAT_AGREE_MIN)))
    assert len(other) <= allowed, f"{len(other)} of {len(refused)} differ:\n" + "\n".join(other)


def gate_of(row: Row) -> dict[str, Any]:
    given = row["input"]
    return policy_gate_record(
        given["runId"],
        given["stepId"],
        given["iteration"],
        given["outcome"],
        table_version=given["tableVersion"],
        at=given["at"],
    )


def is_strict(record: dict[str, Any]) -> bool:
    try:
        parse_trace_record(record)
    except TraceParseError:
        return False
    return True


def check_gate(row: Row) -> str | None:
    expected, record = row["expected"], gate_of(row)
    if "reason" not in expected["record"]:
        record.pop("reason", None)  # left out of a row where it is free text
    return differs({"record": record, "strict_ok": is_strict(record)}, expected)


def test_policy_decisions_make_the_gate_record_of_their_row(vectors: Path) -> None:
    assert_rows(load_rows(vectors, "titan/policy_gates.jsonl"), check_gate)
