"""Decisions about text, numbers and times: what is refused, what is escaped, and that nothing unknown is kept."""

import json
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.canonical import digest_of_text
from projections.errors import ProjectionError
from projections.records import parse_trace_record
from projections.sources import project_message
from projections.text import storable_text
from tests.sizes import examples
from tests.worlds.cluster import clean_pass
from tests.worlds.hostile import spoil
from tests.worlds.messages import (
    CLAUDE,
    RUN,
    active,
    assistant,
    attempt_of,
    delta,
    execution,
    file_messages,
    gate,
    kinds,
    ledger,
    message,
    project,
    records,
    result,
    run,
    run_message,
    spent,
    usage_observation,
)
from tests.worlds.world import World

S = attempt_of("s")
Json = dict[str, Any]


def reason_of(topic: str, value: bytes) -> str:
    with pytest.raises(ProjectionError) as caught:
        project_message(topic, None, value, 0, 0)
    return caught.value.reason


# ------------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    ("written", "count"), [("1.0", 1), ("1e2", 100), ("-0", 0), ("-0.0", 0), ("9007199254740991", 2**53 - 1)]
)
def test_a_number_with_a_whole_value_is_a_count(written: str, count: int) -> None:
    text = json.dumps(run(77)).replace("77", written)
    ((_key, version, *_rest),) = [
        fact[1:] for fact in project_message("workflow-runs", b"r1", text.encode(), 0, 0).facts
    ]
    assert version == (count,)
    usage = usage_observation(0, 11, delta("r", 77))
    assert usage.value is not None
    written_row = message("transcripts", usage.value.replace(b"77", written.encode()))
    found = records([ledger("e", S, conversation=CLAUDE), written_row])
    assert kinds(found, "cost")[0]["measurement"]["tokens"]["input"] == count
    assert type(kinds(found, "cost")[0]["measurement"]["tokens"]["input"]) is int


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("9007199254740992", "count_out_of_range"),
        ("9007199254740993", "count_out_of_range"),
        ("36893488147419103233", "count_out_of_range"),
        ("1e21", "count_out_of_range"),
        ("-1", "count_out_of_range"),
        ("1.5", "invalid_count"),
        ("true", "invalid_count"),
        ('"5"', "invalid_count"),
        ("[]", "invalid_count"),
        ("1e400", "number_out_of_range"),
        ("NaN", "invalid_json"),
        ("-Infinity", "invalid_json"),
        ("01", "invalid_json"),
    ],
)
def test_any_other_number_is_refused_and_never_rounded(written: str, reason: str) -> None:
    text = json.dumps(run(77)).replace("77", written)
    assert reason_of("workflow-runs", text.encode()) == reason
    usage = usage_observation(0, 11, delta("r", 77))
    assert usage.value is not None
    assert reason_of("transcripts", usage.value.replace(b"77", written.encode())) == reason
    line = json.dumps(assistant("u", "m", 1, usage=spent(77))).replace("77", written)
    value = {"source": {**CLAUDE, "sourceId": "s", "format": "claude-code"}, "byteOffset": 0, "line": line}
    inside = {"invalid_json": "line_invalid_json", "number_out_of_range": "line_number_out_of_range"}
    assert reason_of("transcripts", json.dumps(value).encode()) == inside.get(reason, reason)


def test_an_input_that_only_adds_up_too_far_is_refused() -> None:
    line = assistant("u", "m", 1, usage=spent(2**53 - 1, read=1))
    value = file_messages([line])[0].value
    assert value is not None
    assert reason_of("transcripts", value) == "count_out_of_range"


def test_of_two_equal_keys_the_last_wins() -> None:
    text = json.dumps(run(1)).replace('"status": "running"', '"status": "running", "status": "paused"')
    assert records([message("workflow-runs", text.encode())])[RUN]["status"] == "paused"


@pytest.mark.parametrize(("one", "other"), [(0.5, 5e-1), (100, 1e2), (2**60, float(2**60)), (0, -0.0)])
def test_equal_amounts_have_equal_bytes_however_they_are_written(one: float, other: float) -> None:
    def cost(usd: float) -> bytes:
        cluster = project([ledger("e", S, conversation=CLAUDE), usage_observation(0, 11, delta("r", usd=usd))])
        return cluster.records["cost:response:claude-code:host:c-1:r"]

    assert cost(one) == cost(other)
    records(
        [ledger("e", S, conversation=CLAUDE), *[usage_observation(0, 11, delta("r", usd=usd)) for usd in (one, other)]]
    )


# --------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a\ufffd0000b"),
        ("cut \ud83d", "cut \ufffdd83d"),
        ("\ufffd", "\ufffdfffd"),
        ("ok \U0001f600", "ok \U0001f600"),
    ],
)
def test_text_that_stores_refuse_is_escaped_once_wherever_it_is_shown(text: str, shown: str) -> None:
    failed = {"outcome": "failed", "reason": text, "retryable": False}
    more = {"runnerRef": text, "agent": {"agentId": text}, "correlations": {"x.y": text}}
    line = assistant("u", "m", 20, usage=spent(), calls=["t"], model=text)
    line["message"]["content"][0]["name"] = text
    messages = [
        run_message(error=text, workflowName=text, steps=[result("t", signal=text, agentId=text)]),
        ledger("e", S, conversation=CLAUDE, phase="failed", terminal=failed, **more),
        message("gate-decisions", gate("r1/g", "cancelled", reason=text)),
        *file_messages([line]),
    ]
    found = records(messages)
    assert (found[RUN]["error"], found[RUN]["workflowName"], found[RUN]["correlations"]) == (
        shown,
        shown,
        {"x.y": shown},
    )
    assert (found[S]["error"], found[S]["runnerRef"], found[S]["agentId"]) == (shown, shown, shown)
    assert (found[attempt_of("t")]["signal"], found[attempt_of("t")]["agentId"]) == (shown, shown)
    assert found["r1/g"]["reason"] == shown
    assert {row["name"] for row in kinds(found, "call")} == {shown}
    assert found[S]["model"] == shown


def test_a_lone_surrogate_elsewhere_in_a_row_changes_nothing_about_its_other_texts() -> None:
    plain = ledger("e", S, runnerRef="a\x00b", agent={"agentId": "x"})
    other = ledger("e", S, runnerRef="a\x00b", agent={"agentId": "\ud800"})
    assert records([plain])[S]["runnerRef"] == records([other])[S]["runnerRef"] == "a\ufffd0000b"


@pytest.mark.parametrize(
    ("topic", "value"),
    [
        ("workflow-runs", {**run(), "id": "r\ud800"}),
        ("gate-decisions", gate("r1/\ud800")),
        ("ledger-changes", {"record": execution("\ud800", S)}),
        ("ledger-changes", {"record": execution("e", S, conversation={**CLAUDE, "nativeId": "\ud800"})}),
        ("transcripts", {"source": {**CLAUDE, "nativeId": "\ud800", "sourceId": "s"}, "byteOffset": 0, "line": "{}"}),
    ],
)
def test_an_id_that_cannot_be_encoded_is_refused_alone(topic: str, value: Json) -> None:
    found = records([message(topic, value), run_message(id="ok")], dead=["lone_surrogate"])
    assert found.keys() == {"ok"}


def test_a_step_id_that_cannot_be_encoded_costs_its_own_step_only() -> None:
    found = records([run_message(steps=[result("s\ud800"), result("t")], active=[active("u\ud800")])])
    assert [row["stepId"] for row in kinds(found, "attempt")] == ["t"]


def test_a_conversation_is_found_by_its_native_text_on_both_sides() -> None:
    odd = {**CLAUDE, "nativeId": "c\x00 \ufffd:%"}
    found = records([ledger("e", S, conversation=odd), *file_messages([assistant("u", "m", 20, usage=spent())], odd)])
    (cost,) = kinds(found, "cost")
    assert cost["conversation"] == found[S]["conversation"] == "conversation:claude-code:host:c%00%20%EF%BF%BD%3A%25"
    assert cost["span"]["sourceId"] == "claude-code:host:" + storable_text(odd["nativeId"])


def test_ids_that_go_out_as_they_are_hold_nothing_that_stores_refuse() -> None:
    found = records([run_message(id="r\x00"), message("gate-decisions", gate("r\x00/g"))])
    assert found.keys() == {"r\ufffd0000", "r\ufffd0000/g"}
    assert {row["runId"] for row in found.values()} == {"r\ufffd0000"}


def test_conversations_whose_parts_would_join_to_one_text_are_two() -> None:
    first = {"harness": "claude-code", "namespace": "a:b", "nativeId": "c"}
    second = {"harness": "claude-code", "namespace": "a", "nativeId": "b:c"}
    messages = [one for name in (first, second) for one in file_messages([assistant("u", "m", 20, request=None)], name)]
    assert len(kinds(records(messages, unbound="standalone"), "run")) == 2


def test_text_is_digested_as_its_utf8_with_lone_surrogates_as_javascript_writes_them() -> None:
    step = records([run_message(steps=[result("s", output="cut \ud83d")])])[S]
    assert step["outputSha256"] == digest_of_text("cut \ufffd")


# -------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    "time",
    [
        "2026-10-01T09:00:00Z",
        "2026-10-01T09:00:00.123456789012+05:30",
        "2026-10-01T09:00:00-00:00",
        "0001-01-01T00:00:00Z",
    ],
)
def test_a_time_is_kept_as_the_source_wrote_it(time: str) -> None:
    assert records([run_message(startedAt=time)])[RUN]["at"] == time


@pytest.mark.parametrize(
    "time",
    [
        "2026-10-01",
        "2026-02-30T09:00:00Z",
        "2026-10-01T24:00:00Z",
        "2026-10-01t09:00:00z",
        1_790_000_000,
        "",
        "2026-10-01T09:00:00Z\n",
    ],
)
def test_a_time_outside_the_grammar_of_records_is_refused(time: Any) -> None:
    records([run_message(startedAt=time)], dead=["invalid_time"])


# ---------------------------------------------------------------------------------------- what is carried along


def test_a_field_that_nobody_knows_is_in_no_fact() -> None:
    extra: Json = {"ZZUNKNOWNZZ": {"ZZUNKNOWNZZ": ["ZZUNKNOWNZZ"]}}
    line = {**assistant("u", "m", 20, usage={**spent(), **extra}, calls=["t"]), **extra}
    observed = usage_observation(0, 11, {**delta("r"), **extra}, **extra)
    messages = [
        run_message(
            steps=[
                result(
                    "s",
                    data={
                        **extra,
                        "titan.trace.artifacts": [{"artifactKind": "pr", "repo": "a/b", "number": 1, **extra}],
                    },
                    **extra,
                )
            ],
            **extra,
        ),
        message("gate-decisions", gate("r1/g", **extra)),
        message("ledger-changes", {"record": {**execution("e", S), **extra}, **extra}),
        *file_messages([line]),
        observed,
    ]
    cluster = project(messages)
    assert cluster.dead == []
    for log in cluster.logs:
        for key, value in log:
            assert b"ZZUNKNOWNZZ" not in key + (value or b"")


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(min_value=0, max_value=1_000_000))
def test_a_value_that_is_not_what_it_should_be_is_refused_or_makes_records_that_every_store_takes(seed: int) -> None:
    random = Random(seed)
    good = World(random.randrange(100_000)).messages
    dead_count = len(clean_pass(good).dead)
    messages = spoil(good, random)
    for unbound in ("hold", "standalone"):
        cluster = clean_pass(messages, unbound=unbound)
        assert len(cluster.dead) <= dead_count + 1, "a bad value takes nothing else down"
        for data in cluster.records.values():
            record = orjson.loads(data)
            assert parse_trace_record(record) == record
            assert b"\\u0000" not in data
