"""Decisions about who owns what a conversation said: bindings, equal starts, and conversations that nobody bound."""

import hashlib
import json
from typing import Any

from projections.ids import conversation_ref
from tests.worlds.messages import (
    CLAUDE,
    RUN,
    assistant,
    at,
    attempt_of,
    delta,
    execution,
    file_messages,
    kinds,
    ledger,
    message,
    project,
    records,
    run_message,
    snapshot,
    spent,
    usage_observation,
)
from tests.worlds.world import SourceMessage

Json = dict[str, Any]
FIRST, SECOND = attempt_of("s", 0, 0), attempt_of("s", 0, 1)
STANDALONE = "standalone-" + hashlib.sha256(conversation_ref(CLAUDE).encode()).hexdigest()


def said(*seconds: float | None, conversation: Json = CLAUDE) -> list[SourceMessage]:
    """Say one response of one input token at each of the times."""
    native = conversation["nativeId"]
    lines = [
        assistant(f"{native} u{index}", f"m{index}", when, request=f"{native} q{index}", usage=spent())
        for index, when in enumerate(seconds)
    ]
    return file_messages(lines, conversation)


def bound(attempt_id: str, prepared: float, conversation: Json = CLAUDE, **more: Any) -> SourceMessage:
    return ledger(f"e of {attempt_id} {prepared}", attempt_id, conversation=conversation, prepared=prepared, **more)


def owners(found: dict[str, Json]) -> list[str]:
    """Give the attempt of each cost, in the order of the responses."""
    return [row["attemptId"] for row in kinds(found, "cost", lambda row: row["id"])]


def test_an_item_belongs_to_the_latest_start_not_after_it_and_before_all_starts_to_the_first() -> None:
    found = records([*said(5, 10, 19.999, 20, 99), bound(FIRST, 10), bound(SECOND, 20)])
    assert owners(found) == [FIRST, FIRST, FIRST, SECOND, SECOND]
    assert [found[attempt]["usage"]["inputTokens"] for attempt in (FIRST, SECOND)] == [3, 2]


def test_times_are_compared_as_instants_with_all_their_digits() -> None:
    second = ledger("e2", SECOND, conversation=CLAUDE, preparedAt="2026-10-01T11:00:20.0000001+02:00")
    found = records([*said(20, 20.001), bound(FIRST, 10), second])
    assert owners(found) == [FIRST, SECOND]


def test_of_equal_starts_the_greater_attempt_by_iteration_and_number_and_then_by_text_owns() -> None:
    rows = {
        name: bound(name, 10)
        for name in (attempt_of("s", 0, 9), attempt_of("s", 0, 10), attempt_of("a", 1, 0), attempt_of("b", 1, 0))
    }
    names = list(rows)
    assert owners(records([*said(15), rows[names[0]], rows[names[1]]])) == [names[1]]
    assert owners(records([*said(15), rows[names[1]], rows[names[2]]])) == [names[2]]
    assert owners(records([*said(15), rows[names[2]], rows[names[3]]])) == [names[3]]


def test_of_equal_first_starts_the_greater_attempt_owns_what_was_said_before_them_and_without_a_time() -> None:
    equal = [bound(FIRST, 10), bound(SECOND, 10), bound(attempt_of("s", 0, 2), 20)]
    assert owners(records([*said(5, 15), *equal])) == [SECOND, SECOND]
    untimed = records([*said(None), *equal])
    assert owners(untimed) == [SECOND]
    assert kinds(untimed, "cost")[0]["at"] == at(10)


def test_attempts_of_two_runs_share_a_conversation_by_time() -> None:
    other = attempt_of("s", run="r2")
    found = records([*said(15, 25), bound(FIRST, 10), bound(other, 20)])
    assert [row["runId"] for row in kinds(found, "cost", lambda row: row["id"])] == ["r1", "r2"]


def test_a_binding_that_comes_last_moves_what_was_shown_and_one_that_goes_gives_it_back() -> None:
    messages = [*said(15, 25), bound(FIRST, 10), bound(SECOND, 20)]
    assert owners(records(messages)) == [FIRST, SECOND]
    row = execution(f"e of {SECOND} 20", SECOND, conversation=CLAUDE, prepared=20)
    gone = message("ledger-changes", {"op": "d", "before": {"record": row}, "after": None})
    found = records([*messages, gone])
    assert owners(found) == [FIRST, FIRST]
    assert SECOND not in found
    assert found[FIRST]["usage"]["inputTokens"] == 2


def test_an_execution_that_finds_its_conversation_late_lets_go_of_its_adapters() -> None:
    adapters = {**CLAUDE, "nativeId": "adapter"}
    adapter = {"executionId": "a", "conversation": adapters}
    early = ledger("e1", FIRST, revision=2, adapterExecution=adapter)
    late = ledger("e1", FIRST, revision=3, conversation=CLAUDE, adapterExecution=adapter)
    messages = [*said(15), *said(15, conversation=adapters)]
    shown = [kinds(records(rows), "cost") for rows in ([*messages, early], [*messages, early, late])]
    assert [[row["conversation"] for row in costs] for costs in shown] == [
        [conversation_ref(adapters)],
        [conversation_ref(CLAUDE)],
    ]


def test_two_executions_of_one_attempt_give_it_both_their_conversations() -> None:
    other = {**CLAUDE, "nativeId": "c-2"}
    found = records([*said(15), *said(15, 16, conversation=other), bound(FIRST, 10), bound(FIRST, 11, other)])
    assert found[FIRST]["usage"] == {"costUsd": 0, "inputTokens": 3, "outputTokens": 3}
    assert found[FIRST]["conversation"] == conversation_ref(other), "the later prepared execution counts"


def test_an_attempt_without_any_measurement_has_no_usage_and_no_model() -> None:
    found = records([*file_messages([assistant("u", "m", 15)]), bound(FIRST, 10)])
    assert not {"usage", "model"} & found[FIRST].keys()


def test_usage_of_an_attempt_that_lost_its_last_cost_is_absent_again() -> None:
    found = records([*said(15), bound(FIRST, 10), bound(SECOND, 11)])
    assert "usage" not in found[FIRST]
    assert found[SECOND]["usage"]["inputTokens"] == 1


def test_a_sum_that_no_record_can_hold_is_left_out() -> None:
    most = 2**53 - 1
    rows = [usage_observation(index, 15, delta(f"r{index}", most, 1)) for index in range(2)]
    assert records([*rows, bound(FIRST, 10)])[FIRST]["usage"] == {"costUsd": 0, "outputTokens": 2}
    assert records([*rows[:1], bound(FIRST, 10)])[FIRST]["usage"]["inputTokens"] == most


def test_money_of_history_entries_is_added_in_history_order_whatever_they_are_called() -> None:
    conversation = {"harness": "robota", "namespace": "host", "nativeId": "s"}
    amounts = [0.1, 0.2, 0.3, 1e16, 1.0]
    messages = [bound(FIRST, 1, conversation)]
    for ordinal, (name, usd) in enumerate(zip("edcba", amounts, strict=True)):
        usage = {
            "kind": "estimated",
            "scope": "turn",
            "totalTokens": ordinal,
            "costStatus": "estimated",
            "costUsd": usd,
        }
        usage |= {"contextUsedTokens": 1, "contextMaxTokens": 2, "contextUsedPercentage": 50}
        entry = {"id": name, "timestamp": at(ordinal), "category": "event", "type": "usage-summary", "data": usage}
        source = {**conversation, "sourceId": f"robota:host:s#{name}", "format": "robota"}
        value = {"source": source, "byteOffset": 0, "ordinal": ordinal, "line": json.dumps(entry)}
        messages.append(message("transcripts", value))
    found = records(messages)
    assert found[FIRST]["usage"]["costUsd"] == (((0.1 + 0.2) + 0.3) + 1e16) + 1.0
    assert len(kinds(found, "cost")) == 5


def test_the_counts_of_a_usage_stand_in_the_order_of_its_record_whoever_knows_them_first() -> None:
    other = {**CLAUDE, "nativeId": "c-2"}
    rows = [
        usage_observation(0, 15, delta("r", None, 2)),
        usage_observation(0, 15, delta("q", 3, None), conversation=other),
    ]
    record = project([*rows, bound(FIRST, 10), bound(FIRST, 11, other)]).records[FIRST]
    assert b'"usage":{"costUsd":0,"inputTokens":3,"outputTokens":2}' in record


def test_a_model_call_says_nothing_about_an_error_where_its_format_does_not_know() -> None:
    assert "isError" not in records([*said(15), bound(FIRST, 10)])["response:claude-code:host:c-1:m0"]


# --------------------------------------------------------------------------------------------------- standalone


def test_an_unbound_conversation_is_held_or_a_run_of_its_own() -> None:
    assert records(said(15, 12)) == {}
    found = records(said(15, 12), unbound="standalone")
    assert found[STANDALONE] == {
        "schema": "titan.trace/v1",
        "kind": "run",
        "id": STANDALONE,
        "runId": STANDALONE,
        "at": at(12),
        "workflowName": "claude-code",
        "status": "running",
    }
    assert {row["runId"] for row in found.values()} == {STANDALONE}
    assert not any("attemptId" in row for row in found.values())


def test_a_standalone_run_disappears_when_its_conversation_is_bound_and_comes_back_when_it_is_not() -> None:
    found = records([*said(15), bound(FIRST, 10)], unbound="standalone")
    assert STANDALONE not in found
    assert owners(found) == [FIRST]
    row = execution("e1", FIRST, conversation=CLAUDE)
    gone = message("ledger-changes", {"op": "d", "before": {"record": row}, "after": None})
    back = records([*said(15), ledger("e1", FIRST, conversation=CLAUDE), gone], unbound="standalone")
    assert back.keys() == {STANDALONE, "response:claude-code:host:c-1:m0", "cost:response:claude-code:host:c-1:m0"}


def test_a_standalone_run_is_at_the_earliest_time_of_its_records_wherever_that_moves() -> None:
    def start(*messages: SourceMessage) -> str:
        return str(records(list(messages), unbound="standalone")[STANDALONE]["at"])

    assert start(*said(30, 20, 40)) == at(20)
    counter = [usage_observation(offset, when, snapshot(offset, 5)) for offset, when in ((1, 10), (2, 30))]
    assert start(*counter) == at(30), "the counter is shown as its last reading"
    assert start(*counter, *said(20)) == at(20)
    other = {**CLAUDE, "nativeId": "c-0"}
    copy = [assistant("u", "m", 11, usage=spent()), assistant("v", "n", 50, request="own")]
    original = file_messages([assistant("u", "m", 10, usage=spent())], other)
    assert start(*file_messages(copy), *original) == at(50), "the copied response is no record of it"
    assert STANDALONE not in records([*file_messages(copy[:1]), *original], unbound="standalone")


def test_a_run_with_an_own_record_says_nothing_about_standalone_ones() -> None:
    found = records([run_message(), *said(15)], unbound="standalone")
    assert {row["id"] for row in kinds(found, "run")} == {RUN, STANDALONE}


def test_a_binding_before_its_run_is_known_is_enough_to_show_a_conversation() -> None:
    cluster = project([bound(FIRST, 10), *said(15)])
    assert sum(fold.held_counts()["conversation"] for fold in cluster.folds) == 0
    assert len(cluster.records) == 3
