"""The law of the ledger feed, from message to attempt: rows in any order give what the reducer gives in its own."""

from typing import Any

import orjson
from hypothesis import event, given
from hypothesis import strategies as st

from projections.canonical import canonical_json
from projections.facts import Fact
from projections.fold import Change, Fold
from projections.lifecycle import TERMINAL_EXECUTION_PHASES, sanitize_record
from projections.sources import project_message
from tests.projections.lifecycle.ledger_histories import CONTENT, History, Json, histories

ATTEMPT = "workflow:run-7:draft:0:0"


def facts_of(rows: list[Json]) -> list[Fact]:
    """Project ledger rows as messages of one partition."""
    facts: list[Fact] = []
    for offset, row in enumerate(rows):
        facts += project_message("ledger-changes", None, orjson.dumps(row), 0, offset).facts
    return facts


class Feed:
    """A fold that gets its derived facts back, and everything it said about the attempt."""

    def __init__(self) -> None:
        self.fold = Fold(generation=1)
        self.changes: list[Change] = []
        self._offset = 0

    def deliver(self, facts: list[Fact]) -> "Feed":
        while facts:
            result = self.fold.apply(list(enumerate(facts, start=self._offset)))
            self._offset += len(facts)
            self.changes += [change for change in result.changes if change.kind == "attempt"]
            facts = result.facts
        return self

    @property
    def said(self) -> list[Json]:
        """Every version of the attempt."""
        return [orjson.loads(change.record) for change in self.changes if change.record is not None]

    @property
    def attempt(self) -> Json | None:
        return self.said[-1] if self.said else None


def expected(record: Json) -> Json:
    """Give the attempt that an execution record means, field by field (decisions; spec: titan 10)."""
    phase = record["phase"]
    fields: Json = {"schema": "titan.trace/v1", "kind": "attempt", "id": ATTEMPT, "runId": "run-7"}
    fields |= {"at": record["preparedAt"], "stepId": "draft", "iteration": 0, "attempt": 0, "stepKind": "dispatch"}
    fields |= {"executionId": "exec-1", "phase": phase}
    if phase == "ended":
        fields |= {"outcome": "failed", "retryable": False}
    elif phase == "failed":
        fields |= {
            "outcome": phase,
            "retryable": record["terminal"]["retryable"],
            "error": record["terminal"]["reason"],
        }
    elif phase in TERMINAL_EXECUTION_PHASES or phase == "recovery_required":
        fields["outcome"] = phase
    if "runnerRef" in record:
        fields["runnerRef"] = record["runnerRef"]
    if "agent" in record:
        fields["agentId"] = record["agent"]["agentId"]
    conversation = record["execution"].get("conversation")
    if conversation:
        parts = (conversation["harness"], conversation["namespace"], conversation["nativeId"])
        fields["conversation"] = ":".join(("conversation", *parts))
    prompt = sanitize_record(record)["execution"].get("promptSha256")
    return fields if prompt is None else {**fields, "promptSha256": prompt}


@given(history=histories(), data=st.data())
def test_any_order_repetition_and_batching_of_rows_gives_the_attempt_of_the_reducers_record(
    history: History, data: st.DataObject
) -> None:
    assert history.record is not None
    event(f"phase {history.record['phase']}")
    rows = [*history.transitions, *data.draw(st.lists(st.sampled_from(history.records), max_size=4))]
    if data.draw(st.booleans()):
        # The newest record makes every transition before it superfluous.
        rows = [*data.draw(st.lists(st.sampled_from(rows), max_size=6)), history.record]
    rows += data.draw(st.lists(st.sampled_from(rows), max_size=6))
    facts = facts_of(data.draw(st.permutations(rows)))
    feed = Feed()
    while facts:
        size = data.draw(st.integers(1, len(facts)))
        feed.deliver(facts[:size])
        facts = facts[size:]
    assert feed.attempt == expected(history.record)
    assert CONTENT.encode() not in b"".join(change.record or b"" for change in feed.changes)


@given(history=histories())
def test_transitions_alone_records_alone_and_both_give_equal_bytes(history: History) -> None:
    pairs = [
        {"transition": one, "record": after} for one, after in zip(history.transitions, history.records, strict=True)
    ]
    feeds = [Feed().deliver(facts_of(rows)) for rows in (history.transitions, history.records, pairs)]
    assert len({feed.changes[-1].record for feed in feeds}) == 1
    assert [feed.fold.held_counts()["execution"] for feed in feeds] == [0, 0, 0]


@given(history=histories(), data=st.data())
def test_what_is_said_of_an_attempt_never_goes_back_and_its_terminal_phase_is_absorbing(
    history: History, data: st.DataObject
) -> None:
    phases = [record["phase"] for record in history.records]
    feed = Feed()
    for fact in data.draw(st.permutations(facts_of([*history.transitions, *history.records]))):
        feed.deliver([fact])
    said = [record["phase"] for record in feed.said]
    # Phases may come again in a life, so each version is looked for after the one before it.
    place = 0
    for phase in said:
        place = phases.index(phase, place)
    assert sum(phase in TERMINAL_EXECUTION_PHASES for phase in said[:-1]) == 0
    assert said[-1] == phases[-1]


@given(history=histories(), later=histories(supervised=False), data=st.data())
def test_rows_after_the_end_change_nothing(history: History, later: History, data: st.DataObject) -> None:
    assert history.record is not None
    if history.record["phase"] not in TERMINAL_EXECUTION_PHASES:
        return
    event("terminal")
    revision = history.record["revision"]
    tail = [{**row, "expectedRevision": revision + step} for step, row in enumerate(later.transitions)]
    rows = data.draw(st.permutations([*history.transitions, *tail]))
    assert Feed().deliver(facts_of(rows)).attempt == expected(history.record)


@given(history=histories(steps_max=8), data=st.data())
def test_a_gap_holds_what_follows_and_is_seen_until_it_is_filled(history: History, data: st.DataObject) -> None:
    gap = data.draw(st.integers(0, len(history.transitions) - 1))
    rest = [row for row in history.transitions if row["expectedRevision"] != gap]
    feed = Feed().deliver(facts_of(data.draw(st.permutations(rest))))
    is_held = gap < len(history.transitions) - 1
    assert feed.fold.held_counts()["execution"] == is_held
    assert feed.attempt == (expected(history.records[gap - 1]) if gap else None)
    feed.deliver(facts_of([history.transitions[gap]]))
    assert feed.fold.held_counts()["execution"] == 0
    assert history.record is not None
    assert feed.attempt == expected(history.record)


@given(history=histories(steps_max=6), data=st.data())
def test_of_two_events_at_one_revision_the_greater_canonical_json_stands_and_the_conflict_is_counted(
    history: History, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(history.transitions) - 1))
    # The note is content: it is kept in no fact, and tells the two apart all the same.
    rivals: list[Json] = [{**history.transitions[at], "eventId": name, "note": name} for name in ("rival-a", "rival-b")]
    rest = [row for row in history.transitions if row["expectedRevision"] != at]
    winner = max(rivals, key=canonical_json)
    alone = Feed().deliver(facts_of([*rest, winner]))
    orders = [[*rest, *rivals], [*reversed(rivals), *rest], [*rest, *rivals, *rivals]]
    feeds = [Feed().deliver(facts_of(rows)) for rows in orders]
    assert [feed.attempt for feed in feeds] == [alone.attempt] * len(orders)
    assert [feed.fold.counters()["event_conflicts"] for feed in feeds] == [1] * len(orders)
    assert alone.fold.counters()["event_conflicts"] == 0


@given(history=histories(steps_max=6))
def test_the_same_event_again_is_no_conflict_and_says_nothing(history: History) -> None:
    feed = Feed().deliver(facts_of(history.transitions))
    said = len(feed.changes)
    feed.deliver(facts_of(history.transitions))
    assert len(feed.changes) == said
    assert feed.fold.counters()["event_conflicts"] == 0


def rival_bodies() -> list[Json]:
    """Two prepares of one execution that differ in what an attempt shows."""
    lease = {"supervisorId": "s", "generation": 1, "leaseUntil": "2027-01-01T00:00:00Z"}
    prepare: dict[str, Any] = {"kind": "prepare", "executionId": "exec-1", "eventId": "e", "expectedRevision": 0}
    prepare |= {"occurredAt": "2026-01-01T00:00:00Z", "execution": {"executionId": "exec-1"}, "harness": "claude-code"}
    prepare |= {"requestKey": ATTEMPT, "target": {"kind": "fresh", "namespace": "n"}, "owner": lease}
    return [{**prepare, "agent": {"agentId": name}} for name in ("agent-a", "agent-b")]


def test_the_winner_of_a_conflict_is_the_same_in_both_orders_and_shows() -> None:
    first, second = rival_bodies()
    for rows in ([first, second], [second, first]):
        feed = Feed().deliver(facts_of(rows))
        assert feed.attempt is not None
        assert feed.attempt["agentId"] == "agent-b"
