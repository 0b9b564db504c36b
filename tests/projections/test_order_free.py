"""The project's law: a trace is a function of the set of source messages."""

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.privacy import Policy, redact
from projections.records import parse_trace_record
from tests.sizes import examples
from tests.worlds.cluster import Cluster, clean_pass, random_pass
from tests.worlds.world import PRIVATE_MARKER, SECRET_MARKER, World

SEEDS = st.integers(min_value=0, max_value=100_000)
UNBOUND = st.sampled_from(["hold", "standalone"])


@settings(max_examples=examples(500), deadline=None, suppress_health_check=list(HealthCheck))
@given(world=SEEDS, schedule=SEEDS, unbound=UNBOUND)
def test_any_order_duplication_batching_crash_and_partitioning_gives_the_same_bytes(
    world: int, schedule: int, unbound: str
) -> None:
    messages = World(world).messages
    assert random_pass(messages, schedule, unbound=unbound).records == clean_pass(messages, unbound=unbound).records


@settings(max_examples=examples(60), deadline=None)
@given(world=SEEDS, schedule=SEEDS, unbound=UNBOUND)
def test_a_fold_restored_after_any_message_takes_for_said_what_the_lost_one_had_said(
    world: int, schedule: int, unbound: str
) -> None:
    # `Cluster.crash` compares the two.
    messages = World(world).messages
    cluster = random_pass(messages, schedule, unbound=unbound, crash_chance=0.3)
    assert cluster.records == clean_pass(messages, unbound=unbound).records


@settings(max_examples=examples(60), deadline=None)
@given(world=SEEDS, unbound=UNBOUND)
def test_every_record_passes_the_strict_parse_and_folding_all_facts_again_changes_nothing(
    world: int, unbound: str
) -> None:
    messages = World(world).messages
    cluster = clean_pass(messages, unbound=unbound)
    for data in cluster.records.values():
        record = orjson.loads(data)
        assert parse_trace_record(record) == record
    emitted = len(cluster.history)
    for message_offset, message in enumerate(messages):
        cluster.project((message.topic, message.key, message.value, 0, message_offset))
    cluster.drain()
    assert len(cluster.history) == emitted


@settings(max_examples=examples(60), deadline=None)
@given(world=SEEDS, unbound=UNBOUND)
def test_no_content_enters_a_fact_and_no_private_text_leaves_a_redacted_record(world: int, unbound: str) -> None:
    cluster = clean_pass(World(world).messages, unbound=unbound)
    for log in cluster.logs:
        for key, value in log:
            assert SECRET_MARKER.encode() not in key + (value or b"")
    policy = Policy(key="a key of more than thirty-two bytes", public_repos=frozenset())
    for data in cluster.records.values():
        left = orjson.dumps(redact(orjson.loads(data), policy))
        assert PRIVATE_MARKER.encode() not in left
        assert SECRET_MARKER.encode() not in left


def _records(
    *messages: tuple[str, dict[str, object] | None, str | None], unbound: str = "hold"
) -> dict[str, dict[str, object]]:
    cluster = Cluster(1, unbound=unbound)
    for offset, (topic, value, key) in enumerate(messages):
        data = None if value is None else orjson.dumps(value)
        cluster.project((topic, None if key is None else key.encode(), data, 0, offset))
    cluster.drain()
    assert cluster.dead == []
    return {record_id: orjson.loads(data) for record_id, data in cluster.records.items()}


def _run(revision: int, status: str = "running") -> dict[str, object]:
    return {
        "id": "r1",
        "workflowName": "w",
        "status": status,
        "startedAt": "2026-01-01T00:00:00Z",
        "revision": revision,
        "activeSteps": {},
        "stepResults": {},
    }


def test_the_greatest_revision_decides_and_not_the_last_arrival() -> None:
    late = _records(("workflow-runs", _run(3, "completed"), "r1"), ("workflow-runs", _run(1), "r1"))
    assert late["r1"]["status"] == "completed"


def test_a_tombstone_hides_what_its_topic_published_before_and_nothing_after() -> None:
    gone = _records(("workflow-runs", _run(3), "r1"), ("workflow-runs", None, '"r1"'))
    assert gone == {}
    back = _records(
        ("workflow-runs", _run(3), "r1"), ("workflow-runs", None, '{ "id": "r1" }'), ("workflow-runs", _run(1), "r1")
    )
    assert back["r1"]["status"] == "running"


def test_a_tombstone_for_an_unknown_key_changes_nothing() -> None:
    assert set(_records(("workflow-runs", None, "never-seen"), ("workflow-runs", _run(1), "r1"))) == {"r1"}


@pytest.mark.parametrize("revision", [2, 3])
def test_a_captured_deletion_hides_its_version_and_a_higher_one_revives(revision: int) -> None:
    deletion: dict[str, object] = {"op": "d", "before": _run(2), "after": None}
    found = _records(("workflow-runs", deletion, "r1"), ("workflow-runs", _run(revision), "r1"))
    assert ("r1" in found) == (revision == 3)


def _gate(status: str, resolved_at: str | None = None, **more: object) -> dict[str, object]:
    row = {"id": "r1/review", "prompt": "?", "status": status, "createdAt": "2026-01-01T00:00:00Z", **more}
    return row if resolved_at is None else {**row, "resolvedAt": resolved_at}


def test_a_gate_that_expired_stays_expired_when_someone_clicks_late() -> None:
    expired = _gate("expired", "2026-01-01T10:05:00Z")
    late = _gate("resolved", "2026-01-01T10:06:00Z", payload={"decision": "approved"})
    for order in ((expired, late), (late, expired), (late, late, expired)):
        found = _records(*[("gate-decisions", row, None) for row in order])
        assert found["r1/review"]["status"] == "expired"
        assert "verdict" not in found["r1/review"]


def test_the_three_spellings_of_a_repository_are_one_commit_and_paths_keep_their_case() -> None:
    sha = "ab12" * 10
    entries = [
        {"artifactKind": "commit", "repo": "Acme/App", "sha": sha.upper()},
        {"artifactKind": "commit", "repo": "acme/app", "sha": sha},
        {"artifactKind": "commit", "repo": "https://github.com/acme/app.git", "sha": sha},
        {"artifactKind": "pr", "repo": "Acme/App", "number": 7},
        {"artifactKind": "pr", "repo": "acme/app", "number": 7},
        {"artifactKind": "file", "repo": "acme/app", "path": "SRC/A.py", "commit": f"commit:Acme/App@{sha}"},
        {"artifactKind": "file", "repo": "acme/app", "path": "src/a.py", "commit": f"commit:acme/app@{sha}"},
    ]
    step = {
        "stepId": "s",
        "iteration": 0,
        "completedAt": "2026-01-01T00:00:01Z",
        "data": {"titan.trace.artifacts": entries},
    }
    found = _records(("workflow-runs", {**_run(1), "stepResults": {"s": step}}, "r1"))
    assert sorted(record_id for record_id in found if found[record_id]["kind"] == "artifact") == [
        f"commit:acme/app@{sha}",
        f"file:acme/app/SRC/A.py@{sha}",
        f"file:acme/app/src/a.py@{sha}",
        "pr:acme/app#7",
    ]
