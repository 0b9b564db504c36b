"""The list of runs: what is counted of each, in which order, which a query finds, and how much is held."""

from typing import Any

import pytest

from tests.projections.reports.cost_records import cost, delta
from worker.web.run_list import ROWS_PER_PAGE, Query, TooManyRecords, build_index

Record = dict[str, Any]


def run_record(name: str, at: str = "2026-11-03T10:00:00Z", **fields: Any) -> Record:
    record = {"kind": "run", "id": name, "runId": name, "at": at, "workflowName": "doc-change", "status": "completed"}
    return {**record, **fields}


def attempt(run: str, number: int = 0, at: str = "2026-11-03T10:00:00Z") -> Record:
    return {"kind": "attempt", "id": f"{run}-{number}", "runId": run, "at": at, "attempt": number}


def gate(run: str, **fields: Any) -> Record:
    return {"kind": "gate", "id": f"{run}-g", "runId": run, "at": "2026-11-03T10:00:00Z", "gateKind": "human", **fields}


def test_attempts_retries_and_gates_that_wait_are_counted_per_run() -> None:
    records = [run_record("a"), attempt("a"), attempt("a", 1), attempt("a", 2), attempt("b")]
    records += [
        gate("a", status="pending"),
        gate("a", status="resolved"),
        gate("b", gateKind="policy", status="pending"),
    ]
    rows = {row.run_id: row for row in build_index(records, 100).rows}
    assert (rows["a"].attempts, rows["a"].retries, rows["a"].open_gates) == (3, 2, 1)
    assert (rows["b"].attempts, rows["b"].retries, rows["b"].open_gates) == (1, 0, 0)


def test_spend_is_counted_once_per_run_day_and_model() -> None:
    twice = cost(delta("x", 0.5, input=3, output=1), run="a")
    records = [run_record("a"), twice, cost(delta("y", None, "m-2", input=2), run="a", at="2026-11-04T10:00:00Z")]
    index = build_index(records, 100)
    usage = index.rows[0].usage
    assert usage is not None
    assert (usage.usd.known, usage.usd.unknown, usage.tokens["input"].known) == (0.5, 1, 5)
    assert [row.key for row in index.spending().by_day.rows] == ["2026-11-03", "2026-11-04"]
    assert [row.key for row in index.spending().by_model.rows] == ["m-1", "m-2"], "the greatest first"


def test_the_newest_run_is_first_whatever_the_digits_and_offsets_of_its_time() -> None:
    times = {"a": "2026-11-03T10:00:00.5Z", "b": "2026-11-03T12:00:00+02:00", "c": "2026-11-03T10:00:00.25Z"}
    index = build_index([run_record(name, at) for name, at in times.items()], 100)
    assert [row.run_id for row in index.rows] == ["a", "c", "b"]


def test_a_run_without_a_record_of_its_own_is_listed_at_its_earliest_time() -> None:
    early = "2026-11-01T10:00:00Z"
    row = build_index([attempt("a"), attempt("a", 1, early)], 100).rows[0]
    assert (row.workflow, row.status, row.duration_s, row.at) == (None, None, None, early)


def test_a_run_lasts_from_its_start_to_its_end_and_one_that_goes_on_does_not_say() -> None:
    ended = run_record("a", "2026-11-03T10:00:00.75Z", completedAt="2026-11-03T10:01:00.25Z")
    rows = {row.run_id: row for row in build_index([ended, run_record("b", completedAt=None)], 100).rows}
    assert (rows["a"].duration_s, rows["b"].duration_s) == (59.5, None)


def test_more_records_than_a_page_may_hold_are_refused() -> None:
    records = [run_record(f"r{number}") for number in range(11)]
    assert len(build_index(records[:10], 10).rows) == 10
    with pytest.raises(TooManyRecords):
        build_index(records, 10)


def test_a_query_asks_for_status_workflow_and_text_at_once() -> None:
    records = [run_record("Alpha"), run_record("beta", status="failed"), run_record("alphabet", workflowName="fix")]
    index = build_index(records, 100)
    assert index.listed(Query()).found == 3
    assert [row.run_id for row in index.listed(Query(status="failed")).rows] == ["beta"]
    assert {row.run_id for row in index.listed(Query(text=" ALPHA ")).rows} == {"Alpha", "alphabet"}
    assert [row.run_id for row in index.listed(Query(text="alpha", workflow="fix")).rows] == ["alphabet"]
    assert [row.run_id for row in index.listed(Query(text="FIX")).rows] == ["alphabet"], "a workflow's name counts too"


@pytest.mark.parametrize(("asked", "given", "rows"), [(-3, 1, ROWS_PER_PAGE), (2, 2, ROWS_PER_PAGE), (99, 3, 1)])
def test_a_page_that_is_not_there_is_the_nearest_one(asked: int, given: int, rows: int) -> None:
    index = build_index([run_record(f"r{number}") for number in range(2 * ROWS_PER_PAGE + 1)], 1_000)
    selection = index.listed(Query(page=asked))
    assert (selection.page, selection.pages, len(selection.rows)) == (given, 3, rows)


def test_nothing_found_is_one_empty_page() -> None:
    assert build_index([], 10).listed(Query(page=4)) == ((), 0, 0, 1, 1, (), ())
