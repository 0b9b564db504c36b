"""The tests tested: every deliberate bug is found within the stated number of seeds."""

import re

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.test_seeds import simulate

# The number of seeds within which each bug has to show; most show in the first few.
SEEDS_MAX = {
    "commits-facts-before-flush": 5,
    "commits-records-before-write": 5,
    "last-arrival-wins": 30,
    "greatest-of-each-field": 30,
    "unfenced-zombie": 60,
    "reads-offset-before-fencing": 200,
    "keeps-state-that-is-ahead": 30,
    "skips-lost-messages": 60,
    "loses-dead-letters": 10,
    "sink-takes-what-comes-last": 100,
    "works-on-after-revocation": 30,
    "commits-before-reopening": 100,
    "compacts-facts-too-early": 100,
}


def test_every_bug_has_its_number() -> None:
    assert SEEDS_MAX.keys() == MUTANTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_deliberate_bug_is_found(mutant: str) -> None:
    code, lines = simulate("--mutant", mutant, "--seeds", str(SEEDS_MAX[mutant]))
    assert re.fullmatch(r"\d+ passed, 1 failed", lines[-1]), f"not found in {SEEDS_MAX[mutant]} seeds"
    assert code == 1
