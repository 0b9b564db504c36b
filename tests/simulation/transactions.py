"""The coordinator of transactions: producers by name, their epochs, and how a transaction ends.

A transaction ends in two steps. The coordinator decides, and answers; then a marker goes to every partition and group
that took part, each in its own time, and only then does it show there. Until all markers are written, the producer's
name is busy: neither its next transaction nor its successor can begin.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Literal

from aiokafka.errors import ConcurrentTransactions, InvalidProducerEpoch, InvalidTxnState

from tests.simulation.groups import GroupCoordinator
from tests.simulation.log import PartitionLog
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from worker.kafka import TopicPartition

Status = Literal["empty", "ongoing", "committing", "aborting", "committed", "aborted"]


@dataclass(eq=False)
class Name:
    """What the coordinator keeps per transactional id."""

    producer_id: int
    epoch: int = -1
    status: Status = "empty"
    timeout_s: float = 60.0
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    markers_left: int = 0
    serial: int = 0


class TransactionCoordinator:
    """All transactional producers of a virtual broker."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        groups: GroupCoordinator,
        logs: Mapping[TopicPartition, PartitionLog],
    ) -> None:
        self.names: dict[str, Name] = {}
        self.wake: Callable[[TopicPartition], None] = lambda _place: None
        self._loop = loop
        self._network = network
        self._groups = groups
        self._logs = logs
        self._context = Context()

    def start(self, name: str, timeout_s: float) -> tuple[int, int]:
        """Give producer id and epoch to a new producer of this name, and fence every earlier one.

        Raises ConcurrentTransactions while a transaction of an earlier one is being ended: ask again.
        """
        known = self.names.get(name)
        if known is None:
            known = self.names[name] = Name(producer_id=1_000 + len(self.names))
        if known.status == "ongoing":
            known.epoch += 1
            self._end(known, is_committed=False)
        if known.status in ("committing", "aborting"):
            raise ConcurrentTransactions
        known.epoch += 1
        known.status = "empty"
        known.timeout_s = timeout_s
        return known.producer_id, known.epoch

    def add(
        self, name: str, epoch: int, *, partitions: Iterable[TopicPartition] = (), groups: Iterable[str] = ()
    ) -> None:
        """Begin a transaction, or let more partitions and groups take part in it."""
        known = self._checked(name, epoch)
        if known.status in ("committing", "aborting"):
            raise ConcurrentTransactions
        if known.status != "ongoing":
            known.status = "ongoing"
            known.serial += 1
            self._loop.call_later(known.timeout_s, self._time_out, known, known.serial, context=self._context)
        known.partitions |= set(partitions)
        known.groups |= set(groups)

    def end(self, name: str, epoch: int, *, is_committed: bool) -> None:
        """Decide how a transaction ends; asking twice changes nothing."""
        known = self._checked(name, epoch)
        wanted: Status = "committed" if is_committed else "aborted"
        if known.status == wanted:
            return
        if known.status == ("committing" if is_committed else "aborting"):
            raise ConcurrentTransactions
        if known.status != "ongoing":
            raise InvalidTxnState
        self._end(known, is_committed=is_committed)

    def _checked(self, name: str, epoch: int) -> Name:
        known = self.names[name]
        if epoch != known.epoch:
            raise InvalidProducerEpoch
        return known

    def _time_out(self, known: Name, serial: int) -> None:
        if known.status == "ongoing" and known.serial == serial:
            known.epoch += 1
            self._end(known, is_committed=False)

    def _end(self, known: Name, *, is_committed: bool) -> None:
        known.status = "committing" if is_committed else "aborting"
        partitions, known.partitions = known.partitions, set()
        groups, known.groups = known.groups, set()
        known.markers_left = len(partitions) + len(groups)
        for place in sorted(partitions):
            self._later(self._mark_log, known, known.epoch, place, is_committed)
        for group in sorted(groups):
            self._later(self._mark_group, known, known.epoch, group, is_committed)
        if not known.markers_left:
            self._marked(known, 0)

    def _later(self, mark: Callable[..., None], *arguments: object) -> None:
        weather, random = self._network.weather, self._network.random
        delay_s = self._network.latency_s()
        if weather.late_marker_chance and random.random() < weather.late_marker_chance:
            delay_s += random.uniform(0, weather.late_marker_s)
        self._loop.call_later(delay_s, mark, *arguments, context=self._context)

    def _mark_log(self, known: Name, epoch: int, place: TopicPartition, is_committed: bool) -> None:
        self._logs[place].mark(known.producer_id, epoch, is_committed=is_committed)
        self._marked(known, 1)
        self.wake(place)

    def _mark_group(self, known: Name, epoch: int, group: str, is_committed: bool) -> None:
        self._groups.mark(group, known.producer_id, epoch, is_committed=is_committed)
        self._marked(known, 1)

    def _marked(self, known: Name, count: int) -> None:
        known.markers_left -= count
        if known.markers_left == 0:
            known.status = "committed" if known.status == "committing" else "aborted"
