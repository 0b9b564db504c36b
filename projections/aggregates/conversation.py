"""The conversation aggregate: line facts and bindings in; calls, costs, gates and each attempt's usage out.

Rules for editing this module: an in-order line must cost O(1); whatever arrives out of order may only mark the
assembly for reading again from the start, so that the same code decides in both cases.
"""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from projections.aggregates.attempt_usage import AttemptUsage
from projections.aggregates.attribution import Bindings
from projections.aggregates.emitter import Emitter
from projections.canonical import sha256_hex
from projections.facts import Fact, FactSet
from projections.formats import FORMATS
from projections.formats.assembly import Assembly, Item, Position, split_line_key
from projections.ids import split_attempt_id, split_conversation_ref
from projections.times import time_key

Unbound = Literal["hold", "standalone"]

_SCHEMA = "titan.trace/v1"


class _Reader:
    """The assembly of one format of a conversation, and how far it has read."""

    __slots__ = ("assembly", "is_stale", "last", "lines", "waiting")

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.lines: dict[Position, dict[str, Any]] = {}
        self.waiting: dict[Position, dict[str, Any]] = {}
        self.last: Position | None = None
        self.is_stale = False

    def take(self, position: Position, body: dict[str, Any]) -> None:
        """Let a line wait; one that is not behind all read lines makes the reader start again."""
        self.waiting[position] = body
        if self.last is not None and position <= self.last:
            self.is_stale = True

    def feed(self) -> None:
        """Give what waits to the assembly, in source order."""
        for position in sorted(self.waiting):
            self.assembly.add(position, self.waiting[position])
            self.last = position
        self.lines |= self.waiting
        self.waiting = {}


class Conversation:
    """One conversation: what its lines say, attributed to the attempts that it is bound to."""

    counters: Mapping[str, int] = MappingProxyType({})

    def __init__(self, ref: str, *, unbound: Unbound = "hold") -> None:
        identity = split_conversation_ref(ref)
        assert identity is not None, "facts of a conversation are made from a valid identity"
        self._ref = ref
        self._identity = identity
        self._unbound = unbound
        self._facts = FactSet()
        self._emitter = Emitter()
        self._readers: dict[str, _Reader] = {}
        self._bindings = Bindings([])
        self._erased_runs: frozenset[str] = frozenset()
        self._is_erased = False
        self._usage: dict[str, AttemptUsage] = {}
        self._spenders: set[str] = set()
        self._earliest: str | None = None
        self._new_answers: set[str] = set()
        self._is_moved = False

    @property
    def is_held(self) -> bool:
        """Whether there is something to show and no run to show it in."""
        return bool(self._readers) and not self._bindings and self._unbound == "hold" and not self._is_erased

    def join(self, fact: Fact) -> tuple[Fact, ...]:
        """Take one fact; gives the facts that it made superfluous."""
        joined = self._facts.join(fact)
        if joined.changed:
            if fact.key.startswith("line:"):
                name, position = split_line_key(fact.key)
                if name not in self._readers:
                    self._readers[name] = self._new_reader(name)
                    self._is_moved = self._is_moved or len(self._readers) > 1
                self._readers[name].take(position, fact.body)
            elif fact.key.startswith("meeting:"):
                self._new_answers.add(fact.key)
            else:
                self._is_moved = True
        return joined.superseded

    def _new_reader(self, name: str) -> _Reader:
        reader = _Reader(FORMATS[name].assembly(self._identity))
        reader.assembly.first_rank = sorted(FORMATS).index(name) << 40
        return reader

    def emit(self) -> Emitter:
        """Bring the records and derived facts up to date; gives the emitter that holds what changed."""
        started_again = self._read_lines()
        self._apply_answers()
        if self._is_moved:
            self._move()
        if started_again or self._is_moved or len(self._readers) > 1:
            self._show_everything()
        else:
            for reader in self._readers.values():
                self._show_touched(reader.assembly)
        self._is_moved = False
        self._say_usage()
        return self._emitter

    def _read_lines(self) -> bool:
        """Feed what arrived to the assemblies; says whether one of them had to start again."""
        started_again = False
        for name, reader in self._readers.items():
            if reader.is_stale:
                started_again = True
                again = self._new_reader(name)
                again.waiting = reader.lines | reader.waiting
                self._readers[name] = reader = again  # noqa: PLW2901  (the keys stay, so iterating is safe)
                self._new_answers |= {f"meeting:{meeting}" for meeting, _ in self._facts.with_prefix("meeting:")}
            if reader.waiting:
                reader.feed()
        return started_again

    def _apply_answers(self) -> None:
        """Tell the assemblies who else holds what they hold; an answer that was withdrawn leaves only ourselves."""
        for key in sorted(self._new_answers):
            meeting = key.removeprefix("meeting:")
            claims = self._facts.body(key)
            for reader in self._readers.values():
                own = reader.assembly.claims.get(meeting)
                if own is not None:
                    reader.assembly.answer(meeting, {**(claims or {}), self._ref: own})
        self._new_answers.clear()

    def _move(self) -> None:
        rows = [(row[0], row[1]) for _execution, row in self._facts.with_prefix("binding:")]
        self._bindings = Bindings(rows)
        self._erased_runs = frozenset(run_id for run_id, _ in self._facts.with_prefix("run-erased:"))
        self._is_erased = self._facts.body("erased") is not None

    def _show_everything(self) -> None:
        """Project all items anew: the same record from two formats is taken from the native one."""
        self._usage = {}
        self._earliest = None
        records: dict[str, dict[str, Any]] = {}
        facts: dict[tuple[str, str], Any] = {}
        splits: dict[str, dict[str, int]] = {}
        for name in sorted(self._readers, key=lambda name: (name == "observation", name)):
            assembly = self._readers[name].assembly
            for item in assembly.items:
                record = self._record_of(item)
                item.owner, item.counted, item.said = None, 0, None
                if record is not None and record["id"] not in records:
                    records[record["id"]] = record
                    item.said = (record["id"], item.at)
                    if item.cache_write_split is not None:
                        splits[record["id"]] = item.cache_write_split
                    self._count(item)
            facts |= {(f"meeting:{key}", f"claim:{self._ref}"): claim for key, claim in assembly.claims.items()}
            assembly.touched.clear()
            assembly.new_claims.clear()
        if records and not self._bindings:
            run = self._standalone_run()
            records[run["id"]] = run
        facts |= {self._usage_key(attempt_id): self._usage_of(attempt_id) for attempt_id in self._usage}
        self._spenders.clear()
        self._emitter.replace(list(records.values()), facts, splits)

    def _show_touched(self, assembly: Assembly) -> None:
        """Project the items that changed, in source order."""
        touched = [assembly.touched[rank] for rank in sorted(assembly.touched)]
        if not self._bindings and any(item.said and (item.withdrawn or item.said[1] != item.at) for item in touched):
            # The earliest time of the records may have moved forward.
            self._show_everything()
            return
        for item in touched:
            record = self._record_of(item)
            if item.said is not None and (record is None or record["id"] != item.said[0]):
                self._emitter.drop_record(item.said[0])
            item.said = None if record is None else (record["id"], item.at)
            if record is not None:
                self._count(item)
                self._emitter.put_record(record, item.cache_write_split)
            elif item.owner is not None:
                self._discount(item)
        if self._earliest is not None:
            self._emitter.put_record(self._standalone_run())
        for meeting in sorted(assembly.new_claims):
            self._emitter.put_fact(f"meeting:{meeting}", f"claim:{self._ref}", assembly.claims[meeting])
        assembly.touched.clear()
        assembly.new_claims.clear()

    def _record_of(self, item: Item) -> dict[str, Any] | None:
        """Give an item's record; None when it is withdrawn, erased, or held back."""
        if item.withdrawn or self._is_erased:
            return None
        if not self._bindings:
            if self._unbound == "hold" or item.at is None:
                return None
            return _record(item, self._standalone_id, None, item.at)
        owner = self._bindings.owner_of(item.at)
        if owner.run_id in self._erased_runs:
            return None
        return _record(item, owner.run_id, owner.attempt_id, item.at if item.at is not None else owner.start)

    @cached_property
    def _standalone_id(self) -> str:
        # A run id is exported in clear, so it must not spell the conversation's ref.
        return f"standalone-{sha256_hex(self._ref.encode())}"

    def _standalone_run(self) -> dict[str, Any]:
        """Make the run of a conversation that no execution is bound to; nothing in a transcript proves its end."""
        run_id = self._standalone_id
        return {
            "schema": _SCHEMA,
            "kind": "run",
            "id": run_id,
            "runId": run_id,
            "at": self._earliest,
            "workflowName": self._identity.harness,
            "status": "running",
        }

    def _count(self, item: Item) -> None:
        """Attribute a shown item: its cost to its attempt, or its time to the conversation's own run."""
        if not self._bindings:
            if self._earliest is None or time_key(item.at) < time_key(self._earliest):
                self._earliest = item.at
            return
        if item.kind != "cost":
            return
        owner = self._bindings.owner_of(item.at).attempt_id
        if item.owner is not None and item.owner != owner:
            self._discount(item)
        item.owner = owner
        self._spend(owner, item)
        # A counter's readings may belong to several attempts; only those that came since the last time are new.
        reports = item.reports or []
        for report in reports[item.counted :]:
            self._spend(self._bindings.owner_of(report.at).attempt_id, item)
        item.counted = len(reports)

    def _spend(self, attempt_id: str, item: Item) -> None:
        self._usage.setdefault(attempt_id, AttemptUsage()).put(item)
        self._spenders.add(attempt_id)

    def _discount(self, item: Item) -> None:
        for attempt_id, usage in self._usage.items():
            if usage.drop(item):
                self._spenders.add(attempt_id)
        item.owner, item.counted = None, 0

    def _usage_key(self, attempt_id: str) -> tuple[str, str]:
        parts = split_attempt_id(attempt_id)
        assert parts is not None
        return f"run:{parts.run}", f"usage:{self._ref}|{attempt_id}"

    def _usage_of(self, attempt_id: str) -> dict[str, Any] | None:
        usage = self._usage[attempt_id].fold(lambda at: self._bindings.owner_of(at).attempt_id == attempt_id)
        return None if usage is None else {"attemptId": attempt_id, **usage}

    def _say_usage(self) -> None:
        for attempt_id in sorted(self._spenders):
            self._emitter.put_fact(*self._usage_key(attempt_id), self._usage_of(attempt_id))
        self._spenders.clear()


def _record(item: Item, run_id: str, attempt_id: str | None, at: str) -> dict[str, Any]:
    record_id = f"{run_id}/{item.native_id}" if item.kind == "gate" else item.native_id
    head = {"schema": _SCHEMA, "kind": item.kind, "id": record_id, "runId": run_id}
    if attempt_id is not None:
        head["attemptId"] = attempt_id
    return {**head, "at": at, **item.fields}
