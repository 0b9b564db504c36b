"""Decisions about Claude Code transcripts: streamed responses, repeated ids, turns, results, times."""

import json
from typing import Any

import pytest

from projections.canonical import sha256_hex
from projections.sources import project_message
from tests.worlds.messages import (
    CLAUDE,
    assistant,
    at,
    attempt_of,
    file_messages,
    kinds,
    ledger,
    project,
    records,
    spent,
    tool_result,
    user,
)
from tests.worlds.world import SourceMessage

S = attempt_of("s")
BOUND = ledger("e1", S, conversation=CLAUDE)
SCOPE = "claude-code:host:c-1"
Json = dict[str, Any]


def shown(*lines: Json | bytes, more: tuple[SourceMessage, ...] = (), dead: tuple[str, ...] = ()) -> dict[str, Json]:
    """Give the records of one bound conversation's file, without the attempt, by the end of their id."""
    found = records([BOUND, *file_messages(lines), *more], dead=dead)
    return {record_id.replace(f"{SCOPE}:", ""): row for record_id, row in found.items() if row["kind"] != "attempt"}


def tokens(record: Json) -> tuple[Any, ...]:
    counts = record["measurement"]["tokens"]
    return counts["input"], counts["output"], counts["cachedInput"], counts["cacheWriteInput"]


# ----------------------------------------------------------------------------------------------- one response


def test_a_streamed_response_has_the_time_and_span_of_its_first_line_and_the_usage_of_its_last() -> None:
    first = assistant("u1", "m1", 59.9, usage=spent(10, 3))
    lines = [first, assistant("u2", "m1", 60, usage=spent(10, 3)), assistant("u3", "m1", 61, usage=spent(10, 412))]
    found = shown(*lines)
    assert set(found) == {"response:m1", "cost:response:m1"}
    cost = found["cost:response:m1"]
    assert tokens(cost) == (10, 412, 0, 0)
    assert (cost["at"], cost["span"]) == (at(59.9), found["response:m1"]["span"])
    assert cost["span"]["byteOffset"] == 0
    assert cost["span"]["contentHash"] == sha256_hex(json.dumps(first).encode())


def test_usage_is_taken_whole_and_never_field_by_field() -> None:
    found = shown(
        assistant("u1", "m1", 1, usage={**spent(10, 3), "cache_read_input_tokens": 90}),
        assistant("u2", "m1", 2, usage={"output_tokens": 5}),
        assistant("u3", "m1", 3),
    )
    assert tokens(found["cost:response:m1"]) == (None, 5, None, None)


def test_a_response_without_usage_is_a_call_without_a_cost() -> None:
    assert set(shown(assistant("u1", "m1", 1), assistant("u2", "m1", 2, usage={}))) == {"response:m1"}


def test_input_holds_cache_reads_and_writes_and_the_total_adds_the_output_once() -> None:
    found = shown(assistant("u1", "m1", 1, usage=spent(7, 40, read=90, written=3)))
    counts = found["cost:response:m1"]["measurement"]["tokens"]
    expected = {"input": 100, "output": 40, "cachedInput": 90, "cacheWriteInput": 3, "reasoningOutput": None}
    assert counts == {**expected, "total": 140}
    assert found["cost:response:m1"]["measurement"]["cost"] is None


def test_tool_calls_of_later_lines_are_kept_and_carry_their_own_line() -> None:
    found = shown(
        assistant("u1", "m1", 59.9),
        assistant("u2", "m1", 60),
        assistant("u3", "m1", 61, calls=["a"]),
        assistant("u4", "m1", 62, calls=["a", "b"], usage=spent()),
    )
    assert set(found) == {"response:m1", "cost:response:m1", "call:a", "call:b"}
    assert [found[f"call:{name}"]["at"] for name in "ab"] == [at(61), at(62)]
    assert found["response:m1"]["at"] == at(59.9)


def test_a_response_is_named_by_the_model_it_last_told_and_unknown_without_one() -> None:
    assert shown(assistant("u1", "m1", 1, model=None, usage=spent()))["response:m1"]["name"] == "unknown"
    found = shown(assistant("u1", "m1", 1, model="m"), assistant("u2", "m1", 2, model=None, usage=spent()))
    assert found["response:m1"]["name"] == "m"
    assert found["cost:response:m1"]["measurement"]["model"] is None


def test_a_line_that_the_client_wrote_itself_is_no_call_and_no_cost() -> None:
    line = assistant("u1", "m1", 1, model="<synthetic>", usage=spent(), calls=["t"])
    assert shown(line) == {}
    (value,) = file_messages([line])
    assert project_message("transcripts", None, value.value, 0, 0).ignored == "synthetic_response"


def test_a_response_without_a_message_id_is_named_by_its_line() -> None:
    line = assistant("u1", "m1", 1, usage=spent())
    del line["message"]["id"]
    assert set(shown(line)) == {"response:u1", "cost:response:u1"}


# -------------------------------------------------------------------------------------- responses without request


def test_one_id_that_comes_back_with_other_input_after_a_user_line_is_another_response() -> None:
    found = shown(
        assistant("u1", "m", 1, request=None, usage=spent(1, 5), calls=["t"]),
        tool_result("u2", "t", 2),
        assistant("u3", "m", 3, request=None, usage=spent(9, 5)),
        user("u4", 4),
        assistant("u5", "m", 5, request=None, usage=spent(9, 8), calls=["t"]),
        assistant("u6", "m", 6, request=None, usage=spent(20, 8)),
    )
    assert set(found) == {
        *("response:m", "response:m%232", "cost:response:m", "cost:response:m%232"),
        *("call:t", "call:m%232%23t"),
    }
    assert tokens(found["cost:response:m"])[:2] == (1, 5)
    assert tokens(found["cost:response:m%232"])[:2] == (20, 8)
    assert found["cost:response:m%232"]["measurement"]["responseId"] == "m#2"


@pytest.mark.parametrize("changed", ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"])
def test_any_input_side_counter_tells_two_responses_apart_and_output_alone_does_not(changed: str) -> None:
    usage = spent(1, 5, read=2, written=3)
    first, border = assistant("u1", "m", 1, request=None, usage=usage), user("u2", 2)
    other = assistant("u3", "m", 3, request=None, usage={**usage, changed: 50})
    assert len(kinds(shown(first, border, other), "cost")) == 2
    assert (
        len(
            kinds(
                shown(first, border, assistant("u3", "m", 3, request=None, usage={**usage, "output_tokens": 9})), "cost"
            )
        )
        == 1
    )
    assert len(kinds(shown(first, other), "cost")) == 1, "without a user line it is one streamed response"


def test_a_line_without_usage_starts_nothing_and_ends_nothing() -> None:
    found = shown(
        assistant("u1", "m", 1, request=None, usage=spent(1)),
        user("u2", 2),
        assistant("u3", "m", 3, request=None),
        assistant("u4", "m", 4, request=None, usage=spent(9)),
    )
    assert {row["measurement"]["tokens"]["input"] for row in kinds(found, "cost")} == {1, 9}
    assert (
        len(
            kinds(
                shown(
                    assistant("u1", "m", 1, request=None),
                    user("u2", 2),
                    assistant("u3", "m", 3, request=None, usage=spent()),
                ),
                "cost",
            )
        )
        == 1
    )


def test_any_user_line_is_a_border_even_one_that_begins_no_turn() -> None:
    for border in (user("u2", 2, [{"type": "image"}]), {**user("u2", 2), "uuid": None}):
        lines = [assistant("u1", "m", 1, request=None, usage=spent(1)), border]
        assert len(kinds(shown(*lines, assistant("u3", "m", 3, request=None, usage=spent(2))), "cost")) == 2


def test_a_lane_of_its_own_has_borders_of_its_own() -> None:
    lane: Json = {"isSidechain": True, "agentId": "a"}
    found = shown(
        assistant("u1", "m", 1, request=None, usage=spent(1), **lane),
        user("u2", 2),
        assistant("u3", "m", 3, request=None, usage=spent(9), **lane),
    )
    assert len(kinds(found, "cost")) == 1


def test_a_request_id_tells_responses_apart_by_itself() -> None:
    lines = [
        assistant("u1", "m", 1, request="q1", usage=spent(1)),
        assistant("u2", "m", 2, request="q2", usage=spent(1)),
    ]
    assert set(shown(*lines)) == {"response:m", "response:m%232", "cost:response:m", "cost:response:m%232"}
    again = [*lines, assistant("u3", "m", 3, request="q1", usage=spent(5))]
    assert tokens(shown(*again)["cost:response:m"])[0] == 5


# -------------------------------------------------------------------------------------------- tool calls, results


def test_a_call_id_that_comes_again_in_a_later_response_is_named_by_its_response() -> None:
    found = shown(
        assistant("u1", "m1", 1, request="q1", calls=["t"]),
        assistant("u2", "m1", 2, request="q1", calls=["t"]),
        tool_result("u3", "t", 3, is_error=True),
        assistant("u4", "m2", 4, request="q2", calls=["t"]),
        tool_result("u5", "t", 5),
        tool_result("u6", "never-called", 6),
    )
    calls = {name: row["isError"] for name, row in found.items() if row["kind"] == "call" and row["callKind"] == "tool"}
    assert calls == {"call:t": True, "call:m2%23t": False}


def test_a_response_that_is_called_like_the_second_of_another_is_one_record_with_it_whatever_came_together() -> None:
    lines = [
        assistant("u1", "m#2", 1, request=None, usage=spent(9)),
        assistant("u2", "m", 2, request=None, usage=spent(5)),
        user("u3", 3),
        assistant("u4", "m", 4, request=None, usage=spent(7)),
        assistant("u5", "m#2", 5, request=None, usage=spent(9, 8)),
    ]
    found = shown(*lines)
    assert tokens(found["cost:response:m%232"])[:2] == (7, 1), "the one that began later in the file"
    main, sub = file_messages(lines[1:]), file_messages(lines[:1], suffix=":sub")
    for whole in ([*file_messages(lines)], [*main, *sub]):
        expected = project([BOUND, *whole]).records
        assert project([BOUND, *whole], is_eager=True).records == expected
        assert project([BOUND, *whole[1:], whole[0]], is_eager=True).records == expected


def test_a_result_before_its_call_in_the_file_belongs_to_no_call() -> None:
    found = shown(tool_result("u1", "t", 1), assistant("u2", "m1", 2, calls=["t"]))
    assert found["call:t"]["isError"] is None


@pytest.mark.parametrize(("flag", "expected"), [(None, False), (False, False), (True, True)])
def test_a_result_without_an_error_flag_is_no_error(flag: bool | None, expected: bool) -> None:
    found = shown(assistant("u1", "m1", 1, calls=["t"]), tool_result("u2", "t", 2, is_error=flag))
    assert found["call:t"]["isError"] is expected


def test_a_tool_call_has_no_namespace_and_a_missing_name_is_unknown() -> None:
    line = assistant("u1", "m1", 1, calls=["t"])
    del line["message"]["content"][0]["name"]
    call = shown(line)["call:t"]
    assert (call["name"], call["namespace"], call["callKind"]) == ("unknown", None, "tool")


# -------------------------------------------------------------------------------------------------------- turns


def test_the_turn_is_the_last_user_text_before_an_item_in_its_source_and_lane() -> None:
    lane: Json = {"isSidechain": True, "agentId": "a"}
    found = shown(
        assistant("u0", "m0", 0, request="q0"),
        user("t1", 1, [{"type": "text", "text": "x"}]),
        user("t2", 2, **lane),
        assistant("u3", "m1", 3, request="q1", calls=["a"]),
        tool_result("u4", "a", 4),
        assistant("u5", "m2", 5, request="q2"),
        assistant("u6", "m3", 6, request="q3", **lane),
    )
    assert "turn" not in found["response:m0"]
    assert [found[f"response:m{number}"]["turn"].rpartition(":")[2] for number in (1, 2, 3)] == ["t1", "t1", "t2"]
    assert found["call:a"]["turn"].rpartition(":")[2] == "t1"


def test_a_subagents_file_is_part_of_the_conversation_with_turns_of_its_own() -> None:
    main = file_messages([user("t1", 1), assistant("u1", "m1", 2, request="q1", usage=spent(1), calls=["a"])])
    sub = file_messages([user("t2", 3), assistant("u2", "m2", 4, request="q2", usage=spent(2))], suffix=":sub")
    found = records([BOUND, *main, *sub])
    turns = {row["id"].rpartition(":")[2]: row["turn"].rpartition(":")[2] for row in kinds(found, "call")}
    assert turns == {"m1": "t1", "a": "t1", "m2": "t2"}
    assert found[S]["usage"]["inputTokens"] == 3


def test_a_line_that_two_files_of_a_conversation_hold_counts_once() -> None:
    line = assistant("u1", "m1", 2, usage=spent(1), calls=["a"])
    later = {**line, "message": {**line["message"], "usage": spent(8)}}
    found = records(
        [
            BOUND,
            *file_messages([line]),
            *file_messages([user("t", 1), later], suffix=":sub"),
            *file_messages([line], suffix=":a"),
        ]
    )
    assert [row["measurement"]["tokens"]["input"] for row in kinds(found, "cost")] == [8]
    assert kinds(found, "cost")[0]["span"]["sourceId"] == SCOPE
    assert len(kinds(found, "call")) == 2


def test_sources_that_grow_together_give_what_one_after_the_other_gives() -> None:
    main = [user("t1", 1)]
    sub: list[Json] = [user("t2", 1)]
    for number in range(6):
        main += [assistant(f"u{number}", f"m{number}", number, request=f"q{number}", usage=spent(number), calls=["x"])]
        main += [tool_result(f"r{number}", "x", number, is_error=number == 2)]
        sub += [assistant(f"v{number}", f"n{number}", number, request=f"p{number}", usage=spent(number), calls=["y"])]
    files = file_messages(main), file_messages(sub, suffix=":sub")
    together = [one for pair in zip(*files, strict=False) for one in pair] + files[0][len(files[1]) :]
    assert project([BOUND, *together], is_eager=True).records == project([BOUND, *files[0], *files[1]]).records
    shared = [
        tool_result("r", "x", 9, is_error=True),
        assistant("w", "m0", 9, request="q0", usage=spent(50), calls=["x"]),
    ]
    crossed = file_messages([*sub, *shared], suffix=":sub")
    together = [one for pair in zip(crossed, files[0], strict=False) for one in pair] + files[0][len(crossed) :]
    assert project([BOUND, *together], is_eager=True).records == project([BOUND, *files[0], *crossed]).records


# ---------------------------------------------------------------------------------------------------------- time


def test_an_item_without_a_time_takes_that_of_the_nearest_earlier_line_then_of_the_next_then_of_its_attempt() -> None:
    def times(*stamps: float | None) -> list[str]:
        lines = [assistant(f"u{index}", f"m{index}", stamp, request=f"q{index}") for index, stamp in enumerate(stamps)]
        return [row["at"] for row in sorted(shown(*lines).values(), key=lambda row: row["id"])]

    assert times(10, None, 20) == [at(10), at(10), at(20)]
    assert times(None, None, 20) == [at(20), at(20), at(20)]
    assert times(None, None) == [at(5), at(5)]


def test_a_time_of_another_source_is_no_neighbour() -> None:
    untimed = file_messages([assistant("u1", "m1", None, request="q1")])
    timed = file_messages([assistant("u2", "m2", 30, request="q2")], suffix=":a")
    found = records([BOUND, *untimed, *timed])
    assert found[f"response:{SCOPE}:m1"]["at"] == at(5)


def test_an_unbound_item_without_any_time_is_held() -> None:
    untimed = file_messages([assistant("u1", "m1", None, usage=spent())])
    assert records(untimed, unbound="standalone") == {}
    (run,) = kinds(records(file_messages([assistant("u1", "m1", None), user("u2", 40)]), unbound="standalone"), "run")
    assert run["at"] == at(40)
