"""Worker facts beside their rows: normal form, several issues at once, and nothing of the input in the error's text."""

import json
from copy import deepcopy
from typing import Any

import pytest

from projections.errors import ProjectionError
from projections.worker_facts import WORKER_REPORT_LENGTH_MAX, WorkerFactsError, parse_worker_facts

FACTS: dict[str, Any] = {
    "agent": "agent-1",
    "profile": "implementer",
    "spawner": "coordinator",
    "taskId": "task-9",
    "report": {"messageId": "m-1", "kind": "verdict", "text": "done"},
    "pr": {"repo": "acme/docs", "number": 42},
    "tokens": {"input": 1200, "output": 300, "total": 1500},
    "costUsd": 1.25,
    "exit": {"code": 0, "signal": None, "inferred": False},
}


def issues_of(value: Any) -> list[Any]:
    with pytest.raises(WorkerFactsError) as caught:
        parse_worker_facts(value)
    assert isinstance(caught.value, ProjectionError)
    return caught.value.issues


def test_whole_facts_are_copied_and_not_changed() -> None:
    before = deepcopy(FACTS)
    parsed = parse_worker_facts(FACTS)
    assert parsed == FACTS == before
    assert parsed["exit"] is not FACTS["exit"]


def test_integral_floats_become_integers() -> None:
    parsed = parse_worker_facts({**FACTS, "tokens": {"input": 1e2, "output": -0.0, "total": 1.0}})
    assert json.dumps(parsed["tokens"]) == '{"input": 100, "output": 0, "total": 1}'


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (2**53 - 1, None),
        (2**53, "too_big"),
        (10**400, "too_big"),
        (float("inf"), "invalid_type"),
        (float("nan"), "invalid_type"),
        (True, "invalid_type"),
        ("5", "invalid_type"),
        (-1, "too_small"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_counts_are_integers_from_zero_to_the_greatest_safe_one(value: Any, code: str | None) -> None:
    facts = {**FACTS, "tokens": {"input": value, "output": 0, "total": 0}}
    if code is None:
        assert parse_worker_facts(facts)["tokens"]["input"] == value
    else:
        assert issues_of(facts) == [{"path": ["tokens", "input"], "code": code}]


def test_an_exit_code_below_the_least_safe_integer_is_too_small() -> None:
    assert issues_of({**FACTS, "exit": {**FACTS["exit"], "code": -(2**53)}}) == [
        {"path": ["exit", "code"], "code": "too_small"}
    ]


def test_white_space_is_that_of_the_reference() -> None:
    assert parse_worker_facts({**FACTS, "pr": {"repo": "a\u001c/b\u0085", "number": 1}})
    for space in ("\ufeff", "\u00a0", "\n"):
        assert issues_of({**FACTS, "pr": {"repo": f"a/b{space}", "number": 1}}) == [
            {"path": ["pr", "repo"], "code": "invalid_format"}
        ]


def test_the_length_of_a_report_counts_utf16_units() -> None:
    half = WORKER_REPORT_LENGTH_MAX // 2
    assert parse_worker_facts({**FACTS, "report": {**FACTS["report"], "text": "🧪" * half}})
    too_long = {**FACTS, "report": {**FACTS["report"], "text": "🧪" * half + "x"}}
    assert issues_of(too_long) == [{"path": ["report", "text"], "code": "too_big"}]


def test_every_fault_is_listed_in_field_order_with_unknown_keys_last() -> None:
    broken = {**FACTS, "agent": "", "report": {"kind": "note", "extra": 1}, "exit": {"code": "0"}, "extra": True}
    assert issues_of(broken) == [
        {"path": ["agent"], "code": "too_small"},
        {"path": ["report", "messageId"], "code": "invalid_type"},
        {"path": ["report", "kind"], "code": "invalid_value"},
        {"path": ["report", "text"], "code": "invalid_type"},
        {"path": ["report"], "code": "unrecognized_keys", "keys": ["extra"]},
        {"path": ["exit", "code"], "code": "invalid_type"},
        {"path": ["exit", "signal"], "code": "invalid_type"},
        {"path": ["exit", "inferred"], "code": "invalid_type"},
        {"path": [], "code": "unrecognized_keys", "keys": ["extra"]},
    ]


def test_the_text_of_the_error_holds_nothing_of_the_input() -> None:
    with pytest.raises(WorkerFactsError) as caught:
        parse_worker_facts({"secret key": "secret value"})
    assert "secret" not in f"{caught.value} {caught.value.reason} {caught.value.field}"
