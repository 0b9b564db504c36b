"""How far committed offsets are behind the ends of their logs."""

from collections.abc import Mapping, Sequence

from worker.kafka import GroupConsumer, TopicPartition
from worker.lanes import Slot


class LogEnds:
    """Knows where logs end: by what was fetched, and for partitions that are paused by asking now and then."""

    def __init__(self) -> None:
        self._ends: Mapping[TopicPartition, int] = {}

    async def look(self, consumer: GroupConsumer) -> None:
        """Ask the brokers where the logs of the assigned partitions end. Raises KafkaError."""
        if assigned := consumer.assignment():
            self._ends = await consumer.end_offsets(assigned)

    def lags(self, consumer: GroupConsumer, slots: Sequence[Slot]) -> dict[TopicPartition, int]:
        """Count the messages between committed offset and end of each partition, as far as its end is known."""
        assigned = consumer.assignment()
        committed = {place: at for slot in slots for place, at in slot.committed.items() if place in assigned}
        return {
            place: max(0, (consumer.highwater(place) or 0) - at, self._ends.get(place, 0) - at)
            for place, at in committed.items()
        }
