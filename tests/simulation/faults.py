"""The faults: each is a function of the simulation that does one bad thing, and sees to its end where it has one.

Rules for editing: what a fault chooses comes from ``simulation.random``; whatever it breaks is mended by itself after a
while or by ``Simulation.calm_down``; a fault that finds nothing to break does nothing.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.simulation.log import Entry
from tests.simulation.loop import Process
from tests.simulation.machine import Machine
from tests.simulation.network import Trap
from tests.simulation.plan import STORM_S
from worker.kafka import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Fault = Callable[["Simulation"], None]

# Every request of a worker; a trap springs before one of these arrives or after it took effect.
OPERATIONS: Final = (
    "fetch",
    "produce",
    "commit",
    "init producer",
    "add partitions",
    "add offsets",
    "commit offsets in transaction",
    "commit transaction",
    "sink write",
    "sink open",
    "fetch offsets",
    "list offsets",
    "join",
    "sync",
    "heartbeat",
    "leave",
)
LINGERING: Final = ("produce", "commit", "commit offsets in transaction", "commit transaction", "sink write", "leave")
# Some are over before anybody notices, some outlast the session.
_ABSENCE_S = (0.2, 15.0)


def _machine(simulation: "Simulation") -> Machine | None:
    up = [machine for machine in simulation.machines if machine.is_up]
    return simulation.random.choice(up) if up else None


def kill(simulation: "Simulation") -> None:
    """A worker is killed, and started again later."""
    if (machine := _machine(simulation)) is not None:
        machine.kill()


def kill_between_steps(simulation: "Simulation") -> None:
    """A worker is killed after some more steps of its code, wherever that is."""
    machine = _machine(simulation)
    if machine is not None and machine.process is not None:
        steps = machine.process.steps + simulation.random.randrange(1, 400)
        machine.process.step_hook = steps, machine.kill


def kill_all(simulation: "Simulation") -> None:
    """The power fails."""
    for machine in simulation.machines:
        machine.kill()


def stop(simulation: "Simulation") -> None:
    """A worker is asked to stop, as when it is updated, and started again later."""
    if (machine := _machine(simulation)) is not None:
        machine.stop()


def pause(simulation: "Simulation") -> None:
    """A worker stands still for a while, and comes back not knowing it."""
    if (machine := _machine(simulation)) is not None and machine.process is not None:
        _pause(simulation, machine.process)


def _pause(simulation: "Simulation", process: Process) -> None:
    if process.is_paused or process.is_dead:
        return
    absence_s = simulation.random.uniform(*_ABSENCE_S)
    simulation.note(f"{process.name} stands still for {absence_s:.1f} s")
    simulation.loop.pause(process)
    simulation.later(absence_s, lambda: simulation.resume(process))


def cut(simulation: "Simulation") -> None:
    """A worker runs, and the network does not reach it."""
    if (machine := _machine(simulation)) is not None and machine.process is not None:
        absence_s = simulation.random.uniform(*_ABSENCE_S)
        simulation.note(f"{machine.process.name} is cut off for {absence_s:.1f} s")
        machine.process.cut_until = simulation.loop.time() + absence_s


def add_machine(simulation: "Simulation") -> None:
    """One more worker joins."""
    if len(simulation.machines) < 4:
        simulation.add_machine().start()


def remove_machine(simulation: "Simulation") -> None:
    """A worker leaves for good, asked or not."""
    machine = _machine(simulation)
    if machine is None or len(simulation.machines) < 2:
        return
    simulation.retired.add(machine)
    if simulation.random.random() < 0.5:
        machine.kill()
    else:
        machine.stop()


def lose_disk(simulation: "Simulation") -> None:
    """A worker comes back on an empty disk, or on one that lost what was written last."""
    if (machine := _machine(simulation)) is not None:
        machine.kill()
        if simulation.random.random() < 0.5:
            machine.disk = type(machine.disk)()
        else:
            machine.disk.lose_newest(simulation.random.randrange(1, 10))


def expel(simulation: "Simulation") -> None:
    """A group forgets a member that lives."""
    groups = [group for group in simulation.broker.groups.groups.values() if group.members]
    if groups:
        group = simulation.random.choice(groups)
        member = simulation.random.choice(list(group.members))
        simulation.note(f"{group.name} forgets {member}")
        simulation.broker.groups.expel(group.name, member)


def sink_away(simulation: "Simulation") -> None:
    """A destination is away for a while."""
    destination = simulation.random.choice(list(simulation.destinations.values()))
    destination.away_until = simulation.loop.time() + simulation.random.uniform(1, 20)
    simulation.note("a destination is away")


def sink_slow(simulation: "Simulation") -> None:
    """A destination takes its time."""
    destination = simulation.random.choice(list(simulation.destinations.values()))
    destination.slow_until = simulation.loop.time() + simulation.random.uniform(5, 20)
    destination.slow_s = simulation.random.uniform(0.5, 8)


def sink_answers_late(simulation: "Simulation") -> None:
    """A destination does what it was asked, and its answer comes too late."""
    destination = simulation.random.choice(list(simulation.destinations.values()))
    destination.lost_answer_chance = 0.5
    simulation.later(10, lambda: setattr(destination, "lost_answer_chance", 0.0))


def compact(simulation: "Simulation") -> None:
    """The log cleaner goes over all compacted topics.

    Tombstones of facts mean nothing to anybody and go at once; those of records stay until every export has read them,
    which is what their 30 days are for.
    """
    for place in simulation.broker.places(simulation.topics.facts):
        simulation.broker.compact(place, compactable_facts(simulation, place), lambda _entry: True)
    for place in simulation.broker.places(simulation.topics.records):
        read_by_all = simulation.read_by_all_exports(place)

        def may_drop(entry: Entry, limit: int = read_by_all) -> bool:
            return entry.offset < limit

        simulation.broker.compact(place, simulation.broker.logs[place].end, may_drop)
    simulation.note("compaction")


def compactable_facts(simulation: "Simulation", place: TopicPartition) -> int:
    """Give the offset up to which facts are compacted: what the fold has read, which their compaction lag is for."""
    return simulation.committed(simulation.fold_group, place) or 0


def delete_what_was_read(simulation: "Simulation") -> None:
    """Retention or compaction takes source messages that nobody needs any more."""
    for place in simulation.source_places:
        committed = simulation.committed(simulation.project_group, place)
        if committed and simulation.random.random() < 0.5:
            simulation.broker.logs[place].delete_before(simulation.random.randrange(committed + 1))
        elif committed:
            simulation.broker.logs[place].compact(committed, lambda _entry: True)
    simulation.note("retention of what was read")


def replay(simulation: "Simulation") -> None:
    """An operator stops all workers, puts offsets of sources or exports back, and starts them again."""
    simulation.replay()


def trap(simulation: "Simulation") -> None:
    """A worker dies or stands still at a certain request: just before it takes effect, or just after."""
    random = simulation.random

    def spring(process: Process) -> None:
        simulation.note(f"trap at {operation} ({'before' if is_before else 'after'})")
        if random.random() < 0.6:
            simulation.kill_process(process)
        else:
            _pause(simulation, process)

    operation, is_before = random.choice(OPERATIONS), random.random() < 0.5
    simulation.broker.network.traps.append(Trap(operation, random.randint(1, 12), is_before, spring))


def linger(simulation: "Simulation") -> None:
    """A request that changes something is under way for long, and its sender is gone when it arrives, or is not."""
    random = simulation.random

    def spring(process: Process) -> None:
        simulation.note(f"{operation} lingers for {held_s:.1f} s")
        if random.random() < 0.7:
            simulation.kill_process(process)

    operation, held_s = random.choice(LINGERING), random.uniform(*_ABSENCE_S)
    trap = Trap(operation, random.randint(1, 12), is_before=True, spring=spring, held_s=held_s)
    simulation.broker.network.traps.append(trap)


def spoil(simulation: "Simulation") -> None:
    """A fold fails in the middle of a batch, and its state is no longer what it should be."""
    simulation.site.spoils = 1


FAULTS: Final[Mapping[Fault, int]] = {
    kill: 3,
    kill_between_steps: 4,
    kill_all: 1,
    stop: 2,
    pause: 4,
    cut: 2,
    add_machine: 2,
    remove_machine: 1,
    lose_disk: 1,
    expel: 2,
    sink_away: 1,
    sink_slow: 1,
    sink_answers_late: 1,
    compact: 2,
    delete_what_was_read: 1,
    replay: 1,
    trap: 8,
    linger: 3,
    spoil: 2,
}
"""Every fault, and how often it is chosen beside the others."""


GENTLE: Final = frozenset((stop, add_machine, sink_away, sink_slow, sink_answers_late, compact, delete_what_was_read))
"""Faults that end no worker in the middle of its work, nor let two believe that they have the same partition."""


def schedule(simulation: "Simulation", count: int) -> None:
    """Choose faults and their times; without fencing only gentle ones, for nothing else is promised there."""
    weights = {fault: weight for fault, weight in FAULTS.items() if simulation.plan.is_fenced or fault in GENTLE}
    for _ in range(count):
        [fault] = simulation.random.choices(list(weights), list(weights.values()))
        simulation.later(simulation.random.uniform(0.5, STORM_S), partial(fault, simulation))
