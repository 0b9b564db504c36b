"""The execution aggregate: ledger rows in; the folded record to its run and a binding to its conversation out."""

from typing import Any

from projections.aggregates.emitter import Emitter
from projections.facts import Fact, FactSet
from projections.ids import attempt_id, conversation_ref, split_attempt_id
from projections.lifecycle.ledger_feed import ExecutionFold, fold_execution


class Execution:
    """One execution of the ledger; it has no record of its own."""

    def __init__(self, execution_id: str) -> None:
        self._id = execution_id
        self._facts = FactSet()
        self._emitter = Emitter()
        self._known: ExecutionFold | None = None
        self._contested: set[str] = set()

    @property
    def folded(self) -> ExecutionFold:
        """What the rows that are known come to, up to the first missing revision."""
        if self._known is None:
            self._known = self._fold_rows()
        return self._known

    @property
    def is_held(self) -> bool:
        """Whether transitions wait for one that is missing."""
        return self.folded.held_count > 0

    @property
    def counters(self) -> dict[str, int]:
        """Revisions that two transitions claim, and transitions that do not reduce."""
        return {"event_conflicts": len(self._contested), "refused_transitions": self.folded.refused_count}

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous.

        Of two transitions of one revision the one that counts for nothing stays in the log, as evidence.
        """
        self._known = None
        front = self._facts.front(fact.key)
        rivals = [held for held in front if held.body is not None and held.body != fact.body] if front else []
        superseded = self._facts.join(fact).superseded
        if rivals and fact.body is not None and fact.key.startswith("transition:"):
            self._contested.add(fact.key)
            superseded = tuple(one for one in superseded if one not in rivals and one is not fact)
        return superseded

    def emit(self) -> Emitter:
        """Fold the rows up to the first missing revision and tell the run and the conversation."""
        record = self.folded.record
        parts = None if record is None else split_attempt_id(record["requestKey"])
        facts: dict[tuple[str, str], Any] = {}
        if record is not None and parts is not None:
            attempt = attempt_id(*parts)
            bound = _bound_conversation(record)
            facts[(f"run:{parts.run}", f"execution:{self._id}")] = _told_run(record, attempt, bound)
            if bound is not None:
                facts[(bound, f"binding:{self._id}")] = [attempt, record["preparedAt"]]
        self._emitter.replace([], facts)
        return self._emitter

    def _fold_rows(self) -> ExecutionFold:
        tombstones = self._facts.tombstones("tombstone:")
        of_events = self._facts.tombstones("tombstone-event:")
        # A record that was deleted at its revision takes the transitions that made it with it.
        deletions = self._facts.deletions("record")

        def hidden_before(fact: Fact) -> int:
            if not (tombstones or of_events):
                return -1
            assert fact.source is not None
            row = {} if fact.body is None else fact.body.get("body", fact.body)
            partition = fact.source[0]
            of_event = of_events.get(f"{partition}:{row.get('eventId')}", -1)
            return max(tombstones.get(str(partition), -1), of_event)

        records = self._facts.standing("record", hidden_before)
        standing = self._facts.standing("transition:", hidden_before, lambda _fact: deletions)
        transitions = {int(fact.key.removeprefix("transition:")): fact.body["body"] for fact in standing}
        return fold_execution(records[0].body if records else None, transitions)


def _told_run(record: dict[str, Any], attempt: str, bound: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "executionId": record["execution"]["executionId"],
        "requestKey": attempt,
        "phase": record["phase"],
        "preparedAt": record["preparedAt"],
    }
    if record["phase"] == "failed":
        terminal = record.get("terminal") or {}
        for name, field in (("retryable", "retryable"), ("error", "reason")):
            if field in terminal:
                told[name] = terminal[field]
    if record.get("runnerRef"):
        told["runnerRef"] = record["runnerRef"]
    agent = (record.get("agent") or {}).get("agentId")
    if agent:
        told["agentId"] = agent
    own = record["execution"].get("conversation")
    if own:
        told["conversation"] = conversation_ref(own)
    if bound is not None:
        told["boundTo"] = bound
    if record.get("correlations"):
        told["correlations"] = record["correlations"]
    if record["execution"].get("promptSha256"):
        told["promptSha256"] = record["execution"]["promptSha256"]
    return told


def _bound_conversation(record: dict[str, Any]) -> str | None:
    """Give the ref of the conversation that an execution holds: its own, else its adapter's."""
    own = record["execution"].get("conversation") or (record.get("adapterExecution") or {}).get("conversation")
    return conversation_ref(own) if own else None
