"""One member writes and the others stand by."""

from types import SimpleNamespace
from typing import Any

import pytest

from worker.assignor import SingleWriterAssignor

CLUSTER = SimpleNamespace(partitions_for_topic={"records": {0, 1, 2}}.get)


def partitions_of(assignments: dict[str, Any], member: str) -> list[tuple[str, int]]:
    return [tuple(partition) for partition in assignments[member].partitions()]


def join(assignors: dict[str, SingleWriterAssignor]) -> dict[str, Any]:
    """Run one rebalance among members, with each one's own word."""
    members = {
        # Over the wire and back, as the group's leader sees it.
        name: type(metadata).decode(metadata.encode())
        for name, metadata in ((name, assignor.metadata(["records"])) for name, assignor in assignors.items())
    }
    leader = next(iter(assignors.values()))
    assignments = leader.assign(CLUSTER, members)
    for name, assignor in assignors.items():
        assignor.on_assignment(assignments[name])
    return assignments


def test_one_member_gets_every_partition_and_the_others_none() -> None:
    assignments = join({"b": SingleWriterAssignor(), "a": SingleWriterAssignor()})
    assert partitions_of(assignments, "a") == [("records", 0), ("records", 1), ("records", 2)]
    assert partitions_of(assignments, "b") == []


def test_the_writer_stays_the_writer_when_others_join() -> None:
    writer = SingleWriterAssignor()
    join({"m": writer})
    assignments = join({"a": SingleWriterAssignor(), "m": writer, "z": SingleWriterAssignor()})
    assert len(partitions_of(assignments, "m")) == 3
    assert partitions_of(assignments, "a") == partitions_of(assignments, "z") == []


def test_a_standby_takes_over_when_the_writer_has_gone() -> None:
    writer, standby = SingleWriterAssignor(), SingleWriterAssignor()
    join({"a": writer, "b": standby})
    assignments = join({"b": standby})
    assert len(partitions_of(assignments, "b")) == 3


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_two_members_that_both_were_writers_settle_on_one(names: tuple[str, str]) -> None:
    one, other = SingleWriterAssignor(), SingleWriterAssignor()
    join({"x": one})
    join({"y": other})
    assignments = join({names[0]: one, names[1]: other})
    assert [len(partitions_of(assignments, name)) for name in ("a", "b")] == [3, 0]
