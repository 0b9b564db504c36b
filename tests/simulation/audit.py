"""What must hold: at every commit, at every look at the metrics, and at the end."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tests.simulation.log import Entry, Row
from tests.simulation.site import KEY, KEY_VARIABLE
from tests.worlds.cluster import clean_pass
from worker.dead_letters.letter import dead_letter, encode_dead_letter
from worker.exports import ExportPolicy, RecordMessage, make_upsert, record_message
from worker.kafka import TopicPartition
from worker.metrics import PREFIX, Metrics
from worker.roles.project import project_outcome
from worker.settings import Settings
from worker.topics import export_group, fold_group, project_group

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

RecordKey = tuple[str, str]


class AuditError(AssertionError):
    """A promise was broken."""


def check(holds: object, what: str) -> None:
    """Raise AuditError when something does not hold."""
    if not holds:
        raise AuditError(what)


class Audit:
    """Knows what a world comes to, and watches a simulation get there."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._plan = plan = simulation.plan
        self._settings = plan.settings
        self.expected = expected_records(simulation)
        self._policies = {
            export.name: ExportPolicy.from_settings(export, origin=self._settings.app_id, environ={KEY_VARIABLE: KEY})
            for export in self._settings.exports
        }
        self._exports_by_group = {
            export_group(self._settings, export.name): export.name for export in self._settings.exports
        }
        # What each source message has to leave behind before its offset may be committed, by place and offset.
        self._due: dict[TopicPartition, dict[int, list[tuple[str, bytes]]]] = defaultdict(dict)
        self.letters: set[bytes] = set()
        for message in plan.messages:
            entry = Entry(message.offset, message.key, message.value, (), 0)
            self.expect(message.source, message.place, entry)
        # What was found wrong when nobody could be told.
        self.problems: list[str] = []
        self._stored: set[tuple[str, bytes | None]] = set()
        simulation.broker.groups.on_commit.append(self._committed)
        simulation.broker.on_append.append(self._appended)

    def expect(self, source: str, place: TopicPartition, entry: Entry) -> None:
        """Note what a source message has to leave behind: facts, or a dead letter, or nothing."""
        topics = self._simulation.topics
        outcome = project_outcome(source, place.partition, entry, self._settings.limits)
        due = [(topics.facts, key) for _aggregate, key, _value in outcome.facts]
        if outcome.dead is not None or outcome.issues:
            letter = dead_letter(*place, entry, outcome.dead or outcome.issues[0], is_partial=outcome.dead is None)
            key, _value = encode_dead_letter(letter)
            due.append((topics.dead_letters, key))
            self.letters.add(key)
        self._due[place][entry.offset] = due

    def lost(self, place: TopicPartition, offsets: range) -> None:
        """Expect nothing of messages that nobody can read any more."""
        for offset in offsets:
            for topic, key in self._due[place].pop(offset):
                if topic == self._simulation.topics.dead_letters:
                    self.letters.discard(key)

    # --------------------------------------------------------------------------------------------- all the time

    def _appended(self, place: TopicPartition, rows: Sequence[Row]) -> None:
        self._stored.update((place.topic, key) for key, _value, _headers in rows)

    def _committed(self, group: str, place: TopicPartition, old: int | None, new: int) -> None:
        # Raised here it would be an answer to a worker, which would take it for the broker's.
        try:
            self._check_commit(group, place, old, new)
        except AuditError as error:
            self.problems.append(str(error))

    def _check_commit(self, group: str, place: TopicPartition, old: int | None, new: int) -> None:
        where = f"{group} {place.topic}/{place.partition}"
        self._simulation.note(f"{where} committed {old} -> {new}")
        check(old is None or new >= old, f"{where}: committed offset goes back from {old} to {new}")
        log = self._simulation.broker.logs[place]
        check(new <= log.end, f"{where}: committed offset {new} beyond the end {log.end}")
        span = range(log.beginning if old is None else old, new)
        if group == project_group(self._settings):
            for offset in span:
                missing = [row for row in self._due[place].get(offset, ()) if row not in self._stored]
                check(not missing, f"{where}: offset {offset} committed before its output was stored")
        elif group in self._exports_by_group:
            self._check_exported(self._exports_by_group[group], place, span)

    def _check_exported(self, export: str, place: TopicPartition, span: range) -> None:
        entries = self._simulation.destinations[export].store.entries
        for entry in self._simulation.broker.logs[place].visible():
            if entry.offset in span:
                message = record_message(self._settings.generation, entry)
                key = make_upsert(self._policies[export], message).key
                version = entries[key][0] if key in entries else (0, 0)
                is_there = version >= (self._settings.generation, entry.offset)
                check(is_there, f"export {export}: offset {entry.offset} committed before the sink had it")

    def accounts(self, name: str, metrics: Metrics) -> None:
        """Check that every message that a worker consumed is accounted for, by source partition."""
        balances: dict[tuple[str, str], float] = defaultdict(float)
        for family in metrics.families():
            sign = _SIGNS.get(family.name.removeprefix(PREFIX))
            if sign is not None:
                for sample in family.samples:
                    balances[sample.labels["topic"], sample.labels["partition"]] += sign * sample.value
        wrong = {place: balance for place, balance in balances.items() if balance}
        check(not wrong, f"{name}: messages that are not accounted for: {wrong}")

    # --------------------------------------------------------------------------------------------------- the end

    def final(self) -> None:
        """Check what is left when everything was read."""
        self._check_offsets()
        self._check_records()
        self._check_letters()
        for export in self._settings.exports:
            self._check_sink(export.name)

    def _check_offsets(self) -> None:
        for group, place in self._simulation.group_places():
            committed, end = self._simulation.committed(group, place), self._simulation.broker.logs[place].end
            check(committed == end or (committed is None and end == 0), f"{group} {place}: {committed} of {end}")

    def _check_records(self) -> None:
        topic = self._simulation.topics.records
        last: dict[bytes | None, bytes | None] = {}
        for place, entries in self._simulation.broker.visible(topic).items():
            for entry in entries:
                is_doubled = self._plan.is_fenced and entry.key in last and last[entry.key] == entry.value
                check(not is_doubled, f"{topic}/{place.partition}: offset {entry.offset} says again what was said")
                last[entry.key] = entry.value
        found = {record_key(entry): entry.value for entry in self._simulation.broker.compacted(topic).values()}
        check_equal("records", self.expected, found)

    def _check_letters(self) -> None:
        letters = self._simulation.broker.compacted(self._simulation.topics.dead_letters)
        check(set(letters) == self.letters, f"dead letters: {sorted(self.letters ^ set(letters), key=repr)}")

    def _check_sink(self, export: str) -> None:
        policy = self._policies[export]
        expected = {}
        for (kind, record_id), record in self.expected.items():
            upsert = make_upsert(policy, RecordMessage(1, 0, kind, record_id, None, record))
            expected[upsert.key] = upsert.json
        store = self._simulation.destinations[export].store
        found = {key: json for key, (_version, json) in store.entries.items() if json is not None}
        check_equal(f"sink {export}", expected, found)
        lines = [json for _key, json in sorted(expected.items(), key=lambda row: (row[0][1], row[0][0]))]
        check(store.records() == lines, f"sink {export}: its lines are not in order")


_SIGNS: Mapping[str, int] = {
    "consumed_messages": 1,
    "projected_messages": -1,
    "ignored_messages": -1,
    "dead_lettered_messages": -1,
    "in_flight_messages": -1,
}


def record_key(entry: Entry) -> RecordKey:
    """Give kind and id of a message of the records log."""
    return dict(entry.headers)["kind"].decode(), (entry.key or b"").decode()


def expected_records(simulation: "Simulation") -> dict[RecordKey, bytes]:
    """Give what one clean pass makes of the world."""
    records: dict[RecordKey, bytes] = {}
    for change in clean_pass(simulation.plan.world).history:
        if change.record is None:
            records.pop((change.kind, change.id), None)
        else:
            records[change.kind, change.id] = change.record
    return records


def check_equal(what: str, expected: Mapping[RecordKey, bytes | None], found: Mapping[RecordKey, bytes | None]) -> None:
    """Compare records; the first difference is named with its fields, generated worlds hold no secrets."""
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            raise AuditError(f"{what}: {key}: {_difference(expected.get(key), found.get(key))}")


def _difference(expected: bytes | None, found: bytes | None) -> str:
    if expected is None or found is None:
        return "is there and should not be" if expected is None else "is missing"
    one, other = json.loads(expected), json.loads(found)
    fields = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
    return (
        ", ".join(f"{name} is {other.get(name)!r}, not {one.get(name)!r}" for name in sorted(fields)) or "bytes differ"
    )


def all_groups(settings: Settings) -> list[str]:
    """List the groups of all roles."""
    exports = [export_group(settings, export.name) for export in settings.exports]
    return [project_group(settings), fold_group(settings), *exports]
