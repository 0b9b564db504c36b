"""A fold that keeps nothing in memory says what one says that keeps everything."""

import gc
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.aggregates.conversation import Unbound
from projections.facts import Fact, decode_fact, encode_fact
from projections.fold import Fold, FoldResult
from projections.formats.assembly import Item
from tests.sizes import examples
from tests.worlds.cluster import Cluster, place
from tests.worlds.world import World

SEEDS = st.integers(min_value=0, max_value=100_000)
UNBOUND = st.sampled_from(["hold", "standalone"])


class Both(Fold):
    """A fold that keeps everything, and beside it one that is given the same and keeps little."""

    def __init__(self, unbound: Unbound, facts_max: int, random: Random) -> None:
        super().__init__(generation=1, unbound=unbound)
        self.shelf: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        self.facts_max = facts_max
        self.random = random
        self.forgetful = Fold(generation=1, unbound=unbound, load=self._load_shuffled)

    def _load_shuffled(self, name: str) -> list[Fact]:
        facts = [decode_fact(*row) for row in self.shelf[name].items()]
        self.random.shuffle(facts)
        return facts

    def apply(self, items: Sequence[tuple[int, Fact]]) -> FoldResult:
        result = super().apply(items)
        # Within a batch, each record and each derived fact is said once, so their order means nothing.
        assert in_order(self.forgetful.apply(items)) == in_order(result)
        for _offset, fact in items:
            key, value = encode_fact(fact)
            self.shelf[fact.aggregate][key] = value
        for key in result.superseded:
            self.shelf[decode_fact(key, b"null").aggregate].pop(key, None)
        self.forgetful.let_go(self.facts_max)
        return result


def in_order(result: FoldResult) -> tuple[list[str], ...]:
    return tuple(sorted(map(repr, part)) for part in result)


class Doubled(Cluster):
    """A cluster in which every fold has a forgetful one beside it."""

    def __init__(self, partition_count: int, unbound: str, facts_max: int, random: Random) -> None:
        self.both: list[Both] = []
        self._make: Callable[[], Both] = lambda: Both(
            "standalone" if unbound == "standalone" else "hold", facts_max, random
        )
        super().__init__(partition_count, unbound=unbound)

    def _fold(self) -> Fold:
        self.both.append(self._make())
        return self.both[-1]


def random_doubled(world: int, schedule: int, unbound: str, facts_max: int) -> Doubled:
    """Project everything in a random order with duplicates, in random batches."""
    random = Random(schedule)
    cluster = Doubled(random.randrange(1, 4), unbound, facts_max, random)
    placed = place(World(world).messages, random, 2)
    arrivals = placed + random.sample(placed, len(placed) // 3)
    random.shuffle(arrivals)
    for message in arrivals:
        cluster.project(message)
        while random.random() < 0.4:
            cluster.fold(random.randrange(cluster.count), random.choice([1, 2, 5, 50]))
    cluster.drain()
    return cluster


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(world=SEEDS, schedule=SEEDS, unbound=UNBOUND, facts_max=st.sampled_from([0, 0, 5, 40]))
def test_a_fold_that_forgets_after_every_batch_says_the_same_bytes_and_counts_the_same(
    world: int, schedule: int, unbound: str, facts_max: int
) -> None:
    for both in random_doubled(world, schedule, unbound, facts_max).both:
        assert both.forgetful.facts_held <= facts_max
        assert both.forgetful.held_counts() == both.held_counts()
        assert both.forgetful.counters() == both.counters()


@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(world=SEEDS, schedule=SEEDS, unbound=UNBOUND)
def test_totals_are_those_of_a_fold_that_was_restored_and_settled(world: int, schedule: int, unbound: str) -> None:
    for both in random_doubled(world, schedule, unbound, 10).both:
        begun = Fold(generation=1, load=lambda _name: (), totals=both.forgetful.totals())
        assert (begun.held_counts(), begun.counters()) == (both.held_counts(), both.counters())
        restored = Fold(generation=1, unbound="standalone" if unbound == "standalone" else "hold")
        restored.restore((0, decode_fact(*row)) for rows in both.shelf.values() for row in rows.items())
        while restored.settle(3):
            pass
        assert restored.held_counts() == both.held_counts()


def fact(name: str, revision: int = 1) -> Fact:
    return Fact(f"artifact:{name}", f"run:r{revision}", (1, revision), None)


def test_the_aggregates_that_were_not_touched_for_longest_are_let_go_first() -> None:
    shelf: dict[str, list[Fact]] = defaultdict(list)
    loads: list[str] = []

    def load(name: str) -> list[Fact]:
        loads.append(name)
        return shelf[name]

    fold = Fold(generation=1, load=load)
    for offset, name in enumerate(("a", "b", "c")):
        fold.apply([(offset, fact(name))])
        shelf[f"artifact:{name}"].append(fact(name))
    fold.apply([(3, fact("a", 2))])
    shelf["artifact:a"].append(fact("a", 2))
    assert fold.facts_held == 4
    fold.let_go(3)
    assert fold.missing(["artifact:a", "artifact:b", "artifact:c"]) == {"artifact:b"}
    fold.let_go(2)
    assert fold.missing(["artifact:a", "artifact:b", "artifact:c"]) == {"artifact:b", "artifact:c"}
    fold.apply([(4, fact("b", 2))])
    assert loads == ["artifact:a", "artifact:b", "artifact:c", "artifact:b"]
    assert fold.facts_held == 4


def test_a_large_aggregate_that_every_batch_touches_is_loaded_once_and_goes_when_none_touches_it() -> None:
    loads: list[str] = []

    def load(name: str) -> list[Fact]:
        loads.append(name)
        return []

    fold = Fold(generation=1, load=load)
    for batch in range(4):
        runs = range(batch * 200, (batch + 1) * 200)
        fold.apply([(run, fact("large", run)) for run in runs] + [(runs[-1], fact(f"small-{batch}"))])
        fold.let_go(10)
        # What follows from a batch comes in one of its own.
        fold.apply([(runs[-1], fact("another", batch))])
        fold.let_go(10)
        assert fold.missing(["artifact:large", f"artifact:small-{batch}"]) == {f"artifact:small-{batch}"}
    assert loads.count("artifact:large") == 1
    for batch in range(8):
        fold.apply([(1_000, fact("another", 10 + batch))])
    fold.let_go(10)
    assert fold.missing(["artifact:large", "artifact:another"]) == {"artifact:large"}


def test_a_fold_that_cannot_load_lets_nothing_go() -> None:
    with pytest.raises(AssertionError, match="loadable"):
        Fold(generation=1).let_go(0)


def test_totals_wait_until_everything_that_was_restored_is_settled() -> None:
    fold = Fold(generation=1)
    fold.restore([(0, Fact("execution:e", "record", (1,), {"revision": 1}))])
    with pytest.raises(AssertionError, match="settled"):
        fold.totals()


def test_what_is_let_go_is_freed_without_anybody_looking_for_garbage() -> None:
    cluster = Cluster(1)
    for message in place([message for seed in range(6) for message in World(seed).messages], None, 2):
        cluster.project(message)
    facts = [decode_fact(key, value) for key, value in cluster.logs[0] if value is not None]
    gc.collect()
    before = _items_in_memory()
    gc.disable()
    try:
        fold = Fold(generation=1, unbound="standalone", load=lambda _name: ())
        fold.apply(list(enumerate(facts)))
        assert _items_in_memory() > before + 100
        # What is large and was touched lately stays: nothing is touched for a while.
        for offset in range(10):
            fold.apply([(len(facts) + offset, fact("last", offset))])
        fold.let_go(0)
        assert (fold.facts_held, _items_in_memory()) == (0, before)
    finally:
        gc.enable()


def _items_in_memory() -> int:
    return sum(isinstance(one, Item) for one in gc.get_objects())
