"""Why a record is there, or is not: which source messages made it, found with the pure functions alone.

A record is a function of a set of facts, so its cause is found by asking that function: among the messages whose facts
reach the record's aggregate, a small set is sought that still gives the record byte for byte and of which no message
can be spared. Nothing is recorded during projection for this.
"""

import difflib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from projections.facts import Fact
from projections.fold import Fold
from projections.privacy import Policy, redact_id
from worker.local_fold import GENERATION, LocalFold, Tally, Unbound, facts_of, project_source_message
from worker.record_subject import Subject
from worker.settings_sections import ExportSettings, LimitSettings
from worker.sink import RecordKey
from worker.source_files import SourceMessage

# Each trial folds the remaining messages once. Beyond the bound the set is reported as it then is: it makes the record,
# but a message in it may be one that could be spared.
TRIALS_MAX = 4_000
WAITING_SHOWN_MAX = 5


class Part(NamedTuple):
    """One message and the facts it gave."""

    source: str
    place: str
    facts: tuple[Fact, ...]


class Refusal(NamedTuple):
    """One message that names the subject and gave no fact; the closer it `mentions` it, the greater the number."""

    source: str
    place: str
    outcome: str
    mentions: int


@dataclass
class Evidence:
    """The projected sources: what every message gave, and which messages that name the subject gave nothing."""

    parts: list[Part] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


class Explanation(NamedTuple):
    """What is known about one id.

    Of a record that is there: the messages that make it (`is_smallest`: none of them can be spared), and per source how
    many more reach the same aggregates and change nothing. Of one that is not: the reasons, a sentence each, and the
    messages that name it and gave nothing.
    """

    id: str
    kind: str | None
    made_by: list[Part]
    is_smallest: bool
    idle: Counter[str]
    reasons: list[str]
    refusals: list[Refusal]


def collect(messages: Iterable[SourceMessage], limits: LimitSettings, subject: Subject | None) -> Evidence:
    """Project messages and keep what each gave; one that gave nothing is kept when it names the subject."""
    evidence = Evidence()
    for message in messages:
        outcome = project_source_message(message, limits)
        evidence.tally.note_outcome(message, outcome)
        if outcome.facts:
            evidence.parts.append(Part(message.source, message.place, tuple(facts_of(outcome))))
            continue
        mentions = 0 if subject is None else subject.mentions(message.value or message.key)
        if mentions:
            text = f"ignored: {outcome.ignored}" if outcome.dead is None else f"dead-lettered: {outcome.dead}"
            text += f" ({outcome.field})" if outcome.field else ""
            evidence.refusals.append(Refusal(message.source, message.place, text, mentions))
    return evidence


class World:
    """The records that a list of parts makes, folded one aggregate at a time to see who tells whom what."""

    def __init__(self, parts: Iterable[Part], unbound: Unbound) -> None:
        self.records: dict[RecordKey, bytes] = {}
        self._maker: dict[RecordKey, str] = {}
        self._tellers: dict[str, set[str]] = {}
        self._fold = Fold(generation=GENERATION, unbound=unbound)
        self._offset = 0
        waiting: dict[str, list[Fact]] = {}
        for part in parts:
            for fact in part.facts:
                waiting.setdefault(fact.aggregate, []).append(fact)
        queue = deque(waiting.items())
        while queue:
            queue.extend(self._apply(*queue.popleft()).items())

    def _apply(self, aggregate: str, facts: list[Fact]) -> dict[str, list[Fact]]:
        """Fold facts of one aggregate; gives what it thereupon tells others, by receiver."""
        items = list(enumerate(facts, start=self._offset))
        self._offset += len(items)
        result = self._fold.apply(items)
        for change in result.changes:
            key = change.kind, change.id
            if change.record is None:
                self.records.pop(key, None)
            else:
                self.records[key] = change.record
                self._maker[key] = aggregate
        told: dict[str, list[Fact]] = {}
        for fact in result.facts:
            told.setdefault(fact.aggregate, []).append(fact)
            self._tellers.setdefault(fact.aggregate, set()).add(aggregate)
        return told

    def has(self, record_id: str) -> bool:
        """Say whether a record of any kind has this id."""
        return any(known == record_id for _, known in self.records)

    def maker_of(self, key: RecordKey) -> str:
        """Give the aggregate that makes a record."""
        return self._maker[key]

    def behind(self, aggregate: str) -> set[str]:
        """Give an aggregate and all that tell it something, directly or not."""
        behind: set[str] = set()
        queue = [aggregate]
        while queue:
            aggregate = queue.pop()
            if aggregate not in behind:
                behind.add(aggregate)
                queue.extend(self._tellers.get(aggregate, ()))
        return behind


def explain(record_id: str, subject: Subject | None, evidence: Evidence, unbound: Unbound) -> list[Explanation]:
    """Explain an id from projected sources: one explanation per record that has it, or one that says why none does.

    A run's id is free text and may spell another record's, so an id alone can name records of two kinds.
    """
    world = World(evidence.parts, unbound)
    found = [_explain_record(key, evidence, world, unbound) for key in sorted(world.records) if key[1] == record_id]
    if found:
        return found
    closest = max((refusal.mentions for refusal in evidence.refusals), default=0)
    return [
        Explanation(
            id=record_id,
            kind=None,
            made_by=[],
            is_smallest=True,
            idle=Counter(),
            reasons=_reasons(record_id, subject, evidence, world, unbound),
            refusals=[refusal for refusal in evidence.refusals if refusal.mentions == closest],
        )
    ]


def _explain_record(key: RecordKey, evidence: Evidence, world: World, unbound: Unbound) -> Explanation:
    candidates = _parts_of(evidence, world.behind(world.maker_of(key)))
    made_by, is_smallest = _smallest(candidates, key, world.records[key], unbound)
    idle = Counter(part.source for part in candidates)
    idle.subtract(part.source for part in made_by)
    return Explanation(key[1], key[0], made_by, is_smallest, +idle, [], [])


def _parts_of(evidence: Evidence, aggregates: set[str]) -> list[Part]:
    return [part for part in evidence.parts if any(fact.aggregate in aggregates for fact in part.facts)]


def _smallest(parts: list[Part], key: RecordKey, record: bytes, unbound: Unbound) -> tuple[list[Part], bool]:
    """Leave out messages, in halves, quarters, … and one by one, as long as the record stays as it is."""
    trials = 0

    def makes_record(trial: Sequence[Part]) -> bool:
        nonlocal trials
        trials += 1
        change = LocalFold(unbound).apply([fact for part in trial for fact in part.facts]).get(key)
        return change is not None and change.record == record

    assert makes_record(parts), "a record depends on nothing but the aggregates behind it"
    size = max(1, len(parts) // 2)
    while True:
        before, start = len(parts), 0
        while start < len(parts):
            if trials >= TRIALS_MAX:
                return parts, False
            trial = parts[:start] + parts[start + size :]
            if makes_record(trial):
                parts = trial
            else:
                start += size
        if size == 1 and len(parts) == before:
            return parts, True
        size = max(1, size // 2)


def _reasons(record_id: str, subject: Subject | None, evidence: Evidence, world: World, unbound: Unbound) -> list[str]:
    if subject is None:
        return ["this is no id of a trace record"]
    reasons = (
        _reasons_of_conversation(subject, evidence, world, unbound)
        if subject.conversation is not None
        else _reasons_of_artifact(subject, evidence)
        if subject.run is None
        else _reasons_of_run(subject, subject.run, evidence, world)
    )
    near = difflib.get_close_matches(record_id, [known for _, known in world.records], n=3, cutoff=0.85)
    return reasons + [f"there is a record of nearly that id: {other}" for other in near]


def _about(evidence: Evidence, aggregate: str) -> list[tuple[Part, Fact]]:
    return [(part, fact) for part in evidence.parts for fact in part.facts if fact.aggregate == aggregate]


def _erasures(about: list[tuple[Part, Fact]]) -> list[Part]:
    return [part for part, fact in about if part.source == "erasures" and fact.key == "erased"]


def _reasons_of_conversation(subject: Subject, evidence: Evidence, world: World, unbound: Unbound) -> list[str]:
    assert subject.conversation is not None
    about = _about(evidence, subject.conversation)
    if erasures := _erasures(about):
        return [f"its conversation was erased by {erasures[0].place}"]
    lines = Counter(part.place for part, _ in about)
    if not lines:
        return [f"no message of these sources belongs to {subject.conversation}"]
    if unbound == "hold" and World(evidence.parts, "standalone").has(subject.id):
        known = f"{len(lines)} messages belong to {subject.conversation}"
        reason = f"held: no binding. {known}, and no execution of the ledger names it, so its run is unknown"
        return [reason, *_waiting_executions(evidence)]
    twin = _twin(subject, world)
    if twin is not None:
        return [f"copied history: the same item is in another conversation, which keeps it, as {twin}"]
    return [f"{len(lines)} messages belong to {subject.conversation}, and none of them makes this item"]


def _twin(subject: Subject, world: World) -> str | None:
    """Find the record of the same native item in another conversation."""
    tail = subject.id.rpartition(":")[2]
    head = subject.id.split(":", 1)[0]
    for _, other in sorted(world.records):
        if other != subject.id and other.startswith(f"{head}:") and other.endswith(f":{tail}"):
            return other
    return None


def _reasons_of_run(subject: Subject, run_id: str, evidence: Evidence, world: World) -> list[str]:
    aggregate = f"run:{run_id}"
    about = _about(evidence, aggregate)
    parts = _parts_of(evidence, world.behind(aggregate))
    if erasures := _erasures(about):
        return [f"its run was erased by {erasures[0].place}"]
    waiting = _waiting_executions(evidence)
    if not parts:
        return [f"no message of these sources is about run {run_id}", *waiting]
    reasons = []
    if hidden := [part for part, fact in about if fact.key == "deletion" or fact.key.startswith("tombstone")]:
        reasons.append(f"rows about run {run_id} were deleted by {hidden[-1].place}")
    elif subject.kind == "run":
        reasons.append(f"held: run missing. {len(parts)} messages are about run {run_id}, none is a snapshot of it")
    else:
        reasons.append(f"{len(parts)} messages are about run {run_id}, and none of them makes this {subject.kind}")
    return reasons + waiting


def _waiting_executions(evidence: Evidence) -> list[str]:
    """Name executions whose transitions wait for a missing one: until it comes, nobody knows whose they are."""
    by_execution: dict[str, list[tuple[Part, Fact]]] = {}
    for part in evidence.parts:
        for fact in part.facts:
            if part.source == "ledger-changes":
                by_execution.setdefault(fact.aggregate, []).append((part, fact))
    reasons = []
    for rows in by_execution.values():
        fold = LocalFold("hold")
        fold.apply([fact for _, fact in rows])
        if fold.held_counts()["execution"]:
            reasons.append(f"held: the execution of {rows[0][0].place} waits for a transition that is missing")
    return reasons[:WAITING_SHOWN_MAX]


def _reasons_of_artifact(subject: Subject, evidence: Evidence) -> list[str]:
    runs = sum(1 for part in evidence.parts if part.source == "workflow-runs")
    return [f"no step result in {runs} messages of workflow-runs names {subject.id}"]


def find_redacted(redacted_id: str, export: ExportSettings, evidence: Evidence, unbound: Unbound) -> str | None:
    """Find the id that an export redacts to the given one; None when no record of the evidence has it."""
    if not export.redact:
        return redacted_id
    policy = Policy(export.load_key(), export.public_repos)
    world = World(evidence.parts, unbound)
    for (kind, record_id), record in world.records.items():
        repo = orjson.loads(record).get("repo") if kind == "artifact" else None
        if redact_id(kind, record_id, repo, policy) == redacted_id:
            return record_id
    return None
