"""Which facts come from source messages, and which one aggregate told another.

They are told apart twice, by keys and by versions, and a fact on which the two disagree is of a kind that this table
does not know yet: it is refused rather than taken for one or the other.
"""

from typing import Final

from projections.facts import Fact

_FROM_SOURCES: Final = frozenset(
    {
        ("conversation", "erased"),
        ("conversation", "line"),
        ("execution", "record"),
        ("execution", "tombstone"),
        ("execution", "tombstone-event"),
        ("execution", "transition"),
        ("run", "active"),
        ("run", "deletion"),
        ("run", "erased"),
        ("run", "gate"),
        ("run", "policy"),
        ("run", "snapshot"),
        ("run", "tombstone"),
        ("run", "tombstone-gate"),
    }
)


def is_from_source(fact: Fact) -> bool:
    """Say whether a fact comes from a source message; else an aggregate derived it from other facts.

    Raises ValueError for a fact of a kind that nobody has said this of.
    """
    named = (fact.aggregate.partition(":")[0], fact.key.partition(":")[0]) in _FROM_SOURCES
    # A derived fact's version is (generation, offset at which its sender stood), and no tombstone can reach it.
    versioned = len(fact.version) == 2 and fact.source is None
    if named == versioned:
        raise ValueError("a fact of an unknown kind")
    return named
