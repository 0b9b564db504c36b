"""The meeting aggregate: who claims the same thing, told to all who claim it."""

from collections.abc import Mapping
from types import MappingProxyType

from projections.aggregates.emitter import Emitter
from projections.facts import Fact, FactSet


class Meeting:
    """One response or fork family that conversations claim; it has no records and decides nothing."""

    is_held = False
    counters: Mapping[str, int] = MappingProxyType({})

    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = FactSet()
        self._emitter = Emitter()

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous."""
        return self._facts.join(fact).superseded

    def emit(self) -> Emitter:
        """Tell every claimant all claims, once there are two or more."""
        claims = dict(self._facts.with_prefix("claim:"))
        answers = {(ref, f"meeting:{self._name}"): claims for ref in claims} if len(claims) > 1 else {}
        self._emitter.replace([], answers)
        return self._emitter
