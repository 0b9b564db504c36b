"""The reducer beside its rows: pure, safe on any JSON, and exact where ECMAScript's rules decide."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.lifecycle import (
    EXECUTION_PHASES,
    TERMINAL_EXECUTION_PHASES,
    ExecutionTransitionError,
    is_terminal_phase,
    reduce_execution_transition,
)
from tests.projections.lifecycle.ledger_histories import CONTENT, History, Json, at, conversation, histories
from tests.sizes import examples

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(-2, 3), st.sampled_from(["", " ", "x"]))
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["kind", "harness", "executionId", "conversation"]), inner, max_size=3),
    ),
    max_leaves=6,
)
FIELDS = (
    "kind", "executionId", "eventId", "expectedRevision", "occurredAt", "fence", "owner", "execution", "agent",
    "harness", "requestKey", "target", "correlations", "runnerRef", "surface", "evidence", "adapterExecution",
    "conversation", "reason", "terminal", "leaseUntil",
)  # fmt: skip

FENCE = {"supervisorId": "supervisor-a", "generation": 1}
PREPARE: Json = {
    "kind": "prepare",
    "executionId": "exec-1",
    "eventId": "e0",
    "expectedRevision": 0,
    "occurredAt": at(0),
    "execution": {"executionId": "exec-1"},
    "harness": "claude-code",
    "requestKey": "workflow:run-7:draft:0:0",
    "target": {"kind": "fresh", "namespace": "host-a"},
    "owner": {**FENCE, "leaseUntil": at(60)},
}
RUNNING_FIELDS: Json = {"runnerRef": "r", "evidence": "ack", "adapterExecution": {"executionId": "a"}}


def step(record: Json, kind: str, **fields: Any) -> Json:
    transition = {
        "kind": kind,
        "executionId": "exec-1",
        "eventId": f"e{record['revision']}",
        "expectedRevision": record["revision"],
        "occurredAt": record["lastObservedAt"],
        "fence": FENCE,
        **fields,
    }
    return reduce_execution_transition(record, transition)


def running() -> Json:
    return step(step(reduce_execution_transition(None, PREPARE), "begin_dispatch"), "observe_running", **RUNNING_FIELDS)


def refusal(record: Json | None, transition: Any, options: Any = None) -> ExecutionTransitionError:
    with pytest.raises(ExecutionTransitionError) as caught:
        reduce_execution_transition(record, transition, options)
    return caught.value


def reduced_or_refused(record: Json | None, transition: Any, options: Any) -> Json | ExecutionTransitionError:
    try:
        return reduce_execution_transition(record, transition, options)
    except ExecutionTransitionError as error:
        return error


@settings(max_examples=examples(300))
@given(
    history=histories(steps_max=6),
    changes=st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, min_size=1, max_size=4),
    data=st.data(),
)
def test_any_json_either_reduces_or_is_refused_and_nothing_is_ever_changed(
    history: History, changes: Json, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(history.transitions) - 1))
    current = history.records[index - 1] if index else None
    transition = {**history.transitions[index], **changes}
    arguments = (current, transition, history.options)
    before = deepcopy(arguments)
    outcome = reduced_or_refused(*arguments)
    if isinstance(outcome, ExecutionTransitionError):
        assert outcome.code in ("not_found", "revision_conflict", "invalid_transition", "ownership_lost")
    else:
        assert outcome["revision"] == index + 1
        assert outcome["phase"] in EXECUTION_PHASES
    assert arguments == before


@given(
    current=st.one_of(st.none(), st.dictionaries(st.sampled_from([*FIELDS, "phase", "revision"]), JSON_VALUES)),
    transition=JSON_VALUES,
    options=st.one_of(st.none(), st.fixed_dictionaries({"fencing": JSON_VALUES})),
)
def test_records_and_options_of_any_shape_are_refused_and_never_crash(
    current: Json | None, transition: Any, options: Json | None
) -> None:
    error = refusal(current, transition, options)
    assert isinstance(error, ProjectionError)


@pytest.mark.parametrize("broken", [{"execution": None}, {"execution": {"executionId": "exec-1"}, "revision": 1}])
def test_a_record_that_lost_its_parts_is_a_type_error_or_a_refusal_and_never_a_crash(broken: Json) -> None:
    transition = {**PREPARE, "kind": "identify_conversation", "expectedRevision": 1, "fence": FENCE}
    record = {"lastObservedAt": at(0), "phase": "running", "owner": {**FENCE, "leaseUntil": at(60)}, **broken}
    record["harness"] = "claude-code"
    error = refusal(record, {**transition, "conversation": conversation("c")})
    assert (error.code, error.reason) == ("invalid_transition", "type_error")


def test_a_transition_of_null_is_refused_where_the_reference_crashes() -> None:
    error = refusal(None, None)
    assert (error.code, error.reason, error.field) == ("invalid_transition", "type_error", None)


def test_fencing_options_are_looked_at_before_anything_else() -> None:
    assert refusal(None, None, {"fencing": {"kind": "row"}}).reason == "fencing_kind_unknown"
    assert refusal(None, None, {"fencing": {"kind": "supervisor", "lease": 5}}).field == "owner fence"


def test_an_execution_without_a_record_is_not_found() -> None:
    assert refusal(None, {**PREPARE, "kind": "begin_dispatch"}).code == "not_found"


def test_a_transition_that_comes_again_is_a_revision_conflict() -> None:
    record = reduce_execution_transition(None, PREPARE)
    dispatch = {**PREPARE, "kind": "begin_dispatch", "expectedRevision": 1, "fence": FENCE}
    dispatched = reduce_execution_transition(record, dispatch)
    assert refusal(dispatched, dispatch).code == "revision_conflict"


def test_integral_floats_are_integers_and_booleans_are_no_numbers() -> None:
    record = reduce_execution_transition(
        None, {**PREPARE, "expectedRevision": -0.0, "owner": {**PREPARE["owner"], "generation": 1.0}}
    )
    assert (record["revision"], record["ownerGeneration"]) == (1, 1)
    assert json.dumps(record["ownerGeneration"]) == "1"
    dispatch = {**PREPARE, "kind": "begin_dispatch", "expectedRevision": 1.0, "fence": {**FENCE, "generation": 1.0}}
    assert json.dumps(reduce_execution_transition(record, dispatch)["revision"]) == "2"
    assert refusal(record, {**dispatch, "expectedRevision": True}).reason == "not_nonnegative_integer"
    assert refusal(record, {**dispatch, "fence": {**FENCE, "generation": True}}).reason == "not_positive_integer"


def test_an_empty_text_is_no_conversation_and_an_empty_list_is_a_wrong_one() -> None:
    record = running()
    assert step(record, "identify_conversation", conversation="")["revision"] == record["revision"] + 1
    error = refusal(record, {**PREPARE, "kind": "identify_conversation", "expectedRevision": 3, "fence": FENCE,
                             "conversation": []})  # fmt: skip
    assert (error.reason, error.field) == ("not_an_object", "conversation")


def test_an_agent_that_is_no_object_names_nobody() -> None:
    assert reduce_execution_transition(None, {**PREPARE, "agent": "agent-1"})["agent"] == {}
    assert "agent" not in reduce_execution_transition(None, {**PREPARE, "agent": ""})


def test_a_lease_that_is_no_time_never_runs_out() -> None:
    record = reduce_execution_transition(None, PREPARE)
    record["owner"]["leaseUntil"] = "whenever"
    assert step(record, "begin_dispatch", occurredAt=at(10_000))["phase"] == "dispatching"


def test_a_conversation_that_only_the_adapter_names_is_bound_to_the_execution() -> None:
    adapter = {"executionId": "a", "conversation": {**conversation("c"), "note": 1}}
    record = step(running(), "finish", terminal={"outcome": "succeeded", "result": 0}, adapterExecution=adapter)
    assert record["execution"]["conversation"]["nativeId"] == "c"
    assert record["adapterExecution"]["conversation"]["nativeId"] == "c"


def test_a_finish_leaves_the_conversation_of_the_adapter_alone() -> None:
    terminal = {"outcome": "succeeded", "result": None}
    record = step(running(), "finish", terminal=terminal, conversation=conversation("c"))
    assert record["adapterExecution"] == {"executionId": "a"}


def test_an_identification_without_a_conversation_keeps_the_one_that_the_adapter_has() -> None:
    bound = step(running(), "identify_conversation", conversation=conversation("c"))
    for nothing in ({}, {"conversation": None}):
        again = step(bound, "identify_conversation", **nothing)
        assert again["adapterExecution"] == bound["adapterExecution"]
        assert again["execution"] == bound["execution"]


@pytest.mark.parametrize("phase", EXECUTION_PHASES)
def test_terminal_phases_are_the_outcomes(phase: str) -> None:
    assert is_terminal_phase(phase) is (phase in TERMINAL_EXECUTION_PHASES)


def test_no_error_repeats_the_input() -> None:
    bad = [
        {**PREPARE, "correlations": {CONTENT: "x"}},
        {**PREPARE, "correlations": {"relay.run": CONTENT * 60}},
        {**PREPARE, "harness": {"text": CONTENT}},
        {**PREPARE, "target": {"kind": CONTENT}},
        {**PREPARE, "occurredAt": CONTENT},
        {**PREPARE, "kind": CONTENT},
    ]
    for transition in bad:
        error = refusal(None, transition)
        assert CONTENT not in f"{error} {error.args} {error.reason} {error.field}"
