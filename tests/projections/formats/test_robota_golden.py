"""fixtures/sessions/robota: a session's file, split into its entries, projects to its trace.jsonl in any order."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.formats.robota import history_lines
from projections.records import parse_trace_record
from projections.reports.robota_sources import usage_by_source
from tests.worlds.cluster import Cluster, clean_pass, random_pass
from tests.worlds.world import SECRET_MARKER, SourceMessage

DIRECTORY = Path(__file__).resolve().parents[3] / "fixtures" / "sessions" / "robota"
GOLDEN = DIRECTORY / "trace.jsonl"
NAMESPACE = "host-a"


def session() -> dict[str, Any]:
    read: dict[str, Any] = decode_json((DIRECTORY / "session.json").read_bytes())
    return read


def messages_of(record: dict[str, Any], namespace: str = NAMESPACE) -> list[SourceMessage]:
    source = {"harness": "robota", "namespace": namespace, "nativeId": record["id"], "format": "robota"}
    values = [
        {
            "source": {**source, "sourceId": line.source_id},
            "byteOffset": 0,
            "ordinal": line.ordinal,
            "lineB64": base64.b64encode(line.line).decode(),
        }
        for line in history_lines(record, namespace)
    ]
    return [SourceMessage("transcripts", None, json.dumps(value).encode()) for value in values]


def trace_of(cluster: Cluster) -> bytes:
    return b"".join(cluster.records[record_id] + b"\n" for record_id in sorted(cluster.records))


def records_of(messages: list[SourceMessage]) -> list[dict[str, Any]]:
    return [json.loads(record) for record in clean_pass(messages, unbound="standalone").records.values()]


def test_a_session_gives_its_golden_trace(request: pytest.FixtureRequest) -> None:
    trace = trace_of(clean_pass(messages_of(session()), unbound="standalone"))
    if request.config.getoption("--update-goldens", default=False):
        GOLDEN.write_bytes(trace)
    assert trace == GOLDEN.read_bytes()


@pytest.mark.parametrize("seed", range(6))
def test_its_entries_shuffled_repeated_and_in_small_batches_give_the_same_trace(seed: int) -> None:
    assert trace_of(random_pass(messages_of(session()), seed, unbound="standalone")) == GOLDEN.read_bytes()


def test_two_hosts_do_not_touch_each_other() -> None:
    here, there = messages_of(session()), messages_of(session(), "host-b")
    both = random_pass([*here, *there], 1, unbound="standalone").records
    alone = [clean_pass(messages, unbound="standalone").records for messages in (here, there)]
    assert both == alone[0] | alone[1]


@pytest.mark.parametrize("seed", range(4))
def test_a_fork_adds_only_what_it_did_itself(seed: int) -> None:
    parent = session()
    own = json.loads(json.dumps(parent["history"][-1]).replace("t3", "t4").replace("2f" * 16, "3f" * 16))
    own["data"]["usage"] = parent["history"][5]["data"]
    fork = {**parent, "id": "session_fork", "history": [*parent["history"], own]}
    records = random_pass([*messages_of(parent), *messages_of(fork)], seed, unbound="standalone").records.values()
    kept = [json.loads(record) for record in records]
    totals = [record["measurement"]["tokens"]["total"] for record in kept if record["kind"] == "cost"]
    assert sorted(totals) == [50, 800, 1500, 1500, 3000]
    calls = [record for record in kept if record["kind"] == "call"]
    assert len(calls) == sum(record["kind"] == "call" for record in records_of(messages_of(parent)))


def test_the_costs_of_a_trace_are_what_the_report_by_source_counts() -> None:
    costs = [record["measurement"] for record in records_of(messages_of(session())) if record["kind"] == "cost"]
    assert sum(cost["tokens"]["total"] for cost in costs) == usage_by_source(session())["totalTokens"]


def test_nothing_that_is_content_reaches_a_fact_or_a_record() -> None:
    cluster = clean_pass(messages_of(session()), unbound="standalone")
    logged = b"".join(part or b"" for log in cluster.logs for row in log for part in row)
    assert SECRET_MARKER in (DIRECTORY / "session.json").read_text()
    assert SECRET_MARKER.encode() not in logged + trace_of(cluster)


def test_every_golden_record_passes_the_strict_parse() -> None:
    for line in GOLDEN.read_bytes().splitlines():
        parse_trace_record(json.loads(line))


def test_an_entry_id_that_comes_again_is_a_source_of_its_own() -> None:
    lines = history_lines({"id": "a b", "history": [{"id": "e#1"}, None, {"id": "e#1"}, {"x": "\ud800"}]}, "ns")
    assert [line.source_id for line in lines] == [
        "robota:ns:a%20b#e%231",
        "robota:ns:a%20b#e%231#2",
        "robota:ns:a%20b#undefined",
    ]
    assert [line.ordinal for line in lines] == [0, 2, 3]
    assert decode_json(lines[-1].line) == {"x": "\ud800"}


def test_a_session_id_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(ProjectionError, match="lone_surrogate"):
        history_lines({"id": "\ud800"}, "ns")
