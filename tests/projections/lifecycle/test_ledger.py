"""The ledger in memory beside its rows: look-ups, isolation from its callers, and a clock that is given."""

from typing import Any

import pytest
from hypothesis import given

from projections.lifecycle import ExecutionLedger, fold_execution
from tests.projections.lifecycle.ledger_histories import History, Json, at, histories

FENCE = {"supervisorId": "supervisor-a", "generation": 1}


def prepare(number: int, **fields: Any) -> Json:
    execution_id = f"exec-{number}"
    return {
        "kind": "prepare",
        "executionId": execution_id,
        "eventId": "e0",
        "expectedRevision": 0,
        "occurredAt": at(number),
        "execution": {"executionId": execution_id},
        "harness": "claude-code",
        "requestKey": f"workflow:run-7:draft:0:{number}",
        "target": {"kind": "fresh", "namespace": "host-a"},
        "owner": {**FENCE, "leaseUntil": at(60)},
        **fields,
    }


def finish(number: int) -> Json:
    envelope = {"executionId": f"exec-{number}", "eventId": "e1", "expectedRevision": 1, "occurredAt": at(number)}
    return {**envelope, "kind": "finish", "fence": FENCE, "terminal": {"outcome": "cancelled", "reason": "x"}}


@given(history=histories(supervised=False))
def test_a_history_applied_in_turn_is_stored_and_told_again_as_the_feed_folds_it(history: History) -> None:
    ledger = ExecutionLedger()
    for transition in history.transitions:
        assert ledger.apply(transition, now=transition["occurredAt"]).applied
    for transition, record in zip(history.transitions, history.records, strict=True):
        again = ledger.apply(transition, now=at(100_000))
        assert (again.ok, again.applied, again.record) == (True, False, record)
    events = {event["expectedRevision"]: event for event in ledger.events("exec-1")}
    assert fold_execution(None, events).record == ledger.get("exec-1") == history.record


def test_records_are_found_by_request_key_and_by_exact_correlation() -> None:
    ledger = ExecutionLedger()
    for number in (2, 1):
        assert ledger.apply(prepare(number, correlations={"relay.run": "run-7"}), now=at(9)).ok
    assert ledger.apply(prepare(3), now=at(9)).ok
    found = ledger.find_by_correlation("relay.run", "run-7")
    assert [record["execution"]["executionId"] for record in found] == ["exec-1", "exec-2"]
    assert ledger.find_by_correlation("relay.run", "run") == []
    by_key = ledger.find_by_request_key("workflow:run-7:draft:0:3")
    assert by_key is not None
    assert by_key["execution"]["executionId"] == "exec-3"
    assert ledger.find_by_request_key("workflow:run-7:draft:0:4") is None


def test_only_living_executions_can_be_recovered_the_oldest_first() -> None:
    ledger = ExecutionLedger()
    for number in (3, 1, 2):
        ledger.apply(prepare(number), now=at(9))
    assert ledger.apply(finish(1), now=at(9)).ok
    recoverable = [record["execution"]["executionId"] for record in ledger.list_recoverable()]
    assert recoverable == ["exec-2", "exec-3"]
    assert len(ledger.list_recoverable(limit=1)) == 1
    with pytest.raises(ValueError, match="limit"):
        ledger.list_recoverable(limit=0)


def test_callers_cannot_reach_into_the_ledger() -> None:
    ledger = ExecutionLedger()
    transition = prepare(1, correlations={"relay.run": "run-7"})
    outcome = ledger.apply(transition, now=at(9))
    assert outcome.record is not None
    transition["correlations"]["relay.run"] = "changed"
    outcome.record["phase"] = "changed"
    for record in (ledger.get("exec-1"), ledger.find_by_request_key(transition["requestKey"])):
        assert record is not None
        assert (record["phase"], record["correlations"]) == ("prepared", {"relay.run": "run-7"})
        record["target"]["kind"] = "changed"
    ledger.events("exec-1")[0]["kind"] = "changed"
    assert ledger.events("exec-1")[0]["kind"] == "prepare"
    assert ledger.list_recoverable()[0]["target"]["kind"] == "fresh"


def test_a_refusal_shows_the_record_in_the_way_and_the_key_at_fault() -> None:
    ledger = ExecutionLedger()
    ledger.apply(prepare(1), now=at(9))
    taken = ledger.apply(prepare(2, requestKey=prepare(1)["requestKey"]), now=at(9))
    assert taken.kind == "event_conflict"
    assert taken.current == ledger.get("exec-1")
    refused = ledger.apply(prepare(2, correlations={"relay.run": " "}), now=at(9))
    assert (refused.kind, refused.reason, refused.field, refused.key) == (
        "invalid_transition",
        "blank",
        "correlations",
        "relay.run",
    )


def test_a_request_key_that_is_no_text_is_left_to_the_reducer() -> None:
    refused = ExecutionLedger().apply(prepare(1, requestKey=["k"]), now=at(9))
    assert (refused.kind, refused.reason, refused.field) == ("invalid_transition", "blank", "requestKey")


def test_what_is_not_json_is_refused() -> None:
    refused = ExecutionLedger().apply(prepare(1, note={1, 2}), now=at(9))
    assert (refused.ok, refused.kind, refused.reason) == (False, "invalid_transition", "not_json")


def test_a_clock_that_is_no_time_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="now must be"):
        ExecutionLedger().apply(prepare(1), now="later")


def test_a_transition_of_nobody_is_not_found() -> None:
    outcome = ExecutionLedger().apply(finish(1), now=at(9))
    assert (outcome.kind, outcome.reason, outcome.current) == ("not_found", "no_record", None)
