"""Faults strike workers and brokers while messages come in; afterwards the sinks hold what file mode makes of them."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.brokers.kafka_node import KafkaNode
from tests.chaos.plan import Fault
from tests.chaos.publisher import Publisher
from tests.chaos.rig import Rig, stop_well, wait_until
from tests.chaos.watch import Watch
from tests.integration.pipeline import WorkerProcess
from tests.worlds.world import SourceMessage, World

WORKERS = 2
# 40 messages a second: enough that every fault strikes in the middle of something, and little enough for two cores
# that also run the brokers.
CHUNK_MESSAGES = 10
CHUNK_PAUSE_S = 0.25

# How long everything may take to work again; it fails a cycle, and usually takes a tenth of this.
RECOVERY_S_MAX = 60.0
_WHOLE_S_MAX = 60.0

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What came of a scenario."""

    passed: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)


def endless_worlds(seed: int) -> Iterator[Sequence[SourceMessage]]:
    """Give the messages of one world after the other, in chunks."""
    stream = (message for number in itertools.count(seed * 100_000) for message in World(number, runs=3).messages)
    while True:
        yield list(itertools.islice(stream, CHUNK_MESSAGES))


class Storm:
    """Runs planned faults on a rig whose workers are up and whose publisher publishes."""

    def __init__(self, rig: Rig, say: Say, *, awaits_recovery: bool) -> None:
        self._rig = rig
        self._say = say
        self._awaits_recovery = awaits_recovery

    def strike(self, fault: Fault) -> list[str]:
        """Let one fault strike, and give what went wrong beyond it."""
        problems = self._strike_broker(fault) if fault.is_broker else self._strike_worker(fault)
        problems += self._revive()
        if self._awaits_recovery and not problems:
            problems = self._wait_recovered(RECOVERY_S_MAX)
        time.sleep(fault.pause_s)
        return problems

    def _strike_worker(self, fault: Fault) -> list[str]:
        worker = self._rig.workers[fault.target % len(self._rig.workers)]
        match fault.kind:
            case "kill worker":
                worker.kill()
                time.sleep(fault.down_s)
                worker.start()
            case "freeze worker":
                self._freeze(worker, fault.down_s)
            case _:
                if not wait_until(lambda: worker.get("/healthz")[0] == 200, RECOVERY_S_MAX):
                    return [f"{worker.log_path.stem} does not come up"]
                problems = stop_well(worker)
                worker.start()
                return problems
        return []

    def _freeze(self, worker: WorkerProcess, down_s: float) -> None:
        self._rig.frozen.add(worker)
        worker.signal(signal.SIGSTOP)
        time.sleep(down_s)
        worker.signal(signal.SIGCONT)
        self._rig.frozen.remove(worker)

    def _strike_broker(self, fault: Fault) -> list[str]:
        # Of three replicas two must stay: the next broker is struck when the last one has caught up.
        if not wait_until(self._rig.is_whole, _WHOLE_S_MAX):
            return ["the brokers do not get in sync"]
        node: KafkaNode = self._rig.nodes[fault.target % len(self._rig.nodes)]
        if fault.kind == "kill broker":
            node.kill()
            time.sleep(fault.down_s)
            node.start()
        else:
            node.pause()
            time.sleep(fault.down_s)
            node.resume()
        return []

    def _revive(self) -> list[str]:
        """Start what ended by itself, so that the run goes on, and tell of it."""
        problems = []
        for worker in self._rig.workers:
            if not worker.is_running:
                problems.append(f"{worker.log_path.stem} ended by itself")
                worker.start()
        for node in self._rig.nodes:
            if not node.is_running:
                problems.append(f"broker {node.node_id} ended by itself")
                node.start()
        return problems

    def _wait_recovered(self, timeout_s: float) -> list[str]:
        started = time.monotonic()

        def is_recovered() -> bool:
            return self._rig.what_lags() is None and self._rig.is_whole()

        if not wait_until(is_recovered, timeout_s):
            return [f"not recovered after {timeout_s:.0f} s: {self._rig.what_lags() or 'brokers not in sync'}"]
        self._say(f"      recovered in {time.monotonic() - started:.1f} s")
        return []


def run_storm(rig: Rig, faults: Sequence[Fault], seed: int, say: Say, *, awaits_recovery: bool) -> Outcome:
    """Run the faults, let everything settle, and compare the sinks with file mode."""
    outcome = Outcome()
    storm = Storm(rig, say, awaits_recovery=awaits_recovery)
    rig.add_workers(WORKERS)
    publisher = Publisher(rig.kafka.bootstrap_servers, rig.topic, endless_worlds(seed), CHUNK_PAUSE_S)
    publisher.start()
    watch = Watch(rig.answering)
    watch.start()
    for worker in rig.workers:
        worker.wait_ready()
    for number, fault in enumerate(faults, start=1):
        say(f"{number:>3}/{len(faults)} {fault.kind} {fault.target % _count(rig, fault) + 1}, {fault.down_s:.1f} s")
        problems = storm.strike(fault)
        publisher.check()
        outcome.problems += (f"cycle {number} ({fault.kind}): {problem}" for problem in problems)
        outcome.passed += not problems
        outcome.failed += bool(problems)
    final = settle(rig, publisher, watch, outcome)
    if final:
        # What is wrong in the end was done by any of them.
        outcome.problems += final
        outcome.passed, outcome.failed = 0, len(faults)
    return outcome


def _count(rig: Rig, fault: Fault) -> int:
    return len(rig.nodes if fault.is_broker else rig.workers)


def settle(rig: Rig, publisher: Publisher, watch: Watch, outcome: Outcome) -> list[str]:
    """End publishing, wait until all is read, stop the workers; gives what is not as it must be."""
    started = time.monotonic()
    published = publisher.stop()
    problems = []
    # A worker that is still starting would not hear that it is asked to stop.
    if not wait_until(lambda: rig.what_lags() is None, RECOVERY_S_MAX):
        problems.append(f"not recovered in the end: {rig.what_lags()}")
    try:
        rig.wait_settled()
    except TimeoutError:
        problems.append(f"not settled: {rig.what_lags() or 'committed offsets stay behind'}")
    settled_s = time.monotonic() - started
    for worker in rig.answering():
        watch.scrape(worker)
    watch.stop()
    problems += rig.stop_workers()
    problems += watch.problems
    if watch.scrapes == 0:
        problems.append("no worker was ever scraped")
    problems += rig.differences(published)
    outcome.figures.append(
        f"{len(published)} messages published, {publisher.resent_chunks} chunks sent again, longest delivery "
        f"{publisher.longest_delivery_s:.1f} s; settled in {settled_s:.1f} s; {watch.scrapes} scrapes balance"
        f"{'' if not watch.problems else ' but for ' + str(len(watch.problems))}"
    )
    return problems


def run_scaling(rig: Rig, seed: int, say: Say, *, stage_s: float) -> Outcome:
    """Go from two workers to four and back to two, the first two of them gone, while messages come in."""
    outcome = Outcome()
    publisher = Publisher(rig.kafka.bootstrap_servers, rig.topic, endless_worlds(seed), CHUNK_PAUSE_S)
    publisher.start()
    watch = Watch(rig.answering)
    first = rig.add_workers(2)
    watch.start()
    _wait_working(rig, say, stage_s)
    rig.add_workers(2)
    _wait_working(rig, say, stage_s)
    for worker in first:
        outcome.problems += stop_well(worker)
        rig.workers.remove(worker)
    _wait_working(rig, say, stage_s)
    outcome.problems += settle(rig, publisher, watch, outcome)
    outcome.passed, outcome.failed = int(not outcome.problems), int(bool(outcome.problems))
    return outcome


def _wait_working(rig: Rig, say: Say, stage_s: float) -> None:
    started = time.monotonic()
    assert wait_until(lambda: rig.what_lags() is None, RECOVERY_S_MAX), rig.what_lags()
    say(f"{len(rig.workers)} workers share the partitions after {time.monotonic() - started:.1f} s")
    time.sleep(stage_s)
