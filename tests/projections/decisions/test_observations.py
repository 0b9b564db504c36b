"""Decisions about observations: deltas, counters over several attempts, calls and results, copied history."""

from typing import Any

import pytest

from projections.sources import project_message
from tests.worlds.messages import (
    CLAUDE,
    assistant,
    at,
    attempt_of,
    delta,
    file_messages,
    kinds,
    ledger,
    message,
    observation,
    records,
    snapshot,
    spent,
)
from tests.worlds.messages import usage_observation as usage
from tests.worlds.world import SourceMessage

FIRST, SECOND, THIRD = (attempt_of("s", 0, number) for number in range(3))
BOUND = ledger("e0", FIRST, conversation=CLAUDE, prepared=10)
AGAIN = ledger("e1", SECOND, conversation=CLAUDE, prepared=20)
LAST = ledger("e2", THIRD, conversation=CLAUDE, prepared=30)
SCOPE = "claude-code:host:c-1"
Json = dict[str, Any]


def observed(kind: str, offset: int, seconds: float | None = 11, **more: Any) -> SourceMessage:
    return message("transcripts", {"observation": observation(kind, offset, seconds, **more)})


def named(kind: str, native: str) -> Json:
    return {"conversation": CLAUDE, "kind": kind, "nativeId": native}


def usage_of(found: dict[str, Json], attempt_id: str) -> Any:
    return found[attempt_id].get("usage")


# ------------------------------------------------------------------------------------------------------- deltas


def test_a_delta_reported_again_keeps_its_first_place_and_its_last_measurement() -> None:
    first = usage(0, 11, delta("r", 10, 1, 0.5), response=named("response", "r"))
    again = usage(90, 12, delta("r", 10, 7, 0.25), response=named("response", "r"))
    found = records([BOUND, first, again])
    cost = found[f"cost:response:{SCOPE}:r"]
    assert (cost["at"], cost["span"]["byteOffset"], cost["measurement"]["tokens"]["output"]) == (at(11), 0, 7)
    assert usage_of(found, FIRST) == {"costUsd": 0.25, "inputTokens": 10, "outputTokens": 7}
    assert len(kinds(found, "call")) == 1


def test_a_reported_zero_is_a_cost_and_an_unknown_count_stays_unknown() -> None:
    found = records([BOUND, usage(0, 11, delta("r", None, 3, 0)), usage(9, 11, delta("q", None, None))])
    assert found[f"cost:response:{SCOPE}:r"]["measurement"]["cost"] == {"usd": 0, "kind": "reported"}
    assert found[f"cost:response:{SCOPE}:q"]["measurement"]["cost"] is None
    assert usage_of(found, FIRST) == {"costUsd": 0, "outputTokens": 3}


def test_a_measurement_with_a_response_is_a_model_call_and_one_without_is_only_a_cost() -> None:
    with_response = usage(0, 11, delta("r"), response=named("response", "r"))
    found = records([BOUND, with_response, usage(9, 11, delta("q", model=None))])
    assert [row["id"] for row in kinds(found, "call")] == [f"response:{SCOPE}:r"]
    assert found[f"response:{SCOPE}:r"]["name"] == "m"


def test_any_delta_supersedes_every_snapshot_of_its_attempt() -> None:
    found = records([BOUND, AGAIN, usage(0, 11, snapshot(1, 100)), usage(9, 12, delta("r", 5, None))])
    assert usage_of(found, FIRST) == {"costUsd": 0, "inputTokens": 5}
    two = records([BOUND, AGAIN, usage(0, 11, snapshot(1, 100)), usage(9, 22, delta("r", 5, None))])
    assert usage_of(two, FIRST) == {"costUsd": 0, "inputTokens": 100}
    assert usage_of(two, SECOND) == {"costUsd": 0, "inputTokens": 5}


def test_money_is_added_from_left_to_right_in_source_order() -> None:
    amounts = [0.1, 0.2, 0.3, 1e16, 1.0]
    messages = [usage(index, 11, delta(f"r{index}", usd=usd)) for index, usd in enumerate(amounts)]
    total = 0.0
    for usd in amounts:
        total += usd
    assert usage_of(records([BOUND, *messages]), FIRST)["costUsd"] == total


def test_money_of_several_conversations_is_added_by_conversation_and_then_by_source_position() -> None:
    other, third = {**CLAUDE, "nativeId": "c-2"}, {**CLAUDE, "nativeId": "c-3"}
    again = ledger("e1", FIRST, conversation=other, prepared=10)
    last = ledger("e2", FIRST, conversation=third, prepared=10)
    amounts = [(CLAUDE, 0, 0.1), (other, 0, 0.2), (other, 9, 0.3), (third, 0, 0.4), (third, 9, 0.7)]
    messages = [usage(offset, 11, delta(f"r{offset}", usd=usd), conversation=name) for name, offset, usd in amounts]
    found = records([BOUND, again, last, *messages])
    assert usage_of(found, FIRST)["costUsd"] == (((0.1 + 0.2) + 0.3) + 0.4) + 0.7
    assert usage_of(found, FIRST)["costUsd"] != 0.1 + (0.2 + 0.3) + (0.4 + 0.7)


def test_the_model_is_that_of_the_last_measurement_in_source_order_that_names_one() -> None:
    rows = [
        usage(0, 15, delta("r0", model="a")),
        usage(9, 14, delta("r1", model="b")),
        usage(18, 13, delta("r2", model=None)),
        usage(27, 12, snapshot(1, 5, model=None)),
    ]
    assert records([BOUND, *rows])[FIRST]["model"] == "b"
    turn = usage(36, 12, snapshot(1, 5, scope="turn", scopeId="t", model="c"))
    assert records([BOUND, *rows, turn])[FIRST]["model"] == "c"


def test_the_model_of_several_conversations_is_the_last_ones_even_when_only_a_snapshot_names_it() -> None:
    other = {**CLAUDE, "nativeId": "c-2"}
    again = ledger("e1", FIRST, conversation=other, prepared=10)
    rows = [
        usage(0, 11, delta("r", 5)),
        usage(0, 11, snapshot(1, 9, model="z"), conversation=other),
    ]
    found = records([BOUND, again, *rows])
    assert found[FIRST]["model"] == "z"
    assert usage_of(found, FIRST)["inputTokens"] == 5


# ------------------------------------------------------------------------------------------------------ counters


def test_a_counter_is_one_record_as_its_highest_sequence_shows_it_and_each_attempt_has_its_differences() -> None:
    readings = [(0, 11, 1, 100), (9, 12, 2, 150), (18, 22, 3, 400), (27, 35, 4, 450), (36, 36, 5, 500)]
    rows = [usage(offset, when, snapshot(sequence, total)) for offset, when, sequence, total in readings]
    found = records([BOUND, AGAIN, LAST, *rows])
    (cost,) = kinds(found, "cost")
    assert (cost["at"], cost["attemptId"], cost["measurement"]["sequence"]) == (at(36), THIRD, 5)
    assert cost["span"]["byteOffset"] == 36
    assert [usage_of(found, attempt)["inputTokens"] for attempt in (FIRST, SECOND, THIRD)] == [150, 250, 100]


def test_readings_count_by_their_sequence_and_not_by_their_place() -> None:
    rows = [
        usage(0, 11, snapshot(1, 100)),
        usage(9, 22, snapshot(3, 400)),
        usage(18, 12, snapshot(2, 150)),
    ]
    found = records([BOUND, AGAIN, *rows])
    assert [usage_of(found, attempt)["inputTokens"] for attempt in (FIRST, SECOND)] == [150, 250]
    assert kinds(found, "cost")[0]["at"] == at(22)


def test_of_two_readings_of_one_sequence_the_later_in_the_source_is_shown() -> None:
    rows = [usage(0, 12, snapshot(1, 100)), usage(9, 11, snapshot(1, 90))]
    found = records([BOUND, *rows])
    assert kinds(found, "cost")[0]["measurement"]["tokens"]["input"] == 90
    assert usage_of(found, FIRST)["inputTokens"] == 90


def test_a_counter_that_falls_grew_by_nothing() -> None:
    rows = [usage(0, 11, snapshot(1, 100)), usage(9, 22, snapshot(2, 40))]
    found = records([BOUND, AGAIN, *rows])
    assert [usage_of(found, attempt)["inputTokens"] for attempt in (FIRST, SECOND)] == [100, 0]


def test_a_new_epoch_counts_from_nothing() -> None:
    rows = [usage(0, 11, snapshot(1, 100)), usage(9, 12, snapshot(1, 40, epoch="f"))]
    found = records([BOUND, *rows])
    assert usage_of(found, FIRST)["inputTokens"] == 140
    assert len(kinds(found, "cost")) == 2


def test_a_conversations_counter_supersedes_the_turns_of_its_epoch() -> None:
    turns = [usage(index, 11, snapshot(1, 30, scope="turn", scopeId=f"t{index}")) for index in range(2)]
    other = usage(5, 11, snapshot(1, 7, scope="turn", scopeId="t", epoch="f"))
    whole = usage(9, 12, snapshot(1, 50))
    assert usage_of(records([BOUND, *turns, other]), FIRST)["inputTokens"] == 67
    assert usage_of(records([BOUND, *turns, other, whole]), FIRST)["inputTokens"] == 57


def test_a_turn_stands_for_an_attempt_that_no_reading_of_the_whole_belongs_to() -> None:
    turn = usage(0, 11, snapshot(1, 30, scope="turn", scopeId="t"))
    whole = usage(9, 22, snapshot(1, 50))
    found = records([BOUND, AGAIN, turn, whole])
    assert [usage_of(found, attempt)["inputTokens"] for attempt in (FIRST, SECOND)] == [30, 50]


def test_a_count_that_no_reading_of_an_attempt_knows_is_absent() -> None:
    rows = [usage(0, 11, snapshot(1, 100, 5)), usage(9, 22, snapshot(2, 150, None))]
    found = records([BOUND, AGAIN, *rows])
    assert usage_of(found, FIRST) == {"costUsd": 0, "inputTokens": 100, "outputTokens": 5}
    assert usage_of(found, SECOND) == {"costUsd": 0, "inputTokens": 50}


def test_the_model_of_each_attempt_is_that_of_its_own_readings() -> None:
    rows = [
        usage(0, 11, snapshot(1, 100, model="a")),
        usage(9, 22, snapshot(2, 150, model="b")),
    ]
    found = records([BOUND, AGAIN, *rows])
    assert [found[attempt].get("model") for attempt in (FIRST, SECOND)] == ["a", "b"]


def test_an_untimed_reading_takes_its_neighbours_time_and_belongs_to_that_attempt() -> None:
    untimed = usage(0, None, snapshot(1, 100))
    found = records([BOUND, AGAIN, untimed, observed("tool_call", 9, 25, call=named("call", "t"), name="Edit")])
    assert usage_of(found, FIRST) is None
    assert usage_of(found, SECOND)["inputTokens"] == 100
    assert kinds(found, "cost")[0]["at"] == at(25)
    after = records([BOUND, AGAIN, usage(0, 25, snapshot(1, 100)), usage(9, None, snapshot(2, 130))])
    assert usage_of(after, SECOND)["inputTokens"] == 130


def test_the_part_of_a_counter_that_an_erased_run_spent_leaves_the_others_theirs() -> None:
    foreign = ledger("e1", attempt_of("s", 0, 1, run="r2"), conversation=CLAUDE, prepared=20)
    rows = [usage(0, 11, snapshot(1, 100)), usage(9, 22, snapshot(2, 150))]
    found = records([BOUND, foreign, *rows, message("erasures", {"run": "r2"})])
    assert found.keys() == {FIRST}
    assert usage_of(found, FIRST)["inputTokens"] == 100


# -------------------------------------------------------------------------------------------- calls and history


def test_a_tool_call_is_told_by_its_call_and_the_result_of_its_id() -> None:
    call = observed("tool_call", 0, call=named("call", "t"), name="Edit", namespace="mcp", turn=named("turn", "u-1"))
    result = observed("tool_result", 9, call=named("call", "t"), isError=True)
    found = records([BOUND, call, result])[f"call:{SCOPE}:t"]
    assert (found["name"], found["namespace"], found["isError"]) == ("Edit", "mcp", True)
    assert found["turn"] == f"turn:{SCOPE}:u-1"
    assert list(found)[-2:] == ["isError", "span"]
    assert records([BOUND, call])[f"call:{SCOPE}:t"]["isError"] is None
    early = observed("tool_result", 0, call=named("call", "t"), isError=True)
    late = observed("tool_call", 9, call=named("call", "t"), name="Edit")
    assert records([BOUND, early, late])[f"call:{SCOPE}:t"]["isError"] is None


def test_copied_history_is_counted_and_says_nothing() -> None:
    row = observation("usage", 0, 11, measurement=delta("r"), historyOrigin={"conversation": CLAUDE})
    copied = message("transcripts", {"observation": row})
    assert project_message("transcripts", None, copied.value, 0, 0).ignored == "copied_history"
    assert records([BOUND, copied]).keys() == {FIRST}


@pytest.mark.parametrize("kind", ["message", "native_turn", "metadata", "compaction", "lineage", "unknown"])
def test_other_observations_are_counted_and_say_nothing(kind: str) -> None:
    value = observed(kind, 0, text="secret").value
    assert project_message("transcripts", None, value, 0, 0) == ([], "no_trace_line", ())


def test_what_a_native_line_and_an_observation_tell_alike_counts_once_as_the_native_line_tells_it() -> None:
    line = file_messages([assistant("u", "r", 11, usage=spent(10, 4), calls=["t"])])
    told = usage(0, 12, delta("r", 99), response=named("response", "r"))
    call = observed("tool_call", 0, 12, call=named("call", "t"), name="Edit")
    other = usage(50, 12, delta("q", 3, None))
    found = records([BOUND, *line, told, call, other])
    assert found[f"cost:response:{SCOPE}:r"]["measurement"]["tokens"]["input"] == 10
    assert found[f"call:{SCOPE}:t"]["name"] == "Bash"
    assert usage_of(found, FIRST) == {"costUsd": 0, "inputTokens": 13, "outputTokens": 4}


def test_a_copied_response_stays_copied_when_an_observation_tells_of_it_too() -> None:
    original = {**CLAUDE, "nativeId": "c-0"}
    lines = [
        *file_messages([assistant("u", "r", 5, usage=spent())], original),
        *file_messages([assistant("u", "r", 11, usage=spent())]),
    ]
    told = usage(0, 12, delta("r"), response=named("response", "r"))
    assert records([BOUND, *lines, told]).keys() == {FIRST}


def test_evidence_may_be_missing_for_a_cost_and_not_for_a_call() -> None:
    row = observation("usage", 0, 11, measurement=delta("r"), response=named("response", "r"))
    del row["evidence"]
    found = records([BOUND, message("transcripts", {"observation": row})])
    assert "span" not in found[f"cost:response:{SCOPE}:r"]
    assert kinds(found, "call") == []
    call = observation("tool_call", 0, 11, call=named("call", "t"), name="Edit")
    del call["evidence"]
    records([BOUND, message("transcripts", {"observation": call})], dead=["invalid_field"])


def test_the_parts_of_one_line_are_told_apart() -> None:
    rows = [observation("tool_call", 0, 11, call=named("call", f"t{part}"), name="Edit") for part in range(12)]
    for part, row in enumerate(rows):
        row["id"] = {**row["id"], "subrecordIndex": part}
    found = records([BOUND, *[message("transcripts", {"observation": row}) for row in rows]])
    assert len(kinds(found, "call")) == 12
