"""Decisions about runs and attempts: starts, step kinds, outcomes, and what of which revision counts."""

import json
from typing import Any

import pytest

from projections.canonical import digest_of_json, digest_of_text
from tests.worlds.messages import (
    RUN,
    active,
    at,
    attempt_of,
    gate_message,
    kinds,
    ledger,
    message,
    project,
    records,
    result,
    run_message,
)
from tests.worlds.world import SourceMessage

S = attempt_of("s")


def attempt(*messages: SourceMessage, attempt_id: str = S) -> dict[str, Any]:
    return records(list(messages))[attempt_id]


def policy_evidence(step: str, seconds: float) -> SourceMessage:
    gate = {"id": f"{attempt_of(step)}#policy:F5:R1", "decidedBy": "policy:F5", "at": at(seconds)}
    return message("gate-decisions", {**gate, "v": 1, "traceId": RUN, "spanId": attempt_of(step)})


# ----------------------------------------------------------------------------------------------------- the run


def test_the_greatest_revision_says_how_a_run_is_in_every_order() -> None:
    failed = {"status": "failed", "completedAt": at(9), "error": "it broke"}
    found = records([run_message(1), run_message(2, status="paused"), run_message(3, **failed)])
    assert (found[RUN]["status"], found[RUN]["completedAt"], found[RUN]["error"]) == ("failed", at(9), "it broke")


def test_of_two_rows_of_one_revision_the_greater_canonical_json_counts() -> None:
    assert records([run_message(1, error="a"), run_message(1, error="b")])[RUN]["error"] == "b"


def test_parameters_are_digested_as_canonical_json_from_a_value_or_a_json_column() -> None:
    params = {"b": 1.0, "a": "ü"}
    expected = digest_of_json({"a": "ü", "b": 1})
    assert records([run_message(params=params)])[RUN]["paramsSha256"] == expected
    assert records([run_message(params='{"a": "ü", "b": 1}')])[RUN]["paramsSha256"] == expected
    assert records([run_message(params=params, paramsSha256="a" * 64)])[RUN]["paramsSha256"] == "a" * 64
    assert "paramsSha256" not in records([run_message(params="null")])[RUN]


def test_a_table_row_of_a_run_reads_like_a_program_row() -> None:
    step, running = result("s", operation="dispatch", output="o"), active("t", runnerRef="x")
    program = run_message(5, steps=[step], active=[running], completedAt=None, error=None)
    row = {
        "id": RUN,
        "workflow_name": "w",
        "status": "running",
        "started_at": at(0),
        "completed_at": None,
        "error": None,
        "revision": 5,
        "step_results": {"s:0": step},
        "active_steps": {"t": running},
    }
    as_text = {**row, "step_results": json.dumps(row["step_results"]), "active_steps": "null"}
    assert records([message("workflow-runs", row)]) == records([program])
    assert records([message("workflow-runs", as_text)])[S] == records([program])[S]


def test_a_run_that_is_only_known_by_its_ledger_has_attempts_and_no_run_record() -> None:
    assert set(records([ledger("e1", S)])) == {S}


# ------------------------------------------------------------------------------------------------------- starts


def test_a_dispatch_starts_when_it_was_prepared_else_when_its_step_became_active_else_when_it_was_completed() -> None:
    done = run_message(2, steps=[result("s", operation="dispatch", completed=100)])
    working = run_message(1, active=[active("s", started=10)])
    assert attempt(ledger("e1", S, prepared=5), working, done)["at"] == at(5)
    assert attempt(working, done)["at"] == at(10)
    assert attempt(done)["at"] == at(100)


def test_an_assisted_step_starts_when_active_else_with_its_gate_else_when_completed() -> None:
    done = run_message(2, steps=[result("s", operation="assisted", completed=100)])
    working = run_message(1, active=[active("s", started=10)])
    gates = [gate_message(f"{RUN}/s", "resolved", created=20, resolvedAt=at(30))]
    assert attempt(working, done, *gates)["at"] == at(10)
    assert attempt(done, *gates)["at"] == at(20)
    assert attempt(done)["at"] == at(100)


@pytest.mark.parametrize("operation", ["seed", "authorize"])
def test_a_seed_or_decision_starts_when_active_else_with_its_policy_gate_else_when_completed(operation: str) -> None:
    done = run_message(2, steps=[result("s", operation=operation, completed=100)])
    working = run_message(1, active=[active("s", started=10)])
    evidence = policy_evidence("s", 40)
    assert attempt(working, done, evidence)["at"] == at(10)
    assert attempt(done, evidence)["at"] == at(40)
    assert attempt(done, gate_message(f"{RUN}/s", created=20))["at"] == at(100)


def test_what_only_an_older_revision_showed_is_kept_and_everything_else_is_the_newest_revisions() -> None:
    older = run_message(2, active=[active("s", attempt=1, started=10, runnerRef="runner-1", prompt="p")])
    newest = run_message(3, steps=[result("s", operation="dispatch", signal="done")])
    found = attempt(run_message(1), older, newest, attempt_id=attempt_of("s", 0, 1))
    assert (found["at"], found["runnerRef"], found["signal"]) == (at(10), "runner-1", "done")
    assert found["promptSha256"] == digest_of_text("p")


def test_a_recovery_that_only_an_older_revision_showed_is_over() -> None:
    lost = {"kind": "not_found", "evidence": "secret", "observedAt": at(50)}
    ill = run_message(1, active=[active("s", recovery=lost)])
    assert attempt(ill, ledger("e1", S))["recovery"] == {"kind": "not_found", "observedAt": at(50)}
    well = attempt(ill, run_message(2, active=[active("s")]), ledger("e1", S))
    assert "recovery" not in well
    assert "outcome" not in well


# -------------------------------------------------------------------------------------------------- step kinds


def test_without_an_operation_what_exists_of_a_step_says_its_kind() -> None:
    done = run_message(1, steps=[result("s")])
    gate = gate_message(f"{RUN}/s")
    evidence = policy_evidence("s", 40)
    assert attempt(done)["stepKind"] == "seed"
    assert attempt(done, evidence)["stepKind"] == "authorize"
    assert attempt(done, evidence, gate)["stepKind"] == "assisted"
    assert attempt(done, evidence, gate, ledger("e1", S))["stepKind"] == "dispatch"
    assert attempt(run_message(1, active=[active("s")]), gate)["stepKind"] == "dispatch"


def test_the_operation_of_a_result_beats_its_active_step() -> None:
    working = run_message(1, active=[active("s")])
    assert attempt(working, run_message(2, steps=[result("s", operation="assisted")]))["stepKind"] == "assisted"


def test_the_operation_of_a_result_is_that_of_every_attempt_at_it() -> None:
    first = attempt(ledger("e1", S), run_message(1, steps=[result("s")], active=[active("s", attempt=1)]))
    assert first["stepKind"] == "dispatch"


# ---------------------------------------------------------------------------------------- outcome and recovery


@pytest.mark.parametrize(
    ("phase", "terminal", "expected"),
    [
        ("succeeded", {"outcome": "succeeded", "result": 1}, {"outcome": "succeeded"}),
        (
            "failed",
            {"outcome": "failed", "reason": "died", "retryable": True},
            {"outcome": "failed", "retryable": True, "error": "died"},
        ),
        ("cancelled", {"outcome": "cancelled", "reason": "x"}, {"outcome": "cancelled"}),
        (
            "cancellation_unknown",
            {"outcome": "cancellation_unknown", "reason": "x"},
            {"outcome": "cancellation_unknown"},
        ),
        ("ended", {"outcome": "ended", "evidence": "x"}, {"outcome": "failed", "retryable": False}),
        ("recovery_required", None, {"outcome": "recovery_required"}),
        ("running", None, {}),
    ],
)
def test_the_ledger_says_how_a_dispatch_ended(phase: str, terminal: Any, expected: dict[str, Any]) -> None:
    more = {} if terminal is None else {"terminal": terminal}
    found = attempt(ledger("e1", S, phase=phase, **more))
    assert found["phase"] == phase
    assert {name: found[name] for name in ("outcome", "retryable", "error") if name in found} == expected


def test_a_dispatch_without_a_ledger_row_has_no_outcome_and_its_recovery_lasts_until_a_result() -> None:
    lost = {"kind": "ownership_lost", "observedAt": at(50)}
    ill = attempt(run_message(1, active=[active("s", recovery=lost)]))
    assert ill["recovery"] == lost
    assert "outcome" not in ill
    done = run_message(1, active=[active("s", recovery=lost)], steps=[result("s", operation="dispatch")])
    assert "recovery" not in attempt(done)
    assert "outcome" not in attempt(done)


def test_a_recovery_shows_until_the_ledger_knows_a_terminal_phase() -> None:
    ill = run_message(1, active=[active("s", recovery={"kind": "unknown", "observedAt": at(50)})])
    running = attempt(ill, ledger("e1", S, phase="running"))
    assert (running["outcome"], running["recovery"]["kind"]) == ("recovery_required", "unknown")
    over = attempt(ill, ledger("e1", S, phase="succeeded", terminal={"outcome": "succeeded"}))
    assert over["outcome"] == "succeeded"
    assert "recovery" not in over


@pytest.mark.parametrize("operation", ["seed", "assisted", "authorize"])
def test_a_step_without_an_agent_succeeded_when_it_has_a_result(operation: str) -> None:
    assert attempt(run_message(steps=[result("s", operation=operation)]))["outcome"] == "succeeded"


# ----------------------------------------------------------------------------------------- retries and results


def test_a_result_belongs_to_the_last_attempt_that_the_ledger_or_an_active_step_has_shown() -> None:
    done = run_message(2, steps=[result("s", operation="dispatch", agentId="runner-9", signal="done", output="text")])
    failed = {"outcome": "failed", "reason": "x", "retryable": True}
    first = ledger("e0", S, phase="failed", terminal=failed)
    second = ledger("e1", attempt_of("s", 0, 1), prepared=50)
    found = records([done, first, second])
    last = found[attempt_of("s", 0, 1)]
    assert (last["signal"], last["completedAt"], last["runnerRef"]) == ("done", at(100), "runner-9")
    assert last["outputSha256"] == digest_of_text("text")
    assert not {"signal", "completedAt", "outputSha256", "runnerRef"} & found[S].keys()
    assert found[S]["outcome"] == "failed"
    shown = records([done, first, run_message(1, active=[active("s", attempt=2)])])
    assert shown[attempt_of("s", 0, 2)]["signal"] == "done"
    assert attempt_of("s", 0, 1) not in shown


def test_a_run_that_was_reset_is_a_run_of_its_own_and_both_attempts_keep_their_outcome() -> None:
    failed = {"outcome": "failed", "reason": "x", "retryable": True}
    first = ledger("e0", attempt_of("build", 1, 1), phase="failed", terminal=failed)
    second = ledger("e1", attempt_of("build", 1, 2), phase="succeeded", terminal={"outcome": "succeeded"})
    reset = attempt_of("build", 1, 1, run="r2")
    third = ledger("e2", reset, correlations={"factory.first-run": "r1"})
    found = records([first, second, third, run_message(1, id="r2")])
    outcomes = [found[attempt_of("build", 1, number)].get("outcome") for number in (1, 2)]
    assert outcomes == ["failed", "succeeded"]
    assert found["r2"]["correlations"] == {"factory.first-run": "r1"}
    assert found[reset]["runId"] == "r2"


def test_a_dispatch_names_the_agent_and_the_runner_of_the_ledger_and_else_takes_the_results_agent_as_its_runner() -> (
    None
):
    done = run_message(2, steps=[result("s", operation="dispatch", agentId="runner-9")])
    known = attempt(ledger("e1", S, agent={"agentId": "ann"}, runnerRef="runner-1"), done)
    assert (known["agentId"], known["runnerRef"]) == ("ann", "runner-1")
    working = run_message(1, active=[active("s", runnerRef="runner-2")])
    assert attempt(ledger("e1", S), working, done)["runnerRef"] == "runner-2"
    unnamed = attempt(ledger("e1", S), done)
    assert unnamed["runnerRef"] == "runner-9"
    assert "agentId" not in unnamed


@pytest.mark.parametrize("operation", ["seed", "assisted", "authorize"])
def test_a_step_without_an_agent_keeps_an_explicit_null(operation: str) -> None:
    found = attempt(run_message(steps=[result("s", operation=operation, agentId=None, signal=None)]))
    assert (found["agentId"], found["signal"]) == (None, None)
    bare = attempt(run_message(steps=[result("s", operation=operation)]))
    assert not {"agentId", "signal"} & bare.keys()


def test_the_prompt_is_the_executions_else_the_active_steps_else_the_results() -> None:
    done = run_message(2, steps=[result("s", operation="dispatch", prompt="result")])
    working = run_message(1, active=[active("s", prompt="active")])
    execution = ledger("e1", S, prompt="execution")
    assert attempt(done, working, execution)["promptSha256"] == digest_of_text("execution")
    assert attempt(done, working)["promptSha256"] == digest_of_text("active")
    assert attempt(done)["promptSha256"] == digest_of_text("result")
    assert attempt(ledger("e1", S, promptSha256="c" * 64), done)["promptSha256"] == "c" * 64
    assert "promptSha256" not in attempt(ledger("e1", S))


@pytest.mark.parametrize(("output", "text"), [(40, "40"), (True, "true"), (1e21, "1e+21"), ("17", "17"), (17, "17")])
def test_an_output_that_is_no_text_is_digested_as_its_text(output: Any, text: str) -> None:
    assert attempt(run_message(steps=[result("s", output=output)]))["outputSha256"] == digest_of_text(text)


def test_an_attempt_is_held_and_counted_until_something_says_when_it_started() -> None:
    seed = run_message(2, steps=[result("s", operation="seed")])
    executions = [ledger("e0", S), ledger("e1", attempt_of("s", 0, 1))]
    assert S not in records([seed, *executions]), "a seed does not start when an execution was prepared"
    cluster = project([seed, *executions])
    assert sum(fold.held_counts()["run"] for fold in cluster.folds) == 1
    found = records([seed, *executions, run_message(1, active=[active("s", started=10)])])
    assert found[S]["at"] == at(10)


# ------------------------------------------------------------------------------------------------ correlations


def correlated(number: int, prepared: float, **correlations: str) -> SourceMessage:
    named = {f"x.{key}": value for key, value in correlations.items()}
    return ledger(f"e{number}", attempt_of("s", 0, number), prepared=prepared, correlations=named)


def test_a_run_unites_its_executions_correlations_and_the_earliest_attempt_wins() -> None:
    found = records([run_message(), correlated(0, 9, a="late", b="only"), correlated(1, 5, a="early", c="also")])
    assert found[RUN]["correlations"] == {"x.a": "early", "x.b": "only", "x.c": "also"}


def test_of_equal_starts_the_smaller_attempt_id_wins() -> None:
    ten = ledger("e10", attempt_of("s", 0, 10), prepared=5, correlations={"x.a": "ten"})
    assert records([run_message(), correlated(2, 5, a="two"), ten])[RUN]["correlations"] == {"x.a": "ten"}


def test_an_attempt_with_two_executions_starts_with_the_one_that_counts() -> None:
    first = ledger("e1", S, prepared=1, correlations={"x.a": "first", "x.b": "kept"})
    again = ledger("e2", S, prepared=9, correlations={"x.a": "again"})
    other = ledger("e3", attempt_of("t"), prepared=5, correlations={"x.a": "other"})
    assert records([run_message(), first, again])[RUN]["correlations"] == {"x.a": "again", "x.b": "kept"}
    assert records([run_message(), first, again, other])[RUN]["correlations"] == {"x.a": "other", "x.b": "kept"}


def test_only_the_first_32_correlation_keys_are_shown_and_the_others_are_counted() -> None:
    messages = [run_message()]
    for number in range(4):
        keys = {f"k{number}{letter}": "v" for letter in "abcdefghij"}
        messages.append(correlated(number, number, **keys))
    shown = records(messages)[RUN]["correlations"]
    every = sorted(f"x.k{number}{letter}" for number in range(4) for letter in "abcdefghij")
    assert list(shown) == every[:32]
    cluster = project(messages)
    assert sum(fold.counters().get("dropped_correlations", 0) for fold in cluster.folds) == 8


# -------------------------------------------------------------------------------------------- broken neighbours


def test_a_broken_step_costs_nothing_but_itself() -> None:
    broken = {**result("s"), "completedAt": "yesterday"}
    found = records([run_message(steps=[broken, result("t")], active=[{**active("u"), "attempt": -1}])])
    assert [row["stepId"] for row in kinds(found, "attempt")] == ["t"]


def test_a_step_id_is_encoded_in_ids_and_shown_as_it_is() -> None:
    found = records([run_message(steps=[result("plan: größe"), result("")])])
    (row,) = kinds(found, "attempt")
    assert (row["id"], row["stepId"]) == ("workflow:r1:plan%3A%20gr%C3%B6%C3%9Fe:0:0", "plan: größe")
