"""The coordinator of consumer groups: members, generations, the two steps of a rebalance, and committed offsets.

It follows Kafka's classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch and
TxnOffsetCommit, with a session timeout per member and a limit on how long a rebalance waits for its members.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from aiokafka.errors import (
    IllegalGenerationError,
    InvalidProducerEpoch,
    NonEmptyGroup,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

from tests.simulation.loop import SimulatedLoop
from worker.kafka import TopicPartition

State = Literal["empty", "preparing", "completing", "stable"]

CommitHook = Callable[[str, TopicPartition, int | None, int], None]
"""Called with group, partition, the committed offset so far, and the new one."""


class Joined(NamedTuple):
    """What a member learns when all have joined; only the leader gets the members."""

    generation: int
    member_id: str
    members: Mapping[str, Any] | None


@dataclass(eq=False)
class Member:
    """One member of a group."""

    id: str
    metadata: Any
    session_s: float
    rebalance_s: float
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[Any] | None = None
    session: asyncio.TimerHandle | None = None


class Stored(NamedTuple):
    """A committed offset, and when it was written: of two, the later stands, whichever shows first."""

    offset: int
    serial: int


@dataclass(eq=False)
class Group:
    """One group and its committed offsets, those of open transactions apart."""

    name: str
    state: State = "empty"
    generation: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    leader: str | None = None
    assignments: Mapping[str, Any] = field(default_factory=dict)
    deadline: asyncio.TimerHandle | None = None
    offsets: dict[TopicPartition, Stored] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, Stored]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)


class GroupCoordinator:
    """All groups of a virtual broker."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.groups: dict[str, Group] = {}
        self.on_commit: list[CommitHook] = []
        self.rebalances = 0
        self._loop = loop
        self._context = Context()
        self._serial = 0

    def group(self, name: str) -> Group:
        """Give a group, which comes into being when it is first named."""
        if name not in self.groups:
            self.groups[name] = Group(name)
        return self.groups[name]

    # ------------------------------------------------------------------------------------------------- membership

    def join(
        self, name: str, member_id: str, client: str, metadata: Any, *, session_s: float, rebalance_s: float
    ) -> asyncio.Future[Joined]:
        """Join, or join again; the answer comes when all members have, or the rebalance's time is over."""
        group = self.group(name)
        if member_id:
            member = self._member(group, member_id)
            member.metadata = metadata
        else:
            self._serial += 1
            member = Member(f"{client}-{self._serial}", metadata, session_s, rebalance_s)
            group.members[member.id] = member
        self._prepare(group)
        if member.joining is None or member.joining.done():
            member.joining = self._loop.create_future()
        self._stop_session(member)
        if all(other.joining is not None for other in group.members.values()):
            self._loop.call_soon(self._complete_join, group, group.generation, context=self._context)
        return member.joining

    def sync(
        self, name: str, member_id: str, generation: int, assignments: Mapping[str, Any] | None
    ) -> asyncio.Future[Any]:
        """Get what the leader decided; the leader brings it."""
        group = self.group(name)
        member = self._member(group, member_id, generation)
        if group.state == "preparing":
            raise RebalanceInProgressError
        self._keep_alive(group, member)
        answer: asyncio.Future[Any] = self._loop.create_future()
        if group.state == "stable":
            answer.set_result(group.assignments.get(member_id))
            return answer
        member.syncing = answer
        if member_id == group.leader and assignments is not None:
            group.assignments = assignments
            self._set_state(group, "stable")
            for other in group.members.values():
                syncing, other.syncing = other.syncing, None
                if syncing is not None and not syncing.done():
                    syncing.set_result(assignments.get(other.id))
        return answer

    def heartbeat(self, name: str, member_id: str, generation: int) -> None:
        """Say that a member lives; raises what it has to know."""
        group = self.group(name)
        member = self._member(group, member_id, generation)
        self._keep_alive(group, member)
        if group.state == "preparing":
            raise RebalanceInProgressError

    def leave(self, name: str, member_id: str) -> None:
        """Take leave."""
        group = self.group(name)
        self._remove(group, self._member(group, member_id))

    def _member(self, group: Group, member_id: str, generation: int | None = None) -> Member:
        if member_id not in group.members:
            raise UnknownMemberIdError
        if generation is not None and generation != group.generation:
            raise IllegalGenerationError
        return group.members[member_id]

    def _remove(self, group: Group, member: Member) -> None:
        del group.members[member.id]
        self._stop_session(member)
        for waiting in (member.joining, member.syncing):
            if waiting is not None and not waiting.done():
                waiting.set_exception(UnknownMemberIdError())
        if group.members:
            self._prepare(group)
            if all(other.joining is not None for other in group.members.values()):
                self._complete_join(group, group.generation)
        else:
            self._set_state(group, "empty")

    def _prepare(self, group: Group) -> None:
        if group.state == "preparing":
            return
        self._set_state(group, "preparing")
        self.rebalances += 1
        for member in group.members.values():
            syncing, member.syncing = member.syncing, None
            if syncing is not None and not syncing.done():
                syncing.set_exception(RebalanceInProgressError())
        limit_s = max(member.rebalance_s for member in group.members.values())
        group.deadline = self._loop.call_later(
            limit_s, self._complete_join, group, group.generation, context=self._context
        )

    def _complete_join(self, group: Group, generation: int) -> None:
        if group.state != "preparing" or group.generation != generation:
            return
        for member in [member for member in group.members.values() if member.joining is None]:
            # It took too long.
            self._stop_session(member)
            del group.members[member.id]
        if not group.members:
            self._set_state(group, "empty")
            return
        group.generation += 1
        self._set_state(group, "completing")
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        everybody = {member.id: member.metadata for member in group.members.values()}
        for member in group.members.values():
            joining, member.joining = member.joining, None
            self._keep_alive(group, member)
            if joining is not None and not joining.done():
                members = everybody if member.id == group.leader else None
                joining.set_result(Joined(group.generation, member.id, members))

    def _set_state(self, group: Group, state: State) -> None:
        group.state = state
        if group.deadline is not None:
            group.deadline.cancel()
            group.deadline = None

    def _keep_alive(self, group: Group, member: Member) -> None:
        self._stop_session(member)
        member.session = self._loop.call_later(member.session_s, self._expire, group, member, context=self._context)

    def _stop_session(self, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None

    def _expire(self, group: Group, member: Member) -> None:
        if group.members.get(member.id) is member and member.joining is None:
            self._remove(group, member)

    def expel(self, name: str, member_id: str) -> None:
        """Forget a member as if its session had run out."""
        group = self.group(name)
        if member_id in group.members:
            self._remove(group, group.members[member_id])

    # ---------------------------------------------------------------------------------------------------- offsets

    def commit(self, name: str, member_id: str, generation: int, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets as a member of the present generation."""
        group = self.group(name)
        member = self._member(group, member_id, generation)
        if group.state == "completing":
            raise RebalanceInProgressError
        if group.state == "stable":
            self._keep_alive(group, member)
        self._store(group, {place: self._stamp(offset) for place, offset in offsets.items()})

    def reset(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets as an operator does; refused while the group has members."""
        group = self.group(name)
        if group.members:
            raise NonEmptyGroup
        group.offsets |= {place: self._stamp(offset) for place, offset in offsets.items()}

    def commit_in_transaction(
        self, name: str, producer_id: int, epoch: int, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Keep offsets that stand when the producer's transaction is committed, and not before."""
        group = self.group(name)
        if epoch < group.epochs.get(producer_id, 0):
            raise InvalidProducerEpoch
        group.epochs[producer_id] = epoch
        stamped = {place: self._stamp(offset) for place, offset in offsets.items()}
        group.pending.setdefault(producer_id, {}).update(stamped)

    def mark(self, name: str, producer_id: int, epoch: int, *, is_committed: bool) -> None:
        """End a producer's transaction here."""
        group = self.group(name)
        group.epochs[producer_id] = max(epoch, group.epochs.get(producer_id, 0))
        pending = group.pending.pop(producer_id, {})
        if is_committed:
            self._store(group, pending)

    def committed(self, name: str, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Give the committed offsets that there are; those of open transactions do not count yet."""
        offsets = self.group(name).offsets
        return {place: offsets[place].offset for place in places if place in offsets}

    def _stamp(self, offset: int) -> Stored:
        self._serial += 1
        return Stored(offset, self._serial)

    def _store(self, group: Group, stored: Mapping[TopicPartition, Stored]) -> None:
        for place, new in stored.items():
            old = group.offsets.get(place)
            if old is not None and old.serial > new.serial:
                continue
            group.offsets[place] = new
            for hook in self.on_commit:
                hook(group.name, place, None if old is None else old.offset, new.offset)


def places_of(counts: Mapping[str, int], topics: Iterable[str]) -> list[TopicPartition]:
    """List the partitions of some topics."""
    return [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
