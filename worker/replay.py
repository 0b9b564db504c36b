"""Replaying: source messages that were projected before are projected again, in the same generation.

Safe at any time, beside running workers, because facts join: what is already known changes nothing, and only what the
projection now makes differently does. Two ways: this process projects again what the workers have already committed
(``replay``), or the offsets of their group are moved and they do it themselves (``move_offsets``).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from projections.facts import partition_of
from worker.dead_letters.letter import encode_dead_letter
from worker.direct_writer import open_producer
from worker.generations.binding import check_generation
from worker.groups import GroupsClient, open_groups
from worker.kafka import BatchWriter, Message, TopicPartition
from worker.metrics import Tally
from worker.roles.project import letter_of, project_outcome
from worker.settings import Settings
from worker.topic_scan import BrokerFailed, Span, TopicScan, broker_errors, open_scan
from worker.topics import own_topics, project_group

_PURPOSE = "moving its offsets"
# What is written between two looks at the clock; a rate is kept over this many messages, not one by one.
_SLICE_MESSAGES = 500


class ReplayRefused(Exception):  # noqa: N818  (a wrong wish, not a fault of the program)
    """What is asked for cannot be replayed, or would lose messages; the text says why."""


class Selection(NamedTuple):
    """Which messages: of these topics (empty: of all sources), from the beginning, a time, or given offsets on.

    ``offsets`` replaces the other two for the partitions it names, and alone it means only those partitions.
    """

    topics: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    offsets: Mapping[TopicPartition, int] = {}


@dataclass
class Replayed:
    """What became of the messages, and from where to go on in the partitions that are not done."""

    tally: Tally = field(default_factory=lambda: Tally(0))
    facts: int = 0
    total: int = 0
    rest: dict[TopicPartition, int] = field(default_factory=dict)


async def find_spans(
    scan: TopicScan, settings: Settings, selection: Selection, ends: Mapping[TopicPartition, int] | None
) -> dict[TopicPartition, Span]:
    """Find the offsets that a selection means; with ``ends`` none beyond them. Raises ReplayRefused or BrokerFailed."""
    places = await _places(scan, settings, selection)
    spans = await scan.spans(places)
    for place, offset in selection.offsets.items():
        if not spans[place].start <= offset <= spans[place].end:
            raise ReplayRefused(
                f"topic {place.topic} partition {place.partition} holds the offsets {spans[place].start} to "
                f"{spans[place].end}, and {offset} is none of them"
            )
    starts = {place: span.start for place, span in spans.items()}
    if selection.since_ms is not None:
        starts = await scan.offsets_at(spans, selection.since_ms)
    stops = {place: span.end for place, span in spans.items()}
    if selection.until_ms is not None:
        stops = await scan.offsets_at(spans, selection.until_ms)
    starts |= selection.offsets
    limits = stops if ends is None else {place: min(stop, ends.get(place, 0)) for place, stop in stops.items()}
    return {place: Span(starts[place], max(starts[place], limits[place]), is_exact=True) for place in places}


async def _places(scan: TopicScan, settings: Settings, selection: Selection) -> list[TopicPartition]:
    """Find the partitions that a selection means."""
    sources = frozenset(settings.source_topics.values())
    named = selection.topics | {place.topic for place in selection.offsets}
    if foreign := sorted(named - sources):
        raise ReplayRefused(f"{foreign[0]} is no source topic; there are {', '.join(sorted(sources))}")
    is_by_offsets = bool(selection.offsets) and not selection.topics and selection.since_ms is None
    topics = named or sources
    places = await scan.partitions(topics)
    if missing := sorted(named - {place.topic for place in places}):
        raise BrokerFailed(f"there is no topic {missing[0]} at {settings.bootstrap_servers}")
    if unknown := sorted(selection.offsets.keys() - set(places)):
        raise ReplayRefused(f"topic {unknown[0].topic} has no partition {unknown[0].partition}")
    return sorted(selection.offsets) if is_by_offsets else places


# ------------------------------------------------------------------------------------------------ projecting again


class Replay:
    """Projects spans of the sources again; without a writer it only counts."""

    def __init__(self, settings: Settings, scan: TopicScan, writer: BatchWriter | None, rate: float | None) -> None:
        self._settings = settings
        self._scan = scan
        self._writer = writer
        self._rate = rate
        self._topics = own_topics(settings)
        self._sources = {topic: source for source, topic in settings.source_topics.items()}

    async def run(
        self, spans: Mapping[TopicPartition, Span], on_progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> Replayed:
        """Replay; when it is cancelled, what is durable counts and the rest is told. Raises BrokerFailed."""
        replayed = Replayed(total=sum(span.length for span in spans.values()))
        replayed.rest = {place: span.start for place, span in spans.items() if span.length}
        started, passed = time.monotonic(), 0
        try:
            async for place, messages in self._slices(spans):
                await self._project(place, messages, replayed)
                passed += messages[-1].offset + 1 - replayed.rest[place]
                replayed.rest[place] = messages[-1].offset + 1
                on_progress(passed, replayed.total)
                if self._rate is not None:
                    await asyncio.sleep(max(0.0, started + replayed.tally.messages / self._rate - time.monotonic()))
        except asyncio.CancelledError:
            return replayed
        replayed.rest = {}
        return replayed

    async def _slices(
        self, spans: Mapping[TopicPartition, Span]
    ) -> AsyncIterator[tuple[TopicPartition, Sequence[Message]]]:
        async for place, messages in self._scan.read(spans):
            for start in range(0, len(messages), _SLICE_MESSAGES):
                yield place, messages[start : start + _SLICE_MESSAGES]

    async def _project(self, place: TopicPartition, messages: Sequence[Message], replayed: Replayed) -> None:
        """Project messages and make all of their output durable before any of them counts."""
        tally, facts = replayed.tally, 0
        outcomes = [
            project_outcome(self._sources[place.topic], place.partition, message, self._settings.limits)
            for message in messages
        ]
        if self._writer is not None:
            for message, outcome in zip(messages, outcomes, strict=True):
                for aggregate, key, value in outcome.facts:
                    self._append(self._topics.facts, aggregate, key, value)
                letter = letter_of(place, message, outcome)
                if letter is not None:
                    key, value = encode_dead_letter(letter)
                    self._append(self._topics.dead_letters, key.decode(), key, value)
            with broker_errors(self._settings):
                await self._writer.flush()
        for outcome in outcomes:
            facts += len(outcome.facts)
            if outcome.dead is not None:
                tally.dead_lettered[outcome.dead] += 1
            elif outcome.ignored is not None:
                tally.ignored[outcome.ignored] += 1
            else:
                tally.projected += 1
        tally.messages += len(messages)
        replayed.facts += facts

    def _append(self, topic: str, name: str, key: bytes, value: bytes) -> None:
        assert self._writer is not None
        self._writer.append(topic, partition_of(name, self._settings.partitions), key, value)


async def replay(
    settings: Settings,
    selection: Selection,
    *,
    rate: float | None,
    dry_run: bool,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Replayed:
    """Project again what the project group has committed of a selection; what is beyond is the workers' to do.

    ``rate`` is a number of messages a second. Raises ReplayRefused, StartError for a generation of another projection,
    or BrokerFailed.
    """
    await check_generation(settings)
    async with AsyncExitStack() as stack:
        scan = await stack.enter_async_context(open_scan(settings))
        groups = await stack.enter_async_context(open_groups(settings))
        places = await _places(scan, settings, selection)
        committed = await groups.committed(project_group(settings), places)
        spans = await find_spans(scan, settings, selection, committed)
        writer = None
        if not dry_run and any(span.length for span in spans.values()):
            writer = BatchWriter(await stack.enter_async_context(open_producer(settings)))
        return await Replay(settings, scan, writer, rate).run(spans, on_progress)


# --------------------------------------------------------------------------------------------- moving the offsets


class Move(NamedTuple):
    """Where the project group stands in a partition, where it is to go on, and how much it reads again or passes."""

    place: TopicPartition
    committed: int | None
    target: int
    again: int
    passed_over: int


async def move_offsets(settings: Settings, selection: Selection, *, dry_run: bool, accept_loss: bool) -> list[Move]:
    """Move the offsets of the project group, which nobody may be in, to the start of a selection.

    Raises GroupInUse, ReplayRefused when messages would be passed over that nobody has read (unless that loss is
    accepted), or BrokerFailed.
    """
    if selection.until_ms is not None:
        raise ReplayRefused("a group whose offsets are moved reads on to the end: leave out --until")
    async with open_scan(settings) as scan, open_groups(settings) as groups:
        group = project_group(settings)
        moves = await _moves(scan, groups, group, settings, selection)
        lossy = [move for move in moves if move.passed_over]
        if lossy and not accept_loss:
            place = lossy[0].place
            raise ReplayRefused(
                f"topic {place.topic} partition {place.partition}: {lossy[0].passed_over} messages that nobody has "
                "read would be passed over; --accept-loss does it"
            )
        if dry_run:
            await groups.require_empty(group, _PURPOSE)
        elif moves:
            await groups.move(group, {move.place: move.target for move in moves}, _PURPOSE)
    return moves


async def _moves(
    scan: TopicScan, groups: GroupsClient, group: str, settings: Settings, selection: Selection
) -> list[Move]:
    spans = await find_spans(scan, settings, selection, None)
    beginnings = await scan.spans(spans)
    committed = await groups.committed(group, spans)
    moves = []
    for place, span in spans.items():
        # What retention has deleted cannot be read by anybody: going on behind it passes over nothing more.
        reads_from = max(committed.get(place, 0), beginnings[place].start)
        moves.append(
            Move(
                place=place,
                committed=committed.get(place),
                target=span.start,
                again=max(0, reads_from - span.start),
                passed_over=max(0, span.start - reads_from),
            )
        )
    return moves
