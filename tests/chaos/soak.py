"""A worker in constant use whose state does not grow: its memory must not either."""

import time
from collections.abc import Sequence
from statistics import median

from tests.chaos.bounded import changing_and_repeated
from tests.chaos.publisher import Publisher
from tests.chaos.rig import Rig, wait_until
from tests.chaos.storm import Outcome, Say
from tests.chaos.watch import MIB, Watch, resident_bytes

FLAT_FROM_S = 120.0
FLAT_SHARE_MAX = 0.05

_CHUNK_MESSAGES = 50
_STEP_S = 30.0
_SAMPLES_MIN = 4


def growth_of(resident: Sequence[int]) -> float:
    """Give how much more is resident in the second half of some samples than in the first, as a share.

    Medians, because an allocator breathes: one sample is a peak as easily as not.
    """
    middle = len(resident) // 2
    return median(resident[middle:]) / median(resident[:middle]) - 1 if middle else 0.0


def run_soak(rig: Rig, say: Say, *, minutes: float, messages_per_s: int) -> Outcome:
    """Publish for some minutes, and say every half a minute what the worker has resident."""
    outcome = Outcome()
    [worker] = rig.add_workers(1)
    worker.wait_ready()
    chunks = changing_and_repeated(_CHUNK_MESSAGES)
    publisher = Publisher(rig.kafka.bootstrap_servers, rig.topic, chunks, _CHUNK_MESSAGES / messages_per_s)
    publisher.start()
    watch = Watch(rig.answering, interval_s=5.0)
    watch.start()
    started = time.monotonic()
    flat: list[int] = []
    while (passed_s := time.monotonic() - started) < minutes * 60 + 1:
        publisher.check()
        assert worker.is_running, "the worker ended"
        resident = resident_bytes(worker)
        say(f"{passed_s:>6.0f} s  {resident / MIB:>7.1f} MiB  {len(publisher.published):>9} messages")
        if passed_s >= FLAT_FROM_S:
            flat.append(resident)
        time.sleep(_STEP_S - (time.monotonic() - started) % _STEP_S)
    publisher.stop()
    if not wait_until(lambda: rig.what_lags() is None, 60.0):
        outcome.problems.append(f"it did not keep up: {rig.what_lags()}")
    watch.stop()
    outcome.problems += [*watch.problems, *rig.stop_workers()]
    growth = growth_of(flat)
    if len(flat) < _SAMPLES_MIN:
        outcome.problems.append(f"too short to say anything: memory is compared from {FLAT_FROM_S:.0f} s on")
    if growth > FLAT_SHARE_MAX:
        outcome.problems.append(f"resident memory grew by {growth:.1%} from {FLAT_FROM_S:.0f} s on")
    outcome.figures.append(f"resident memory from {FLAT_FROM_S:.0f} s on: {growth:+.1%} from half to half")
    outcome.passed, outcome.failed = int(not outcome.problems), int(bool(outcome.problems))
    return outcome
