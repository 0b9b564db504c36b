"""Decisions about Codex rollouts: steps of a counter, usage records, call ids, results."""

from typing import Any

import pytest

from projections.sources import project_message
from tests.worlds.messages import (
    CODEX,
    at,
    attempt_of,
    codex_line,
    file_messages,
    kinds,
    ledger,
    records,
    token_count,
)

S = attempt_of("s")
BOUND = ledger("e1", S, conversation=CODEX, harness="codex")
SCOPE = "codex:host:t-1"
Json = dict[str, Any]


def shown(*lines: Json, dead: tuple[str, ...] = ()) -> dict[str, Json]:
    """Give the records of one bound rollout, without the attempt, by the end of their id."""
    found = records([BOUND, *file_messages(lines, CODEX)], dead=dead)
    return {record_id.replace(f"{SCOPE}:", ""): row for record_id, row in found.items() if row["kind"] != "attempt"}


def inputs(*lines: Json) -> list[int | None]:
    """Give the input tokens of a rollout's costs, in the order of its lines."""
    costs = kinds(shown(*lines), "cost", lambda row: row["span"]["byteOffset"])
    return [row["measurement"]["tokens"]["input"] for row in costs]


def turn(turn_id: str | None = "turn-1", model: str | None = "gpt-5") -> Json:
    return codex_line("turn_context", {"turn_id": turn_id, "model": model})


def call(kind: str = "function_call", **more: Any) -> Json:
    return codex_line("response_item", {"type": kind, **more})


def usage_record(**more: Any) -> Json:
    return codex_line("token_usage_record", more)


def counter(total: int) -> Json:
    return {"input_tokens": total, "output_tokens": 0, "total_tokens": total}


# ------------------------------------------------------------------------------------------------ counter steps


def test_each_step_of_the_counter_is_one_request_with_a_call_and_a_delta_cost() -> None:
    found = shown(turn(), token_count(100, 100, 3), token_count(250, 150, 4))
    calls, costs = kinds(found, "call"), kinds(found, "cost")
    assert [row["measurement"]["tokens"]["input"] for row in costs] == [100, 150]
    assert [row["at"] for row in calls] == [at(3), at(4)]
    assert {row["name"] for row in calls} == {"gpt-5"}
    measurement = costs[0]["measurement"]
    offset = costs[0]["span"]["byteOffset"]
    assert (measurement["kind"], measurement["responseId"]) == ("delta", f"token_count@{offset}")
    assert costs[0]["id"] == f"cost:response:{SCOPE}:token_count%40{offset}"
    assert calls[0]["turn"] == f"turn:{SCOPE}:turn-1"


def test_a_repeated_row_a_null_row_and_the_size_after_a_compaction_are_no_usage() -> None:
    nothing = codex_line("event_msg", {"type": "token_count", "info": None})
    size = token_count(100, 0)
    size["payload"]["info"]["last_token_usage"] |= {"total_tokens": 42}
    assert inputs(token_count(100, 100), token_count(100, 100), nothing, size, token_count(150, 50)) == [100, 50]
    switched = (token_count(100, 100), turn(model="gpt-6"), token_count(100, 100), token_count(130, 30))
    found = shown(turn(), *switched)
    assert [row["measurement"]["model"] for row in kinds(found, "cost", lambda row: row["span"]["byteOffset"])] == [
        "gpt-5",
        "gpt-6",
    ]


def test_a_counter_without_its_total_is_measured_by_input_and_output() -> None:
    def row(input_tokens: int, output: int) -> Json:
        total = {"input_tokens": input_tokens, "output_tokens": output}
        return codex_line("event_msg", {"type": "token_count", "info": {"total_token_usage": total}})

    costs = kinds(shown(row(10, 1), row(30, 4)), "cost", lambda row: row["span"]["byteOffset"])
    spent = [row["measurement"]["tokens"] for row in costs]
    assert [(row["input"], row["output"], row["total"], row["cachedInput"]) for row in spent] == [
        (10, 1, None, None),
        (20, 3, None, None),
    ]


def test_an_epoch_ends_only_when_a_total_falls_and_equals_its_own_last() -> None:
    assert inputs(token_count(100, 100), token_count(40, 40), token_count(60, 20)) == [100, 40, 20]
    assert inputs(token_count(100, 100), token_count(40, 10), token_count(130, 30)) == [100, 30], "a stale row"
    compaction = codex_line("compacted", {"message": "secret"})
    assert inputs(token_count(100, 100), compaction, token_count(130, 30)) == [100, 30]


def test_cached_input_and_reasoning_are_parts_and_never_added() -> None:
    total = {"input_tokens": 100, "cached_input_tokens": 80, "output_tokens": 30, "reasoning_output_tokens": 25}
    found = shown(token_count(0, None, **total, total_tokens=130))
    tokens = kinds(found, "cost")[0]["measurement"]["tokens"]
    expected = {"input": 100, "output": 30, "cachedInput": 80, "reasoningOutput": 25, "total": 130}
    assert tokens == {**expected, "cacheWriteInput": None}
    usage = records([BOUND, *file_messages([token_count(0, None, **total, total_tokens=130)], CODEX)])[S]["usage"]
    assert usage == {"costUsd": 0, "inputTokens": 100, "outputTokens": 30}


def test_a_step_before_any_model_is_known_is_named_unknown() -> None:
    found = shown(token_count(100, 100))
    assert kinds(found, "call")[0]["name"] == "unknown"
    assert kinds(found, "cost")[0]["measurement"]["model"] is None


def test_two_files_of_one_thread_never_share_a_step() -> None:
    first = file_messages([token_count(100, 100)], CODEX, suffix=":a")
    second = file_messages([token_count(70, 70)], CODEX, suffix=":b")
    found = records([BOUND, *first, *second])
    assert sorted(row["measurement"]["tokens"]["input"] for row in kinds(found, "cost")) == [70, 100]
    assert found[S]["usage"]["inputTokens"] == 170
    assert {row["measurement"]["responseId"] for row in kinds(found, "cost")} == {"token_count@0", "token_count@0#2"}


# ------------------------------------------------------------------------------------------------- usage records


def test_usage_records_with_response_ids_give_deltas_and_supersede_the_counter() -> None:
    found = shown(
        turn(),
        token_count(100, 100),
        usage_record(turn_id="turn-1", response_id="resp-1", usage=counter(100), thread_token_usage=counter(100)),
        usage_record(turn_id="turn-1", response_id="resp-2", usage=counter(30), thread_token_usage=counter(130)),
        token_count(130, 30),
    )
    deltas = {
        row["measurement"]["responseId"]: row for row in kinds(found, "cost") if "responseId" in row["measurement"]
    }
    assert {name: row["measurement"]["tokens"]["input"] for name, row in deltas.items()} == {
        "resp-1": 100,
        "resp-2": 30,
    }
    assert {row["id"] for row in kinds(found, "call")} == {f"response:{SCOPE}:resp-1", f"response:{SCOPE}:resp-2"}
    whole = [turn(), token_count(100, 100), usage_record(response_id="resp-1", usage=counter(100))]
    assert records([BOUND, *file_messages(whole, CODEX)])[S]["usage"]["inputTokens"] == 100


def test_thread_totals_of_usage_records_start_an_epoch_with_any_fall() -> None:
    found = shown(usage_record(thread_token_usage=counter(100)), usage_record(thread_token_usage=counter(40)))
    epochs = {row["measurement"]["epoch"]: row["measurement"]["tokens"]["input"] for row in kinds(found, "cost")}
    assert epochs == {f"{SCOPE}:usage:0": 100, f"{SCOPE}:usage:1": 40}
    total = [usage_record(thread_token_usage=counter(count)) for count in (100, 40)]
    assert records([BOUND, *file_messages(total, CODEX)])[S]["usage"]["inputTokens"] == 140


# --------------------------------------------------------------------------------------------- calls and results


def test_a_call_is_named_by_its_name_or_its_type_and_a_repeated_id_by_its_occurrence() -> None:
    found = shown(
        turn(),
        call(call_id="c", name="shell"),
        call("custom_tool_call", call_id="c", name="apply_patch", namespace="mcp"),
        call("web_search_call", id="ws_1"),
        call("web_search_call"),
    )
    last = max(row["span"]["byteOffset"] for row in found.values())
    assert {name: (row["name"], row["namespace"]) for name, row in found.items()} == {
        "call:c": ("shell", None),
        "call:c%232": ("apply_patch", "mcp"),
        "call:ws_1": ("web_search_call", None),
        f"call:line%3A{last}": ("web_search_call", None),
    }
    assert {row["turn"] for row in found.values()} == {f"turn:{SCOPE}:turn-1"}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"output": '{"output": "x", "metadata": {"exit_code": 0}}'}, False),
        ({"output": '{"metadata": {"exit_code": 2}}'}, True),
        ({"output": {"success": False}}, True),
        ({"output": "Error: it failed with exit_code 1"}, None),
        ({"output": "{broken"}, None),
        ({"success": True}, False),
        ({}, None),
    ],
)
def test_an_error_is_known_from_structured_evidence_only(result: Json, expected: bool | None) -> None:
    answer = codex_line("response_item", {"type": "function_call_output", "call_id": "c", **result})
    assert shown(call(call_id="c", name="shell"), answer)["call:c"]["isError"] is expected


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "exec_command_end", "exit_code": 1}, True),
        ({"type": "patch_apply_end", "success": True}, False),
        ({"type": "mcp_tool_call_end", "result": {"Ok": {"is_error": True}}}, True),
        ({"type": "mcp_tool_call_end", "result": {"Ok": {}}}, False),
        ({"type": "mcp_tool_call_end", "result": {"Err": "secret"}}, True),
    ],
)
def test_an_end_event_tells_and_free_text_does_not_make_it_unknown_again(event: Json, expected: bool) -> None:
    end = codex_line("event_msg", {"call_id": "c", **event})
    text = codex_line("response_item", {"type": "function_call_output", "call_id": "c", "output": "text"})
    assert shown(call(call_id="c", name="shell"), end, text)["call:c"]["isError"] is expected


def test_a_result_belongs_to_the_nearest_earlier_call_of_its_id() -> None:
    def answer(code: int) -> Json:
        payload = {"type": "function_call_output", "call_id": "c", "output": {"metadata": {"exit_code": code}}}
        return codex_line("response_item", payload)

    again = call(call_id="c", name="shell")
    found = shown(answer(1), again, answer(0), again, answer(1), again)
    assert [found[f"call:c{occurrence}"]["isError"] for occurrence in ("", "%232", "%233")] == [False, True, None]


def test_a_call_that_is_called_like_the_second_of_another_is_one_record_with_it_whatever_came_together() -> None:
    answer = codex_line("response_item", {"type": "function_call_output", "call_id": "c", "output": {"success": True}})
    found = shown(call(call_id="c", name="a"), call(call_id="c", name="b"), call(call_id="c#2", name="z"), answer)
    assert {name: row["name"] for name, row in found.items()} == {"call:c": "a", "call:c%232": "z"}


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (-1, "count_out_of_range"),
        (2**53, "count_out_of_range"),
        (1.5, "invalid_count"),
        ("5", "invalid_count"),
        (True, "invalid_count"),
    ],
)
def test_a_counter_that_is_no_count_is_refused_alone(count: Any, reason: str) -> None:
    broken = token_count(50, 50, input_tokens=count)
    found = shown(token_count(100, 100), broken, token_count(150, 50), dead=(reason,))
    assert sorted(row["measurement"]["tokens"]["input"] for row in kinds(found, "cost")) == [50, 100]


def test_a_whole_float_is_a_count_and_an_unknown_counter_stays_unknown() -> None:
    tokens = kinds(shown(token_count(0, None, input_tokens=100.0, total_tokens=1e2, output_tokens=None)), "cost")
    assert tokens[0]["measurement"]["tokens"]["input"] == 100
    assert tokens[0]["measurement"]["tokens"]["output"] is None


def test_lines_of_other_kinds_are_counted_and_no_text_enters_a_fact() -> None:
    for line in (codex_line("event_msg", {"type": "agent_message", "message": "secret"}), {"type": "x"}):
        (value,) = file_messages([line], CODEX)
        assert project_message("transcripts", None, value.value, 0, 0).ignored == "no_trace_line"
    (value,) = file_messages([call(call_id="c", name="shell", arguments="ZZSECRETZZ", input="ZZSECRETZZ")], CODEX)
    assert "ZZSECRETZZ" not in str(project_message("transcripts", None, value.value, 0, 0).facts)
