"""Laws of the ledger feed: whatever rows arrive, in whatever order, they fold to what the ledger holds."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from projections.canonical import canonical_json
from projections.lifecycle import (
    TERMINAL_EXECUTION_PHASES,
    ExecutionTransitionError,
    fold_execution,
    require_execution_record,
    require_ledger_transition,
)
from tests.projections.lifecycle.ledger_histories import History, Json, at, conversation, histories


def joined(rows: list[tuple[str, Json]]) -> tuple[Json | None, dict[int, Json]]:
    """Join the rows of one execution as its facts are joined: newest record, one transition per expected revision."""
    record: Json | None = None
    transitions: dict[int, Json] = {}
    for kind, row in rows:
        if kind == "record":
            record = row if record is None or row["revision"] > record["revision"] else record
            continue
        held = transitions.get(row["expectedRevision"])
        if held is None or canonical_json(row) > canonical_json(held):
            transitions[row["expectedRevision"]] = row
    return record, transitions


def by_revision(history: History) -> dict[int, Json]:
    return {transition["expectedRevision"]: transition for transition in history.transitions}


def without_lease_end(record: Json | None) -> Json | None:
    """Leave out how long the row's lease runs: a supervisor renews its own lease without telling the row."""
    if record is None or "owner" not in record:
        return record
    return {**record, "owner": {name: record["owner"][name] for name in ("supervisorId", "generation")}}


@given(history=histories(supervised=False))
def test_transitions_alone_fold_to_the_record_that_the_reducer_gives(history: History) -> None:
    event(f"phase {history.records[-1]['phase']}")
    assert fold_execution(None, by_revision(history)) == (history.record, 0, 0)


@given(history=histories(supervised=True))
def test_transitions_fenced_by_a_supervisor_fold_too_but_for_the_end_of_its_lease(history: History) -> None:
    record, held_count, refused_count = fold_execution(None, by_revision(history))
    assert (held_count, refused_count) == (0, 0)
    assert without_lease_end(record) == without_lease_end(history.record)


@given(history=histories(), data=st.data())
def test_any_order_and_repetition_of_transitions_and_records_gives_the_same_record(
    history: History, data: st.DataObject
) -> None:
    rows: list[tuple[str, Json]] = [("transition", row) for row in history.transitions]
    known = data.draw(st.lists(st.sampled_from(history.records), max_size=4))
    rows += [("record", row) for row in known]
    again = data.draw(st.lists(st.sampled_from(rows), max_size=6))
    delivered = data.draw(st.permutations([*rows, *again]))
    folded = fold_execution(*joined(delivered))
    assert folded == fold_execution(*joined(rows))
    assert without_lease_end(folded.record) == without_lease_end(history.record)
    assert folded[1:] == (0, 0)


@given(history=histories(), data=st.data())
def test_rows_that_arrive_one_by_one_end_in_the_same_record_as_all_at_once(
    history: History, data: st.DataObject
) -> None:
    rows: list[tuple[str, Json]] = [("transition", row) for row in history.transitions]
    rows += [("record", row) for row in history.records]
    delivered = data.draw(st.permutations(rows))
    revisions = []
    for count in range(1, len(delivered) + 1):
        record = fold_execution(*joined(delivered[:count])).record
        revisions.append(0 if record is None else record["revision"])
    assert revisions == sorted(revisions), "a later row never takes the record back"
    assert fold_execution(*joined(delivered)).record == history.record


@given(history=histories(steps_max=8), data=st.data())
def test_a_gap_holds_and_counts_what_follows_until_it_is_filled(history: History, data: st.DataObject) -> None:
    gap = data.draw(st.integers(0, len(history.transitions) - 1))
    transitions = by_revision(history)
    missing = transitions.pop(gap)
    record, held_count, refused_count = fold_execution(None, transitions)
    before = history.records[gap - 1] if gap else None
    assert without_lease_end(record) == without_lease_end(before)
    assert (held_count, refused_count) == (len(history.transitions) - gap - 1, 0)
    full = fold_execution(None, {**transitions, gap: missing})
    assert without_lease_end(full.record) == without_lease_end(history.record)


@given(history=histories(steps_max=8), data=st.data())
def test_a_row_that_does_not_reduce_is_refused_and_holds_what_follows(history: History, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, len(history.transitions) - 1))
    transitions = by_revision(history)
    transitions[bad] = {**transitions[bad], "executionId": "another"}
    record, held_count, refused_count = fold_execution(None, transitions)
    before = history.records[bad - 1] if bad else None
    assert without_lease_end(record) == without_lease_end(before)
    assert (held_count, refused_count) == (len(history.transitions) - bad - 1, 1)


@given(history=histories(), following=histories(supervised=False))
def test_a_terminal_phase_is_absorbing(history: History, following: History) -> None:
    record = history.records[-1]
    later = [{**row, "expectedRevision": record["revision"] + step} for step, row in enumerate(following.transitions)]
    folded = fold_execution(record, {row["expectedRevision"]: row for row in later if row["kind"] != "prepare"})
    if record["phase"] in TERMINAL_EXECUTION_PHASES:
        event("terminal")
        assert folded.record == record
    for one, other in zip(history.records, history.records[1:], strict=False):
        assert one["phase"] not in TERMINAL_EXECUTION_PHASES
        assert other["revision"] == one["revision"] + 1


@given(history=histories())
def test_the_fold_changes_none_of_its_rows(history: History) -> None:
    before = deepcopy(history)
    fold_execution(None, by_revision(history))
    fold_execution(history.records[0], by_revision(history))
    assert history == before


def supervised_rows() -> list[Json]:
    """A row that was prepared in generation 4, outlived its first lease and its supervisor, and finished."""
    fence = {"supervisorId": "supervisor-a", "generation": 4}
    envelope = {"executionId": "exec-1", "eventId": "e"}
    running = {"runnerRef": "runner-1", "evidence": "ack", "adapterExecution": {"executionId": "adapter-1"}}
    return [
        {
            **envelope,
            "kind": "prepare",
            "expectedRevision": 0,
            "occurredAt": at(0),
            "execution": {"executionId": "exec-1"},
            "harness": "claude-code",
            "requestKey": "workflow:run-7:draft:0:0",
            "target": {"kind": "fresh", "namespace": "host-a"},
            "owner": {**fence, "leaseUntil": at(1)},
        },
        {**envelope, "kind": "begin_dispatch", "expectedRevision": 1, "occurredAt": at(5), "fence": fence},
        {
            **envelope,
            "kind": "observe_running",
            "expectedRevision": 2,
            "occurredAt": at(6),
            "fence": {**fence, "generation": 5},
            **running,
        },
        {
            **envelope,
            "kind": "finish",
            "expectedRevision": 3,
            "occurredAt": at(7),
            "fence": {**fence, "generation": 5},
            "terminal": {"outcome": "succeeded", "result": None},
        },
    ]


def test_rows_that_a_supervisor_wrote_after_their_own_lease_fold_to_the_end() -> None:
    rows = {row["expectedRevision"]: row for row in supervised_rows()}
    record, held_count, refused_count = fold_execution(None, rows)
    assert record is not None
    assert (record["phase"], record["revision"], record["ownerGeneration"]) == ("succeeded", 4, 5)
    assert (held_count, refused_count) == (0, 0)


@pytest.mark.parametrize(
    "fence",
    [{"supervisorId": "supervisor-a", "generation": 3}, {"supervisorId": "supervisor-b", "generation": 9}],
    ids=["an older generation", "another supervisor"],
)
def test_a_fence_that_no_mode_accepts_is_refused(fence: Json) -> None:
    rows = {row["expectedRevision"]: row for row in supervised_rows()}
    rows[2] = {**rows[2], "fence": fence}
    record, held_count, refused_count = fold_execution(None, rows)
    assert record is not None
    assert (record["phase"], record["revision"]) == ("dispatching", 2)
    assert (held_count, refused_count) == (1, 1)


def test_the_end_of_a_supervisors_lease_is_never_made_up() -> None:
    rows = {row["expectedRevision"]: row for row in supervised_rows()[:3]}
    record = fold_execution(None, rows).record
    assert record is not None
    assert record["owner"] == {"supervisorId": "supervisor-a", "generation": 5, "leaseUntil": at(1)}


def test_a_record_wins_over_transitions_of_its_own_and_earlier_revisions() -> None:
    rows = {row["expectedRevision"]: row for row in supervised_rows()}
    record = fold_execution(None, {revision: rows[revision] for revision in (0, 1)}).record
    assert record is not None
    newer = {**record, "revision": 3, "phase": "recovery_required"}
    folded = fold_execution(newer, {revision: rows[revision] for revision in (0, 1, 2)})
    assert folded == (newer, 0, 0)


def test_nothing_known_folds_to_nothing() -> None:
    assert fold_execution(None, {}) == (None, 0, 0)


@pytest.mark.parametrize("revision", [None, "3", 1.5, True], ids=str)
def test_a_record_without_a_usable_revision_is_refused_and_stands_for_nothing(revision: Any) -> None:
    rows = {row["expectedRevision"]: row for row in supervised_rows()}
    folded = fold_execution({"phase": "running", "revision": revision}, rows)
    assert folded.record is not None
    assert folded.record["phase"] == "succeeded"
    assert folded[1:] == (0, 1)


@given(history=histories())
def test_rows_of_a_ledger_pass_the_checks_of_the_feed(history: History) -> None:
    for transition, record in zip(history.transitions, history.records, strict=True):
        assert require_ledger_transition(transition) is transition
        assert require_execution_record(record) is record


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"executionId": " "}, "blank", "executionId"),
        ({"eventId": None}, "blank", "eventId"),
        ({"expectedRevision": -1}, "not_nonnegative_integer", "expectedRevision"),
        ({"expectedRevision": 2**53}, "not_nonnegative_integer", "expectedRevision"),
        ({"occurredAt": "yesterday"}, "not_a_timestamp", "occurredAt"),
        ({"kind": "teleport"}, "kind_unknown", "kind"),
    ],
)
def test_a_transition_without_a_whole_envelope_is_no_row_of_a_feed(change: Json, reason: str, field: str) -> None:
    with pytest.raises(ExecutionTransitionError) as caught:
        require_ledger_transition({**supervised_rows()[1], **change})
    assert (caught.value.reason, caught.value.field) == (reason, field)


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        ({"execution": {"executionId": ""}}, "blank", "execution.executionId"),
        ({"execution": "exec-1"}, "not_an_object", "execution"),
        ({"harness": 5}, "blank", "harness"),
        ({"requestKey": None}, "blank", "requestKey"),
        ({"target": []}, "not_an_object", "target"),
        ({"phase": "flying"}, "phase_unknown", "phase"),
        ({"revision": 0}, "not_positive_integer", "revision"),
        ({"ownerGeneration": 1.5}, "not_positive_integer", "ownerGeneration"),
        ({"preparedAt": "x"}, "not_a_timestamp", "preparedAt"),
        ({"lastObservedAt": None}, "blank", "lastObservedAt"),
    ],
)
def test_a_record_without_what_a_trace_rests_on_is_no_row_of_a_feed(change: Json, reason: str, field: str) -> None:
    record = fold_execution(None, {0: supervised_rows()[0]}).record
    assert record is not None
    with pytest.raises(ExecutionTransitionError) as caught:
        require_execution_record({**record, **change})
    assert (caught.value.reason, caught.value.field) == (reason, field)


@pytest.mark.parametrize("value", [None, [], "row", 5], ids=repr)
def test_what_is_no_object_is_no_row_of_a_feed(value: Any) -> None:
    with pytest.raises(ExecutionTransitionError, match="not_an_object: transition"):
        require_ledger_transition(value)
    with pytest.raises(ExecutionTransitionError, match="not_an_object: record"):
        require_execution_record(value)


def test_a_conversation_that_comes_with_the_finish_is_bound_by_the_fold() -> None:
    rows = supervised_rows()
    rows[3] = {**rows[3], "conversation": conversation("conv-9")}
    record = fold_execution(None, {row["expectedRevision"]: row for row in rows}).record
    assert record is not None
    assert record["execution"]["conversation"]["nativeId"] == "conv-9"
