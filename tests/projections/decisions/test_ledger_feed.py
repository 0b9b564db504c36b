"""Decisions about the ledger's rows: transitions and records, conflicts, and rows that are no workflow's."""

import json
from typing import Any

import pytest

from projections.facts import decode_fact
from projections.sources import project_message
from tests.worlds.cluster import Cluster
from tests.worlds.messages import (
    CLAUDE,
    RUN,
    assistant,
    at,
    attempt_of,
    execution,
    file_messages,
    ledger,
    message,
    project,
    records,
    run_message,
    spent,
    transition_messages,
    transitions,
)
from tests.worlds.world import SourceMessage

S = attempt_of("s")
Json = dict[str, Any]


def attempt(messages: list[SourceMessage], **more: Any) -> Json:
    return records(messages, **more)[S]


def counted(messages: list[SourceMessage], name: str) -> int:
    cluster = project(messages, is_eager=True)
    return sum(fold.counters().get(name, 0) for fold in cluster.folds)


def test_transitions_in_any_order_fold_to_the_record_that_the_ledger_holds() -> None:
    found = attempt(transition_messages(transitions("e1", S)))
    assert (found["phase"], found["outcome"], found["runnerRef"], found["at"]) == (
        "succeeded",
        "succeeded",
        "runner-1",
        at(5),
    )
    assert found["conversation"] == "conversation:claude-code:host:c-1"


def test_transitions_count_up_to_the_first_missing_revision_and_the_rest_is_held() -> None:
    moves = transition_messages(transitions("e1", S))
    assert attempt([*moves[:2], moves[3]])["phase"] == "dispatching"
    held = project([*moves[:2], moves[3]])
    assert sum(fold.held_counts()["execution"] for fold in held.folds) == 1
    assert records(moves[1:]) == {}, "without its first transition nobody knows whose execution it is"


def test_the_record_counts_at_its_revision_and_transitions_go_on_from_there() -> None:
    moves = transitions("e1", S)
    odd = execution("e1", S, revision=3, runnerRef="record", owner=moves[0]["owner"])
    record = message("ledger-changes", {"record": odd})
    assert attempt([*transition_messages(moves[:3]), record])["runnerRef"] == "record"
    found = attempt([record, *transition_messages(moves[2:])])
    assert (found["runnerRef"], found["phase"]) == ("record", "succeeded")


def test_a_row_with_both_says_the_same_as_one_with_either() -> None:
    moves = transitions("e1", S)
    record = execution("e1", S, revision=1, phase="prepared")
    both = message("ledger-changes", {"transition": moves[0], "record": record, "revision": 1, "event_id": "x"})
    assert attempt([both])["phase"] == "prepared"
    column = {"execution_id": "e1", "transition": json.dumps(moves[0]), "record": "null"}
    as_text = message("ledger-changes", column)
    assert attempt([as_text]) == attempt([transition_messages(moves)[0]])


def test_the_record_of_the_greatest_revision_counts() -> None:
    rows = [ledger("e1", S, revision=revision, phase=phase) for revision, phase in ((3, "running"), (2, "dispatching"))]
    assert attempt(rows)["phase"] == "running"


def conflict() -> tuple[list[SourceMessage], list[SourceMessage]]:
    """Give the transitions of an execution, and two different ends of it at one revision."""
    moves = transitions("e1", S)
    failed = {**moves[3], "terminal": {"outcome": "failed", "reason": "z", "retryable": True}}
    return transition_messages(moves[:3]), transition_messages([failed, moves[3]])


def test_of_two_transitions_of_one_revision_the_greater_canonical_json_counts_and_both_are_counted_as_a_conflict() -> (
    None
):
    before, (failed, succeeded) = conflict()
    assert attempt([*before, failed, succeeded])["phase"] == "succeeded", "the texts differ first in failed < succeeded"
    for ends in ([failed, succeeded], [succeeded, failed], [failed, succeeded, failed, succeeded]):
        assert counted([*before, *ends], "event_conflicts") == 1
    assert counted([*before, failed, failed], "event_conflicts") == 0


def test_transitions_that_differ_only_in_content_are_a_conflict_too() -> None:
    moves = transitions("e1", S)
    other = {**moves[2], "evidence": "seen by another"}
    messages = transition_messages([*moves, other])
    assert attempt(messages)["phase"] == "succeeded"
    assert counted(messages, "event_conflicts") == 1


def test_a_conflict_is_still_known_after_a_restart() -> None:
    before, ends = conflict()
    cluster = Cluster(1)
    for offset, (topic, key, value) in enumerate([*before, *ends]):
        cluster.project((topic, key, value, 0, offset))
        cluster.drain()
    cluster.crash(0)
    assert cluster.folds[0].counters()["event_conflicts"] == 1


def test_a_transition_that_does_not_reduce_holds_what_follows_and_is_counted() -> None:
    moves = transitions("e1", S)
    stranger = {**moves[1], "fence": {"supervisorId": "other", "generation": 0}}
    messages = transition_messages([moves[0], stranger, *moves[2:]])
    assert attempt(messages)["phase"] == "prepared"
    assert counted(messages, "refused_transitions") == 1


# ------------------------------------------------------------------------------------------------ whose row it is


@pytest.mark.parametrize(
    "request_key", ["nightly-7", "workflow:r1:s:0", "workflow:r1:s:0:x", f"workflow:r1:s:0:{2**53}"]
)
def test_a_row_whose_request_key_is_no_attempt_id_is_ignored_and_binds_nothing(request_key: str) -> None:
    spoken = file_messages([assistant("u", "m", 20, usage=spent())])
    row = ledger("e1", request_key, conversation=CLAUDE)
    assert project_message("ledger-changes", row.key, row.value, 0, 0).ignored == "not_workflow"
    assert records([row, *spoken]) == {}
    moves = transition_messages(transitions("e1", request_key))
    assert project_message("ledger-changes", None, moves[0].value, 0, 0).ignored == "not_workflow"
    assert project_message("ledger-changes", None, moves[1].value, 0, 0).ignored is None
    cluster = project([*moves, *spoken])
    assert cluster.records == {}
    assert sum(fold.held_counts()["execution"] for fold in cluster.folds) == 0, "its transitions wait for nothing"


def test_an_attempt_has_one_id_however_its_request_key_spells_it() -> None:
    spoken = file_messages([assistant("u", "m", 20, usage=spent())])
    for spelled in ("workflow:r1:größe:0:0", "workflow:r1:gr%c3%b6%C3%9Fe:00:000", "workflow:r1:gr%C3%B6%C3%9Fe:0:0"):
        found = records([ledger("e1", spelled, conversation=CLAUDE), *spoken])
        attempt_id = "workflow:r1:gr%C3%B6%C3%9Fe:0:0"
        assert found[attempt_id]["usage"]["inputTokens"] == 1
        assert {row["attemptId"] for row in found.values() if row["kind"] != "attempt"} == {attempt_id}


def test_of_two_executions_of_one_request_key_the_later_prepared_counts_then_the_greater_id() -> None:
    first, second = ledger("e9", S, prepared=5, phase="failed"), ledger("e1", S, prepared=6, phase="running")
    assert attempt([first, second, run_message()])["executionId"] == "e1"
    assert attempt([first, ledger("e8", S, prepared=5)])["executionId"] == "e9"


def test_an_attempt_shows_only_its_executions_own_conversation_and_is_bound_by_its_adapters_too() -> None:
    spoken = file_messages([assistant("u", "m", 20, usage=spent())])
    adapter = ledger("e1", S, adapterExecution={"executionId": "a", "conversation": CLAUDE})
    found = records([adapter, *spoken])
    assert "conversation" not in found[S]
    assert found[S]["usage"]["inputTokens"] == 1
    other = {**CLAUDE, "nativeId": "other"}
    both = ledger("e1", S, conversation=other, adapterExecution={"executionId": "a", "conversation": CLAUDE})
    assert set(records([both, *spoken])) == {S}


# -------------------------------------------------------------------------------------------------- what is kept


def test_a_fact_of_the_ledger_holds_no_content() -> None:
    secret = "ZZSECRETZZ"
    moves = transitions("e1", S)
    moves[0]["execution"]["prompt"] = secret
    moves[0]["unknown"] = secret
    moves[2]["evidence"] = secret
    moves[3]["terminal"] = {"outcome": "succeeded", "result": {"text": secret}}
    record = execution("e1", S, terminal={"outcome": "cancelled", "reason": secret}, prompt=secret, unknown=secret)
    cluster = project([*transition_messages(moves), message("ledger-changes", {"record": record})])
    for log in cluster.logs:
        for key, value in log:
            assert secret.encode() not in key + (value or b"")


def test_a_prompt_beside_the_execution_is_digested() -> None:
    moves = transitions("e1", S)
    moves[0]["prompt"] = "hello"
    assert attempt(transition_messages(moves[:1])) == attempt(
        transition_messages([{**moves[0], "execution": {**moves[0]["execution"], "prompt": "hello"}, "prompt": None}])
    )


def test_a_failure_without_a_reason_says_none() -> None:
    found = attempt([ledger("e1", S, phase="failed", terminal={"outcome": "failed"})])
    assert found["outcome"] == "failed"
    assert not {"error", "retryable"} & found.keys()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"preparedAt": "2026-10-01"}, "invalid_time"),
        ({"revision": 0}, "not_positive_integer"),
        ({"revision": 1.5}, "not_positive_integer"),
        ({"phase": "done"}, "phase_unknown"),
        ({"requestKey": " "}, "blank"),
    ],
)
def test_a_record_that_says_too_little_is_refused_alone(change: Json, reason: str) -> None:
    broken = message("ledger-changes", {"record": {**execution("e1", S), **change}})
    assert set(records([broken, ledger("e2", attempt_of("t"))], dead=[reason])) == {attempt_of("t")}


def test_a_revision_may_be_written_as_a_float_that_is_whole() -> None:
    assert (
        attempt([message("ledger-changes", {"record": {**execution("e1", S), "revision": 3.0}})])["phase"] == "running"
    )


def test_a_record_and_a_transition_of_two_executions_are_no_row() -> None:
    row = {"record": execution("e1", S), "transition": transitions("e2", S)[0]}
    records([message("ledger-changes", row)], dead=["invalid_field"])


def test_a_facts_version_comes_from_the_source_alone() -> None:
    cluster = Cluster(1)
    for offset, (topic, key, value) in enumerate([ledger("e1", S, revision=7), run_message(4)]):
        cluster.project((topic, key, value, 3, 40 + offset))
    facts = [decode_fact(key, value) for key, value in cluster.logs[0] if value is not None]
    assert [(fact.key, fact.version, fact.source) for fact in facts] == [
        ("record", (7,), (3, 40)),
        ("snapshot", (4,), (3, 41)),
    ]
    assert facts[1].aggregate == f"run:{RUN}"
