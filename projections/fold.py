"""The fold: facts of one partition in, record changes and derived facts out; the same code with and without Kafka."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from projections.aggregates.artifact import Artifact
from projections.aggregates.conversation import Conversation, Unbound
from projections.aggregates.emitter import Change, Emitter
from projections.aggregates.execution import Execution
from projections.aggregates.meeting import Meeting
from projections.aggregates.run import Run
from projections.facts import Fact, encode_fact

__all__ = ["Change", "Fold", "FoldResult", "Load"]

_HELD = "held:"
# An aggregate is large with so many facts, or with this share of all that may be in memory.
_LARGE_FACTS_MIN = 100
_LARGE_SHARE = 16
# What follows from a batch comes back in batches of its own, between those of what grows.
_LATELY_BATCHES = 8
_FINDINGS = ("event_conflicts", "refused_transitions", "late_gate_closes", "dropped_correlations")

Load = Callable[[str], Iterable[Fact]]
"""Gives all facts of an aggregate that were joined before and are not in memory, in any order; none for a new one."""


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
    """The state of one partition of the facts log: the join of its facts, and the records that follow from it.

    With ``load`` it need not be in memory as a whole: an aggregate that was let go is loaded when a fact touches it,
    and what it had said follows from its facts. ``totals`` is what a fold with the same facts gave as ``totals()``.
    """

    def __init__(
        self,
        *,
        generation: int,
        unbound: Unbound = "hold",
        load: Load | None = None,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        self._generation = generation
        self._load = load
        # The least recently touched first.
        self._aggregates: OrderedDict[str, Aggregate] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._facts_held = 0
        self._lately_touched: deque[frozenset[str]] = deque(maxlen=_LATELY_BATCHES)
        self._unprimed: set[str] = set()
        self._uncounted: set[str] = set()
        self._uncounted_runs: set[str] = set()
        self._totals = Counter(totals or {})
        # What the totals hold of the aggregates in memory; most have nothing to count.
        self._tallies: dict[str, dict[str, int]] = {}
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
            name = fact.aggregate
            self._join(name, self._aggregate(name), fact)
            self._unprimed.add(name)
            self._uncounted.add(name)
            if name.startswith("run:"):
                self._uncounted_runs.add(name)

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
            beaten = self._join(fact.aggregate, aggregate, fact)
            if beaten:
                superseded += [encode_fact(one)[0] for one in beaten]
        self._lately_touched.append(frozenset(touched))
        result = FoldResult([], [], superseded)
        for name, aggregate in touched.items():
            changes, said = aggregate.emit().take()
            result.changes.extend(changes)
            version = (self._generation, items[-1][0])
            result.facts.extend(Fact(one.aggregate, one.key, version, one.body) for one in said)
            self._count(name, aggregate)
        return result

    def held_counts(self) -> dict[str, int]:
        """Count, per kind of aggregate, how many hold something back until another fact comes."""
        self._count_restored()
        return {kind: self._totals[_HELD + kind] for kind in self._makers}

    def counters(self) -> dict[str, int]:
        """Count what the facts of this partition hold and no record shows, by bounded name.

        ``event_conflicts``: revisions of the ledger with two transitions. ``refused_transitions``: transitions that do
        not reduce. ``late_gate_closes``: closes of a gate that was closed before. ``dropped_correlations``: keys of a
        run beyond 32. What was restored of a run counts again as soon as something new touches it, or it is settled.
        """
        self._count_restored()
        return {name: self._totals[name] for name in _FINDINGS}

    # ------------------------------------------------------------------------------------------- beyond memory

    @property
    def facts_held(self) -> int:
        """How many facts are in memory; one that came again before its aggregate was let go counts again."""
        return self._facts_held

    def missing(self, names: Iterable[str]) -> set[str]:
        """Give those of these aggregates that are not in memory: their next fact makes the fold load them."""
        return set(names) - self._aggregates.keys()

    def let_go(self, facts_max: int) -> None:
        """Let the least recently touched aggregates go until at most so many facts are in memory.

        Large ones that the last few batches touched stay, and come on top: the next one is likely to touch them, too,
        and would load them whole. Only for a fold with ``load``, and only when that gives everything that was joined.
        """
        assert self._load is not None, "what is let go must be loadable"
        large = max(_LARGE_FACTS_MIN, facts_max // _LARGE_SHARE)
        gone, held = [], self._facts_held
        for name in self._aggregates:
            if held <= facts_max:
                break
            if self._sizes[name] < large or not any(name in touched for touched in self._lately_touched):
                gone.append(name)
                held -= self._sizes[name]
        for name in gone:
            self._settle(name)
            del self._aggregates[name]
            self._facts_held -= self._sizes.pop(name)
            self._tallies.pop(name, None)
            self._unprimed.discard(name)

    def settle(self, aggregates_max: int) -> bool:
        """Count what some of the restored aggregates hold back and have found; says whether there are more.

        With all of them counted, ``totals`` is what it would be had the fold never been restored.
        """
        for name in list(islice(self._uncounted_runs or self._uncounted, aggregates_max)):
            self._settle(name)
        return bool(self._uncounted)

    def totals(self) -> dict[str, int]:
        """Give what is counted over all aggregates, for a fold that begins with none of them in memory."""
        assert not self._uncounted, "restored aggregates are settled first"
        return +self._totals

    def _settle(self, name: str) -> None:
        if name in self._uncounted_runs:
            self._uncounted_runs.discard(name)
            # Only by projecting does a run find out what it holds back. One that cannot be projected stays as it is:
            # the next fact that touches it meets the same error, where facts can be refused.
            try:
                self._primed(name)
            except Exception:  # noqa: BLE001  (whatever a projection raises)
                self._unprimed.add(name)
        self._count(name, self._aggregates[name])

    def _count_restored(self) -> None:
        for name in list(self._uncounted - self._uncounted_runs):
            self._count(name, self._aggregates[name])

    def _count(self, name: str, aggregate: Aggregate) -> None:
        """Bring the totals up to date with one aggregate."""
        self._uncounted.discard(name)
        self._uncounted_runs.discard(name)
        now, then = _tally(name, aggregate), self._tallies.pop(name, None)
        if now:
            self._tallies[name] = now
        if now != (then or {}):
            self._totals.update(now)
            self._totals.subtract(then or {})

    # ----------------------------------------------------------------------------------------------- aggregates

    def _aggregate(self, name: str) -> Aggregate:
        aggregate = self._aggregates.get(name)
        if aggregate is None:
            kind, _colon, native = name.partition(":")
            aggregate = self._makers[kind](native)
            loaded = 0
            for fact in () if self._load is None else self._load(name):
                aggregate.join(fact)
                loaded += 1
            if loaded:
                # It said all that follows from these facts before it was let go, and the totals hold what it counts.
                aggregate.emit().take()
                if tally := _tally(name, aggregate):
                    self._tallies[name] = tally
            self._aggregates[name] = aggregate
            self._sizes[name] = loaded
            self._facts_held += loaded
        else:
            self._aggregates.move_to_end(name)
        return aggregate

    def _join(self, name: str, aggregate: Aggregate, fact: Fact) -> tuple[Fact, ...]:
        superseded = aggregate.join(fact)
        grown = 1 - len(superseded)
        self._sizes[name] += grown
        self._facts_held += grown
        return superseded

    def _primed(self, name: str) -> Aggregate:
        """Give an aggregate whose emitter knows what was emitted before: what its restored facts project to."""
        aggregate = self._aggregate(name)
        if name in self._unprimed:
            self._unprimed.discard(name)
            aggregate.emit().take()
        return aggregate


def _tally(name: str, aggregate: Aggregate) -> dict[str, int]:
    tally = {finding: count for finding, count in aggregate.counters.items() if count}
    if aggregate.is_held:
        tally[_HELD + name.partition(":")[0]] = 1
    return tally
