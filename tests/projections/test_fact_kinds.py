"""Facts of sources and derived facts are told apart, all of them."""

import pytest

from projections.errors import ProjectionError
from projections.fact_kinds import is_from_source
from projections.facts import Fact
from projections.fold import Fold
from projections.sources import project_message
from tests.worlds.world import World


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_every_fact_of_a_world_is_known_for_what_it_is(seed: int) -> None:
    fold = Fold(generation=1, unbound="standalone")
    offset = 0
    for index, message in enumerate(World(seed, runs=3).messages):
        try:
            facts = project_message(message.topic, message.key, message.value, 0, index).facts
        except ProjectionError:
            continue
        assert all(map(is_from_source, facts))
        while facts:
            derived = fold.apply(list(enumerate(facts, offset))).facts
            offset += len(facts)
            assert not any(map(is_from_source, derived))
            facts = derived


@pytest.mark.parametrize(
    "fact",
    [
        Fact("run:r", "news", (1,), {}, (0, 1)),
        Fact("run:r", "snapshot:x", (1, 2), {}),
        Fact("weather:w", "line:x", (), {}),
    ],
)
def test_a_fact_of_an_unknown_kind_is_refused(fact: Fact) -> None:
    with pytest.raises(ValueError, match="unknown kind"):
        is_from_source(fact)
