"""The conversation aggregate: line facts and bindings in; calls, costs, gates and each attempt's usage out.

Rules for editing this module: an in-order line must cost O(1); whatever arrives out of order may only mark the
assembly for reading again from the start, so that the same code decides in both cases.
"""

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal

from projections.aggregates.attempt_usage import AttemptUsage
from projections.aggregates.attribution import Bindings, Owner
from projections.aggregates.emitter import Emitter
from projections.canonical import sha256_hex
from projections.facts import Fact, FactSet
from projections.formats import FORMATS
from projections.formats.assembly import Assembly, Item, Position, Report, line_key_prefix, split_line_key
from projections.ids import split_attempt_id, split_conversation_ref
from projections.text import storable_text
from projections.times import is_earlier, time_key

Unbound = Literal["hold", "standalone"]

_SCHEMA = "titan.trace/v1"
_START_KEY = "usage-start:"
_order_of = attrgetter("order")


class _Reader:
    """The assembly of one format of a conversation, and how far it has read."""

    __slots__ = ("assembly", "ends", "is_stale", "last", "takes_any_order", "waiting")

    def __init__(self, assembly: Assembly, *, takes_any_order: bool) -> None:
        self.assembly = assembly
        self.takes_any_order = takes_any_order
        self.waiting: dict[Position, dict[str, Any]] = {}
        self.ends: dict[str, Position] = {}
        self.last: Position | None = None
        self.is_stale = False

    def take(self, position: Position, body: dict[str, Any]) -> None:
        """Let a line wait; one that is not behind what was read of its source makes the reader start again."""
        self.waiting[position] = body
        end = self.ends.get(position.source_id)
        if end is not None and position <= end:
            self.is_stale = True

    def feed(self) -> None:
        """Give what waits to the assembly, in source order.

        Several sources may grow at once (an agent and its subagents): a line of an earlier source than the last one
        goes behind it only if the assembly says that this is the same, else the reader has to start again.
        """
        for position in sorted(self.waiting):
            body = self.waiting[position]
            is_late = self.last is not None and position < self.last
            if is_late and not (self.takes_any_order or self.assembly.can_follow(position, body)):
                self.is_stale = True
                return
            self.assembly.add(position, body)
            self.ends[position.source_id] = position
            self.last = self.last if is_late else position
        self.waiting = {}


class _Given:
    """Which attempts a cost was given to, and how many readings of its counter, up to which sequence."""

    __slots__ = ("attempts", "count", "reports", "sequence")

    def __init__(self, reports: list[Report] | None) -> None:
        self.attempts: set[str] = set()
        self.reports = reports
        self.count = 0
        self.sequence = -1


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
        self._bound: set[str] = set()
        self._erased_runs: frozenset[str] = frozenset()
        self._is_erased = False
        self._usage: dict[str, AttemptUsage] = {}
        self._spenders: set[str] = set()
        self._starts: dict[str, float] = {}
        self._earliest: str | None = None
        self._new_answers: set[str] = set()
        self._is_moved = False

    @property
    def is_held(self) -> bool:
        """Whether there is something to show and no run to show it in."""
        if not self._readers or self._unbound != "hold" or self._facts.body("erased") is not None:
            return False
        return not self._bound

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
            elif fact.key.startswith(_START_KEY):
                self._start_usage(fact.key.removeprefix(_START_KEY))
            else:
                self._is_moved = True
                if fact.key.startswith("binding:"):
                    (self._bound.discard if fact.body is None else self._bound.add)(fact.key)
        return joined.superseded

    def _start_usage(self, attempt_id: str) -> None:
        """Let an attempt's money be added to what the conversations before this one add up to."""
        self._starts[attempt_id] = self._facts.body(f"{_START_KEY}{attempt_id}") or 0
        if attempt_id in self._usage:
            self._spenders.add(attempt_id)

    def _new_reader(self, name: str) -> _Reader:
        line_format = FORMATS[name]
        reader = _Reader(line_format.assembly(self._identity), takes_any_order=line_format.takes_any_order)
        reader.assembly.first_rank = sorted(FORMATS).index(name) << 40
        return reader

    def emit(self) -> Emitter:
        """Bring the records and derived facts up to date; gives the emitter that holds what changed."""
        started_again = self._read_lines()
        self._apply_answers()
        if self._is_moved:
            self._move()
        if started_again or self._is_moved or len(self._readers) > 1 or self._shares_ids():
            self._show_everything()
        else:
            for reader in self._readers.values():
                self._show_touched(reader.assembly)
        self._is_moved = False
        self._say_usage()
        return self._emitter

    def _shares_ids(self) -> bool:
        return any(reader.assembly.shares_ids for reader in self._readers.values())

    def _read_lines(self) -> bool:
        """Feed what arrived to the assemblies; says whether one of them had to start again."""
        started_again = False
        for name, reader in list(self._readers.items()):
            if reader.waiting and not reader.is_stale:
                reader.feed()
            if reader.is_stale:
                started_again = True
                again = self._readers[name] = self._new_reader(name)
                again.waiting = self._lines_of(name)
                again.feed()
                self._new_answers |= {f"meeting:{meeting}" for meeting, _ in self._facts.with_prefix("meeting:")}
        return started_again

    def _lines_of(self, name: str) -> dict[Position, dict[str, Any]]:
        prefix = line_key_prefix(name)
        rows = self._facts.with_prefix(prefix)
        return {split_line_key(prefix + rest)[1]: body for rest, body in rows}

    def _apply_answers(self) -> None:
        """Tell the assemblies who else holds what they hold; an answer that was withdrawn leaves only ourselves.

        What is shown must follow from the facts that are here, not from when they came: else a restored fold takes
        for said what never was. So an answer is also given again when the conversation itself holds more.
        """
        for reader in self._readers.values():
            again = {f"meeting:{meeting}" for meeting in reader.assembly.unanswered}
            self._new_answers |= {key for key in again if self._facts.body(key) is not None}
            reader.assembly.unanswered.clear()
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
        """Project all items anew: what two formats tell of is taken from the native one, of one id the last item."""
        self._begin_again()
        records: dict[str, dict[str, Any]] = {}
        facts: dict[tuple[str, str], Any] = {}
        splits: dict[str, dict[str, int]] = {}
        told: set[str] = set()
        for name in sorted(self._readers, key=lambda name: (name == "observation", name)):
            assembly = self._readers[name].assembly
            # Items stand in the order in which they were read, which is that of the sources unless some came late.
            for item in sorted(assembly.items, key=_order_of) if assembly.shares_ids else assembly.items:
                item.given, item.said = None, None
                if item.native_id in told:
                    continue
                record = self._record_of(item)
                if record is not None:
                    records[record["id"]] = record
                    item.said = (record["id"], item.at)
                    if item.cache_write_split is not None:
                        splits[record["id"]] = item.cache_write_split
                self._count(item)
            told |= {item.native_id for item in assembly.items}
            facts |= {(f"meeting:{key}", f"claim:{self._ref}"): claim for key, claim in assembly.claims.items()}
            assembly.touched.clear()
            assembly.new_claims.clear()
        if self._earliest is not None:
            run = self._standalone_run(self._earliest)
            records[run["id"]] = run
        facts |= self._standalone_facts()
        facts |= {self._usage_key(attempt_id): self._usage_of(attempt_id) for attempt_id in self._usage}
        self._spenders.clear()
        self._emitter.replace(list(records.values()), facts, splits)

    def _begin_again(self) -> None:
        self._usage = {}
        self._earliest = None

    def _show_touched(self, assembly: Assembly) -> None:
        """Project the items that changed, in source order."""
        is_earliest_gone = False
        for item in sorted(assembly.touched.values(), key=_order_of):
            record, said = self._record_of(item), item.said
            if said is not None and (record is None or record["id"] != said[0]):
                self._emitter.drop_record(said[0])
            item.said = None if record is None else (record["id"], item.at)
            if record is not None:
                self._emitter.put_record(record, item.cache_write_split)
            self._count(item)
            is_earliest_gone = is_earliest_gone or (said is not None and said[1] == self._earliest != item.at)
            is_earliest_gone = is_earliest_gone or (said is not None and record is None and said[1] == self._earliest)
        if not self._bindings:
            self._show_standalone_run(assembly, is_earliest_gone=is_earliest_gone)
        for meeting in sorted(assembly.new_claims):
            self._emitter.put_fact(f"meeting:{meeting}", f"claim:{self._ref}", assembly.claims[meeting])
        assembly.touched.clear()
        assembly.new_claims.clear()

    def _show_standalone_run(self, assembly: Assembly, *, is_earliest_gone: bool) -> None:
        """Bring the conversation's own run up to date; when its earliest record moved, all of them are asked again."""
        if is_earliest_gone:
            shown = (item.said[1] for item in assembly.items if item.said is not None)
            self._earliest = min(shown, key=time_key, default=None)
        if self._earliest is None:
            self._emitter.drop_record(self._standalone_id)
        else:
            self._emitter.put_record(self._standalone_run(self._earliest))
        for (aggregate, key), body in self._standalone_facts().items():
            self._emitter.put_fact(aggregate, key, body)

    def _standalone_facts(self) -> dict[tuple[str, str], Any]:
        """Let the conversation's own run know it, so that erasing that run reaches the conversation."""
        if self._bindings or self._unbound == "hold":
            return {}
        return {(f"run:{self._standalone_id}", f"conversation:{self._ref}"): True}

    def _record_of(self, item: Item) -> dict[str, Any] | None:
        """Give an item's record; None when it is withdrawn, erased, or held back."""
        if item.withdrawn or self._is_erased:
            return None
        if not self._bindings:
            if self._unbound == "hold" or item.at is None or self._standalone_id in self._erased_runs:
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

    def _standalone_run(self, at: str) -> dict[str, Any]:
        """Make the run of a conversation that no execution is bound to; nothing in a transcript proves its end."""
        run_id = self._standalone_id
        return {
            "schema": _SCHEMA,
            "kind": "run",
            "id": run_id,
            "runId": run_id,
            "at": at,
            "workflowName": storable_text(self._identity.harness),
            "status": "running",
        }

    def _count(self, item: Item) -> None:
        """Attribute an item: its cost to its attempt, or its time to the conversation's own run."""
        if not self._bindings:
            if item.said is None or item.at is None:
                return
            if self._earliest is None or is_earlier(item.at, self._earliest):
                self._earliest = item.at
        elif item.kind == "cost":
            if item.withdrawn or self._is_erased:
                self._take_back(item)
            else:
                self._give(item)

    def _give(self, item: Item) -> None:
        """Give a cost to the attempt that owns it; a counter's readings may belong to several attempts."""
        if item.reports is None:
            owner = self._bindings.owner_of(item.at)
            if item.given is not None and owner.attempt_id not in item.given.attempts:
                self._take_back(item)
            self._spend(owner, item)
            return
        if item.given is not None and item.given.reports is not item.reports:
            self._take_back(item)
        # Only the readings that came since the last time are new.
        for report in item.reports[0 if item.given is None else item.given.count :]:
            self._spend(self._bindings.owner_of(report.at), item)
            item.given.count += 1
            if report.sequence < item.given.sequence:
                # It stands between readings that were counted already, and moves what lies between them.
                self._spenders |= item.given.attempts
                for attempt_id in item.given.attempts:
                    self._usage[attempt_id].put(item)
            item.given.sequence = max(item.given.sequence, report.sequence)

    def _spend(self, owner: Owner, item: Item) -> None:
        if item.given is None:
            item.given = _Given(item.reports)
        if owner.run_id in self._erased_runs:
            return
        item.given.attempts.add(owner.attempt_id)
        usage = self._usage.get(owner.attempt_id)
        if usage is None:
            usage = self._usage[owner.attempt_id] = AttemptUsage()
        usage.put(item)
        self._spenders.add(owner.attempt_id)

    def _take_back(self, item: Item) -> None:
        if item.given is not None:
            for attempt_id in item.given.attempts:
                self._usage[attempt_id].drop(item)
                self._spenders.add(attempt_id)
        item.given = None

    def _usage_key(self, attempt_id: str) -> tuple[str, str]:
        parts = split_attempt_id(attempt_id)
        assert parts is not None
        return f"run:{parts.run}", f"usage:{self._ref}|{attempt_id}"

    def _usage_of(self, attempt_id: str) -> dict[str, Any] | None:
        def owns(at: str | None) -> bool:
            return self._bindings.owner_of(at).attempt_id == attempt_id

        usage = self._usage[attempt_id].fold(owns, self._starts.get(attempt_id, 0))
        return None if usage is None else {"attemptId": attempt_id, "conversation": self._ref, **usage}

    def _say_usage(self) -> None:
        for attempt_id in sorted(self._spenders):
            self._emitter.put_fact(*self._usage_key(attempt_id), self._usage_of(attempt_id))
        self._spenders.clear()


def _record(item: Item, run_id: str, attempt_id: str | None, at: str) -> dict[str, Any]:
    run_id = storable_text(run_id)
    record_id = f"{run_id}/{item.native_id}" if item.kind == "gate" else item.native_id
    head = {"schema": _SCHEMA, "kind": item.kind, "id": record_id, "runId": run_id}
    if attempt_id is not None:
        head["attemptId"] = attempt_id
    return {**head, "at": at, **item.fields}
