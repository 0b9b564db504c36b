"""Rows as Debezium gives them where PostgreSQL's log holds less than a whole row (taken down from Debezium 3.6.1).

A deleted row of which the log has only the key comes with its other columns filled: null where they may be, else what
its type counts as nothing. A large value that an update left alone comes as a text that says so.
"""

from typing import Any

import pytest

from projections.errors import ProjectionError
from projections.sources import project_message
from tests.worlds.messages import RUN, attempt_of, execution, gate, message, records, run, transitions
from tests.worlds.world import SourceMessage

Json = dict[str, Any]

EPOCH = "1970-01-01T00:00:00Z"
UNAVAILABLE = "__debezium_unavailable_value"

RUN_KEY_ONLY: Json = {"id": RUN, "workflow_name": "", "params": "", "status": "", "step_results": "", "revision": 0}
RUN_KEY_ONLY |= {"active_steps": "", "started_at": EPOCH, "completed_at": None, "error": None}
GATE_KEY_ONLY: Json = {"id": "r1/review", "prompt": "", "status": "", "payload": None, "created_at": EPOCH}
POLICY_ID = f"{attempt_of('s')}#policy:F5:row"
POLICY: Json = {"id": POLICY_ID, "at": "2026-10-01T09:00:00Z", "verdict": "allow", "decidedBy": "policy:F5"}
POLICY["policyRule"] = {"table": "F5", "rowId": "row", "version": 1}
POLICY_KEY_ONLY: Json = {"id": POLICY_ID, "at": EPOCH, "verdict": "", "decided_by": "", "policy_rule": ""}
EVENT_KEY_ONLY: Json = {"execution_id": "e1", "event_id": "e1:0", "revision": 0, "transition": "", "record": ""}


def deleted(topic: str, before: Json) -> SourceMessage:
    return message(topic, {"op": "d", "before": before, "after": None, "source": {}, "transaction": None})


@pytest.mark.parametrize("before", [RUN_KEY_ONLY, {"id": RUN}, {"id": RUN, "revision": None}])
def test_a_deleted_run_of_which_only_the_key_is_known_takes_what_came_before(before: Json) -> None:
    told = [message("workflow-runs", run(3)), deleted("workflow-runs", before)]
    assert records(told, in_order=True) == {}
    assert RUN in records([*told, message("workflow-runs", run(4))], in_order=True)


@pytest.mark.parametrize(("row", "before"), [(gate("r1/review"), GATE_KEY_ONLY), (POLICY, POLICY_KEY_ONLY)])
def test_a_deleted_gate_of_which_only_the_key_is_known_takes_what_came_before(row: Json, before: Json) -> None:
    told = [message("workflow-runs", run(1)), message("gate-decisions", row)]
    assert row["id"] in records(told, in_order=True)
    assert row["id"] not in records([*told, deleted("gate-decisions", before)], in_order=True)


def test_a_deleted_event_of_which_only_the_key_is_known_takes_that_event_and_no_other() -> None:
    moves = transitions("e1", attempt_of("s"))
    rows = [
        {"execution_id": "e1", "event_id": move["eventId"], "revision": index + 1, "transition": move}
        for index, move in enumerate(moves)
    ]
    told = [message("workflow-runs", run(1)), *(message("ledger-changes", row) for row in rows)]
    assert records(told, in_order=True)[attempt_of("s")]["phase"] == "succeeded"
    last = {**EVENT_KEY_ONLY, "event_id": moves[-1]["eventId"]}
    assert records([*told, deleted("ledger-changes", last)], in_order=True)[attempt_of("s")]["phase"] == "running"


def test_a_deleted_record_of_which_only_the_key_is_known_takes_its_execution() -> None:
    told = [message("workflow-runs", run(1)), message("ledger-changes", execution("e1", attempt_of("s")))]
    gone = deleted("ledger-changes", {"execution_id": "e1", "phase": "", "revision": 0})
    assert attempt_of("s") in records(told, in_order=True)
    assert attempt_of("s") not in records([*told, gone], in_order=True)


@pytest.mark.parametrize(
    ("topic", "row", "column"),
    [
        ("workflow-runs", run(2), "params"),
        ("workflow-runs", run(2), "error"),
        ("workflow-runs", run(2), "stepResults"),
        ("workflow-runs", run(2), "activeSteps"),
        ("workflow-runs", run(2), "workflowName"),
        ("gate-decisions", gate("r1/review"), "prompt"),
        ("gate-decisions", gate("r1/review", "resolved"), "payload"),
        ("gate-decisions", gate("r1/review", "cancelled"), "reason"),
        ("gate-decisions", gate("r1/review", "resolved"), "resolvedBy"),
        ("ledger-changes", {"record": execution("e1", attempt_of("s"))}, "record"),
        ("ledger-changes", {"transition": transitions("e1", attempt_of("s"))[0]}, "transition"),
    ],
)
def test_a_value_that_the_log_does_not_hold_is_missed_and_not_taken_for_a_text(
    topic: str, row: Json, column: str
) -> None:
    update = message(topic, {"op": "u", "before": None, "after": {**row, column: UNAVAILABLE}})
    with pytest.raises(ProjectionError) as caught:
        project_message(topic, None, update.value, 0, 0)
    assert (caught.value.reason, caught.value.field) == ("unavailable_value", column)


def test_a_value_that_nobody_asks_for_may_be_missing() -> None:
    plain = message("workflow-runs", {"op": "u", "after": run(2)})
    partly = message("workflow-runs", {"op": "u", "after": {**run(2), "notes": UNAVAILABLE}})
    assert project_message(*plain, 0, 0) == project_message(*partly, 0, 0)
    given = {**gate("r1/review"), "prompt": UNAVAILABLE, "promptSha256": "0" * 64}
    assert project_message(*message("gate-decisions", {"op": "u", "after": given}), 0, 0).facts
