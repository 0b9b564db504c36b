"""Virtual consumers: the group consumer and the reader without a group, behind the ports of ``worker.kafka``.

They do what aiokafka does as far as the worker rests on it, the awkward parts included: a poll that spans a rebalance
returns what the new assignment has; the group's generation is the one at the time of sending; the listener that takes
partitions away is awaited, and heartbeats go on meanwhile.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    RebalanceInProgressError,
    UnknownError,
    UnknownMemberIdError,
)

from tests.simulation.broker import Fetched, VirtualBroker
from tests.simulation.groups import Joined
from tests.simulation.loop import current_process
from tests.simulation.network import RETRY_BACKOFF_S, LostError
from worker.kafka import Message, TopicPartition

_REBALANCE_LIMIT_S = 60.0
_REJOIN = (UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError)


class VirtualReader:
    """Reads partitions that it was told to read."""

    def __init__(self, broker: VirtualBroker) -> None:
        self._broker = broker
        self._network = broker.network
        # None: nobody has said yet where to read. Replaced as a whole when the assignment changes.
        self._positions: dict[TopicPartition, int | None] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._errors: dict[TopicPartition, KafkaError] = {}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._give(partitions)

    async def start(self) -> None:
        await self._network.ask("connect", lambda: None)

    async def stop(self) -> None:
        self._positions = {}

    def _give(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(sorted(partitions))
        self._ends, self._errors = {}, {}
        self._paused.clear()

    # ---------------------------------------------------------------------------------------------------- reading

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Message]]:
        loop = self._broker.loop
        deadline = loop.time() + timeout_ms / 1_000
        while True:
            await self._wait_for_assignment()
            chance = self._network.weather.poll_error_chance
            if chance and self._broker.random.random() < chance:
                raise UnknownError
            places = [place for place in partitions or self._positions if place in self._positions]
            self._raise_error(places)
            wanted = {
                place: position
                for place in places
                if place not in self._paused and (position := self._positions[place]) is not None
            }
            wait_s = deadline - loop.time()
            if not wanted:
                if wait_s <= 0:
                    return {}
                await asyncio.sleep(min(wait_s, 0.05))
                continue
            asked_of = self._positions
            fetched = await self._network.ask("fetch", partial(self._broker.fetch, wanted, max_records, wait_s))
            await self._wait_for_assignment()
            if asked_of is self._positions:
                polled = self._take(wanted, fetched, max_records)
                self._raise_error(() if polled else places)
                if polled:
                    return polled
            if loop.time() >= deadline:
                return {}

    def _take(
        self, wanted: Mapping[TopicPartition, int], fetched: Mapping[TopicPartition, Fetched], count_max: int
    ) -> dict[TopicPartition, list[Message]]:
        polled: dict[TopicPartition, list[Message]] = {}
        for place, result in fetched.items():
            if self._positions.get(place) != wanted[place] or place in self._paused:
                # Moved meanwhile: what was fetched is from another place.
                continue
            self._ends[place] = result.end
            if result.error is not None:
                self._errors[place] = result.error
                continue
            messages = list(result.messages)[:count_max]
            is_whole = len(messages) == len(result.messages)
            if messages:
                polled[place] = messages
                count_max -= len(messages)
                self._positions[place] = result.next_offset if is_whole else messages[-1].offset + 1
            elif is_whole:
                self._positions[place] = result.next_offset
        return polled

    def _raise_error(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            if place in self._errors:
                raise self._errors.pop(place)

    async def _wait_for_assignment(self) -> None:
        """A reader always has one."""

    async def position(self, partition: TopicPartition) -> int:
        while True:
            position = self._known(partition)
            if position is not None:
                return position
            await asyncio.sleep(0.01)

    def highwater(self, partition: TopicPartition) -> int | None:
        self._known(partition)
        return self._ends.get(partition)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        places = list(partitions)
        beginnings: dict[TopicPartition, int] = await self._network.ask(
            "list offsets", lambda: self._broker.beginnings(places)
        )
        return beginnings

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._known(partition)
        self._positions[partition] = offset
        self._errors.pop(partition, None)

    def _known(self, partition: TopicPartition) -> int | None:
        if partition not in self._positions:
            raise IllegalStateError(f"partition {partition} is not assigned")
        return self._positions[partition]


class VirtualConsumer(VirtualReader):
    """A member of a group."""

    def __init__(
        self, broker: VirtualBroker, group: str, assignor: Any, *, session_s: float, heartbeat_s: float
    ) -> None:
        super().__init__(broker)
        self.group = group
        self.member_id = ""
        self._groups = broker.groups
        self._assignor = assignor
        self._session_s = session_s
        self._heartbeat_s = heartbeat_s
        self._generation = -1
        self._topics: tuple[str, ...] = ()
        self._listener: Any = None
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._assigned = asyncio.Event()
        self._rejoin = asyncio.Event()
        self._coordination: asyncio.Task[None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._resets: asyncio.Task[None] | None = None

    # -------------------------------------------------------------------------------------------------- life cycle

    def subscribe(self, topics: Iterable[str], *, listener: Any) -> None:
        self._topics, self._listener = tuple(topics), listener

    async def start(self) -> None:
        await super().start()
        self._coordination = asyncio.ensure_future(self._coordinate())
        await self._wait_for_assignment()

    async def stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        self._stopped.set()
        if self._coordination is not None:
            await self._coordination
        self._cancel(self._heartbeats)
        self._cancel(self._resets)
        if self.member_id:
            # One try, as aiokafka has it: a member that could not say so is missed after its session.
            with contextlib.suppress(Exception):
                await self._network.ask_once("leave", lambda: self._groups.leave(self.group, self.member_id))

    def _cancel(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()

    # ------------------------------------------------------------------------------------------------ coordination

    async def _coordinate(self) -> None:
        while not self._is_stopping:
            self._assigned.clear()
            await self._listener.on_partitions_revoked(set(self._positions))
            self._cancel(self._heartbeats)
            if not await self._join():
                return
            self._rejoin.clear()
            self._heartbeats = asyncio.ensure_future(self._beat(self.member_id))
            self._cancel(self._resets)
            self._resets = asyncio.ensure_future(self._reset(self._positions))
            self._assigned.set()
            await self._listener.on_partitions_assigned(set(self._positions))
            await self._first(self._rejoin, self._stopped)

    async def _join(self) -> bool:
        """Join until there is an assignment; false when the consumer stops first."""
        name = current_process().name
        while not self._is_stopping:
            metadata = self._assignor.metadata(self._topics)
            try:
                joined: Joined = await self._while_running(
                    self._network.ask_once("join", partial(self._ask_to_join, metadata, name), may_lose=False)
                )
                self._generation, self.member_id = joined.generation, joined.member_id
                assignment = await self._while_running(
                    self._network.ask_once("sync", self._sync(joined), may_lose=False)
                )
            except _StoppedError:
                return False
            except _REJOIN as error:
                if not isinstance(error, RebalanceInProgressError):
                    self._forget_membership()
                await asyncio.sleep(0.1)
            else:
                self._give(TopicPartition(*place) for place in assignment.partitions())
                self._assignor.on_assignment(assignment)
                return True
        return False

    def _ask_to_join(self, metadata: Any, name: str) -> asyncio.Future[Joined]:
        return self._groups.join(
            self.group, self.member_id, name, metadata, session_s=self._session_s, rebalance_s=_REBALANCE_LIMIT_S
        )

    def _sync(self, joined: Joined) -> Any:
        assignments = None
        if joined.members is not None:
            assignments = self._assignor.assign(self._broker, joined.members)
        return lambda: self._groups.sync(self.group, joined.member_id, joined.generation, assignments)

    async def _while_running(self, work: Any) -> Any:
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _StoppedError
            return task.result()
        finally:
            task.cancel()
            stopped.cancel()

    async def _first(self, *events: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _beat(self, member_id: str) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                beat = partial(self._groups.heartbeat, self.group, member_id, self._generation)
                await self._network.ask("heartbeat", beat)
            except RebalanceInProgressError:
                self._rejoin.set()
            except (UnknownMemberIdError, IllegalGenerationError):
                self._forget_membership()
                return

    def _forget_membership(self) -> None:
        self._generation, self.member_id = -1, ""
        self._rejoin.set()

    async def _reset(self, positions: dict[TopicPartition, int | None]) -> None:
        """Move partitions without a position to their committed offset, as aiokafka does by itself."""
        await asyncio.sleep(0)
        committed = await self._fetch_committed(list(positions))
        for place, position in list(positions.items()):
            if positions is self._positions and position is None:
                if place in committed:
                    positions[place] = committed[place]
                else:
                    self._errors[place] = NoOffsetForPartitionError(place)

    async def _wait_for_assignment(self) -> None:
        await self._assigned.wait()

    # ----------------------------------------------------------------------------------------------------- offsets

    async def committed(self, partition: TopicPartition) -> int | None:
        return (await self._fetch_committed([partition])).get(partition)

    async def _fetch_committed(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        committed: dict[TopicPartition, int] = await self._network.ask(
            "fetch offsets", lambda: self._groups.committed(self.group, places)
        )
        return committed

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for place in offsets:
            self._known(place)
        if not offsets:
            return
        kept = dict(offsets)
        while True:
            # The member that it is when the request leaves, not the one that it was when the batch was polled.
            effect = partial(self._groups.commit, self.group, self.member_id, self._generation, kept)
            try:
                await self._network.ask_once("commit", effect)
            except LostError:
                await asyncio.sleep(RETRY_BACKOFF_S)
            except _REJOIN as error:
                if isinstance(error, RebalanceInProgressError):
                    self._rejoin.set()
                else:
                    self._forget_membership()
                raise CommitFailedError from error
            else:
                return

    # ------------------------------------------------------------------------------------------------- the rest

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def pause(self, *partitions: TopicPartition) -> None:
        for place in partitions:
            self._known(place)
        self._paused |= set(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        for place in partitions:
            self._known(place)
        self._paused -= set(partitions)


class _StoppedError(Exception):
    """The consumer stops; whatever it was waiting for does not matter any more."""
