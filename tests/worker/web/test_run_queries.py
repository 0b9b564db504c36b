"""Lists and sums that a destination makes itself are those that reading all its records gives."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.projections.reports.cost_records import cost, delta, snapshot
from tests.worker.sinks.destinations import DESTINATIONS, Destination, run_record, upsert
from worker.record_queries import QueryReader
from worker.record_reader import READERS, open_reader
from worker.web.run_list import RECORD_KINDS_READ, ROWS_PER_PAGE, Query, RunIndex, RunRow, Runs, Spending, build_index
from worker.web.run_queries import QueriedRuns

Record = dict[str, Any]
# Of servers and databases, those whose readers answer queries; being one of them is being tested.
QUERIED = ["clickhouse", "duckdb", "postgresql"]
RUNS = 130
AT = "2026-11-{:02d}T{:02d}:{:02d}:00Z"


@pytest.fixture(params=QUERIED)
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Destination:
    return DESTINATIONS[request.param](tmp_path)


def attempt(run: str, number: int, at: str) -> Record:
    envelope = {"schema": "titan.trace/v1", "kind": "attempt", "id": f"workflow:{run}:draft:0:{number}", "runId": run}
    return {**envelope, "at": at, "stepId": "draft", "iteration": 0, "attempt": number, "stepKind": "dispatch"}


def gate(run: str, **fields: Any) -> Record:
    envelope = {"schema": "titan.trace/v1", "kind": "gate", "id": f"{run}/review", "runId": run}
    return {
        **envelope,
        "attemptId": f"workflow:{run}:draft:0:0",
        "at": AT.format(2, 10, 0),
        "gateKind": "human",
    } | fields


def world(seed: int = 7) -> list[Record]:
    """Give many runs, some without a record of their own, with costs of all kinds in conversations that they share."""
    chance = random.Random(seed)
    records: list[Record] = []
    for number in range(RUNS):
        run = f"run-{number}"
        at = AT.format(1 + number % 9, number % 24, number % 60)
        if number % 10:
            fields = {"workflowName": f"wf-{number % 3}", "status": ("completed", "failed", "running")[number % 3]}
            ended = {"completedAt": AT.format(20, 1, number % 60)} if number % 4 else {}
            records.append(run_record(run, **fields, **ended) | {"at": at})
        records += [attempt(run, one, at) for one in range(number % 4)]
        records += [gate(run, status=("pending", "resolved")[number % 2])] if number % 5 == 0 else []
        for one in range(chance.randrange(4)):
            # Some conversations have deltas, some readings of counters, some both, and some are those of several runs.
            conversation = f"c{number // chance.choice([1, 3])}"
            counts = {"input": chance.choice([None, 5, 2**40]), "output": 7}
            usd = chance.choice([None, 0.25, 1e-9])
            told = chance.choice([delta(f"r{number}-{one}", usd, chance.choice(["m-1", "m-2", None]), **counts)] * 2)
            scope = chance.choice(["turn", "conversation"])
            read = snapshot(scope, f"s{one}", f"e{number % 2}", one, **counts)
            records.append(cost(chance.choice([told, told, read]), conversation, run, at))
    unique = {(record["kind"], record["id"]): record for record in records}
    return list(unique.values())


def filled(destination: Destination, records: list[Record]) -> tuple[QueriedRuns, RunIndex]:
    batch = [upsert(record, offset, json_bytes=json.dumps(record).encode()) for offset, record in enumerate(records)]
    destination.write(batch)
    reader = open_reader(destination.url)
    assert isinstance(reader, QueryReader)
    return QueriedRuns(reader), build_index(reader.read(RECORD_KINDS_READ), 1_000_000)


def close(usage: Any) -> Any:
    """Give usage without calls, which neither reads, and with money that a last digit does not tell apart."""
    if usage is None:
        return None
    usd = (pytest.approx(usage.usd.known), usage.usd.unknown)
    return (*usage._replace(usd=None, tool_calls=None, tool_errors=None)[:3], usd, pytest.approx(usage.estimated_usd))


def comparable(row: RunRow) -> Any:
    return row._replace(usage=close(row.usage))


def reported(spending: Spending) -> Any:
    return [
        (report.by, [(row.key, close(row.usage)) for row in report.rows], close(report.total), report.superseded)
        for report in spending
    ]


def compare(ours: Runs, theirs: Runs, query: Query) -> None:
    got, expected = ours.listed(query), theirs.listed(query)
    assert [comparable(row) for row in got.rows] == [comparable(row) for row in expected.rows]
    assert got._replace(rows=()) == expected._replace(rows=())


def test_the_readers_that_answer_queries_are_these() -> None:
    places = {"clickhouse": "//h/d", "postgresql": "//h/d"}
    readers = {name: open_reader(f"{name}:{places.get(name, '/none')}") for name in READERS}
    assert [name for name, reader in readers.items() if isinstance(reader, QueryReader)] == QUERIED


def test_every_list_and_every_sum_is_that_of_all_records(destination: Destination) -> None:
    ours, theirs = filled(destination, world())
    for page in (1, 2, 3, 99, -1):
        compare(ours, theirs, Query(page=page))
    for query in (
        Query(status="failed"),
        Query(status="failed", workflow="wf-1"),
        Query(text=" RUN-1 "),
        Query(text="wf-2", page=2),
        Query(text="%_", status="none"),
        Query(workflow="wf-1", text="7"),
    ):
        compare(ours, theirs, query)
    assert theirs.listed(Query()).found == RUNS > 2 * ROWS_PER_PAGE
    assert reported(ours.spending()) == reported(theirs.spending())
    assert theirs.spending().by_day.superseded, "some readings describe what others describe better"


def test_nothing_is_an_empty_list_and_no_spend(destination: Destination) -> None:
    ours, theirs = filled(destination, [])
    compare(ours, theirs, Query(page=3))
    assert reported(ours.spending()) == reported(theirs.spending())


def test_names_that_a_database_does_not_hold_come_back_as_they_were(destination: Destination) -> None:
    names = ["a\x00b", "half \ud83d", "mark \ufffd0000", "quote ' \" % $r0 \\"]
    records = [run_record(name, workflowName=name, status=name) for name in names]
    records += [cost(delta(f"x{number}", 0.5, name), run=name) for number, name in enumerate(names)]
    ours, theirs = filled(destination, records)
    for name in names:
        compare(ours, theirs, Query(status=name, workflow=name, text=name))
        assert [row.run_id for row in ours.listed(Query(status=name)).rows] == [name]
    assert {row.key for row in ours.spending().by_model.rows} == set(names)


def test_a_time_that_is_in_no_calendar_is_not_told(destination: Destination) -> None:
    records = [run_record("early") | {"at": "0000-01-01T00:00:00Z"}, run_record("r") | {"at": AT.format(1, 1, 1)}]
    ours, theirs = filled(destination, records)
    assert {row.run_id for row in ours.listed(Query()).rows} == {"early", "r"}
    assert {row.run_id for row in theirs.listed(Query()).rows} == {"early", "r"}
