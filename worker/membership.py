"""What membership of a consumer group asks of a worker: to hear of rebalances, and to know what its errors mean."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from worker.kafka import BrokenProducerError, GroupConsumer, PartitionLostError, TopicPartition
from worker.lanes import SpoiltLaneError, committed_positions

# A lane that was fenced although its partitions were not revoked waits, so that a revocation can come first.
_LOST_DELAY_S: Final = 3.0
_BROKEN_DELAY_S: Final = 1.0


class RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes rebalances on to a service; aiokafka only logs what a listener raises, so a failure here crashes it."""

    def __init__(
        self,
        revoked: Callable[[], Awaitable[None]],
        assigned: Callable[[frozenset[TopicPartition]], None],
        crash: Callable[[BaseException], Awaitable[None]],
    ) -> None:
        self._revoked = revoked
        self._assigned = assigned
        self._crash = crash

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        del revoked  # the eager protocol takes all partitions at once
        try:
            await self._revoked()
        except Exception as error:  # noqa: BLE001
            await self._crash(error)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        try:
            self._assigned(frozenset(assigned))
        except Exception as error:  # noqa: BLE001
            await self._crash(error)


async def ensure_still_ours(consumer: GroupConsumer, partitions: Iterable[TopicPartition]) -> None:
    """Make sure that the group still counts this member, before a lane of these partitions is opened once more.

    Committing what is committed already changes nothing and is refused once the group has moved on. Without this, a
    worker that came back from a long sleep could fence the rightful owner. Only for lanes that ``must_be_ours``.
    """
    await consumer.commit(await committed_positions(consumer, partitions))


def reopen_delay_s(error: BaseException) -> float | None:
    """Tell after what time a lane that ended in this error is opened again; None when it must not be."""
    match error:
        case PartitionLostError():
            return _LOST_DELAY_S
        case BrokenProducerError():
            return _BROKEN_DELAY_S
        case SpoiltLaneError():
            return 0.0
        case _:
            return None


def must_be_ours(error: BaseException) -> bool:
    """Say whether a lane that ended in this error may be opened again only while the group counts this member.

    That takes a commit, and the last transaction may be decided without its offset showing yet: what is committed after
    it, although older, would stand. Who was fenced has no such transaction; who was not must leave offsets alone.
    """
    return isinstance(error, PartitionLostError)


def is_unreachable(error: Exception) -> bool:
    """Say whether an error means that a broker cannot be reached or is not ready, which passes by itself."""
    return isinstance(error, OSError | TimeoutError) or (isinstance(error, KafkaError) and bool(error.retriable))
