"""Decisions about what disappears: captured deletions, bare tombstones, erasures."""

import itertools
import json
from typing import Any

import pytest

from projections.ids import conversation_ref
from projections.sources import project_message
from tests.worlds.cluster import Cluster
from tests.worlds.messages import (
    CLAUDE,
    RUN,
    active,
    assistant,
    at,
    attempt_of,
    execution,
    file_messages,
    gate,
    gate_message,
    kinds,
    ledger,
    message,
    records,
    result,
    run,
    run_message,
    spent,
    transition_messages,
    transitions,
)
from tests.worlds.world import SourceMessage

S = attempt_of("s")
Json = dict[str, Any]


def deleted(topic: str, before: Json | None, key: str | None = None) -> SourceMessage:
    return message(topic, {"op": "d", "before": before, "after": None}, key)


def placed(*rows: tuple[int, SourceMessage]) -> dict[str, bytes]:
    """Project messages from the partitions given, in the order given, and in another order that a reader may see."""
    offsets: dict[int, int] = {}
    arrivals = []
    for partition, (topic, key, value) in rows:
        arrivals.append((topic, key, value, partition, offsets.get(partition, 0)))
        offsets[partition] = offsets.get(partition, 0) + 1
    found: list[dict[str, bytes]] = []
    for order in itertools.permutations(arrivals):
        cluster = Cluster(1)
        for arrival in order:
            cluster.project(arrival)
            cluster.drain()
        found.append(cluster.records)
    assert all(one == found[0] for one in found), "offsets decide, and not when a message was read"
    return found[0]


# ------------------------------------------------------------------------------------------- captured deletions


def test_a_captured_deletion_of_a_run_hides_its_version_and_all_below_and_a_higher_one_revives() -> None:
    gone = deleted("workflow-runs", run(2))
    assert RUN not in records([run_message(1), run_message(2), gone])
    assert records([run_message(1), run_message(3, status="paused"), gone])[RUN]["status"] == "paused"


def test_a_deleted_run_takes_its_active_steps_up_to_that_revision_and_nothing_else() -> None:
    gone = deleted("workflow-runs", run(2))
    assert records([run_message(1, active=[active("s")]), gone, gate_message("r1/s")]).keys() == {"r1/s"}
    assert S in records([run_message(3, active=[active("s")]), gone])
    found = records([run_message(2, active=[active("s", started=10)]), ledger("e1", S, prepared=5), gone])
    assert found.keys() == {S}
    assert found[S]["at"] == at(5)


def test_an_update_is_read_by_its_after_and_a_log_message_changes_nothing() -> None:
    update = message("workflow-runs", {"op": "u", "before": run(1), "after": run(2, status="paused")})
    wrapped = message("workflow-runs", {"schema": {}, "payload": {"op": "r", "after": run(1)}})
    assert records([update, wrapped])[RUN]["status"] == "paused"
    truncated = {"op": "t", "before": None, "after": None}
    assert project_message("workflow-runs", b"r1", message("x", truncated).value, 0, 0).ignored == "no_change"


def test_log_positions_mean_nothing_and_each_ledger_row_is_ordered_by_its_own_revision() -> None:
    rows = [("e1", 1, "prepared", 30), ("e2", 1, "running", 20), ("e1", 2, "running", 40), ("e3", 1, "running", 40)]
    messages = []
    for name, revision, phase, position in rows:
        record = execution(name, attempt_of(name), revision=revision, phase=phase)
        row = {"op": "u", "after": {"execution_id": name, "record": record}, "source": {"lsn": position}}
        messages.append(message("ledger-changes", row, name))
    found = records(messages)
    assert {row["executionId"]: row["phase"] for row in kinds(found, "attempt")} == {
        "e1": "running",
        "e2": "running",
        "e3": "running",
    }


def test_a_deleted_ledger_row_takes_its_attempt_and_its_binding() -> None:
    spoken = file_messages([assistant("u", "m", 20, usage=spent())])
    bound = ledger("e1", S, conversation=CLAUDE, revision=3)
    gone = deleted("ledger-changes", {"record": execution("e1", S, conversation=CLAUDE, revision=3)})
    assert records([*spoken, bound, gone]) == {}
    higher = ledger("e1", S, conversation=CLAUDE, revision=4)
    assert len(records([*spoken, bound, gone, higher])) == 3


def test_a_deleted_record_takes_the_transitions_that_made_it() -> None:
    moves = transitions("e1", S)
    gone = deleted("ledger-changes", {"record": execution("e1", S, revision=4, phase="succeeded")})
    assert records([*transition_messages(moves), gone]) == {}
    early = deleted("ledger-changes", {"record": execution("e1", S, revision=2, phase="dispatching")})
    record = ledger("e1", S, revision=3, owner=moves[0]["owner"])
    assert records([*transition_messages(moves), early, record])[S]["phase"] == "succeeded"


def test_a_deleted_transition_leaves_what_is_before_it() -> None:
    moves = transitions("e1", S)
    found = records([*transition_messages(moves), deleted("ledger-changes", moves[3])])
    assert found[S]["phase"] == "running"


def test_the_deletion_of_a_gate_row_is_final_for_its_body() -> None:
    row = gate("r1/review", "resolved", resolvedAt=at(30), payload={"decision": "approve"})
    gone = deleted("gate-decisions", row)
    assert records([message("gate-decisions", row), gone]) == {}
    other = {**row, "resolvedAt": at(40), "payload": {"decision": "deny"}}
    found = records([message("gate-decisions", row), gone, message("gate-decisions", other)])
    assert found["r1/review"]["verdict"] == "deny"
    table = {"id": "r1/review", "prompt": "?", "status": "resolved", "created_at": row["createdAt"]}
    table |= {"resolved_at": at(30), "payload": '{"decision":"approve"}'}
    assert records([message("gate-decisions", row), deleted("gate-decisions", table)]) == {}


def test_a_gate_whose_close_was_deleted_is_not_pending_again() -> None:
    pending = gate("r1/review")
    row = gate("r1/review", "expired", resolvedAt=at(30))
    messages = [message("gate-decisions", one) for one in (pending, row)]
    assert records([*messages, deleted("gate-decisions", row)]) == {}
    assert records([*messages, deleted("gate-decisions", pending)])["r1/review"]["status"] == "expired"


@pytest.mark.parametrize(
    ("topic", "before", "first"),
    [
        ("workflow-runs", {"id": RUN}, run_message(2)),
        ("workflow-runs", {"id": RUN, "revision": None, "workflow_name": None}, run_message(2)),
        ("gate-decisions", {"id": "r1/s"}, gate_message("r1/s")),
        ("gate-decisions", None, gate_message("r1/s")),
        ("ledger-changes", {"execution_id": "e1"}, ledger("e1", S)),
    ],
)
def test_a_deletion_without_a_version_acts_as_a_bare_tombstone(
    topic: str, before: Json | None, first: SourceMessage
) -> None:
    assert first.key is not None
    gone = deleted(topic, before, first.key.decode())
    assert records([first, gone], in_order=True) == {}
    assert len(records([gone, first], in_order=True)) == 1


# --------------------------------------------------------------------------------------------------- tombstones


def test_a_tombstone_hides_what_was_published_before_it_and_a_value_after_it_lives() -> None:
    gone = message("workflow-runs", None, RUN)
    assert records([run_message(1), gone, run_message(3, status="paused")], in_order=True)[RUN]["status"] == "paused"
    assert records([run_message(3), gone], in_order=True) == {}
    assert records([run_message(3), gone, run_message(1)], in_order=True)[RUN]["status"] == "running"
    assert set(records([message("workflow-runs", None, "never-seen"), run_message(1)])) == {RUN}


@pytest.mark.parametrize("key", ["r1", '"r1"', '{"id":"r1"}', '{ "id" : "r1" }', '{"schema":{},"payload":{"id":"r1"}}'])
def test_a_tombstones_key_is_a_plain_id_a_json_text_or_the_id_field_of_a_json_key(key: str) -> None:
    assert records([run_message(1), message("workflow-runs", None, key)], in_order=True) == {}
    assert records([run_message(1), message("workflow-runs", b"null", key)], in_order=True) == {}


def test_a_tombstone_reaches_the_steps_and_rows_that_were_published_before_it() -> None:
    steps = run_message(1, active=[active("s")])
    assert records([steps, message("workflow-runs", None, RUN)], in_order=True) == {}
    moves = transition_messages(transitions("e1", S))
    gone = message("ledger-changes", None, "e1")
    assert records([*moves, gone], in_order=True) == {}
    assert records([*moves, gone, *moves], in_order=True)[S]["phase"] == "succeeded"
    assert records([*moves, gone, *moves[2:]], in_order=True) == {}


def test_a_tombstone_of_one_event_of_the_ledger_hides_that_event_and_not_its_execution() -> None:
    moves = transitions("e1", S)
    rows = transition_messages(moves)

    def purge(number: int, form: str = "key") -> SourceMessage:
        key = {"execution_id": "e1", "event_id": moves[number]["eventId"]}
        value = None if form == "key" else {"op": "d", "before": {**key, "revision": None}, "after": None}
        return message("ledger-changes", value, json.dumps(key))

    for form in ("key", "before"):
        assert records([*rows, purge(3, form)], in_order=True)[S]["phase"] == "running"
        assert records([*rows, purge(0, form)], in_order=True) == {}
        record = message(
            "ledger-changes", {"record": execution("e1", S, revision=4, phase="succeeded"), "event_id": "x"}
        )
        assert records([*rows, record, purge(0, form), purge(1, form)], in_order=True)[S]["phase"] == "succeeded"
    told = message("ledger-changes", {"record": execution("e1", S), "event_id": moves[2]["eventId"]})
    assert records([told, purge(2)], in_order=True) == {}
    assert records([told, purge(1)], in_order=True).keys() == {S}


def test_a_gates_tombstone_hides_its_rows_of_every_status_and_no_other_gate() -> None:
    rows = [gate_message("r1/a"), gate_message("r1/a", "expired", resolvedAt=at(30)), gate_message("r1/b")]
    assert set(records([*rows, message("gate-decisions", None, "r1/a")], in_order=True)) == {"r1/b"}


def test_a_policy_gates_tombstone_may_spell_its_parts_as_they_were() -> None:
    spelled = f"{S}#policy:F5:row two"
    evidence = {"id": spelled, "v": 1, "at": at(1), "traceId": RUN, "spanId": S, "decidedBy": "policy:F5"}
    row = message("gate-decisions", evidence, spelled)
    assert len(records([row])) == 1
    for key in (spelled, spelled.replace(" ", "%20")):
        assert records([row, message("gate-decisions", None, key)], in_order=True) == {}


def test_a_tombstone_of_something_that_is_no_gate_is_no_error() -> None:
    assert project_message("gate-decisions", b"r1", None, 0, 0).ignored == "unknown_key"
    assert project_message("transcripts", b"r1", None, 0, 0).ignored == "tombstone"


def test_a_tombstone_speaks_for_its_own_partition() -> None:
    gone = message("workflow-runs", None, RUN)
    assert placed((0, run_message(1)), (1, gone)).keys() == {RUN}
    assert placed((0, run_message(1)), (0, gone), (1, run_message(2))).keys() == {RUN}
    assert placed((1, run_message(2)), (0, run_message(1)), (0, gone), (1, gone)) == {}
    paused = run_message(2, status="paused")
    assert b"paused" in placed((1, paused), (0, run_message(1)), (0, run_message(3)), (0, gone))[RUN]


def test_a_greater_revision_before_a_tombstone_does_not_come_back_when_a_smaller_one_follows() -> None:
    gone = message("workflow-runs", None, RUN)
    found = placed((0, run_message(5, status="failed")), (0, gone), (0, run_message(2, status="paused")))
    assert b'"status":"paused"' in found[RUN]


def test_a_captured_deletion_holds_in_other_partitions_after_its_tombstone() -> None:
    gone, tombstone = deleted("workflow-runs", run(3), RUN), message("workflow-runs", None, RUN)
    assert placed((1, run_message(3)), (0, gone), (0, tombstone)) == {}
    assert placed((0, run_message(3)), (0, gone), (0, tombstone), (0, run_message(1))).keys() == {RUN}
    assert placed((0, gone), (0, tombstone), (1, run_message(3)), (0, run_message(4))).keys() == {RUN}
    row = gate("r1/a")
    gone, tombstone = deleted("gate-decisions", row), message("gate-decisions", None, "r1/a")
    assert placed((1, gate_message("r1/a")), (0, gone), (0, tombstone)) == {}
    assert placed((0, gone), (0, tombstone), (0, gate_message("r1/a"))).keys() == {"r1/a"}


def test_a_higher_version_does_not_wipe_out_the_deletion_that_other_partitions_need() -> None:
    gone, tombstone = deleted("workflow-runs", run(3), RUN), message("workflow-runs", None, RUN)
    assert placed((1, run_message(2)), (0, gone), (0, run_message(5)), (0, tombstone)) == {}
    gone = deleted("ledger-changes", {"record": execution("e1", S, revision=3)}, "e1")
    rows = [ledger("e1", S, revision=revision) for revision in (2, 5)]
    assert placed((1, rows[0]), (0, gone), (0, rows[1]), (0, message("ledger-changes", None, "e1"))) == {}


# --------------------------------------------------------------------------------------------------- erasures

SPOKEN = file_messages([assistant("u", "m", 20, usage=spent(), calls=["t"])])
BOUND = ledger("e1", S, conversation=CLAUDE)
ERASE_RUN = message("erasures", {"run": RUN})
ERASE_CONVERSATION = message("erasures", {"conversation": conversation_ref(CLAUDE)})


def test_an_erased_run_takes_everything_it_owned_whatever_arrives_later() -> None:
    artifact = {"artifactKind": "pr", "repo": "acme/app", "number": 7}
    step = result("s", data={"titan.trace.artifacts": [artifact]})
    assert records([run_message(1, steps=[step]), gate_message("r1/s"), *SPOKEN, BOUND, ERASE_RUN]) == {}
    assert records([ERASE_RUN, run_message(9)]) == {}


def test_an_erased_run_leaves_an_artifact_to_the_other_run_that_saw_it() -> None:
    artifact = {"artifactKind": "pr", "repo": "acme/app", "number": 7}
    rows = [
        run_message(1, id=name, steps=[result("s", data={"titan.trace.artifacts": [artifact]})])
        for name in ("r1", "r2")
    ]
    assert records([*rows, ERASE_RUN])["pr:acme/app#7"]["runId"] == "r2"


def test_an_erased_run_takes_only_its_own_part_of_a_conversation() -> None:
    lines = [
        assistant("u1", "m1", 20, request="q1", usage=spent(10)),
        assistant("u2", "m2", 40, request="q2", usage=spent(20)),
    ]
    other = ledger("e2", attempt_of("s", run="r2"), conversation=CLAUDE, prepared=30)
    found = records([*file_messages(lines), BOUND, other, ERASE_RUN])
    assert {row["runId"] for row in found.values()} == {"r2"}
    assert found[attempt_of("s", run="r2")]["usage"] == {"costUsd": 0, "inputTokens": 20, "outputTokens": 1}


def test_an_erased_conversation_takes_its_calls_and_costs_and_the_attempts_stay_without_usage() -> None:
    found = records([*SPOKEN, BOUND, ERASE_CONVERSATION])
    assert found.keys() == {S}
    assert "usage" not in found[S]
    assert records([*SPOKEN, ERASE_CONVERSATION], unbound="standalone") == {}


def test_an_erased_standalone_run_takes_its_conversation_until_that_is_bound() -> None:
    (standalone,) = kinds(records(SPOKEN, unbound="standalone"), "run")
    erase = message("erasures", {"run": standalone["id"]})
    assert records([*SPOKEN, erase], unbound="standalone") == {}
    assert len(records([*SPOKEN, erase, BOUND], unbound="standalone")) == 4


def test_an_erasure_is_spelled_any_way_that_names_the_conversation() -> None:
    named = {"harness": "claude-code", "namespace": "host a", "nativeId": "c-1"}
    spoken = file_messages([assistant("u", "m", 20)], named)
    for ref in ("conversation:claude-code:host%20a:c-1", "conversation:claude-code:host%20%61:%63-1"):
        assert records([*spoken, message("erasures", {"conversation": ref})], unbound="standalone") == {}


@pytest.mark.parametrize(
    "erasure",
    [
        {},
        {"run": ""},
        {"run": 5},
        {"run": "r1", "conversation": "c"},
        {"conversation": "r1"},
        {"conversation": "conversation:a:b:%FF"},
    ],
)
def test_an_erasure_that_names_nothing_is_refused(erasure: Json) -> None:
    records([message("erasures", erasure)], dead=["invalid_field"])


def test_an_erasure_cannot_be_deleted() -> None:
    assert project_message("erasures", b"r1", None, 0, 0).ignored == "tombstone"
