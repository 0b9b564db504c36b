"""The partition assignor of exports whose sink has one writer: one member takes everything, the others stand by."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

_VERSION: Final = 0
_WRITER: Final = b"writer"


class SingleWriterAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Gives all partitions to one member, and to the same one for as long as it stays in the group.

    Every consumer needs its own instance: it remembers whether its member is the writer and says so when it joins.
    """

    name: ClassVar[str] = "trace-projector-single-writer"

    def __init__(self) -> None:
        self._is_writer = False

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Choose the writer (run by the group's leader); ties and new groups go to the smallest member id."""
        writer = min(members, key=lambda member: (members[member].user_data != _WRITER, member))
        topics = sorted({topic for metadata in members.values() for topic in metadata.subscription})
        everything = [(topic, sorted(cluster.partitions_for_topic(topic) or ())) for topic in topics]
        return {
            member: ConsumerProtocolMemberAssignment(_VERSION, everything if member == writer else [], b"")
            for member in members
        }

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Say what this member reads, and whether it is the writer."""
        return ConsumerProtocolMemberMetadata(_VERSION, list(topics), _WRITER if self._is_writer else b"")

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember what the group decided."""
        self._is_writer = bool(assignment.partitions())
