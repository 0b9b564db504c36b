"""Decisions about gates: human gates and their closes, policy gates from three places, and where a gate belongs."""

from typing import Any

import pytest

from projections.canonical import digest_of_json, digest_of_text
from projections.sources import project_message
from tests.worlds.messages import (
    at,
    attempt_of,
    gate,
    gate_message,
    ledger,
    message,
    project,
    records,
    result,
    run_message,
)
from tests.worlds.world import SourceMessage

OWNER = {"class": "owner-terminal", "id": "ann"}
POLICY_ID = f"{attempt_of('merge')}#policy:F5:R1"
ENTRY: dict[str, Any] = {
    "id": POLICY_ID,
    "gateKind": "policy",
    "verdict": "allow",
    "decidedBy": "policy:F5",
    "policyRule": {"table": "F5", "rowId": "R1", "version": 1},
    "reason": "ok",
}


def closed(gate_id: str = "r1/review", status: str = "resolved", *, when: float = 30, **more: Any) -> dict[str, Any]:
    return gate(gate_id, status, resolvedAt=at(when), **more)


def only_gate(*rows: dict[str, Any]) -> dict[str, Any]:
    found = records([message("gate-decisions", row, row["id"]) for row in rows])
    (record,) = found.values()
    return record


@pytest.mark.parametrize(
    ("payload", "verdict"),
    [
        *[({"decision": word}, "allow") for word in ("approve", "approved", "allow", "pass")],
        *[({"decision": word}, "deny") for word in ("refuse", "refused", "reject", "rejected", "deny", "denied")],
        *[({"signal": word}, "revise") for word in ("revise", "needs_revision")],
        ({"decision": "approve", "signal": "rejected"}, "allow"),
        ({"decision": "retry", "signal": "rejected"}, "deny"),
        ({"decision": "Approve"}, None),
        ({"decision": ["approve"]}, None),
        ({"verdict": "approve"}, None),
        (None, None),
        ("approve", None),
        (["approve"], None),
    ],
)
def test_a_resolved_gate_has_the_verdict_that_its_payload_spells(payload: Any, verdict: str | None) -> None:
    assert only_gate(closed(payload=payload))["verdict"] == verdict


@pytest.mark.parametrize("status", ["pending", "cancelled", "expired"])
def test_only_a_resolved_gate_has_a_verdict_or_a_reason_from_its_payload(status: str) -> None:
    record = only_gate(closed(status=status, payload={"decision": "approve", "reason": "fine"}))
    assert record["status"] == status
    assert "verdict" not in record
    assert "reason" not in record


@pytest.mark.parametrize(
    ("actor", "label"),
    [
        ({"class": "owner-terminal", "id": "ann"}, "human:ann"),
        ({"class": "owner-remote", "id": "ann"}, "human:ann"),
        *[({"class": name, "id": "w"}, "agent:w") for name in ("coordinator", "worker", "headless", "automation")],
        ({"class": "owner-terminal", "id": "Ann B\u00a0C\ufeff"}, "human:Ann%20B%C2%A0C%EF%BB%BF"),
    ],
)
def test_owner_classes_are_humans_and_white_space_of_a_name_is_encoded(actor: dict[str, str], label: str) -> None:
    assert only_gate(closed(resolvedBy=actor))["decidedBy"] == label


def test_the_reason_is_the_payloads_when_resolved_and_the_rows_when_cancelled() -> None:
    assert only_gate(closed(payload={"reason": "fine"}, reason="no"))["reason"] == "fine"
    assert only_gate(closed(status="cancelled", payload={"reason": "fine"}, reason="no"))["reason"] == "no"
    assert "reason" not in only_gate(closed(status="expired", payload={"reason": "fine"}, reason="no"))


def test_a_payload_whose_reason_is_no_text_has_no_reason_and_costs_the_gate_nothing() -> None:
    record = only_gate(closed(payload={"decision": "approve", "reason": {"why": 5}}))
    assert record["verdict"] == "allow"
    assert "reason" not in record


def test_the_earliest_close_counts_and_late_ones_are_counted() -> None:
    expired = closed(status="expired", when=30)
    late = closed(when=31, payload={"decision": "approved"}, resolvedBy=OWNER)
    later = closed(status="cancelled", when=32, reason="x")
    record = only_gate(gate("r1/review"), expired, late, later)
    assert (record["status"], record["resolvedAt"]) == ("expired", at(30))
    assert "decidedBy" not in record
    cluster = project([message("gate-decisions", row) for row in (gate("r1/review"), expired, late, later, late)])
    assert sum(fold.counters().get("late_gate_closes", 0) for fold in cluster.folds) == 2


def test_of_closes_at_one_instant_the_smaller_text_then_the_smaller_row_counts() -> None:
    zulu = closed(when=30, payload={"decision": "approve"})
    offset = {**zulu, "resolvedAt": "2026-10-01T10:00:30.000+01:00", "payload": {"decision": "deny"}}
    assert only_gate(zulu, offset)["resolvedAt"] == zulu["resolvedAt"]
    allow, deny = closed(when=30, payload={"decision": "approve"}), closed(when=30, payload={"decision": "deny"})
    smaller = min(digest_of_json(row["payload"]) for row in (allow, deny))
    assert only_gate(allow, deny)["payloadSha256"] == smaller, "the digest is the first field that differs"


def test_a_gate_with_a_close_without_a_time_is_closed_by_the_one_that_has_a_time() -> None:
    untimed = gate("r1/review", "cancelled")
    assert only_gate(untimed, closed(when=59))["status"] == "resolved"
    assert only_gate(gate("r1/review"), untimed)["status"] == "cancelled"


def test_two_decisions_about_two_gates_stay_two_records() -> None:
    expired, denied = closed("r1/a", "expired"), closed("r1/b", payload={"decision": "denied"})
    found = records([message("gate-decisions", row) for row in (expired, denied, expired)])
    assert {record_id: row["status"] for record_id, row in found.items()} == {"r1/a": "expired", "r1/b": "resolved"}
    assert found["r1/b"]["verdict"] == "deny"


def test_a_table_row_reads_like_a_program_row_and_json_columns_may_be_text() -> None:
    payload = {"decision": "approve", "reason": "fine"}
    program = closed(payload=payload, resolvedBy=OWNER, expiresAt=at(99), rule=None)
    table = {
        "id": "r1/review",
        "prompt": "?",
        "status": "resolved",
        "created_at": program["createdAt"],
        "resolved_at": program["resolvedAt"],
        "expires_at": at(99),
        "payload": '{"reason": "fine", "decision": "approve"}',
        "resolved_by": '{"class": "owner-terminal", "id": "ann"}',
        "rule": "null",
    }
    assert only_gate(table) == only_gate(program)
    assert only_gate(program, table)["verdict"] == "allow"


def test_digests_stand_for_prompt_and_payload_and_a_given_digest_wins() -> None:
    record = only_gate(closed(payload={"b": 1.0, "a": "é"}))
    assert record["promptSha256"] == digest_of_text("?")
    assert record["payloadSha256"] == digest_of_json({"a": "é", "b": 1})
    given = only_gate(closed(payload={"decision": "approve"}, promptSha256="a" * 64, payloadSha256="b" * 64))
    assert (given["promptSha256"], given["payloadSha256"]) == ("a" * 64, "b" * 64)
    assert given["verdict"] == "allow"
    withheld = {key: value for key, value in closed(promptSha256="a" * 64).items() if key not in ("prompt", "payload")}
    assert only_gate(withheld)["promptSha256"] == "a" * 64


@pytest.mark.parametrize("status", ["approved", None, 1, ""])
def test_a_gate_row_with_another_status_is_refused_alone(status: Any) -> None:
    broken = {**gate("r1/a"), "status": status}
    found = records([message("gate-decisions", broken), gate_message("r1/b")], dead=["invalid_field"])
    assert set(found) == {"r1/b"}


# ------------------------------------------------------------------------------------------ where a gate belongs


def place_of(gate_id: str, *others: SourceMessage) -> str:
    return str(records([gate_message(gate_id), *others])[gate_id]["attemptId"])


def test_a_gate_id_ends_in_its_iteration_when_nothing_else_is_known() -> None:
    assert place_of("r1/review") == attempt_of("review", 0)
    assert place_of("r1/review:2") == attempt_of("review", 2)
    assert place_of("r1/review:02") == attempt_of("review:02", 0)
    assert place_of("r1/a:1:2") == attempt_of("a:1", 2)


def test_a_step_whose_id_ends_in_a_number_is_known_by_its_attempt() -> None:
    assert place_of("r1/ci-wait:2", run_message(steps=[result("ci-wait:2")])) == attempt_of("ci-wait:2", 0)
    assert place_of("r1/ci-wait:2:1", run_message(steps=[result("ci-wait:2", 1)])) == attempt_of("ci-wait:2", 1)
    assert place_of("r1/ci-wait:2", run_message(steps=[result("ci-wait", 2)])) == attempt_of("ci-wait", 2)


def test_a_known_step_decides_when_no_attempt_of_its_iteration_exists() -> None:
    assert place_of("r1/merge:0", run_message(steps=[result("merge:0", 3)])) == attempt_of("merge:0", 0)
    assert place_of("r1/merge:0", ledger("e1", attempt_of("merge:0", 3))) == attempt_of("merge:0", 0)


def test_a_gates_attempt_is_number_0_even_when_the_step_was_tried_again() -> None:
    assert place_of("r1/review", ledger("e1", attempt_of("review", 0, 1))) == attempt_of("review")


def test_gate_ids_are_kept_as_they_are_and_their_run_is_the_part_before_the_first_slash() -> None:
    found = records([gate_message("r1/a/b%20c")])
    assert found["r1/a/b%20c"]["runId"] == "r1"


# -------------------------------------------------------------------------------------------------- policy gates


def with_gates(*entries: dict[str, Any], completed: float = 100) -> SourceMessage:
    step = result("merge", operation="authorize", completed=completed, data={"titan.trace.gates": list(entries)})
    return run_message(steps=[step])


RECORD = {**ENTRY, "schema": "titan.trace/v1", "kind": "gate", "runId": "r1", "attemptId": attempt_of("merge")}
EVIDENCE = {**ENTRY, "v": 1, "kind": "policy-decision", "traceId": "r1", "spanId": attempt_of("merge"), "at": at(40)}


def policy_gate(*messages: SourceMessage) -> dict[str, Any]:
    return records(list(messages))[POLICY_ID]


def test_a_policy_gate_is_taken_from_the_step_result_then_a_complete_record_then_evidence() -> None:
    step = with_gates({**ENTRY, "reason": "step"})
    record = message("gate-decisions", {**RECORD, "reason": "record", "at": at(41)})
    evidence = message("gate-decisions", {**EVIDENCE, "reason": "evidence"})
    assert policy_gate(step, record, evidence)["reason"] == "step"
    assert policy_gate(record, evidence)["reason"] == "record"
    assert policy_gate(evidence)["reason"] == "evidence"


def test_a_policy_gate_without_an_envelope_is_at_its_evidences_time_else_when_its_step_was_completed() -> None:
    evidence = message("gate-decisions", EVIDENCE)
    alone = policy_gate(with_gates(ENTRY))
    assert (alone["at"], alone["attemptId"], alone["runId"]) == (at(100), attempt_of("merge"), "r1")
    assert policy_gate(with_gates(ENTRY), evidence)["at"] == at(40)
    assert policy_gate(with_gates({**ENTRY, "at": at(50)}), evidence)["at"] == at(50)
    untimed = message("gate-decisions", RECORD)
    assert policy_gate(untimed, evidence)["at"] == at(40)


def test_a_policy_gate_without_any_time_waits_for_one() -> None:
    untimed = message("gate-decisions", RECORD)
    assert records([untimed]) == {}
    assert policy_gate(untimed, with_gates(ENTRY))["at"] == at(100)


def test_of_two_bodies_from_one_place_the_greater_canonical_json_counts() -> None:
    first, second = {**EVIDENCE, "reason": "a"}, {**EVIDENCE, "reason": "b"}
    assert policy_gate(*[message("gate-decisions", row) for row in (first, second)])["reason"] == "b"


def test_evidence_holds_the_gate_at_top_level_and_an_id_outside_the_grammar_is_rebuilt() -> None:
    loose = {**EVIDENCE, "id": f"{attempt_of('merge')}#policy:F5:row two:x"}
    loose["policyRule"] = {"table": "F5", "rowId": "row two:x", "version": 2}
    rebuilt = f"{attempt_of('merge')}#policy:F5:row%20two%3Ax"
    without_rule = {key: value for key, value in loose.items() if key != "policyRule"}
    for row in (loose, without_rule):
        (found,) = records([message("gate-decisions", row)]).values()
        assert (found["id"], found["attemptId"], found["at"]) == (rebuilt, attempt_of("merge"), at(40))
        assert not {"v", "traceId", "spanId"} & found.keys()


def test_the_three_places_spell_one_gate_alike() -> None:
    loose = f"{attempt_of('merge')}#policy:F5:row two"
    rule = {"table": "F5", "rowId": "row two", "version": 1}
    step = with_gates({**ENTRY, "id": loose, "policyRule": rule})
    evidence = message("gate-decisions", {**EVIDENCE, "id": loose, "policyRule": rule})
    found = records([step, evidence])
    assert [row["id"] for row in found.values() if row["kind"] == "gate"] == [loose.replace(" ", "%20")]


def test_a_policy_verdict_may_be_null_and_its_version_a_float_that_is_whole() -> None:
    rule = {"table": "F5", "rowId": "R1", "version": 2.0}
    record = policy_gate(message("gate-decisions", {**EVIDENCE, "verdict": None, "policyRule": rule}))
    assert record["verdict"] is None
    assert record["policyRule"] == {"table": "F5", "rowId": "R1", "version": 2}


def test_a_snapshot_says_nothing_about_a_gate_of_another_run() -> None:
    foreign = {**ENTRY, "id": f"{attempt_of('merge', run='r2')}#policy:F5:R1"}
    step = with_gates(foreign)
    assert step.value is not None
    assert project_message("workflow-runs", step.key, step.value, 0, 0).issues == ("gates_foreign_run",)
    assert {row["kind"] for row in records([step]).values()} == {"run", "attempt"}


def test_a_broken_entry_costs_nothing_but_itself() -> None:
    found = records([with_gates({**ENTRY, "id": 5}, ENTRY, {**ENTRY, "id": f"{POLICY_ID}x", "decidedBy": "nobody"})])
    assert [row["id"] for row in found.values() if row["kind"] == "gate"] == [POLICY_ID]


def test_a_human_gate_shows_the_rule_that_asked_for_it() -> None:
    rule = {"table": "F5", "version": "2.1.0", "ruleId": "R1", "resolvers": ["owner-terminal"]}
    assert only_gate(closed(rule=rule))["policyRule"] == {"table": "F5", "rowId": "R1", "version": 2}
