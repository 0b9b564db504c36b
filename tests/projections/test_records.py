"""Parsing trace records: what comes back, and what an error says."""

import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import TraceParseError
from projections.ids import ATTEMPT_ID_SOURCE
from projections.records import (
    ARTIFACT_KINDS,
    RECORD_KINDS,
    RECORD_MODELS,
    parse_trace_envelope,
    parse_trace_record,
    parse_trace_record_loose,
    record_json_schema,
    scope_of,
)

RUN: dict[str, Any] = {
    "schema": "titan.trace/v1",
    "kind": "run",
    "id": "run-1",
    "runId": "run-1",
    "at": "2026-03-19T10:00:00.000Z",
    "workflowName": "doc-change",
    "status": "running",
}
ATTEMPT: dict[str, Any] = {
    "schema": "titan.trace/v1",
    "kind": "attempt",
    "id": "workflow:run-1:draft:0:0",
    "runId": "run-1",
    "at": "2026-03-19T10:00:00.000Z",
    "stepId": "draft",
    "iteration": 0,
    "attempt": 0,
    "stepKind": "dispatch",
}
SPAN: dict[str, Any] = {"sourceId": "s", "byteOffset": 0, "byteLength": 2, "contentHash": "0" * 64}
CALL: dict[str, Any] = {
    "schema": "titan.trace/v1",
    "kind": "call",
    "id": "call:h:n:c:t",
    "runId": "run-1",
    "at": "2026-03-19T10:00:00.000Z",
    "callKind": "tool",
    "name": "Edit",
    "conversation": "conversation:h:n:c",
    "span": SPAN,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=6), children, max_size=3),
    max_leaves=8,
)


def issues_of(value: Any) -> list[Any]:
    with pytest.raises(TraceParseError) as caught:
        parse_trace_record(value)
    return list(caught.value.issues)


def test_kinds_and_scopes_are_those_of_the_models() -> None:
    assert RECORD_KINDS == ("run", "attempt", "call", "gate", "artifact", "cost")
    assert ARTIFACT_KINDS == ("commit", "pr", "file")
    assert {scope.partition(".")[0] for scope in RECORD_MODELS} == set(RECORD_KINDS)


def test_a_parsed_record_has_its_keys_in_the_order_of_its_bytes() -> None:
    shuffled = {key: CALL[key] for key in reversed(CALL)} | {"attemptId": "workflow:run-1:draft:0:0"}
    assert list(parse_trace_record(shuffled)) == [
        "schema",
        "kind",
        "id",
        "runId",
        "attemptId",
        "at",
        "callKind",
        "name",
        "conversation",
        "span",
    ]


def test_correlations_come_back_in_key_order() -> None:
    parsed = parse_trace_record({**RUN, "correlations": {"relay.run": "2", "a-b.c": "1", "a.b": "3"}})
    assert list(parsed["correlations"]) == ["a-b.c", "a.b", "relay.run"]


def test_integral_numbers_come_back_as_integers() -> None:
    parsed = parse_trace_record({**ATTEMPT, "iteration": 2.0, "usage": {"costUsd": 0.5, "inputTokens": 1e2}})
    assert type(parsed["iteration"]) is int
    assert type(parsed["usage"]["inputTokens"]) is int
    assert parsed["usage"] == {"costUsd": 0.5, "inputTokens": 100}


def test_the_input_is_left_alone() -> None:
    given_record = {**ATTEMPT, "iteration": 2.0}
    parse_trace_record(given_record)
    assert type(given_record["iteration"]) is float


def test_lone_surrogates_are_text() -> None:
    assert parse_trace_record({**RUN, "error": "x\ud800"})["error"] == "x\ud800"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), True, "1", None])
def test_a_cost_that_is_no_finite_number_is_refused(number: Any) -> None:
    assert issues_of({**ATTEMPT, "usage": {"costUsd": number}}) == [
        {"path": ["usage", "costUsd"], "code": "invalid_type"}
    ]


def test_unknown_keys_of_one_object_make_one_issue() -> None:
    assert issues_of({**CALL, "x": 1, "y": 2, "span": {**SPAN, "lineNumber": 4}}) == [
        {"path": ["span"], "code": "unrecognized_keys", "keys": ["lineNumber"]},
        {"path": [], "code": "unrecognized_keys", "keys": ["x", "y"]},
    ]


def test_unknown_keys_are_kept_by_the_loose_parse_after_the_known_ones() -> None:
    parsed = parse_trace_record_loose({"x": 1, **CALL, "span": {"lineNumber": 4, **SPAN}})
    assert list(parsed)[-1] == "x"
    assert list(parsed["span"]) == [*SPAN, "lineNumber"]


def test_an_unknown_key_with_a_lone_surrogate_is_refused_even_by_the_loose_parse() -> None:
    assert issues_of({**RUN, "\ud800": 1}) == [{"path": [], "code": "unrecognized_keys", "keys": []}]
    with pytest.raises(TraceParseError):
        parse_trace_record_loose({**RUN, "\ud800": 1})


def test_the_envelope_parse_checks_nothing_else() -> None:
    assert parse_trace_envelope({**RUN, "status": 4, "extra": [1]}) == {**RUN, "status": 4, "extra": [1]}


@pytest.mark.parametrize(
    ("value", "scope"),
    [
        (RUN, "run"),
        ({"kind": "artifact", "artifactKind": "pr"}, "artifact.pr"),
        ({"kind": "artifact"}, None),
        ({"kind": "artifact", "artifactKind": ["pr"]}, None),
        ({"kind": ["run"]}, None),
        ({"kind": "run", "artifactKind": "pr"}, "run"),
        ({}, None),
        (None, None),
        ([RUN], None),
    ],
)
def test_the_scope_of_a_record_is_its_kind_and_artifact_kind(value: Any, scope: str | None) -> None:
    assert scope_of(value) == scope


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({**ATTEMPT, "usage": {"costUsd": -1, "secret-key": "secret-value"}}, "usage.costUsd"),
        ({**RUN, "correlations": {"secret-key": "secret-value"}}, "correlations"),
        ({**CALL, "span": {**SPAN, "secret-key": "secret-value"}}, "span"),
        ({**RUN, "secret-key": "secret-value"}, "record"),
        ({**RUN, "status": "secret-value", "error": {"secret-key": 1}}, "status"),
        ({"kind": "secret-value"}, "kind"),
        ("secret-value", "record"),
        ({"kind": "cost", "measurement": {"kind": "secret-value"}}, "schema"),
    ],
)
def test_an_error_says_a_reason_and_a_field_of_ours_and_nothing_of_the_input(value: Any, field: str) -> None:
    with pytest.raises(TraceParseError) as caught:
        parse_trace_record(value)
    assert (caught.value.reason, caught.value.field) == ("invalid_record", field)
    shown = str(caught.value) + repr(caught.value) + "".join(traceback.format_exception_only(caught.value))
    assert "secret" not in shown
    assert caught.value.__context__ is None, "the validator's own error holds the input"


@given(JSON)
def test_any_value_is_taken_or_refused_and_never_crashes_the_parse(value: Any) -> None:
    with pytest.raises(TraceParseError):
        parse_trace_record(value)
    assert parse_trace_record_loose(value) == {"kind": "unknown", "value": value}


@given(st.sampled_from([RUN, ATTEMPT, CALL]), st.data())
def test_any_value_in_any_field_is_taken_or_refused_and_never_crashes_the_parse(
    record: dict[str, Any], data: st.DataObject
) -> None:
    field = data.draw(st.sampled_from([*record, "correlations", "usage", "turn", "conversation", "x"]))
    changed = {**record, field: data.draw(JSON)}
    try:
        parsed = parse_trace_record(changed)
    except TraceParseError as error:
        assert error.issues  # noqa: PT017
    else:
        assert parsed == changed


def test_the_json_schema_holds_every_scope_its_grammars_and_no_extra_keys() -> None:
    schema = record_json_schema()
    assert len(schema["anyOf"]) == len(RECORD_MODELS)
    definitions = schema["$defs"]
    assert definitions["AttemptRecord"]["properties"]["id"]["pattern"] == ATTEMPT_ID_SOURCE
    objects = [definition for definition in definitions.values() if definition.get("type") == "object"]
    assert len(objects) == len(definitions)
    assert all(definition["additionalProperties"] is False for definition in objects)
    assert set(definitions["RunRecord"]["required"]) == set(RUN)
    assert definitions["RunRecord"]["properties"]["correlations"]["maxProperties"] == 32
