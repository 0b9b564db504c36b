"""Through workers on a real broker: a ledger's attempts do not depend on how it is told, and its faults are counted."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from projections.decode import decode_json
from projections.sources import SOURCES
from tests.brokers.broker import Broker
from tests.integration.pipeline import KEY, KEY_VARIABLE, Pipeline, eventually
from tests.projections.test_runs_golden import RUNS
from tests.projections.test_runs_ledger_feeds import LEDGER, TOLD_BY_TRANSITIONS, transitions_of, with_records
from tests.worlds.world import SourceMessage

pytestmark = pytest.mark.integration

Json = dict[str, Any]


def other_messages() -> list[SourceMessage]:
    """Give the messages of all topics but the ledger's."""
    return [
        SourceMessage(source, None, line)
        for name in TOLD_BY_TRANSITIONS
        for source in SOURCES
        if source != LEDGER and (path := RUNS / name / f"{source}.jsonl").exists()
        for line in path.read_bytes().splitlines()
    ]


def ledger_messages(rows: Iterable[Json]) -> list[SourceMessage]:
    # Without a key the rows of one execution are spread over all partitions, so they arrive in any order.
    return [SourceMessage(LEDGER, None, orjson.dumps(row)) for row in rows]


def goldens() -> list[tuple[str, str, str]]:
    lines = [line for name in TOLD_BY_TRANSITIONS for line in (RUNS / name / "trace.jsonl").read_text().splitlines()]
    records = [decode_json(line.encode()) for line in lines]
    return sorted((record["kind"], record["id"], line) for record, line in zip(records, lines, strict=True))


def attempts(records: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [record for record in records if record[0] == "attempt"]


@pytest.mark.broker_smoke
def test_a_ledger_of_transitions_only_gives_the_attempts_of_the_same_history_as_records(
    kafka: Broker, fresh_app_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    pairs = [pair for name in TOLD_BY_TRANSITIONS for pair in with_records(transitions_of(name))]
    feeds: dict[str, list[Json]] = {
        "transitions": [transition for transition, _record in pairs],
        "records": [record for _transition, record in pairs],
    }
    found = {}
    for name, rows in feeds.items():
        directory = tmp_path / name
        directory.mkdir()
        pipeline = Pipeline(kafka, f"{fresh_app_id}-{name}", directory)
        pipeline.write_config(estimate_costs=True)
        messages = [*other_messages(), *ledger_messages(rows)]
        random.Random(name).shuffle(messages)
        try:
            pipeline.create_topics()
            pipeline.publish(messages)
            worker = pipeline.worker()
            worker.start()
            pipeline.wait_settled()
            assert worker.total("held_aggregates", kind="execution") == 0
            assert worker.stop() == 0
        finally:
            pipeline.close()
        found[name] = pipeline.duckdb_records()
        assert_priced_as_in_file_mode(pipeline)
    assert attempts(found["transitions"]) == attempts(found["records"]) == attempts(goldens())
    assert found["transitions"] == found["records"]


def assert_priced_as_in_file_mode(pipeline: Pipeline) -> None:
    """What a cost's amount rests on came through headers of the records log, and nothing is lost on that way."""
    records, _lines = pipeline.file_mode()
    assert pipeline.duckdb_records() == records
    rows = amounts(pipeline.duckdb_path)
    assert rows == amounts(pipeline.directory / "file.duckdb")
    assert {"estimate", "unavailable"} <= {basis for _id, _usd, basis, _reason in rows}
    written = [row for row in rows if row[0].endswith(":retries-msg_1")]
    # 12 tokens of input, 4,000 written to the cache for an hour, 210 of output.
    assert written == [(written[0][0], pytest.approx((12 * 2 + 4000 * 4 + 210 * 10) / 1e6), "estimate", None)]


def amounts(database: Path) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(database), read_only=True) as connection:
        return connection.execute(
            "SELECT id, cost_usd, price_basis, price_reason FROM trace_cost ORDER BY id"
        ).fetchall()


def test_a_gap_and_a_conflict_are_seen_in_the_metrics_until_the_gap_is_filled(pipeline: Pipeline) -> None:
    rows = transitions_of("retries")
    missing = next(row for row in rows if row["kind"] == "begin_dispatch")
    rival = {**missing, "eventId": f"{missing['eventId']}:again"}
    pipeline.create_topics()
    pipeline.publish([*other_messages(), *ledger_messages(row for row in rows if row is not missing)])
    worker = pipeline.worker()
    worker.start()
    pipeline.wait_settled()
    assert worker.total("held_aggregates", kind="execution") == 1
    assert worker.total("fold_findings", finding="event_conflicts") == 0
    held = {record_id: record for kind, record_id, record in pipeline.duckdb_records() if kind == "attempt"}
    assert '"phase":"prepared"' in held["workflow:run-retries:implement:0:0"]
    pipeline.publish(ledger_messages([missing, rival]))
    eventually(lambda: worker.total("held_aggregates", kind="execution") == 0, "the gap is filled")
    eventually(lambda: worker.total("fold_findings", finding="event_conflicts") == 1, "the conflict is counted")
    pipeline.wait_settled()
    assert worker.stop() == 0
    ours = [record for record in attempts(pipeline.duckdb_records()) if ":run-retries:" in record[1]]
    assert ours == [record for record in attempts(goldens()) if ":run-retries:" in record[1]]
