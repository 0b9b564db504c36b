"""Decisions about copied responses: who keeps what two conversations hold (Claude Code)."""

import json
from typing import Any

import pytest

from tests.worlds.messages import (
    CLAUDE,
    assistant,
    attempt_of,
    file_messages,
    kinds,
    ledger,
    message,
    records,
    source_of,
    spent,
    tool_result,
    user,
)
from tests.worlds.world import SourceMessage

S = attempt_of("s")
BOUND = ledger("e1", S, conversation=CLAUDE)
SCOPE = "claude-code:host:c-1"
Json = dict[str, Any]


def resumed(conversation: Json, *lines: Json) -> list[SourceMessage]:
    return file_messages(lines, conversation)


OTHER = {**CLAUDE, "nativeId": "c-0"}
OTHER_BOUND = ledger("e2", attempt_of("s", run="r2"), conversation=OTHER)
ORIGINAL = [
    user("t1", 10),
    assistant("u1", "m1", 11, usage=spent(10), calls=["a"]),
    tool_result("u2", "a", 12, is_error=True),
]
COPY = [user("t1", 10), assistant("u1", "m1", 50, usage=spent(10), calls=["a"]), tool_result("u2", "a", 12)]
OWN = assistant("u9", "m9", 60, request="q9", usage=spent(3))


def owners(found: dict[str, Json]) -> dict[str, str]:
    return {
        row["id"].rpartition(":")[2]: row["conversation"].rpartition(":")[2]
        for row in found.values()
        if row["kind"] in ("call", "cost")
    }


def test_a_response_that_two_conversations_hold_counts_once_in_the_one_with_the_earliest_line() -> None:
    messages = [BOUND, OTHER_BOUND, *resumed(CLAUDE, *ORIGINAL), *resumed(OTHER, *COPY, OWN)]
    found = records(messages)
    assert owners(found) == {"m1": "c-1", "a": "c-1", "m9": "c-0"}
    assert found[S]["usage"]["inputTokens"] == 10
    assert found[attempt_of("s", run="r2")]["usage"]["inputTokens"] == 3
    assert found[f"call:{SCOPE}:a"]["isError"] is True


def test_of_equal_times_the_smaller_ref_keeps_the_response() -> None:
    found = records([BOUND, OTHER_BOUND, *resumed(CLAUDE, *ORIGINAL), *resumed(OTHER, *ORIGINAL)])
    assert owners(found) == {"m1": "c-0", "a": "c-0"}


def test_the_earliest_line_of_a_response_decides_and_a_line_without_a_time_comes_last() -> None:
    first, second = assistant("u1", "m1", 40, usage=spent()), assistant("u2", "m1", 9, usage=spent())
    found = records(
        [BOUND, OTHER_BOUND, *resumed(CLAUDE, first, second), *resumed(OTHER, assistant("u1", "m1", 10, usage=spent()))]
    )
    assert owners(found) == {"m1": "c-1"}
    untimed = {key: value for key, value in first.items() if key != "timestamp"}
    assert owners(records([BOUND, OTHER_BOUND, *resumed(CLAUDE, first), *resumed(OTHER, untimed)])) == {"m1": "c-1"}


def test_a_held_or_erased_conversation_still_keeps_what_it_said_first() -> None:
    ref = "conversation:claude-code:host:c-1"
    both = [OTHER_BOUND, *resumed(CLAUDE, *ORIGINAL), *resumed(OTHER, *COPY)]
    held = records(both)
    erased = records([*both, BOUND, message("erasures", {"conversation": ref})])
    assert owners(held) == owners(erased) == {}
    assert "usage" not in held[attempt_of("s", run="r2")]


def test_without_a_request_id_the_lines_own_id_is_the_evidence() -> None:
    def lines(uuid: str, seconds: float) -> list[Json]:
        return [assistant(uuid, "m1", seconds, request=None, usage=spent())]

    copied = records([BOUND, OTHER_BOUND, *resumed(CLAUDE, *lines("u1", 10)), *resumed(OTHER, *lines("u1", 50))])
    assert owners(copied) == {"m1": "c-1"}
    chance = records([BOUND, OTHER_BOUND, *resumed(CLAUDE, *lines("u1", 10)), *resumed(OTHER, *lines("u2", 50))])
    assert len(kinds(chance, "cost")) == 2


@pytest.mark.parametrize("change", [{"namespace": "other"}, {"harness": "claude"}])
def test_responses_of_two_namespaces_are_two(change: Json) -> None:
    elsewhere = {**CLAUDE, **change}
    value = source_of(elsewhere) | {"format": "claude-code"}
    row = message("transcripts", {"source": value, "byteOffset": 0, "line": json.dumps(COPY[1])})
    found = records(
        [BOUND, ledger("e2", attempt_of("s", run="r2"), conversation=elsewhere), *resumed(CLAUDE, ORIGINAL[1]), row]
    )
    assert len(kinds(found, "cost")) == 2


def test_three_conversations_agree_on_the_one_that_keeps_a_response() -> None:
    third = {**CLAUDE, "nativeId": "c-2"}
    lines = [(CLAUDE, 30), (OTHER, 20), (third, 10)]
    messages = [one for name, seconds in lines for one in resumed(name, assistant("u", "m", seconds, usage=spent()))]
    messages += [ledger(f"e{name['nativeId']}", attempt_of(name["nativeId"]), conversation=name) for name, _at in lines]
    assert owners(records(messages)) == {"m": "c-2"}


def test_a_copied_call_does_not_lend_its_id_to_the_conversations_own_call() -> None:
    own = assistant("u9", "m9", 60, request="q9", usage=spent(3), calls=["a"])
    found = records(
        [BOUND, OTHER_BOUND, *resumed(CLAUDE, *ORIGINAL), *resumed(OTHER, *COPY, own, tool_result("u10", "a", 61))]
    )
    assert found["call:claude-code:host:c-0:m9%23a"]["isError"] is False
    assert found[f"call:{SCOPE}:a"]["isError"] is True


def test_a_foreign_session_id_on_a_line_is_no_evidence() -> None:
    line = {**assistant("u1", "m1", 10, usage=spent()), "sessionId": "c-0"}
    assert owners(records([BOUND, *resumed(CLAUDE, line)])) == {"m1": "c-1"}
