"""The result of a step is read once, and every later snapshot that holds it says the same."""

from typing import Any

import orjson

from projections.sources import Projected, project_message, workflow_runs
from projections.sources.workflow_runs import KNOWN_STEPS
from tests.worlds.messages import run

STEP: dict[str, Any] = {"stepId": "s", "iteration": 0, "completedAt": "2026-10-01T09:00:00Z", "output": "done"}


def project(*steps: dict[str, Any], **fields: Any) -> Projected:
    row = {**run(1), **fields, "stepResults": list(steps)}
    return project_message("workflow-runs", None, orjson.dumps(row), 0, 0)


def test_a_snapshot_says_the_same_whether_its_results_were_read_before_or_not() -> None:
    broken = {**STEP, "iteration": -1}
    half = {**STEP, "data": {"titan.trace.gates": [{"id": "no gate"}]}}
    KNOWN_STEPS.clear()
    first = project(STEP, broken, half)
    assert KNOWN_STEPS
    assert len(first.issues) == 2
    assert project(STEP, broken, half) == first


def test_a_result_that_differs_in_anything_is_read_anew() -> None:
    (fact, *_), (other, *_) = project(STEP).facts, project({**STEP, "output": "redone"}).facts
    assert fact.body["steps"] != other.body["steps"]
    assert fact.body["steps"] == project(STEP).facts[0].body["steps"]


def test_a_result_with_a_lone_surrogate_is_read_like_any_other() -> None:
    text = orjson.dumps({**run(1), "stepResults": [{**STEP, "output": "MARK"}]}).replace(b"MARK", b"\\ud800")
    projected = project_message("workflow-runs", None, text, 0, 0)
    assert projected.facts[0].body["steps"][0]["stepId"] == "s"


def test_only_so_many_results_are_kept_and_none_of_their_content(monkeypatch: Any) -> None:
    monkeypatch.setattr(workflow_runs, "KNOWN_STEPS_MAX", 3)
    KNOWN_STEPS.clear()
    for number in range(10):
        project({**STEP, "iteration": number, "output": "a secret"})
        assert len(KNOWN_STEPS) <= 3
    assert "a secret" not in repr(KNOWN_STEPS)
