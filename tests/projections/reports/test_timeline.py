"""A run's timeline: lanes, rows and ticks, waiting at gates, spend as it grows; laws and the runs of the fixtures."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.ids import attempt_id, gate_id_for
from projections.privacy import Policy, redact
from projections.reports.spend import Sum
from projections.reports.timeline import timeline
from projections.reports.timeline_model import Lane, Timeline, timeline_json
from projections.reports.usage_report import usage_report
from tests.projections.reports.cost_records import Record, call, cost, delta, records, snapshot

RUNS = Path(__file__).resolve().parents[3] / "fixtures" / "runs"
DOC_CHANGE = "9bf80943-7e19-5851-ab8a-c8e4e2b0f3eb"
BUG_FIX = "0ac95d7c-0625-595e-9516-d3c2526a026c"


def trace(name: str) -> list[Record]:
    return [orjson.loads(line) for line in (RUNS / name / "trace.jsonl").read_bytes().splitlines()]


def time(minutes: float) -> str:
    return f"2026-11-03T10:{int(minutes):02d}:{int(minutes * 60) % 60:02d}Z"


def envelope(kind: str, record_id: str, start: float, **fields: Any) -> Record:
    return {"schema": "titan.trace/v1", "kind": kind, "id": record_id, "runId": "r", "at": time(start), **fields}


def run(start: float, end: float | None = None, **fields: Any) -> Record:
    ended = {} if end is None else {"completedAt": time(end)}
    return envelope("run", "r", start, workflowName="w", status="running", **ended, **fields)


def attempt(step: str, iteration: int, number: int, start: float, end: float | None = None, **fields: Any) -> Record:
    ended = {} if end is None else {"completedAt": time(end)}
    where = {"stepId": step, "iteration": iteration, "attempt": number, "stepKind": "dispatch"}
    return envelope("attempt", attempt_id("r", step, iteration, number), start, **where, **ended, **fields)


def gate(step: str, start: float, **fields: Any) -> Record:
    owner = attempt_id("r", step, 0, 0)
    return envelope("gate", gate_id_for("r", step), start, attemptId=owner, **{"gateKind": "human", **fields})


def laid_out(*found: Record, run_id: str = "r") -> Timeline:
    made = timeline(found, run_id)
    assert made is not None
    return made


def lane(made: Timeline, key: str) -> Lane:
    (found,) = [one for one in made.lanes if one.key == key]
    return found


def rows_of(one: Lane) -> dict[tuple[int, int], int]:
    return {(bar.iteration, bar.attempt): bar.row for bar in one.bars}


# --------------------------------------------------------------------------------------------------------------- laws

_minutes = st.integers(0, 59)
_attempts = st.builds(
    attempt, st.sampled_from(["draft", "review"]), st.integers(0, 2), st.integers(0, 2), _minutes, st.none() | _minutes
)
_gates = st.builds(
    lambda step, start, resolved, status: gate(step, start, resolvedAt=time(resolved), status=status),
    st.sampled_from(["draft", "ship"]),
    _minutes,
    _minutes,
    st.sampled_from(["resolved", "cancelled", "expired", "pending"]),
)
_others = st.lists(_attempts | _gates, max_size=12, unique_by=lambda record: record["id"])
_runs = st.tuples(records, _others).map(lambda parts: [{**record, "runId": "r"} for record in parts[0]] + parts[1])


@given(_runs, st.randoms(use_true_random=False))
def test_order_and_repetition_of_records_do_not_matter(found: list[Record], random: Any) -> None:
    shuffled = found + random.sample(found, len(found) // 2)
    random.shuffle(shuffled)
    assert timeline(shuffled, "r") == timeline(found, "r")


@given(_runs)
def test_every_record_of_the_run_is_there_once_and_its_usage_is_that_of_the_report(found: list[Record]) -> None:
    made = timeline(found, "r")
    report = usage_report(found, "run")
    if made is None:
        assert not [record for record in found if record["kind"] != "cost"]
        return
    ticks = [tick.id for one in made.lanes for tick in one.ticks + tuple(t for bar in one.bars for t in bar.ticks)]
    assert sorted(ticks) == sorted(record["id"] for record in found if record["kind"] == "call")
    gates = [span.id for one in made.lanes for span in one.gates]
    assert sorted(gates) == sorted(record["id"] for record in found if record["kind"] == "gate")
    bars = [bar.id for one in made.lanes for bar in one.bars]
    assert sorted(bars) == sorted(record["id"] for record in found if record["kind"] == "attempt")
    assert made.usage == report.total
    parts = [one.usage for one in made.lanes] + [bar.usage for one in made.lanes for bar in one.bars]
    assert sum(part.costs for part in parts) == made.usage.costs
    for field, count in made.usage.tokens.items():
        assert (
            sum(part.tokens[field].known for part in parts),
            sum(part.tokens[field].unknown for part in parts),
        ) == count


@given(_runs)
def test_the_curve_never_falls_and_ends_at_what_was_spent(found: list[Record]) -> None:
    made = timeline(found, "r")
    if made is None or not made.curve:
        return
    for name in ("usd", "usd_unknown", "tokens", "tokens_unknown"):
        values = [getattr(point, name) for point in made.curve]
        assert values == sorted(values)
    last = made.curve[-1]
    assert (last.usd, last.usd_unknown) == made.usage.usd
    assert last.tokens == made.usage.tokens["input"].known + made.usage.tokens["output"].known
    assert len(made.curve) == made.usage.costs


@given(_runs)
def test_bars_of_one_row_do_not_overlap_and_a_retry_lies_below_what_it_retries(found: list[Record]) -> None:
    made = timeline(found, "r")
    for one in () if made is None else made.lanes:
        for bar in one.bars:
            assert 0 <= bar.row < one.rows
            before = [other for other in one.bars if other.iteration == bar.iteration and other.attempt < bar.attempt]
            assert all(other.row < bar.row for other in before)
            for other in one.bars:
                if other is not bar and other.row == bar.row:
                    (start, end), (other_start, other_end) = bar.span_s, other.span_s
                    assert end <= other_start or other_end <= start


# -------------------------------------------------------------------------------------------------------------- lanes


def test_iterations_stand_side_by_side_and_retries_below() -> None:
    made = laid_out(
        run(0, 50),
        attempt("draft", 0, 0, 1, 5, outcome="failed"),
        attempt("draft", 0, 1, 6, 9),
        attempt("draft", 1, 0, 20, 25),
        attempt("review", 0, 0, 10, 19),
    )
    assert [one.key for one in made.lanes] == ["draft", "review"]
    assert rows_of(made.lanes[0]) == {(0, 0): 0, (0, 1): 1, (1, 0): 0}
    assert [bar.span_s for bar in made.lanes[0].bars] == [(60.0, 300.0), (360.0, 540.0), (1200.0, 1500.0)]


def test_an_iteration_that_overlaps_another_goes_below_it() -> None:
    made = laid_out(attempt("draft", 0, 0, 1, 30), attempt("draft", 1, 0, 20, 25), attempt("draft", 2, 0, 30, 31))
    assert rows_of(made.lanes[0]) == {(0, 0): 0, (1, 0): 1, (2, 0): 0}


def test_an_attempt_without_an_end_reaches_to_what_was_last_seen_of_it() -> None:
    made = laid_out(
        run(0),
        attempt("draft", 0, 0, 1),
        call("a", at=time(4), step="draft"),
        cost(delta("x", input=1), at=time(5), step="draft"),
    )
    (bar,) = made.lanes[0].bars
    assert (bar.end, bar.last_seen.at, bar.span_s) == (None, time(5), (60.0, 300.0))
    assert (made.duration_s, made.end.at) == (None, time(5))


def test_an_end_before_the_start_is_kept_and_drawn_as_nothing() -> None:
    (bar,) = laid_out(attempt("draft", 0, 0, 10, 9)).lanes[0].bars
    assert bar.end is not None
    assert (bar.end.at, bar.span_s) == (time(9), (60.0, 60.0))


def test_calls_and_costs_without_an_attempt_are_in_a_lane_of_their_conversation() -> None:
    made = laid_out(
        run(0),
        attempt("draft", 0, 0, 1, 2),
        call("a", "one", at=time(1), step="draft"),
        call("b", "one", at=time(3)),
        call("c", "two", at=time(2), step="gone"),
        cost(delta("x", input=5), "one", at=time(3)),
    )
    assert [(one.kind, one.key) for one in made.lanes] == [
        ("step", "draft"),
        ("conversation", "conversation:h:n:two"),
        ("conversation", "conversation:h:n:one"),
    ]
    one = lane(made, "conversation:h:n:one")
    assert ([tick.id for tick in one.ticks], one.usage.tokens["input"]) == (["call:h:n:one:b"], Sum(5, 0))


def test_a_gate_whose_attempt_is_not_there_is_in_the_lane_of_its_step() -> None:
    orphan = {key: value for key, value in gate("", 3).items() if key != "attemptId"} | {"id": "r/x"}
    made = laid_out(run(0), gate("ship", 2), orphan)
    assert [(one.kind, one.key, len(one.gates)) for one in made.lanes] == [("step", "ship", 1), ("run", "r", 1)]


def test_the_start_is_the_earliest_of_all_times_whatever_their_offsets() -> None:
    made = laid_out(run(0), call("a", at="2026-11-03T11:59:30.5+02:00"))
    assert made.start.at == "2026-11-03T11:59:30.5+02:00"
    assert made.end.offset_s == 29.5


# -------------------------------------------------------------------------------------------------------------- gates


@pytest.mark.parametrize(
    ("fields", "waiting_s", "is_open"),
    [
        ({"status": "resolved", "resolvedAt": time(12)}, 600.0, False),
        ({"status": "cancelled", "resolvedAt": time(12)}, 600.0, False),
        ({"status": "pending", "expiresAt": time(30)}, None, True),
        ({}, None, True),
        # That it ran out was noticed later; nobody waited until then.
        ({"status": "expired", "resolvedAt": time(50), "expiresAt": time(32)}, 1800.0, False),
        ({"status": "expired", "resolvedAt": time(12), "expiresAt": time(32)}, 600.0, False),
        ({"status": "expired", "expiresAt": time(32)}, 1800.0, False),
        ({"status": "cancelled"}, None, False),
        ({"gateKind": "policy", "verdict": "allow"}, None, False),
    ],
)
def test_a_gate_waits_until_it_is_closed_or_runs_out(
    fields: Record,
    waiting_s: float | None,
    is_open: bool,
) -> None:
    (span,) = lane(laid_out(gate("ship", 2, **fields)), "ship").gates
    assert (span.waiting_s, span.is_open) == (waiting_s, is_open)


# -------------------------------------------------------------------------------------------------------------- spend


def test_a_snapshot_stays_superseded_by_a_delta_of_another_run_in_the_same_conversation() -> None:
    found = [
        cost(snapshot("conversation", "c", input=900), "shared", at=time(1)),
        cost(delta("x", input=7), "shared", run="other", at=time(2)),
        cost(delta("y", input=5), "own", at=time(3)),
    ]
    made = laid_out(*found)
    assert (made.usage.tokens["input"], [point.tokens for point in made.curve]) == (Sum(5, 0), [5])


def test_the_curve_says_how_many_costs_are_unknown() -> None:
    made = laid_out(
        cost(delta("x", 0.1, input=5, output=1), at=time(1)),
        cost(delta("y", 0.2, input=5), at=time(2)),
        cost(delta("z"), at=time(3)),
    )
    points = [(point.usd, point.usd_unknown, point.tokens, point.tokens_unknown) for point in made.curve]
    assert points == [(0.1, 0, 6, 0), (0.1 + 0.2, 0, 11, 1), (0.1 + 0.2, 1, 11, 2)]


# ----------------------------------------------------------------------------------------------------- the sample runs


def test_nothing_of_a_run_is_no_timeline() -> None:
    assert timeline(trace("demo"), "run-7") is None
    assert timeline([], "r") is None


def test_a_retried_step_two_reviews_and_a_policy_as_the_sample_run_has_them() -> None:
    made = laid_out(*trace("demo"), run_id=DOC_CHANGE)
    assert (made.workflow, made.status, made.duration_s) == ("doc-change", "completed", 2460.0)
    assert [(one.key, one.rows, len(one.gates)) for one in made.lanes] == [
        ("load-task", 1, 0),
        ("draft", 2, 0),
        ("owner-review", 1, 2),
        ("open-pr", 1, 0),
        ("merge-authorize", 1, 1),
    ]
    assert rows_of(lane(made, "draft")) == {(0, 0): 0, (0, 1): 1, (1, 0): 0}
    assert [bar.outcome for bar in lane(made, "draft").bars] == ["failed", "succeeded", "succeeded"]
    assert [span.waiting_s for span in lane(made, "owner-review").gates] == [1277.9, 387.95]
    assert [tick.is_error for tick in lane(made, "draft").bars[0].ticks if tick.call_kind == "tool"] == [False, True]
    assert (made.curve[-1].tokens, made.curve[-1].usd_unknown) == (84_602, 8)


def test_a_gate_that_ran_out_was_waited_at_for_as_long_as_it_was_open() -> None:
    made = laid_out(*trace("demo"), run_id=BUG_FIX)
    (span,) = lane(made, "escalate").gates
    assert (span.status, span.waiting_s, made.error) == ("expired", 1800.0, "fix: 2 attempts failed")
    assert [(bar.row, bar.end) for bar in lane(made, "fix").bars] == [(0, None), (1, None)]


@pytest.mark.parametrize("name", sorted(path.name for path in RUNS.iterdir() if path.is_dir()))
def test_a_redacted_trace_gives_the_same_timeline_but_for_what_does_not_leave(name: str) -> None:
    found = trace(name)
    redacted = [redact(record, Policy("k" * 32)) for record in found]
    for run_id in {record["runId"] for record in found}:
        clear, hidden = laid_out(*found, run_id=run_id), laid_out(*redacted, run_id=run_id)
        assert hidden.usage == clear.usage
        assert [one._replace(bars=(), gates=(), ticks=()) for one in hidden.lanes if one.kind == "step"] == [
            one._replace(bars=(), gates=(), ticks=()) for one in clear.lanes if one.kind == "step"
        ]
        for one, other in zip(hidden.lanes, clear.lanes, strict=True):
            assert [(bar.id, bar.row, bar.span_s, bar.usage) for bar in one.bars] == [
                (bar.id, bar.row, bar.span_s, bar.usage) for bar in other.bars
            ]
            assert [span.waiting_s for span in one.gates] == [span.waiting_s for span in other.gates]


def test_the_json_form_is_the_same_tree_in_camel_case() -> None:
    made = laid_out(*trace("demo"), run_id=DOC_CHANGE)
    value = json.loads(json.dumps(timeline_json(made)))
    assert (value["runId"], value["durationS"], len(value["lanes"])) == (DOC_CHANGE, 2460.0, 5)
    bar = value["lanes"][1]["bars"][0]
    assert (bar["stepId"], bar["end"], bar["lastSeen"]["offsetS"]) == ("draft", None, 31.0)
    assert bar["usage"]["usd"] == {"total": None, "known": 0.0, "unknown": 2, "estimated": 0.0}
    assert value["lanes"][2]["gates"][0]["waitingS"] == 1277.9
