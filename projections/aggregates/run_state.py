"""What the facts of one run say, and what is known about each of its attempts."""

from typing import Any

from projections.facts import Fact, FactSet
from projections.ids import attempt_id

_PENDING = "gate:pending:"

GateRows = dict[str, list[dict[str, Any]]]


class RunState:
    """What the facts of one run say, picked out of the fact set once per projection."""

    def __init__(self, run_id: str, facts: FactSet) -> None:
        self.run_id = run_id
        tombstones = facts.tombstones("tombstone:")
        deletions = facts.deletions("deletion")

        def standing(prefix: str) -> list[Any]:
            found = facts.standing(prefix, lambda fact: tombstones.get(_partition(fact), -1), lambda _fact: deletions)
            return [fact.body for fact in found]

        snapshots = standing("snapshot")
        self.snapshot: dict[str, Any] | None = snapshots[0] if snapshots else None
        self.steps: list[dict[str, Any]] = self.snapshot["steps"] if self.snapshot else []
        self.actives: list[dict[str, Any]] = standing("active:")
        self.executions = [body for _id, body in facts.with_prefix("execution:")]
        self.usage = [body for _key, body in facts.with_prefix("usage:")]
        self.gates, self.policy_records, self.policy_evidence = _gate_rows(facts)


def _gate_rows(facts: FactSet) -> tuple[GateRows, GateRows, GateRows]:
    """Give the rows of human gates, policy records and policy evidence that stand, by gate id."""
    tombstones = facts.tombstones("tombstone-gate:")
    closes: dict[str, list[Fact]] = {}
    for fact in facts.deletions("gate:"):
        if not fact.key.startswith(_PENDING):
            closes.setdefault(gate_id_of(fact), []).append(fact)

    def rows(prefix: str) -> GateRows:
        # A gate is pending before it is closed: when its closed row was deleted, the pending one is no news.
        found = facts.standing(
            prefix,
            lambda fact: tombstones.get(f"{_partition(fact)}:{gate_id_of(fact)}", -1),
            lambda fact: closes.get(gate_id_of(fact), ()) if fact.key.startswith(_PENDING) else (),
        )
        by_id: GateRows = {}
        for fact in found:
            by_id.setdefault(gate_id_of(fact), []).append(fact.body)
        return by_id

    return rows("gate:"), rows("policy:record:"), rows("policy:evidence:")


def _partition(fact: Fact) -> str:
    assert fact.source is not None
    return str(fact.source[0])


def gate_id_of(fact: Fact) -> str:
    """Give the gate id at the end of a fact key ``gate:<status>:<digest>:<id>`` or ``policy:<label>:<digest>:<id>``."""
    return fact.key.split(":", 3)[3]


class Attempt:
    """Everything that is known about one attempt; of its ``executions`` the one in ``execution`` counts."""

    __slots__ = (
        "active",
        "attempt",
        "current",
        "execution",
        "executions",
        "first_gate_at",
        "id",
        "is_last",
        "iteration",
        "kind",
        "policy_at",
        "result",
        "run_id",
        "step",
        "usage",
    )

    def __init__(self, run_id: str, step: str, iteration: int, attempt: int) -> None:
        self.run_id = run_id
        self.step = step
        self.iteration = iteration
        self.attempt = attempt
        self.id = attempt_id(run_id, step, iteration, attempt)
        self.active: dict[str, Any] | None = None
        self.current: dict[str, Any] | None = None
        self.executions: list[dict[str, Any]] = []
        self.execution: dict[str, Any] | None = None
        self.usage: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self.is_last = False
        self.kind = "seed"
        self.first_gate_at: str | None = None
        self.policy_at: str | None = None

    @property
    def start(self) -> str | None:
        """When the attempt started (decisions: start of an attempt); None holds it back."""
        execution = self.execution
        started = self.active["startedAt"] if self.active else None
        completed = self.result["completedAt"] if self.result else None
        if self.kind == "dispatch":
            return (execution["preparedAt"] if execution else None) or started or completed
        gate_at = self.first_gate_at if self.kind == "assisted" else self.policy_at
        return started or gate_at or completed
