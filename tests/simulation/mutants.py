"""Deliberate bugs, put into the worker and the core for the length of a run, so that the tests can be tested."""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final
from unittest.mock import patch

from aiokafka.errors import OffsetOutOfRangeError

import projections.facts
import worker.consumer
import worker.kafka
import worker.lanes
import worker.roles.export
import worker.roles.fold
import worker.roles.project
import worker.state
from projections.facts import Fact, FactSet, Joined
from tests.simulation import faults
from tests.simulation.simulation import Outcome, run_seed
from worker.consumer import BatchConsumer
from worker.kafka import GroupConsumer, TopicPartition
from worker.reading import Reader
from worker.roles.export import ExportLane
from worker.roles.fold import FoldLane
from worker.roles.project import ProjectLane
from worker.sink import Upsert
from worker.sinks.memory import MemoryStore

Mutant = Callable[[contextlib.ExitStack], None]


def commits_facts_before_flush(stack: contextlib.ExitStack) -> None:
    """The project role commits the offsets of its sources, then makes the facts durable."""
    _commit_first(stack, ProjectLane)


def commits_records_before_write(stack: contextlib.ExitStack) -> None:
    """An export commits its offsets, then writes the sink."""
    _commit_first(stack, ExportLane)


def _commit_first(stack: contextlib.ExitStack, lane: Any) -> None:
    flush, commit = lane.flush, lane.commit

    async def late_flush(_self: Any) -> None: ...

    async def early_commit(self: Any, consumer: GroupConsumer, positions: Mapping[TopicPartition, int]) -> None:
        await commit(self, consumer, positions)
        await flush(self)

    stack.enter_context(patch.object(lane, "flush", late_flush))
    stack.enter_context(patch.object(lane, "commit", early_commit))


def last_arrival_wins(stack: contextlib.ExitStack) -> None:
    """Of two versions of a fact, the one that arrives later stands."""
    stack.enter_context(patch.object(projections.facts, "outranks", lambda one, other: one != other))


def greatest_of_each_field(stack: contextlib.ExitStack) -> None:
    """Two versions of a fact are merged field by field, the greater value of each."""
    join = FactSet.join

    def merge(self: FactSet, fact: Fact) -> Joined:
        held = self._greatest.get(fact.key)
        if fact.source is None and held is not None and isinstance(held.body, dict) and isinstance(fact.body, dict):
            fields = {**held.body, **fact.body}
            for name in held.body.keys() & fact.body.keys():
                fields[name] = max(held.body[name], fact.body[name], key=repr)
            fact = fact._replace(body=fields)
        return join(self, fact)

    stack.enter_context(patch.object(FactSet, "join", merge))


def unfenced_zombie(stack: contextlib.ExitStack) -> None:
    """Every producer of the fold has a name of its own, so none fences the one before it."""
    numbers = itertools.count()

    def make_producer(self: FoldLane) -> Any:
        return vars(worker.roles.fold)["transactional_producer"](self._settings, f"producer-{next(numbers)}")

    stack.enter_context(patch.object(FoldLane, "_make_producer", make_producer))


def reads_offset_before_fencing(stack: contextlib.ExitStack) -> None:
    """The fold looks up how far its predecessor got, and only then keeps it from getting further."""
    waiting: ContextVar[Any] = ContextVar("waiting")
    start, look_up = worker.kafka.start_producer, worker.lanes.committed_positions

    async def start_later(producer: Any) -> None:
        waiting.set(producer)

    async def look_up_first(consumer: GroupConsumer, partitions: Any) -> dict[TopicPartition, int]:
        positions = await look_up(consumer, partitions)
        await start(waiting.get())
        return positions

    stack.enter_context(patch.object(worker.roles.fold, "start_producer", start_later))
    stack.enter_context(patch.object(worker.roles.fold, "committed_positions", look_up_first))


def keeps_state_that_is_ahead(stack: contextlib.ExitStack) -> None:
    """The fold keeps its state although what follows from it was not made durable, in memory and on its disk."""
    close, commit, read_meta = FoldLane.close, FoldLane.commit, worker.state.read_meta

    async def close_ahead(self: FoldLane) -> None:
        self._is_ahead = False
        await close(self)

    async def write_first(self: FoldLane, consumer: GroupConsumer, positions: Mapping[TopicPartition, int]) -> None:
        if self._local is not None and self._held is not None:
            await self._write_local(self._held.fold, positions[self._partition])
        await commit(self, consumer, positions)

    def read_any(backend: Any, about: Mapping[str, Any], committed: int) -> Mapping[str, Any]:
        del committed
        return read_meta(backend, about, sys.maxsize)

    stack.enter_context(patch.object(FoldLane, "close", close_ahead))
    stack.enter_context(patch.object(FoldLane, "commit", write_first))
    stack.enter_context(patch.object(worker.state, "read_meta", read_any))


def skips_lost_messages(stack: contextlib.ExitStack) -> None:
    """Where retention took messages that nobody has read, reading goes on with what is left."""
    for module in (worker.roles.project, worker.roles.fold, worker.roles.export):
        stack.enter_context(patch.object(module, "committed_positions", _positions_that_are_there))

    async def go_on(self: Reader, consumer: GroupConsumer, _error: OffsetOutOfRangeError) -> None:
        for partition, offset in (await consumer.beginning_offsets(list(self._ready()))).items():
            if await consumer.position(partition) < offset:
                consumer.seek(partition, offset)

    stack.enter_context(patch.object(Reader, "_out_of_range", go_on))


async def _positions_that_are_there(consumer: GroupConsumer, partitions: Any) -> dict[TopicPartition, int]:
    beginnings = await consumer.beginning_offsets(partitions)
    return {place: max(beginning, await consumer.committed(place) or 0) for place, beginning in beginnings.items()}


def loses_dead_letters(stack: contextlib.ExitStack) -> None:
    """A message that cannot be projected leaves nothing behind."""
    stack.enter_context(patch.object(ProjectLane, "_bury", lambda *_arguments, **_options: None))


def sink_takes_what_comes_last(stack: contextlib.ExitStack) -> None:
    """A sink does not compare versions, in a storm of writes that arrive when their writer is long gone."""
    storm = {faults.linger: 10, faults.kill: 4, faults.expel: 6}
    stack.enter_context(patch.object(faults, "FAULTS", storm))
    stack.enter_context(patch.object(faults, "LINGERING", ("sink write",)))

    def apply(self: MemoryStore, batch: Sequence[Upsert]) -> None:
        self.entries |= {item.key: (item.version, item.json) for item in batch}

    stack.enter_context(patch.object(MemoryStore, "apply", apply))


def works_on_after_revocation(stack: contextlib.ExitStack) -> None:
    """Lanes whose partitions were taken away are let be, and finish what they have begun in their own time."""

    async def release(self: BatchConsumer, _timeout_s: float) -> None:
        self._slots = []

    stack.enter_context(patch.object(BatchConsumer, "_release", release))


def commits_before_reopening(stack: contextlib.ExitStack) -> None:
    """A lane whose producer broke commits the committed offsets once more before it is opened again."""
    stack.enter_context(patch.object(worker.consumer, "must_be_ours", lambda _error: True))


def compacts_facts_too_early(stack: contextlib.ExitStack) -> None:
    """The facts topic is compacted without a lag, in a storm of replays."""
    storm = {faults.replay: 6, faults.compact: 8, faults.kill_all: 4, faults.lose_disk: 3}
    stack.enter_context(patch.object(faults, "FAULTS", storm))
    stack.enter_context(
        patch.object(faults, "compactable_facts", lambda simulation, place: simulation.broker.logs[place].end)
    )


MUTANTS: Final[Mapping[str, Mutant]] = {
    mutant.__name__.replace("_", "-"): mutant
    for mutant in (
        commits_facts_before_flush,
        commits_records_before_write,
        last_arrival_wins,
        greatest_of_each_field,
        unfenced_zombie,
        reads_offset_before_fencing,
        keeps_state_that_is_ahead,
        skips_lost_messages,
        loses_dead_letters,
        sink_takes_what_comes_last,
        works_on_after_revocation,
        commits_before_reopening,
        compacts_facts_too_early,
    )
}


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run with one of the bugs, or with none."""
    with contextlib.ExitStack() as stack:
        if name is not None:
            MUTANTS[name](stack)
        yield


def run_mutated(work: tuple[int, str | None]) -> Outcome:
    """Run a seed, with or without a bug."""
    seed, mutant = work
    with mutated(mutant):
        return run_seed(seed)
