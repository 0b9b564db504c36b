"""Projection of files in one process: the functions of the roles, one partition that holds everything, and a tally.

Derived facts come straight back to the fold, so nothing but the files is read and nothing but changes comes out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast

from projections.facts import Fact, decode_fact
from projections.fold import Change, Fold
from worker.kafka import Message
from worker.roles.project import Outcome, project_outcome
from worker.settings_sections import LimitSettings
from worker.sink import RecordKey
from worker.source_files import SourceFile, SourceMessage, read_messages

Unbound = Literal["hold", "standalone"]

GENERATION = 1

DEAD_LETTERS_SHOWN_MAX = 20
# Changes wait, newest version of each record, until so many are due; a sink writes few large batches best.
CHANGES_PENDING_MAX = 20_000
# Derived facts lead to derived facts (binding, usage, run); a chain that does not end is a fault of the projection.
FOLD_ROUNDS_MAX = 1_000


class RefusedMessage(NamedTuple):
    """A message that can never be projected, or a part of one: where it is and why, never what it says."""

    place: str
    reason: str
    field: str | None
    is_partial: bool


@dataclass
class Tally:
    """What happened to every message; consumed = projected + ignored + dead-lettered.

    Counters are keyed by (source, reason code); ``partial`` counts projected messages of which parts were refused.
    ``amounts`` says per living cost where its amount comes from, or why it has none, if costs were to be estimated.
    """

    messages: Counter[str] = field(default_factory=Counter)
    projected: Counter[str] = field(default_factory=Counter)
    facts: int = 0
    ignored: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    partial: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: list[RefusedMessage] = field(default_factory=list)
    held: Counter[str] = field(default_factory=Counter)
    living: set[RecordKey] = field(default_factory=set)
    amounts: dict[RecordKey, str] = field(default_factory=dict)

    @property
    def records(self) -> Counter[str]:
        """Living records per kind."""
        return Counter(kind for kind, _ in self.living)

    @property
    def dead_letter_count(self) -> int:
        """Dead letters in all; as in the worker, the refused parts of one message are one letter."""
        return self.dead.total() + self.partial.total()

    def note_outcome(self, message: SourceMessage, outcome: Outcome) -> None:
        """Account for one message."""
        source = message.source
        self.messages[source] += 1
        if outcome.dead is not None:
            self.dead[source, outcome.dead] += 1
            self._note_refused(message, outcome.dead, outcome.field, is_partial=False)
            return
        if outcome.ignored is not None:
            self.ignored[source, outcome.ignored] += 1
        else:
            self.projected[source] += 1
            self.facts += len(outcome.facts)
        if outcome.issues:
            self.partial[source, outcome.issues[0]] += 1
            self._note_refused(message, outcome.issues[0], None, is_partial=True)

    def _note_refused(self, message: SourceMessage, reason: str, field_path: str | None, *, is_partial: bool) -> None:
        if len(self.refused) < DEAD_LETTERS_SHOWN_MAX:
            self.refused.append(RefusedMessage(message.place, reason, field_path, is_partial))

    def note_changes(self, changes: Iterable[Change]) -> None:
        """Follow which records live."""
        for change in changes:
            if change.record is None:
                self.living.discard((change.kind, change.id))
            else:
                self.living.add((change.kind, change.id))


def project_source_message(message: SourceMessage, limits: LimitSettings) -> Outcome:
    """Project one message by the function of the project role."""
    if message.skipped is not None:
        return Outcome(ignored=message.skipped)
    if message.refused is not None:
        return Outcome(dead=message.refused)
    # It has what that function reads of a consumed message: offset, key and value.
    return project_outcome(message.source, message.partition, cast("Message", message), limits)


def facts_of(outcome: Outcome) -> list[Fact]:
    """Read the facts of a message as the fold role reads them from the facts log."""
    return [decode_fact(key, value) for _, key, value in outcome.facts]


class LocalFold:
    """The fold over one partition that holds everything."""

    def __init__(self, unbound: Unbound) -> None:
        self._fold = Fold(generation=GENERATION, unbound=unbound)
        self._offset = 0

    def apply(self, facts: Sequence[Fact]) -> dict[RecordKey, Change]:
        """Fold facts and all that follows from them; gives the newest change of every record that changed."""
        changes: dict[RecordKey, Change] = {}
        for _ in range(FOLD_ROUNDS_MAX):
            if not facts:
                return changes
            items = list(enumerate(facts, start=self._offset))
            self._offset += len(items)
            result = self._fold.apply(items)
            for change in result.changes:
                changes[change.kind, change.id] = change
            facts = result.facts
        raise AssertionError("derived facts do not come to an end")

    def held_counts(self) -> "Counter[str]":
        """Count, per kind of aggregate, how many wait for a fact that has not come."""
        return +Counter(self._fold.held_counts())


def read_batches(
    files: Iterable[SourceFile], limits: LimitSettings, on_bytes: Callable[[int], None]
) -> Iterator[list[SourceMessage]]:
    """Read the messages of all files in batches within the limits; `on_bytes` hears how many bytes each took."""
    batch: list[SourceMessage] = []
    batch_bytes = 0
    for file in files:
        for message in read_messages(file, limits):
            batch.append(message)
            batch_bytes += message.size_bytes
            if len(batch) >= limits.batch_messages_max or batch_bytes >= limits.batch_bytes_max:
                on_bytes(batch_bytes)
                yield batch
                batch, batch_bytes = [], 0
    on_bytes(batch_bytes)
    if batch:
        yield batch


def fold_files(
    files: Iterable[SourceFile],
    limits: LimitSettings,
    unbound: Unbound,
    tally: Tally,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Iterator[list[Change]]:
    """Project and fold files; yields the changes of records, each record at most once in one list."""
    fold = LocalFold(unbound)
    pending: dict[RecordKey, Change] = {}
    for batch in read_batches(files, limits, on_bytes):
        facts: list[Fact] = []
        for message in batch:
            outcome = project_source_message(message, limits)
            tally.note_outcome(message, outcome)
            facts += facts_of(outcome)
        changes = fold.apply(facts)
        tally.note_changes(changes.values())
        pending |= changes
        if len(pending) >= CHANGES_PENDING_MAX:
            yield list(pending.values())
            pending = {}
    tally.held = fold.held_counts()
    if pending:
        yield list(pending.values())
