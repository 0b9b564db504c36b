"""The execution aggregate: ledger rows in; the folded record to its run and a binding to its conversation out."""

from typing import Any

from projections.aggregates.emitter import Emitter
from projections.facts import Fact, FactSet
from projections.ids import conversation_ref, split_attempt_id
from projections.lifecycle.ledger_feed import ExecutionFold, fold_execution
from projections.text import storable_text


class Execution:
    """One execution of the ledger; it has no record of its own."""

    def __init__(self, execution_id: str) -> None:
        self._id = execution_id
        self._facts = FactSet()
        self._emitter = Emitter()
        self._fold = ExecutionFold(None, 0, 0)

    @property
    def is_held(self) -> bool:
        """Whether transitions wait for one that is missing."""
        return self._fold.held_count > 0

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous."""
        return self._facts.join(fact).superseded

    def emit(self) -> Emitter:
        """Fold the rows up to the first missing revision and tell the run and the conversation."""
        self._fold = self._fold_rows()
        record = self._fold.record
        parts = None if record is None else split_attempt_id(record["requestKey"])
        facts: dict[tuple[str, str], Any] = {}
        if record is not None and parts is not None:
            bound = _bound_conversation(record)
            facts[(f"run:{parts.run}", f"execution:{self._id}")] = _told_run(record, bound)
            if bound is not None:
                facts[(bound, f"binding:{self._id}")] = [record["requestKey"], record["preparedAt"]]
        self._emitter.replace([], facts)
        return self._emitter

    def _fold_rows(self) -> ExecutionFold:
        tombstones = self._facts.tombstones("tombstone:")

        def hidden_before(fact: Fact) -> int:
            assert fact.source is not None
            return tombstones.get(str(fact.source[0]), -1)

        newest = self._facts.standing("record", hidden_before, deleted=True)
        record, revision = (newest[0].body, int(newest[0].version[0])) if newest else (None, 0)
        transitions = {
            int(fact.key.removeprefix("transition:")): fact.body["body"]
            for fact in self._facts.standing("transition:", hidden_before)
        }
        # A record that was deleted at its revision takes the transitions that made it with it.
        return fold_execution(record, {at: row for at, row in transitions.items() if record or at >= revision})


def _told_run(record: dict[str, Any], bound: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "executionId": storable_text(record["execution"]["executionId"]),
        "requestKey": record["requestKey"],
        "phase": record["phase"],
        "preparedAt": record["preparedAt"],
    }
    terminal = record.get("terminal") or {}
    if record["phase"] == "failed":
        told["retryable"] = terminal.get("retryable", False)
        told["error"] = storable_text(terminal.get("reason", ""))
    if record.get("runnerRef"):
        told["runnerRef"] = storable_text(record["runnerRef"])
    agent = (record.get("agent") or {}).get("agentId")
    if agent:
        told["agentId"] = storable_text(agent)
    own = record["execution"].get("conversation")
    if own:
        told["conversation"] = conversation_ref(own)
    if bound is not None:
        told["boundTo"] = bound
    if record.get("correlations"):
        told["correlations"] = {key: storable_text(value) for key, value in record["correlations"].items()}
    if record["execution"].get("promptSha256"):
        told["promptSha256"] = record["execution"]["promptSha256"]
    return told


def _bound_conversation(record: dict[str, Any]) -> str | None:
    """Give the ref of the conversation that an execution holds: its own, else its adapter's."""
    own = record["execution"].get("conversation") or (record.get("adapterExecution") or {}).get("conversation")
    return conversation_ref(own) if own else None
