"""Laws of rows without content: they hold none of it, and they fold as the full rows do."""

import hashlib
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from projections.lifecycle import WITHHELD, fold_execution, sanitize_record, sanitize_transition
from tests.projections.lifecycle.ledger_histories import CONTENT, History, Json, histories
from tests.sizes import examples

ODD_VALUES: list[Any] = [
    None, "", " ", "text", 0, 1, 5.0, 1.5, -1, 2**53, True, False, [], ["x"], {}, {"kind": "fresh"},
    {"harness": "claude-code", "namespace": "host-a", "nativeId": "conv-1"}, {"harness": "codex"}, {"agentId": None},
    {"Bad Key": "x"}, {"relay.run": ""}, {"outcome": "ended", "evidence": "e", "exit": None}, "2026-03-19T13:00:00Z",
]  # fmt: skip
DELETED = object()


def places(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    below = [place for name, item in value.items() for place in places(item, (*path, name))]
    return [path, *below] if path else below


def changed(value: Json, path: tuple[str, ...], new: Any) -> Json:
    copy = deepcopy(value)
    parent = copy
    for name in path[:-1]:
        parent = parent[name]
    if new is DELETED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = deepcopy(new)
    return copy


def folded(history: History) -> Any:
    return fold_execution(None, {row["expectedRevision"]: row for row in history.transitions})


def both_ways(transitions: list[Json]) -> tuple[Any, Any]:
    full = fold_execution(None, dict(enumerate(transitions)))
    clean = fold_execution(None, dict(enumerate(map(sanitize_transition, transitions))))
    return full._replace(record=None if full.record is None else sanitize_record(full.record)), clean


@given(history=histories())
def test_sanitized_transitions_fold_to_the_sanitized_record(history: History) -> None:
    full, clean = both_ways(history.transitions)
    assert clean == full


@settings(max_examples=examples(400))
@given(history=histories(steps_max=8), data=st.data())
def test_a_row_with_something_wrong_in_it_folds_the_same_with_and_without_content(
    history: History, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(history.transitions) - 1))
    row = history.transitions[index]
    path = data.draw(st.sampled_from(places(row)))
    new = data.draw(st.sampled_from([*ODD_VALUES, DELETED]))
    assume(path != ("expectedRevision",))
    transitions = list(history.transitions)
    transitions[index] = changed(row, path, new)
    full, clean = both_ways(transitions)
    assert clean == full


@given(history=histories(), data=st.data())
def test_a_sanitized_record_takes_the_place_of_any_number_of_sanitized_transitions(
    history: History, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(history.records) - 1))
    rows = {row["expectedRevision"]: row for row in history.transitions}
    clean_rows = {revision: sanitize_transition(row) for revision, row in rows.items()}
    full = fold_execution(history.records[start], rows)
    clean = fold_execution(sanitize_record(history.records[start]), clean_rows)
    assert full.record is not None
    assert clean == full._replace(record=sanitize_record(full.record))


@given(history=histories())
def test_no_sanitized_row_holds_content(history: History) -> None:
    assert CONTENT in json.dumps(history.transitions)
    clean = [*map(sanitize_transition, history.transitions), *map(sanitize_record, history.records)]
    assert CONTENT not in json.dumps(clean)


@given(history=histories())
def test_sanitizing_twice_is_sanitizing_once_and_changes_no_input(history: History) -> None:
    before = deepcopy(history)
    for sanitize, rows in ((sanitize_transition, history.transitions), (sanitize_record, history.records)):
        for row in rows:
            clean = sanitize(row)
            assert sanitize(clean) == clean
    assert history == before


@given(history=histories())
def test_what_a_trace_shows_of_an_execution_survives(history: History) -> None:
    record = history.records[-1]
    clean = sanitize_record(record)
    shown = ("requestKey", "harness", "phase", "revision", "runnerRef", "preparedAt", "finishedAt", "correlations")
    assert {name: clean.get(name) for name in shown} == {name: record.get(name) for name in shown}
    assert clean["execution"]["executionId"] == record["execution"]["executionId"]
    for name in ("outcome", "retryable"):
        assert clean.get("terminal", {}).get(name) == record.get("terminal", {}).get(name)
    for holder in ("execution", "adapterExecution"):
        identity = record.get(holder, {}).get("conversation")
        kept = clean.get(holder, {}).get("conversation")
        assert kept == (identity and {name: identity[name] for name in ("harness", "namespace", "nativeId")})


@pytest.mark.parametrize(
    ("given_fields", "digest"),
    [
        ({"prompt": "write it"}, hashlib.sha256(b"write it").hexdigest()),
        ({"prompt": 40}, hashlib.sha256(b"40").hexdigest()),
        ({"prompt": True}, hashlib.sha256(b"true").hexdigest()),
        ({"prompt": [{"b": 1, "a": "é"}]}, hashlib.sha256('[{"a":"é","b":1}]'.encode()).hexdigest()),
        ({"prompt": ""}, hashlib.sha256(b"").hexdigest()),
        ({"prompt": None}, None),
        ({}, None),
        ({"promptSha256": "a" * 64}, "a" * 64),
        ({"prompt": "write it", "promptSha256": "a" * 64}, "a" * 64),
        ({"prompt": "write it", "promptSha256": "A" * 64}, hashlib.sha256(b"write it").hexdigest()),
        ({"promptSha256": "the prompt itself"}, None),
    ],
)
def test_a_prompt_becomes_its_digest_unless_one_is_given(given_fields: Json, digest: str | None) -> None:
    execution = {"executionId": "exec-1", **given_fields}
    for clean in (sanitize_record({"execution": execution}), sanitize_transition(prepare(execution))):
        assert clean["execution"].get("promptSha256") == digest
        assert "prompt" not in clean["execution"]


def prepare(execution: Json) -> Json:
    return {"kind": "prepare", "executionId": "exec-1", "eventId": "e", "expectedRevision": 0, "execution": execution}


def test_the_reason_of_a_failure_is_kept_and_every_other_text_withheld() -> None:
    failed = {"outcome": "failed", "reason": "harness exited", "retryable": True}
    unknown = {"outcome": "cancellation_unknown", "reason": "why", "evidence": "what was seen"}
    assert sanitize_record({"terminal": failed})["terminal"] == failed
    assert sanitize_record({"terminal": unknown})["terminal"] == {
        "outcome": "cancellation_unknown",
        "reason": WITHHELD,
        "evidence": WITHHELD,
    }
    recovery = {"requiredAt": "2026-03-19T12:00:00Z", "evidence": "what was seen"}
    assert sanitize_record({"recovery": recovery})["recovery"] == {**recovery, "evidence": WITHHELD}


def test_a_result_is_null_afterwards_and_still_there() -> None:
    clean = sanitize_record({"terminal": {"outcome": "succeeded", "result": {"text": "secret"}}})
    assert clean["terminal"] == {"outcome": "succeeded", "result": None}


def test_only_good_correlations_of_a_record_are_kept() -> None:
    given_ones = {"relay.run": "run-7", "Bad Key": "x", "relay.blank": " ", "relay.number": 5}
    assert sanitize_record({"correlations": given_ones})["correlations"] == {"relay.run": "run-7"}
    many = {f"relay.n{number}": "x" for number in range(40)}
    assert len(sanitize_record({"correlations": many})["correlations"]) == 32
    assert "correlations" not in sanitize_record({"correlations": "relay.run=run-7"})


@pytest.mark.parametrize("wrong", [None, "", "conv-1", [], {}, {"harness": "codex"}, {"harness": "a", "namespace": " ",
                                                                                "nativeId": "c"}], ids=str)  # fmt: skip
def test_a_conversation_of_a_record_is_whole_or_not_there(wrong: Any) -> None:
    for holder in ("execution", "adapterExecution"):
        clean = sanitize_record({holder: {"executionId": "exec-1", "conversation": wrong}})
        assert clean[holder] == {"executionId": "exec-1"}


def test_a_record_keeps_nothing_that_has_the_wrong_type() -> None:
    record = {
        "agent": {"agentId": 5},
        "runnerRef": ["r"],
        "phase": "flying",
        "revision": "3",
        "preparedAt": "some day",
        "owner": {"generation": 1.5},
        "terminal": {"outcome": "gone", "reason": "secret"},
        "result": "secret",
    }
    assert sanitize_record(record) == {"agent": {}, "owner": {}, "terminal": {}}


def test_a_transition_of_an_unknown_kind_keeps_its_place_only() -> None:
    row = {"kind": "teleport", "executionId": "exec-1", "eventId": "e", "expectedRevision": 3, "destination": "secret"}
    assert sanitize_transition(row) == {"executionId": "exec-1", "eventId": "e", "expectedRevision": 3}
    assert sanitize_transition({**row, "kind": ["prepare"]})["expectedRevision"] == 3
