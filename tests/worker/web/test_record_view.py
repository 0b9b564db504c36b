"""A record's page: every field of it, its span apart, and the records beside it."""

from typing import Any

import orjson

from tests.worker.web.serving import DOC_CHANGE, RUNS
from worker.web.record_view import RELATED_MAX, VALUE_CHARACTERS_MAX, Target, view_record

RECORDS: list[dict[str, Any]] = [
    record
    for line in (RUNS / "demo" / "trace.jsonl").read_bytes().splitlines()
    if (record := orjson.loads(line))["runId"] == DOC_CHANGE
]


def first(kind: str, **fields: Any) -> dict[str, Any]:
    return next(record for record in RECORDS if record["kind"] == kind and fields.items() <= record.items())


def test_a_call_shows_its_span_and_leads_to_its_attempt_and_its_cost() -> None:
    cost = first("cost")
    call = next(record for record in RECORDS if record["kind"] == "call" and record["span"] == cost["span"])
    view = view_record(RECORDS, "call", call["id"])
    assert view is not None
    assert {field.path: field.text for field in view.span} == {
        f"span.{name}": str(value) for name, value in call["span"].items()
    }
    targets = {field.path: field.target for field in view.fields if field.target}
    assert targets == {"runId": Target("timeline", DOC_CHANGE), "attemptId": Target("attempt", call["attemptId"])}
    related = {(relation, other["kind"]) for relation, other in view.related}
    assert {("its attempt", "attempt"), ("of the same transcript line", "cost")} <= related


def test_an_attempt_leads_to_all_that_belongs_to_it_and_to_its_retry() -> None:
    attempt = first("attempt", stepId="draft", attempt=0, iteration=0)
    view = view_record(RECORDS, "attempt", attempt["id"])
    assert view is not None
    mine = [other["id"] for relation, other in view.related if relation == "in this attempt"]
    assert sorted(mine) == sorted(record["id"] for record in RECORDS if record.get("attemptId") == attempt["id"])
    assert [other["attempt"] for relation, other in view.related if relation == "another attempt at the step"] == [1]
    assert {"usage.inputTokens"} <= {field.path for field in view.fields}, "fields within fields have paths"


def test_what_is_null_or_a_flag_is_said_in_words() -> None:
    record = {"kind": "call", "id": "x", "runId": "r", "at": "2026-11-03T10:00:00Z", "isError": True, "namespace": None}
    view = view_record([record], "call", "x")
    assert view is not None
    said = {field.path: field.text for field in view.fields}
    assert (said["isError"], said["namespace"]) == ("yes", "not known")


def test_a_long_text_and_many_neighbours_are_cut_and_said_to_be() -> None:
    at = "2026-11-03T10:00:00Z"
    attempt = {
        "kind": "attempt",
        "id": "a",
        "runId": "r",
        "at": at,
        "stepId": "s",
        "iteration": 0,
        "error": "e" * 9_999,
    }
    calls = [
        {"kind": "call", "id": f"c{number}", "runId": "r", "at": at, "attemptId": "a"}
        for number in range(RELATED_MAX + 7)
    ]
    view = view_record([attempt, *calls], "attempt", "a")
    assert view is not None
    assert (len(view.related), view.left_out) == (RELATED_MAX, 7)
    assert max(len(field.text) for field in view.fields) == VALUE_CHARACTERS_MAX + 1


def test_a_record_that_is_not_there_has_no_page() -> None:
    assert view_record(RECORDS, "call", "none") is None
    assert view_record(RECORDS, "gate", first("call")["id"]) is None
