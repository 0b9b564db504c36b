"""The traffic of the benches is whole, seeded and as large as real traffic."""

from collections.abc import Iterable
from itertools import islice

import orjson
import pytest

from projections.sources import project_message
from tests.bench.conversations import LINE_BYTES
from tests.bench.traffic import figures, make_traffic, one_huge_run, small_runs, traffic
from tests.worlds.cluster import Cluster, place
from tests.worlds.world import SourceMessage


def _projected(messages: Iterable[SourceMessage]) -> Cluster:
    cluster = Cluster(2)
    for message in place(list(messages), None, 2):
        cluster.project(message)
    cluster.drain()
    assert cluster.dead == []
    return cluster


def _records(cluster: Cluster, kind: str) -> list[dict[str, object]]:
    return [record for data in cluster.records.values() if (record := orjson.loads(data))["kind"] == kind]


def test_every_message_projects_without_an_issue() -> None:
    for offset, message in enumerate(make_traffic(4_000, seed=3)):
        projected = project_message(message.topic, message.key, message.value, 0, offset)
        assert projected.issues == ()
        assert projected.ignored in (None, "no_trace_line")


def test_the_first_messages_are_the_same_however_many_are_taken() -> None:
    assert make_traffic(700) == make_traffic(2_000)[:700]
    assert list(islice(traffic(), 700)) == make_traffic(700)
    assert make_traffic(700, seed=1) != make_traffic(700)


def test_lines_are_as_large_as_real_ones() -> None:
    lines = [
        orjson.loads(message.value or b"")["line"].encode()
        for message in make_traffic(4_000)
        if message.topic == "transcripts"
    ]
    assert all(len(line) in LINE_BYTES for line in lines)


def test_every_source_topic_has_its_share() -> None:
    shares = figures(make_traffic(4_000))
    assert shares["share_transcripts"] > 0.7
    assert all(shares[f"share_{topic}"] > 0.005 for topic in ("workflow_runs", "gate_decisions", "ledger_changes"))


def test_calls_join_the_attempts_of_their_runs() -> None:
    cluster = _projected(make_traffic(3_000))
    attempts = {attempt["id"] for attempt in _records(cluster, "attempt")}
    calls = _records(cluster, "call")
    assert len(calls) > 1_000
    assert {call["attemptId"] for call in calls} <= attempts
    assert {call["callKind"] for call in calls} == {"model", "tool"}
    assert {gate["gateKind"] for gate in _records(cluster, "gate")} == {"human", "policy"}
    assert _records(cluster, "artifact")


def test_retries_are_attempts_of_their_own() -> None:
    attempts = _records(_projected(make_traffic(6_000)), "attempt")
    assert {attempt["attempt"] for attempt in attempts} >= {0, 1}
    assert {attempt.get("outcome") for attempt in attempts} >= {"succeeded", "failed"}


@pytest.mark.parametrize("harness", ["claude-code", "codex"])
def test_one_huge_run_has_exactly_so_many_calls_in_one_conversation(harness: str) -> None:
    calls = _records(_projected(one_huge_run(501, harness=harness)), "call")
    assert len(calls) == 501
    assert len({call["conversation"] for call in calls}) == 1


def test_small_runs_are_so_many() -> None:
    runs = _records(_projected(small_runs(20)), "run")
    assert len(runs) == 20
    assert {run["status"] for run in runs} == {"completed"}
