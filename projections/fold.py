"""The fold: facts of one partition in, record changes and derived facts out; the same code with and without Kafka."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from projections.aggregates.artifact import Artifact
from projections.aggregates.conversation import Conversation, Unbound
from projections.aggregates.emitter import Change, Emitter
from projections.aggregates.execution import Execution
from projections.aggregates.meeting import Meeting
from projections.aggregates.run import Run
from projections.facts import Fact, encode_fact

__all__ = ["Change", "Fold", "FoldResult"]


class Aggregate(Protocol):
    """One owner of facts: the only writer of its records and of what it tells others."""

    @property
    def is_held(self) -> bool:
        """Whether something waits for facts that have not come."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What was decided against some fact, by bounded name, and how often."""

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous."""

    def emit(self) -> Emitter:
        """Bring records and derived facts up to date."""


class FoldResult(NamedTuple):
    """What one batch of facts changed.

    ``facts`` are derived facts for the facts log, ``superseded`` keys of facts in this partition's log that nobody
    needs any more.
    """

    changes: list[Change]
    facts: list[Fact]
    superseded: list[bytes]


class Fold:
    """The state of one partition of the facts log: the join of its facts, and the records that follow from it."""

    def __init__(self, *, generation: int, unbound: Unbound = "hold") -> None:
        self._generation = generation
        self._aggregates: dict[str, Aggregate] = {}
        self._unprimed: set[str] = set()
        self._makers: dict[str, Callable[[str], Aggregate]] = {
            "run": Run,
            "execution": Execution,
            "conversation": lambda native: Conversation(f"conversation:{native}", unbound=unbound),
            "artifact": Artifact,
            "meeting": Meeting,
        }

    def restore(self, items: Iterable[tuple[int, Fact]]) -> None:
        """Join (offset, fact) rows whose outputs are already in the logs; nothing is emitted for them."""
        for _offset, fact in items:
            self._aggregate(fact.aggregate).join(fact)
            self._unprimed.add(fact.aggregate)

    def apply(self, items: Sequence[tuple[int, Fact]]) -> FoldResult:
        """Join a batch of (offset, fact) rows in log order and emit what changed, and nothing else.

        The derived facts carry (generation, last offset of the batch) as their version: this fold is their only
        writer, so a later batch always supersedes an earlier one.
        """
        touched: dict[str, Aggregate] = {}
        superseded: list[bytes] = []
        for _offset, fact in items:
            aggregate = touched.get(fact.aggregate)
            if aggregate is None:
                aggregate = touched[fact.aggregate] = self._primed(fact.aggregate)
            superseded += [encode_fact(one)[0] for one in aggregate.join(fact)]
        result = FoldResult([], [], superseded)
        for aggregate in touched.values():
            changes, said = aggregate.emit().take()
            result.changes.extend(changes)
            version = (self._generation, items[-1][0])
            result.facts.extend(Fact(one.aggregate, one.key, version, one.body) for one in said)
        return result

    def held_counts(self) -> dict[str, int]:
        """Count, per kind of aggregate, how many hold something back until another fact comes."""
        counts = dict.fromkeys(self._makers, 0)
        for name, aggregate in self._aggregates.items():
            counts[name.partition(":")[0]] += aggregate.is_held
        return counts

    def counters(self) -> dict[str, int]:
        """Count what the facts of this partition hold and no record shows, by bounded name.

        ``event_conflicts``: revisions of the ledger with two transitions. ``refused_transitions``: transitions that do
        not reduce. ``late_gate_closes``: closes of a gate that was closed before. ``dropped_correlations``: keys of a
        run beyond 32. What was restored counts again as soon as something new touches it.
        """
        counts: Counter[str] = Counter()
        for aggregate in self._aggregates.values():
            counts.update(aggregate.counters)
        return dict(counts)

    def _aggregate(self, name: str) -> Aggregate:
        aggregate = self._aggregates.get(name)
        if aggregate is None:
            kind, _colon, native = name.partition(":")
            aggregate = self._aggregates[name] = self._makers[kind](native)
        return aggregate

    def _primed(self, name: str) -> Aggregate:
        """Give an aggregate whose emitter knows what was emitted before: what its restored facts project to."""
        aggregate = self._aggregate(name)
        if name in self._unprimed:
            self._unprimed.discard(name)
            aggregate.emit().take()
        return aggregate
