"""Usage by day, model, source and run: laws, days in zones, and numbers that were counted elsewhere."""

import math
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.errors import ProjectionError
from projections.privacy import Policy, redact
from projections.reports.days import Window, day_of, moment_text, window_of
from projections.reports.spend import Sum, moment_of, sum_usd
from projections.reports.usage_report import GROUPINGS, By, UsageReport, report_json, usage_report
from projections.usage import TOKEN_FIELDS, fold_usage, sum_or_null
from tests.projections.reports.cost_records import Record, call, cost, delta, records, snapshot
from tests.projections.test_real_transcripts import FILES, TRUTH, _messages, _true_tokens
from tests.worlds.transcripts import project_lines

RUNS = Path(__file__).resolve().parents[3] / "fixtures" / "runs"
BERLIN = ZoneInfo("Europe/Berlin")


def trace(name: str) -> list[Record]:
    return [orjson.loads(line) for line in (RUNS / name / "trace.jsonl").read_bytes().splitlines()]


def tokens_of(report: UsageReport, field: str = "input") -> dict[str | None, Sum]:
    return {row.key: row.usage.tokens[field] for row in report.rows}


# --------------------------------------------------------------------------------------------------------------- laws


@given(records, st.sampled_from(GROUPINGS), st.randoms(use_true_random=False))
def test_order_and_repetition_of_records_do_not_matter(found: list[Record], by: By, random: Any) -> None:
    shuffled = found + random.sample(found, len(found) // 2)
    random.shuffle(shuffled)
    assert report_json(usage_report(shuffled, by, BERLIN)) == report_json(usage_report(found, by, BERLIN))


@given(records, st.sampled_from(GROUPINGS))
def test_the_total_is_the_sum_of_what_fold_usage_keeps_of_each_conversation(found: list[Record], by: By) -> None:
    conversations: dict[str, list[Record]] = {}
    for record in found:
        if record["kind"] == "cost":
            conversations.setdefault(record["conversation"], []).append(record["measurement"])
    folded = [item for costs in conversations.values() for item in fold_usage(costs).measurements]
    total = usage_report(found, by).total
    assert total.costs == len(folded)
    for field in TOKEN_FIELDS:
        counts = [item["tokens"][field] for item in folded]
        assert total.tokens[field].total == sum_or_null(counts)
        assert total.tokens[field] == (sum(count or 0 for count in counts), counts.count(None))
    amounts = [item["cost"]["usd"] for item in folded if item["cost"] is not None]
    assert total.usd == (math.fsum(amounts), len(folded) - len(amounts))
    assert total.requests == (sum(item["kind"] == "delta" for item in folded), total.costs - total.requests.known)


@given(records, st.sampled_from(GROUPINGS))
def test_nothing_is_in_two_rows_and_nothing_in_none(found: list[Record], by: By) -> None:
    report = usage_report(found, by, BERLIN)
    assert len({row.key for row in report.rows}) == len(report.rows)
    for read in (lambda usage: usage.requests, *(_reader(field) for field in TOKEN_FIELDS)):
        rows = [read(row.usage) for row in report.rows]
        assert (sum(row.known for row in rows), sum(row.unknown for row in rows)) == read(report.total)
    assert sum(row.usage.costs for row in report.rows) == report.total.costs
    counted = sum(record["kind"] == "cost" for record in found)
    assert report.total.costs + report.superseded == counted
    calls = [record for record in found if record["kind"] == "call" and record["callKind"] == "tool"]
    assert report.total.tool_calls == len(calls)
    if by in ("day", "run"):
        assert sum(row.usage.tool_calls or 0 for row in report.rows) == len(calls)
    else:
        assert {row.usage.tool_calls for row in report.rows} <= {None}


def _reader(field: str) -> Callable[[Any], Sum]:
    return lambda usage: usage.tokens[field]


@given(records)
def test_the_days_before_a_time_and_those_after_it_come_to_the_whole(found: list[Record]) -> None:
    noon = moment_of("2026-03-26T12:00:00Z")
    parts = [usage_report(found, "day", UTC, window) for window in (Window(None, noon), Window(noon, None))]
    whole = usage_report(found, "day")
    for field in TOKEN_FIELDS:
        assert sum(part.total.tokens[field].known for part in parts) == whole.total.tokens[field].known
    assert sum(part.total.costs for part in parts) == whole.total.costs


@given(records)
def test_rows_stand_in_the_order_of_their_keys_the_unknown_last(found: list[Record]) -> None:
    for by in ("day", "model", "source"):
        keys = [row.key for row in usage_report(found, by).rows]
        assert keys == sorted(keys, key=lambda key: (key is None, key or ""))


def test_runs_stand_in_the_order_of_their_first_use() -> None:
    found = [
        cost(delta("x"), run="b", at="2026-11-03T10:00:00Z"),
        cost(delta("y"), run="a", at="2026-11-03T11:00:00Z"),
        call("z", run="c", at="2026-11-03T10:30:00+02:00"),
        cost(delta("w"), run="c", at="2026-11-03T12:00:00Z"),
    ]
    assert [row.key for row in usage_report(found, "run").rows] == ["c", "b", "a"]


# ------------------------------------------------------------------------------------------------- what supersedes what


def test_a_delta_supersedes_every_snapshot_of_its_conversation_and_no_other() -> None:
    costs = [
        cost(snapshot("conversation", "c", input=1_000), "one", run="r1", step="a"),
        cost(snapshot("turn", "t", "e1", input=500), "one", run="r1", step="b"),
        cost(delta("x", input=7), "one", run="r2"),
        cost(snapshot("conversation", "c", input=30), "two", run="r1"),
    ]
    report = usage_report(costs, "run")
    assert tokens_of(report) == {"r1": (30, 0), "r2": (7, 0)}
    assert report.superseded == 2


def test_a_snapshot_stays_superseded_where_its_deltas_are_out_of_the_window() -> None:
    costs = [
        cost(snapshot("conversation", "c", input=1_000), at="2026-11-03T10:00:00Z"),
        cost(delta("x", input=7), at="2026-11-04T10:00:00Z"),
    ]
    report = usage_report(costs, "day", UTC, window_of(None, "2026-11-03", UTC))
    assert (report.rows, report.total.costs) == ((), 0)


def test_a_conversations_snapshot_supersedes_the_turns_of_its_epoch_and_its_day_is_that_of_its_last_reading() -> None:
    costs = [
        cost(snapshot("turn", "t1", "e0", input=10), at="2026-11-01T10:00:00Z"),
        cost(snapshot("turn", "t2", "e1", input=20), at="2026-11-02T10:00:00Z"),
        cost(snapshot("conversation", "c", "e0", sequence=9, input=15), at="2026-11-03T10:00:00Z"),
    ]
    assert tokens_of(usage_report(costs, "day")) == {"2026-11-02": (20, 0), "2026-11-03": (15, 0)}


def test_a_conversations_snapshot_has_no_single_model_and_no_number_of_requests() -> None:
    costs = [
        cost(snapshot("conversation", "c", input=15), "one"),
        cost(snapshot("turn", "t", input=5), "two"),
        cost(delta("x", model=None, input=1), "three"),
    ]
    report = usage_report(costs, "model")
    assert tokens_of(report) == {"m-2": (5, 0), None: (16, 0)}
    assert report.rows[-1].usage.requests == Sum(1, 1)


def test_the_greater_of_two_versions_of_one_record_counts_from_whichever_place_it_comes_first() -> None:
    older, newer = cost(delta("x", input=7)), cost(delta("x", input=9))
    for both in ([older, newer], [newer, older]):
        assert usage_report(both, "day").total.tokens["input"] == (9, 0)


# ------------------------------------------------------------------------------------------------------------- unknown


def test_an_unknown_count_makes_its_sum_unknown_and_is_counted_beside_what_is_known() -> None:
    costs = [cost(delta("x", 0.5, input=7)), cost(delta("y", input=3, output=2)), cost(delta("z", 0.0, output=1))]
    usage = usage_report(costs, "day").total
    assert [usage.tokens["input"], usage.usd] == [Sum(10, 1), Sum(0.5, 1)]
    assert [usage.tokens["input"].total, usage.usd.total] == [None, None]
    assert usage.tokens["reasoningOutput"] == Sum(0, 3)
    assert report_json(usage_report(costs, "day"))["total"]["tokens"]["output"] == {
        "total": None,
        "known": 3,
        "unknown": 1,
    }


def test_a_cost_of_zero_is_known() -> None:
    assert usage_report([cost(delta("x", 0.0))], "day").total.usd == Sum(0.0, 0)


def test_estimates_are_told_from_what_was_reported() -> None:
    estimate = delta("x", 0.25) | {"cost": {"usd": 0.25, "kind": "estimate"}}
    usage = usage_report([cost(estimate), cost(delta("y", 0.5))], "day").total
    assert (usage.usd.known, usage.estimated_usd) == (0.75, 0.25)


def test_a_result_that_does_not_tell_is_no_error_and_no_success() -> None:
    calls = [call("a", is_error=True), call("b"), call("c", is_error=None), call("d", is_error=None, kind="model")]
    usage = usage_report(calls, "run").total
    assert (usage.tool_calls, usage.tool_errors) == (3, Sum(1, 1))


def test_amounts_add_up_alike_in_every_order_and_never_to_infinity() -> None:
    assert sum_usd([0.1] * 10) == 1.0
    assert sum_usd([1e16, 1.0, -1e16]) == 1.0
    assert sum_usd([1.7e308, 1.7e308]) == 1.7976931348623157e308


def test_no_records_come_to_no_rows() -> None:
    report = usage_report([], "day")
    assert (report.rows, report.total.costs, report.total.usd) == ((), 0, Sum(0, 0))


# ---------------------------------------------------------------------------------------------------- days and windows


@pytest.mark.parametrize(
    ("at", "zone", "day"),
    [
        ("2026-11-03T23:30:00Z", "UTC", "2026-11-03"),
        ("2026-11-03T23:30:00Z", "Europe/Berlin", "2026-11-04"),
        ("2026-11-03T23:30:00-08:00", "America/Los_Angeles", "2026-11-03"),
        ("2026-03-28T23:30:00Z", "Europe/Berlin", "2026-03-29"),  # still winter there
        ("2026-03-29T22:30:00Z", "Europe/Berlin", "2026-03-30"),  # summer by now
        ("2011-12-30T09:59:59Z", "Pacific/Apia", "2011-12-29"),
        ("2011-12-30T10:00:00Z", "Pacific/Apia", "2011-12-31"),  # a day that Samoa never had
        ("0000-06-01T00:00:00Z", "UTC", None),
        ("0001-01-01T00:00:00Z", "America/New_York", None),
        ("9999-12-31T23:00:00Z", "Asia/Tokyo", None),
    ],
)
def test_a_day_is_a_calendar_day_of_the_zone(at: str, zone: str, day: str | None) -> None:
    assert day_of(moment_of(at), ZoneInfo(zone)) == day
    assert [row.key for row in usage_report([cost(delta("x"), at=at)], "day", ZoneInfo(zone)).rows] == [day]


@pytest.mark.parametrize(
    ("since", "until", "zone", "bounds"),
    [
        ("2026-11-03", "2026-11-03", "UTC", ("2026-11-03T00:00:00Z", "2026-11-04T00:00:00Z")),
        ("2026-03-29", "2026-03-29", "Europe/Berlin", ("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z")),
        ("2026-11-03T09:00", None, "Asia/Tokyo", ("2026-11-03T00:00:00Z", None)),
        ("2026-11-03 09:00:00.25", None, "Asia/Tokyo", ("2026-11-03T00:00:00.25Z", None)),
        (None, "2026-11-03T09:00:00+02:00", "Asia/Tokyo", (None, "2026-11-03T07:00:00Z")),
        # Midnight does not exist on this day there; the day starts when the clocks have jumped.
        ("2026-09-06", None, "America/Santiago", ("2026-09-06T04:00:00Z", None)),
        # This hour comes twice; from its first coming on.
        ("2026-10-25T02:30", None, "Europe/Berlin", ("2026-10-25T00:30:00Z", None)),
    ],
)
def test_bounds_are_days_or_times_of_the_zone(
    since: str | None, until: str | None, zone: str, bounds: tuple[str | None, str | None]
) -> None:
    window = window_of(since, until, ZoneInfo(zone))
    assert tuple(None if bound is None else moment_text(bound) for bound in window) == bounds


def test_since_is_in_and_until_is_out() -> None:
    window = window_of("2026-11-03T09:00:00Z", "2026-11-03T10:00:00.5Z", UTC)
    times = ["2026-11-03T08:59:59.999Z", "2026-11-03T09:00:00Z", "2026-11-03T10:00:00.499Z", "2026-11-03T10:00:00.50Z"]
    assert [window.holds(moment_of(time)) for time in times] == [False, True, True, False]


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01", "2026-02-29", "2026-11-03T25:00", "0000-01-01", "20261103"]
)
def test_what_is_no_day_and_no_time_is_refused(text: str) -> None:
    with pytest.raises(ProjectionError, match="invalid_time") as refused:
        window_of(text, None, UTC)
    assert refused.value.field == "since"
    with pytest.raises(ProjectionError, match="invalid_time"):
        window_of(None, "9999-12-31", UTC)


def test_a_window_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ProjectionError, match="empty_window"):
        window_of("2026-11-03", "2026-11-02", UTC)


# ------------------------------------------------------------------------------------------------------ known numbers


def test_the_example_documents_spend_is_what_its_attempts_say() -> None:
    found = trace("doc-run")
    report = usage_report(found, "run")
    ((key, workflow, usage),) = report.rows
    assert (key, workflow) == ("3f1c2a9e-0000-4000-8000-000000000001", "doc-change")
    attempts = [record["usage"] for record in found if record["kind"] == "attempt" and "usage" in record]
    spent = [used for used in attempts if used["costUsd"] in (0.04, 0.31)]
    assert usage.usd == (sum(used["costUsd"] for used in spent), 0)
    assert usage.tokens["input"] == (sum(used["inputTokens"] for used in spent), 0)


@pytest.mark.parametrize("name", sorted(path.name for path in RUNS.iterdir() if path.is_dir()))
def test_a_redacted_trace_gives_the_same_numbers_as_the_trace(name: str) -> None:
    found = trace(name)
    redacted = [redact(record, Policy("k" * 32)) for record in found]
    for by in GROUPINGS:
        assert report_json(usage_report(redacted, by)) == report_json(usage_report(found, by))


@pytest.mark.skipif(not TRUTH, reason="the real transcripts are not at hand")
@pytest.mark.parametrize("name", FILES)
def test_tokens_per_model_of_a_real_transcript_equal_the_counted_truth(name: str) -> None:
    cluster = project_lines(_messages(name))
    report = usage_report(map(orjson.loads, cluster.records.values()), "model")
    found = {row.key: row.usage for row in report.rows}
    truth = _true_tokens(name)
    assert found.keys() == truth.keys()
    for model, counts in truth.items():
        assert model is not None
        usage = found[model]
        for field in TOKEN_FIELDS:
            assert usage.tokens[field].known == counts[field]
        # A sum is unknown for a whole format or known for every response.
        assert {usage.tokens[field].unknown for field in TOKEN_FIELDS} <= {0, usage.costs}
    calls = TRUTH[name]["tool_calls"]
    assert report.total.tool_calls == calls.get("distinct_ids", calls.get("distinct_call_ids"))


@pytest.mark.skipif(not TRUTH, reason="the real transcripts are not at hand")
def test_a_resumed_and_a_forked_session_count_once_over_all_days() -> None:
    for parent, child in (
        ("codex/fork-parent.jsonl", "codex/fork-child.jsonl"),
        ("claude-code/resume-parent.jsonl", "claude-code/resume-child.jsonl"),
    ):
        cluster = project_lines(_messages(child) + _messages(parent))
        report = usage_report(map(orjson.loads, cluster.records.values()), "day", BERLIN)
        truth = _true_tokens(child)
        for field in ("input", "output", "cachedInput"):
            assert report.total.tokens[field] == (sum(counts[field] for counts in truth.values()), 0)
            assert sum(row.usage.tokens[field].known for row in report.rows) == report.total.tokens[field].known
