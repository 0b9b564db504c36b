"""Verifying: the records of two generations, or of a sink and the log that it was made from, compared by digest."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import Any, NamedTuple

import orjson

from projections.canonical import encode_record
from projections.errors import ProjectionError
from projections.records import RECORD_KINDS
from worker.export_policy import policy_for
from worker.exports import ExportPolicy, RecordMessage, make_upsert, record_message
from worker.generations.log import Generations, read_history
from worker.groups import open_groups
from worker.progress import Passage, passages, wait_through
from worker.record_digests import (
    Difference,
    Leaf,
    Leaves,
    describe,
    differing_keys,
    digest_of,
    root_digest,
    run_digests,
)
from worker.record_reader import open_reader
from worker.settings import Settings
from worker.settings_sections import ExportSettings
from worker.sink import RecordKey, split_sink_url
from worker.sink_place import place_word
from worker.sink_switch import beside, can_be_switched
from worker.sinks.kafka_topic import Location, settings_for
from worker.topic_scan import BrokerFailed, TopicScan, open_scan
from worker.topics import own_topics

Bodies = dict[RecordKey, dict[str, Any]]


class NotComparable(Exception):  # noqa: N818  (a state of the world, not a fault of the program)
    """There are no two things to compare, or one of them is still on its way; the text says which."""


class Side(NamedTuple):
    """One of the two that are compared: what to call it, how many runs and records it has, and its digest."""

    name: str
    runs: int
    records: int
    digest: str


class Verdict(NamedTuple):
    """The result of a comparison."""

    sides: tuple[Side, Side]
    differences: list[Difference]


class _Log:
    """The records log of one generation, as records or as what an export's policy makes of them."""

    def __init__(self, scan: TopicScan, settings: Settings, policy: ExportPolicy | None = None) -> None:
        self.name = f"generation {settings.generation}"
        self._scan = scan
        self._settings = settings
        self._policy = policy

    async def leaves(self) -> Leaves:
        """Give the digests of all living records."""
        leaves: Leaves = {}
        async for item in self._items():
            key, data = self._shown(item)
            if data is None:
                leaves.pop(key, None)
            else:
                body = orjson.loads(data)
                leaves[key] = Leaf(str(body["runId"]), digest_of(data, *self._beside(item)))
        return leaves

    async def bodies(self, wanted: Collection[RecordKey]) -> Bodies:
        """Give some of the living records."""
        bodies: Bodies = {}
        async for item in self._items():
            key, data = self._shown(item)
            if key in wanted:
                bodies.pop(key, None)
                if data is not None:
                    bodies[key] = orjson.loads(data)
        return bodies

    async def _items(self) -> AsyncIterator[RecordMessage]:
        partitions = await self._scan.partitions([own_topics(self._settings).records])
        if not partitions:
            raise BrokerFailed(f"there is no topic {own_topics(self._settings).records}")
        async for _place, messages in self._scan.read(await self._scan.spans(partitions)):
            for message in messages:
                try:
                    yield record_message(self._settings.generation, message)
                except ProjectionError:
                    # Such a message is a dead letter of every export.
                    continue

    def _shown(self, item: RecordMessage) -> tuple[RecordKey, bytes | None]:
        if self._policy is None:
            return (item.kind, item.id), item.record
        try:
            upsert = make_upsert(self._policy, item)
        except ProjectionError:
            # A record that cannot be redacted does not leave.
            return (item.kind, item.id), None
        return upsert.key, upsert.json

    def _beside(self, item: RecordMessage) -> tuple[bytes, ...]:
        # A sink has its own form of what stands beside a record; between two logs it is part of the record's message.
        if self._policy is not None or item.cache_write_split is None:
            return ()
        return (orjson.dumps(item.cache_write_split, option=orjson.OPT_SORT_KEYS),)


class _Destination:
    """What a sink holds."""

    def __init__(self, export: ExportSettings, url: str) -> None:
        self.name = f"export {export.name}"
        self._url = url

    def _records(self) -> Iterator[dict[str, Any]]:
        yield from open_reader(self._url).read(RECORD_KINDS)

    async def leaves(self) -> Leaves:
        """Give the digests of all records."""
        return {
            (record["kind"], record["id"]): Leaf(str(record["runId"]), digest_of(encode_record(record)))
            for record in self._records()
        }

    async def bodies(self, wanted: Collection[RecordKey]) -> Bodies:
        """Give some of the records."""
        found = {(record["kind"], record["id"]): record for record in self._records()}
        return {key: record for key, record in found.items() if key in wanted}


class _Topic:
    """What a Kafka topic that an export writes says last of every record."""

    def __init__(self, export: ExportSettings, settings: Settings) -> None:
        self.name = f"export {export.name}"
        self._location = Location.parsed(export.sink.partition(":")[2])
        self._settings = settings_for(self._location, settings)

    async def _messages(self) -> AsyncIterator[tuple[RecordKey, bytes | None]]:
        async with open_scan(self._settings) as scan:
            places = await scan.partitions([self._location.topic])
            if not places:
                raise NotComparable(f"there is no topic {self._location.topic}")
            # A key stays in one partition, so the order of a partition is that of the versions.
            async for _place, messages in scan.read(await scan.spans(places)):
                for message in messages:
                    kind, _, record_id = (message.key or b"").decode().partition(":")
                    yield (kind, record_id), message.value

    async def leaves(self) -> Leaves:
        """Give the digests of all living records."""
        leaves: Leaves = {}
        async for key, data in self._messages():
            if data is None:
                leaves.pop(key, None)
            else:
                leaves[key] = Leaf(str(orjson.loads(data)["runId"]), digest_of(data))
        return leaves

    async def bodies(self, wanted: Collection[RecordKey]) -> Bodies:
        """Give some of the living records."""
        bodies: Bodies = {}
        async for key, data in self._messages():
            if key in wanted:
                bodies.pop(key, None)
                if data is not None:
                    bodies[key] = orjson.loads(data)
        return bodies


_Compared = _Log | _Destination | _Topic


async def _compare(one: _Compared, other: _Compared) -> Verdict:
    left, right = await one.leaves(), await other.leaves()
    keys = differing_keys(left, right)
    differences: list[Difference] = []
    if keys:
        wanted = frozenset(keys)
        left_bodies, right_bodies = await one.bodies(wanted), await other.bodies(wanted)
        # One that both lost or both regained since has no difference left to name.
        keys = [key for key in keys if key in left_bodies or key in right_bodies]
        differences = list(describe(keys, left_bodies, right_bodies))
    return Verdict((_side(one.name, left), _side(other.name, right)), differences)


def _side(name: str, leaves: Leaves) -> Side:
    runs = run_digests(leaves)
    return Side(name, len(runs), len(leaves), root_digest(runs))


def _of(settings: Settings, generation: int) -> Settings:
    return settings.model_copy(update={"generation": generation})


async def verify_generations(
    settings: Settings, pair: tuple[int, int] | None, stalled_after_s: float, on_behind: Callable[[str, int], None]
) -> Verdict:
    """Compare two generations once both have caught up; by default the one that serves and the newest other.

    Raises NotComparable, Stalled or BrokerFailed.
    """
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        generations = await read_history(scan, settings)
        one, other = pair or _default_pair(generations)
        for generation in (one, other):
            if generation not in generations.living:
                raise NotComparable(f"there is no generation {generation}; `trace-projector generations` lists them")
            way = [step for step in passages(_of(settings, generation), ()) if step.role in ("project", "fold")]
            await wait_through(scan, groups, way, stalled_after_s, on_behind)
        return await _compare(_Log(scan, _of(settings, one)), _Log(scan, _of(settings, other)))


def _default_pair(generations: Generations) -> tuple[int, int]:
    others = [one for one in generations.living if one != generations.serving]
    if generations.serving is None or not others:
        raise NotComparable(
            "there is one generation at most: nothing to compare; --export compares a sink with its log"
        )
    return generations.serving, others[-1]


async def verify_export(
    settings: Settings, export: ExportSettings, stalled_after_s: float, on_behind: Callable[[str, int], None]
) -> Verdict:
    """Compare what a sink holds with what the settings' generation and the export's policy say that it should hold.

    Raises SettingsError, SinkRefused, RecordsUnreadable, NotComparable, Stalled or BrokerFailed.
    """
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        generations = await read_history(scan, settings)
        if settings.generation not in generations.living:
            raise NotComparable(
                f"there is no generation {settings.generation}; `trace-projector generations` lists them"
            )
        way: list[Passage] = [step for step in passages(settings, [export.name]) if step.role.startswith("export:")]
        await wait_through(scan, groups, way, stalled_after_s, on_behind)
        is_beside = generations.serving != settings.generation and can_be_switched(export.sink)
        url = beside(export.sink, place_word(settings.generation)) if is_beside else export.sink
        log = _Log(scan, settings, policy_for(settings, export))
        is_topic = split_sink_url(export.sink)[0] == "kafka"
        return await _compare(log, _Topic(export, settings) if is_topic else _Destination(export, url))
