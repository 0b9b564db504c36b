"""Facts and their join: the one idea that makes a trace a function of the set of source messages.

Rules for editing this module: the join must stay commutative, associative and idempotent; a rank may depend on the
fact alone, never on when or where it arrived (the source position of a fact is part of the fact).
"""

import zlib
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from projections.canonical import canonical_json

Version = tuple[int | str, ...]

_DIGEST_BYTES = 12


class Fact(NamedTuple):
    """One thing that is known about one aggregate.

    ``aggregate`` is ``<kind>:<id>``; ``key`` names what is known; ``version`` comes from the source alone and has one
    shape per key. ``body`` is JSON made of dicts, lists, texts, numbers, booleans and null, without content; None says
    "deleted at this version". ``source`` is (partition, offset) of the message in its source topic and is given only
    for keys that a bare tombstone can reach.
    """

    aggregate: str
    key: str
    version: Version
    body: Any
    source: tuple[int, int] | None = None


def partition_of(name: str, partition_count: int) -> int:
    """Give the partition of an aggregate (facts) or of a record id (records): CRC-32 of its UTF-8, modulo the count."""
    return zlib.crc32(name.encode()) % partition_count


def encode_fact(fact: Fact) -> tuple[bytes, bytes]:
    """Give the key and the value of a fact in the facts log.

    The key holds everything that tells two facts apart (a digest stands for the body), so log compaction folds equal
    facts together and never lets one fact overwrite another.
    """
    value = orjson.dumps(fact.body)
    digest = blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()
    return orjson.dumps((fact.aggregate, fact.key, fact.version, fact.source, digest)), value


def decode_fact(key: bytes, value: bytes) -> Fact:
    """Read a fact back from the facts log; the inverse of encode_fact."""
    aggregate, name, version, source, _digest = orjson.loads(key)
    return Fact(aggregate, name, tuple(version), orjson.loads(value), tuple(source) if source else None)


def outranks(one: Fact, other: Fact) -> bool:
    """Say whether ``one`` beats ``other`` of the same key: version, then deletion, then the greater canonical JSON."""
    if one.version != other.version:
        return one.version > other.version
    if one.body is None or other.body is None:
        return one.body is None and other.body is not None
    return one.body != other.body and canonical_json(one.body) > canonical_json(other.body)


class Joined(NamedTuple):
    """What joining one fact did: whether the set changed, and which facts of the log nobody needs any more."""

    changed: bool
    superseded: tuple[Fact, ...]


_UNCHANGED = Joined(changed=False, superseded=())
_ADDED = Joined(changed=True, superseded=())


class FactSet:
    """The facts of one aggregate that still matter.

    A key without source positions keeps its greatest fact. A key that tombstones can reach keeps, per source
    partition, the Pareto front over (rank, offset): whatever tombstone arrives later, the greatest fact published
    after it is still here.
    """

    __slots__ = ("_fronts", "_greatest")

    def __init__(self) -> None:
        self._greatest: dict[str, Fact] = {}
        self._fronts: dict[str, list[Fact]] = {}

    def join(self, fact: Fact) -> Joined:
        """Add one fact; commutative, associative and idempotent."""
        if fact.source is not None:
            return self._join_front(fact)
        held = self._greatest.get(fact.key)
        if held is None:
            self._greatest[fact.key] = fact
            return _ADDED
        if outranks(fact, held):
            self._greatest[fact.key] = fact
            return Joined(changed=True, superseded=(held,))
        return _UNCHANGED if fact == held else Joined(changed=False, superseded=(fact,))

    def _join_front(self, fact: Fact) -> Joined:
        front = self._fronts.get(fact.key)
        if front is None:
            self._fronts[fact.key] = [fact]
            return _ADDED
        if any(_dominates(held, fact) for held in front):
            return _UNCHANGED if fact in front else Joined(changed=False, superseded=(fact,))
        beaten = tuple(held for held in front if _dominates(fact, held))
        front[:] = [held for held in front if held not in beaten]
        front.append(fact)
        return Joined(changed=True, superseded=beaten)

    def body(self, key: str) -> Any:
        """Give the body of the greatest fact of a key without source positions; None when there is none."""
        fact = self._greatest.get(key)
        return None if fact is None else fact.body

    def with_prefix(self, prefix: str) -> list[tuple[str, Any]]:
        """List (rest of the key, body) of the living facts whose key starts with ``prefix``, in key order."""
        return sorted(
            (
                (key[len(prefix) :], fact.body)
                for key, fact in self._greatest.items()
                if key.startswith(prefix) and fact.body is not None
            ),
            key=lambda row: row[0],
        )

    def version(self, key: str) -> Version | None:
        """Give the greatest version of a key without source positions; None when there is no such fact."""
        fact = self._greatest.get(key)
        return None if fact is None else fact.version

    def front(self, key: str) -> list[Fact]:
        """List the facts of a key with source positions that may still matter."""
        return list(self._fronts.get(key, ()))

    def deletions(self, prefix: str) -> list[Fact]:
        """List the deletions under ``prefix``, for ``standing``."""
        return [
            fact for key, front in self._fronts.items() if key.startswith(prefix) for fact in front if fact.body is None
        ]

    def standing(
        self,
        prefix: str,
        hidden_before: Callable[[Fact], int],
        deletions_of: Callable[[Fact], Iterable[Fact]] = lambda _fact: (),
    ) -> list[Fact]:
        """List the greatest facts under ``prefix`` that tombstones and deletions left standing, in key order.

        ``hidden_before`` gives, for a fact, the offset of the newest tombstone of its id in its source partition (-1
        without one). A deletion takes down the facts of its version and below, but not those that its own partition
        published after a later tombstone: there the id began anew. ``deletions_of`` gives the deletions of other keys
        that take a fact down, too.
        """
        standing: list[Fact] = []
        for key in sorted(key for key in self._fronts if key.startswith(prefix)):
            front = self._fronts[key]
            own = [fact for fact in front if fact.body is None]
            best: Fact | None = None
            for fact in front:
                if fact.body is None or _is_hidden(fact, hidden_before) or (best is not None and outranks(best, fact)):
                    continue
                if not any(_takes_down(one, fact, hidden_before) for one in (*own, *deletions_of(fact))):
                    best = fact
            if best is not None:
                standing.append(best)
        return standing

    def tombstones(self, prefix: str) -> dict[str, int]:
        """Map (rest of the key) to the offset of each tombstone ``<prefix><rest>``."""
        return {
            key[len(prefix) :]: int(fact.version[0]) for key, fact in self._greatest.items() if key.startswith(prefix)
        }


def _is_hidden(fact: Fact, hidden_before: Callable[[Fact], int]) -> bool:
    assert fact.source is not None
    return fact.source[1] < hidden_before(fact)


def _takes_down(deletion: Fact, fact: Fact, hidden_before: Callable[[Fact], int]) -> bool:
    assert deletion.source is not None
    assert fact.source is not None
    began_anew = deletion.source[0] == fact.source[0] and _is_hidden(deletion, hidden_before)
    return deletion.version >= fact.version and not began_anew


def _dominates(one: Fact, other: Fact) -> bool:
    """Say whether no tombstone can ever make ``other`` matter while ``one`` is there.

    A deletion reaches other partitions, so only a deletion can stand in for it.
    """
    assert one.source is not None
    assert other.source is not None
    if other.body is None and one.body is not None:
        return False
    return one.source[0] == other.source[0] and one.source[1] >= other.source[1] and not outranks(other, one)
