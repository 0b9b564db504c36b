"""The artifact aggregate: what several runs say about one commit, pull request or file becomes one record."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from projections.aggregates.emitter import Emitter
from projections.canonical import canonical_json
from projections.facts import Fact, FactSet
from projections.text import storable_text
from projections.times import time_key

_SCHEMA = "titan.trace/v1"
_MUTABLE = frozenset({"state", "mergedAt", "closedAt", "reviewRounds", "checks"})
_HEAD = frozenset({"id", "at", "attemptId", "artifactKind"})
_FIELDS = (
    *("repo", "sha", "branch", "reverts", "number", "state", "mergedAt", "closedAt", "reviewRounds", "checks"),
    *("path", "commit", "lines", "span"),
)


class Artifact:
    """One artifact, seen by any number of runs."""

    is_held = False
    counters: Mapping[str, int] = MappingProxyType({})

    def __init__(self, artifact_id: str) -> None:
        self._id = artifact_id
        self._facts = FactSet()
        self._emitter = Emitter()

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous."""
        return self._facts.join(fact).superseded

    def emit(self) -> Emitter:
        """Project the artifact: who saw it first names it, who saw it last says how it is."""
        seen = [(run_id, entry) for run_id, entries in self._facts.with_prefix("run:") for entry in entries]
        self._emitter.replace([_project(seen)] if seen else [], {})
        return self._emitter


def _project(seen: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    oldest_first = sorted(seen, key=lambda row: (time_key(row[1]["at"]), row[0], canonical_json(row[1])))
    run_id, first = oldest_first[0]
    latest_last = sorted(
        (entry for _run, entry in seen), key=lambda entry: (time_key(entry["at"]), canonical_json(entry))
    )
    merged: dict[str, Any] = {}
    for _run, entry in oldest_first:
        for name, value in entry.items():
            if name not in _MUTABLE and name not in _HEAD:
                merged.setdefault(name, value)
    for entry in latest_last:
        merged.update({name: entry[name] for name in _MUTABLE & entry.keys()})
    return {
        "schema": _SCHEMA,
        "kind": "artifact",
        "id": first["id"],
        "runId": storable_text(run_id),
        "attemptId": first["attemptId"],
        "at": first["at"],
        "artifactKind": first["artifactKind"],
        **{name: merged[name] for name in _FIELDS if name in merged},
    }
