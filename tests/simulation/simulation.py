"""One seed: a world is published, workers project it through a storm of faults, and what they leave is checked."""

import asyncio
import hashlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.simulation.audit import Audit, all_groups, check
from tests.simulation.broker import VirtualBroker
from tests.simulation.destinations import Destination
from tests.simulation.faults import schedule
from tests.simulation.log import Entry
from tests.simulation.loop import Process, new_loop
from tests.simulation.machine import Machine
from tests.simulation.network import CALM
from tests.simulation.plan import POISON, STORM_S, Plan, Published, make_plan
from tests.simulation.site import Site
from worker.kafka import TopicPartition
from worker.lanes import StopWorkerError
from worker.topics import export_group, fold_group, own_topics, project_group

_SETTLING_S = 300.0
_LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class Outcome:
    """How a seed ended: None, or what was wrong; and what happened, line by line."""

    seed: int
    problem: str | None
    lines: list[str]
    digest: str


class Simulation:
    """The state of one seed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(f"run {plan.seed}")
        self.loop = new_loop()
        self.broker = VirtualBroker(self.loop, self.random)
        self.topics = own_topics(plan.settings)
        self.project_group = project_group(plan.settings)
        self.fold_group = fold_group(plan.settings)
        self.destinations = {
            export.name: Destination(self.broker.network, plan.has_one_writer[export.name])
            for export in plan.settings.exports
        }
        self.site = Site(self.broker, self.destinations)
        self.machines: list[Machine] = []
        self.retired: set[Machine] = set()
        self._is_calm = False
        self._holds_restarts = False
        self._expects_stops = False
        self._pending = list(plan.messages)
        for topic, count in plan.source_counts.items():
            self.broker.create_topic(topic, count)
        for topic in (self.topics.facts, self.topics.records, self.topics.dead_letters):
            self.broker.create_topic(topic, plan.settings.partitions)
        self.source_places = self.broker.places(*plan.source_counts)
        self.audit = Audit(self)

    # ---------------------------------------------------------------------------------------- what faults work with

    def note(self, line: str) -> None:
        """Write down what happens."""
        self.site.note(line)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something at a later time, outside of all workers."""
        self.loop.call_later(delay_s, action, context=self.broker.network.outside)

    def add_machine(self) -> Machine:
        """Make one more machine; no worker runs there yet."""
        machine = Machine(f"m{len(self.machines) + 1}", self.loop, self.plan.settings, self.note)
        self.machines.append(machine)
        return machine

    def committed(self, group: str, place: TopicPartition) -> int | None:
        """Give a committed offset."""
        return self.broker.groups.committed(group, [place]).get(place)

    def group_places(self) -> Iterator[tuple[str, TopicPartition]]:
        """List every group with every partition it reads."""
        project, fold, *exports = all_groups(self.plan.settings)
        for place in self.source_places:
            yield project, place
        for place in self.broker.places(self.topics.facts):
            yield fold, place
        for export in exports:
            for place in self.broker.places(self.topics.records):
                yield export, place

    def read_by_all_exports(self, place: TopicPartition) -> int:
        """Give the offset of a records partition up to which every export has read."""
        groups = [export_group(self.plan.settings, export.name) for export in self.plan.settings.exports]
        return min(self.committed(group, place) or 0 for group in groups)

    def kill_process(self, process: Process) -> None:
        """Kill the worker that is this process."""
        for machine in self.machines:
            if machine.process is process:
                machine.kill()

    def resume(self, process: Process) -> None:
        """Let a process that stands still go on."""
        if process.is_paused and not process.is_dead:
            self.note(f"{process.name} goes on")
            self.loop.resume(process)

    def replay(self) -> None:
        """Let groups read again what they have read: sources and exports, from anywhere."""
        self.kill_all()
        project, _fold, *exports = all_groups(self.plan.settings)
        for name in (project, *exports):
            for place, stored in self.broker.groups.group(name).offsets.items():
                beginning = self.broker.logs[place].beginning
                if stored.offset >= beginning:
                    self.broker.groups.reset(name, {place: self.random.randint(beginning, stored.offset)})
        self.note("replay")

    def kill_all(self) -> None:
        """Kill all workers, and let their groups forget them at once."""
        for machine in self.machines:
            machine.kill()
        for group in self.broker.groups.groups.values():
            for member in list(group.members):
                self.broker.groups.expel(group.name, member)
            # A request that was still on its way may yet make a member of nobody.
            check(not group.members, f"{group.name} has members although all workers are gone")

    # ----------------------------------------------------------------------------------------------------- one seed

    async def run(self) -> None:
        """Run the seed to its end; raises what was wrong."""
        for message in self.plan.messages:
            self.later(message.at_s, partial(self._publish, message))
        self.broker.network.weather = self.plan.weather
        for _ in range(self.plan.machine_count):
            self.add_machine()
        for machine in self.machines:
            self.later(self.random.uniform(0, 5), machine.start)
        schedule(self, self.plan.fault_count)
        while self.loop.time() < STORM_S:
            await self._tick()
        if self.plan.loses_messages:
            await self._lose_messages()
        self._calm_down()
        await self._settle()
        self.audit.final()
        if self.plan.replays_all:
            await self._replay_all()
        await self._stop_all()
        self.audit.final()

    def _publish(self, message: Published) -> None:
        log = self.broker.logs[message.place]
        check(log.end == message.offset, "messages of a partition are published in order")
        self.broker.append(message.place, [(message.key, message.value, [])])

    async def _tick(self) -> None:
        """Let some time pass, look at everything, and start workers that have been gone for a while."""
        await asyncio.sleep(_LOOK_EVERY_S)
        check(not self.audit.problems, "; ".join(self.audit.problems[:1]))
        for machine in self.machines:
            if machine.is_up:
                if machine.metrics is not None:
                    self.audit.accounts(machine.name, machine.metrics)
            elif (
                not self._holds_restarts
                and machine not in self.retired
                and (self._is_calm or self.random.random() < 0.5)
            ):
                machine.start()
            is_fine = self._expects_stops or not machine.ends
            check(is_fine, f"{machine.name} ended by itself: {machine.ends!r}")

    def _calm_down(self) -> None:
        self.note("calm")
        self._is_calm = True
        self.broker.network.weather = CALM
        self.broker.network.traps.clear()
        for destination in self.destinations.values():
            destination.away_until = destination.slow_until = 0.0
            destination.lost_answer_chance = 0.0
        for machine in self.machines:
            if machine.process is not None:
                machine.process.step_hook = None
                machine.process.cut_until = 0.0
                self.resume(machine.process)
        if all(machine in self.retired for machine in self.machines):
            self.add_machine()

    async def _settle(self) -> None:
        """Wait until every group has read everything, and stays there."""
        deadline = self.loop.time() + _SETTLING_S
        quiet = 0
        while quiet < 2:
            behind = [
                (group, *place, self.committed(group, place), self.broker.logs[place].end)
                for group, place in self.group_places()
                if (self.committed(group, place) or 0) != self.broker.logs[place].end
            ]
            quiet = 0 if behind or not any(machine.is_up for machine in self.machines) else quiet + 1
            check(self.loop.time() < deadline, f"still not read after {_SETTLING_S:.0f} s of calm: {behind}")
            await self._tick()

    async def _replay_all(self) -> None:
        """Read everything again: no record changes, and no sink is written."""
        before = self._writes()
        self.kill_all()
        project, _fold, *exports = all_groups(self.plan.settings)
        for name in (project, *exports):
            offsets = self.broker.groups.group(name).offsets
            self.broker.groups.reset(name, self.broker.beginnings(list(offsets)))
        self.note("everything is read again")
        await self._settle()
        check(self._writes() == before, f"reading everything again wrote: {before} became {self._writes()}")

    def _writes(self) -> list[int]:
        ends = [len(entries) for entries in self.broker.visible(self.topics.records).values()]
        return [*ends, *(destination.store.changes_total for destination in self.destinations.values())]

    async def _stop_all(self) -> None:
        self._holds_restarts = True
        for machine in self.machines:
            machine.stop()
        deadline = self.loop.time() + 30
        while any(machine.is_up for machine in self.machines):
            check(self.loop.time() < deadline, "a worker that was asked to stop still runs after 30 s")
            await self._tick()

    # ------------------------------------------------------------------------------------------------ retention loss

    async def _lose_messages(self) -> None:
        """Let retention take messages that nobody has read: workers have to stop, and say why, and skip nothing.

        What is lost is a copy of something read before, so the operator's way out leads to the same records.
        """
        self._calm_down()
        await self._settle()
        copies = [
            message
            for message in self.plan.messages
            if message.key is None
            and message.value not in (None, *POISON)
            and self.committed(self.project_group, message.place) is not None
        ]
        if not copies:
            return
        copied = self.random.choice(copies)
        place = copied.place
        read = self.committed(self.project_group, place) or 0
        is_down = self.random.random() < 0.5
        self._expects_stops = True
        if is_down:
            self.kill_all()
        else:
            for machine in self.machines:
                if machine.process is not None:
                    self.loop.pause(machine.process)
                    self.later(1.0, partial(self.resume, machine.process))
        for _ in range(3):
            end = self.broker.logs[place].end
            self.audit.expect(copied.source, place, Entry(end, None, copied.value, (), 0))
            self.broker.append(place, [(None, copied.value, [])])
        beginning = read + self.random.randint(1, 2)
        self.broker.logs[place].delete_before(beginning)
        self.audit.lost(place, range(read, beginning))
        self.note(f"{place.topic}/{place.partition} lost what comes after {read}")
        for _ in range(15):
            await self._tick()
        ends = [reason for machine in self.machines for reason in machine.ends]
        check(ends, "messages were lost, and no worker stopped")
        strangers = [
            reason for reason in ends if not (isinstance(reason, StopWorkerError) and place.topic in str(reason))
        ]
        check(not strangers, f"workers stopped for other reasons than the lost messages: {strangers!r}")
        check(self.committed(self.project_group, place) == read, "the committed offset moved over lost messages")
        self.kill_all()
        self.broker.groups.reset(self.project_group, {place: self.broker.logs[place].beginning})
        for machine in self.machines:
            machine.ends.clear()
        self._expects_stops = False


def run_seed(seed: int) -> Outcome:
    """Run one seed."""
    simulation = Simulation(make_plan(seed))
    problem = None
    with simulation.site.wired():
        try:
            simulation.loop.run_until_complete(simulation.run())
            check(not simulation.loop.complaints, f"asyncio complains: {simulation.loop.complaints[:3]}")
        except Exception as error:  # noqa: BLE001  (whatever it is, the seed has failed)
            problem = str(error) if isinstance(error, AssertionError) and str(error) else traceback.format_exc()
        finally:
            for machine in simulation.machines:
                machine.kill()
            simulation.loop.bury()
    digest = hashlib.sha256("\n".join(simulation.site.lines).encode()).hexdigest()[:12]
    return Outcome(seed, problem, simulation.site.lines, digest)
