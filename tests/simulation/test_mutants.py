"""The tests tested: every deliberate bug is found within the stated number of seeds."""

import re
from typing import NamedTuple

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.test_seeds import simulate


class Search(NamedTuple):
    """Where a bug is looked for: first in the world that showed it last, and then in all the first so many."""

    known: int
    seeds_max: int


# A change of what is tested gives a seed another run, so the known one may have to be written anew.
SEARCHES = {
    "commits-facts-before-flush": Search(0, 5),
    "commits-records-before-write": Search(0, 5),
    "last-arrival-wins": Search(1, 30),
    "greatest-of-each-field": Search(0, 30),
    "unfenced-zombie": Search(4, 60),
    "reads-offset-before-fencing": Search(36, 200),
    "keeps-state-that-is-ahead": Search(5, 30),
    "skips-lost-messages": Search(1, 60),
    "loses-dead-letters": Search(0, 10),
    "sink-takes-what-comes-last": Search(4, 100),
    "works-on-after-revocation": Search(4, 30),
    "commits-before-reopening": Search(20, 200),
    "compacts-facts-too-early": Search(72, 300),
}


def test_every_bug_is_searched_for() -> None:
    assert SEARCHES.keys() == MUTANTS.keys()


@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_deliberate_bug_is_found(mutant: str) -> None:
    search = SEARCHES[mutant]
    code, lines = simulate("--mutant", mutant, "--first", str(search.known), "--seeds", "1")
    if code == 0:
        code, lines = simulate("--mutant", mutant, "--seeds", str(search.seeds_max))
    assert re.fullmatch(r"\d+ passed, 1 failed", lines[-1]), f"not found in {search.seeds_max} seeds"
    assert code == 1
