"""The work of the three hops, the same for every framework: the worker's own pure functions, its policy and its sink.

Nothing here knows a framework, waits or decides when something is durable; what is wrong with a message is an error,
because the traffic holds nothing that is wrong.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from projections.facts import decode_fact, encode_fact, partition_of
from projections.fold import Change, Fold
from projections.sources import project_message
from tests.bench.place import OWN_PARTITIONS, Place
from worker.export_policy import policy_for
from worker.exports import KIND_HEADER, REPO_HEADER, RecordMessage, make_upsert, record_key, record_message
from worker.settings import Settings
from worker.sink import Sink, Upsert, open_sink

GENERATION = 1
BATCH_MESSAGES = 5_000

Header = tuple[str, bytes]


@contextlib.contextmanager
def ending_on_failure() -> Iterator[None]:
    """End the process when a hop fails: its fold may have joined what was never published, and must not go on.

    Left to themselves, frameworks go on with the next batch, or with the same one and the state as it is.
    """
    try:
        yield
    except Exception:  # noqa: BLE001  (whatever it was)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Outgoing(NamedTuple):
    """A message on its way to an explicit partition; ``owner`` is the name that chose it."""

    topic: str
    partition: int
    owner: str
    key: bytes
    value: bytes | None
    headers: Sequence[Header] = ()


class RecordRow(NamedTuple):
    """A message of the records topic, as the export reads it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


class Projecting:
    """The first hop: messages of the sources become facts."""

    def __init__(self, place: Place) -> None:
        self._sources = place.source_of
        self._facts = place.topics.facts

    def facts_of(
        self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None
    ) -> list[Outgoing]:
        """Project one message."""
        projected = project_message(self._sources[topic], key, value, partition, offset)
        return [_to_facts(self._facts, fact.aggregate, *encode_fact(fact)) for fact in projected.facts]


class Folding:
    """The second hop: facts join into the state of their partition, in memory; what follows from it goes out."""

    def __init__(self, place: Place) -> None:
        self._topics = place.topics
        self._folds: dict[int, Fold] = {}

    def fold(self, partition: int, rows: Iterable[tuple[int, bytes | None, bytes | None]]) -> list[Outgoing]:
        """Fold (offset, key, value) rows of one partition, in their order."""
        items = [(offset, decode_fact(key or b"", value)) for offset, key, value in rows if value is not None]
        if not items:
            return []
        fold = self._folds.get(partition)
        if fold is None:
            fold = self._folds[partition] = Fold(generation=GENERATION)
        result = fold.apply(items)
        facts = self._topics.facts
        return [
            *map(self._to_records, result.changes),
            *(_to_facts(facts, fact.aggregate, *encode_fact(fact)) for fact in result.facts),
            *(Outgoing(facts, partition, "", key, None) for key in result.superseded),
        ]

    def _to_records(self, change: Change) -> Outgoing:
        partition = partition_of(change.id, OWN_PARTITIONS)
        headers: list[Header] = [(KIND_HEADER, change.kind.encode())]
        if change.record is None and change.repo is not None:
            headers.append((REPO_HEADER, change.repo.encode()))
        key = record_key(change.kind, change.id)
        return Outgoing(self._topics.records, partition, change.id, key, change.record, headers)


def _to_facts(topic: str, aggregate: str, key: bytes, value: bytes) -> Outgoing:
    return Outgoing(topic, partition_of(aggregate, OWN_PARTITIONS), aggregate, key, value)


class Exporting:
    """The third hop: the newest version of each record of a batch, redacted, into the sink."""

    def __init__(self, place: Place) -> None:
        export = place.export_settings
        self._policy = policy_for(Settings(app_id=place.app_id), export)
        self.sink: Sink = open_sink(export.sink, self._policy.digest)

    def upserts(self, rows: Iterable[RecordRow]) -> list[Upsert]:
        """Make what the sink is given of a batch of records."""
        newest: dict[tuple[str, str], RecordMessage] = {}
        for row in rows:
            item = record_message(GENERATION, row)
            newest[item.kind, item.id] = item
        return [make_upsert(self._policy, item) for item in newest.values()]
