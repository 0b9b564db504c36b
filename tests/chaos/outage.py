"""One sink is down while messages come in: memory stays bounded, nobody else waits, nothing is missing afterwards."""

import contextlib
import time
from collections.abc import Iterator

import duckdb

from tests.chaos.bounded import changing_runs
from tests.chaos.publisher import Publisher
from tests.chaos.rig import Rig, wait_until
from tests.chaos.storm import Outcome, Say
from tests.chaos.watch import MIB, Watch, resident_bytes, total
from tests.integration.pipeline import WorkerProcess

GROWTH_BYTES_MAX = 64 * MIB

_CHUNK_MESSAGES = 100
_PATIENCE_S = 120.0
_DOWN, _UP = "export:plain", "export:public"


def run_outage(rig: Rig, say: Say, *, seconds: float, warm_up_s: float, messages_per_s: int) -> Outcome:
    """Keep the database of one export locked for a while."""
    outcome = Outcome()
    [worker] = rig.add_workers(1)
    worker.wait_ready()
    chunks = changing_runs(_CHUNK_MESSAGES)
    publisher = Publisher(rig.kafka.bootstrap_servers, rig.topic, chunks, _CHUNK_MESSAGES / messages_per_s)
    publisher.start()
    watch = Watch(rig.answering)
    watch.start()
    time.sleep(warm_up_s)
    assert wait_until(lambda: worker.total("written_upserts_total", export="plain") > 0, _PATIENCE_S)
    before_bytes, before_rebalances = resident_bytes(worker), rebalances(worker)
    written = worker.total("written_upserts_total", export="public")
    with locked(rig):
        watch.begin_peaks()
        say(f"{_DOWN} is down for {seconds:.0f} s; resident before: {before_bytes / MIB:.0f} MiB")
        time.sleep(seconds)
        growth_bytes = watch.peak_bytes - before_bytes
        written = worker.total("written_upserts_total", export="public") - written
        paused = total(watch.newest[worker.log_path.stem], "paused_partitions", role=_DOWN)
        other_lag, lag = watch.peak_lags.get(_UP, 0.0), watch.peak_lags.get(_DOWN, 0.0)
        published = publisher.stop()
        # The other export gets to the end while this one is still down.
        rig.wait_settled(("project", "fold", "export-public"))
    released = time.monotonic()
    rig.wait_settled()
    recovered_s = time.monotonic() - released
    more_rebalances = rebalances(worker) - before_rebalances
    watch.stop()
    if paused != 3:
        outcome.problems.append(f"{paused:.0f} of the 3 partitions of {_DOWN} were paused: it was not down")
    if growth_bytes > GROWTH_BYTES_MAX:
        outcome.problems.append(f"resident memory grew by {growth_bytes / MIB:.0f} MiB")
    if more_rebalances:
        outcome.problems.append(f"{more_rebalances} rebalances")
    outcome.problems += [*watch.problems, *rig.stop_workers(), *rig.differences(published)]
    outcome.figures.append(
        f"{len(published)} messages published, {messages_per_s}/s asked for; resident {before_bytes / MIB:.0f} MiB "
        f"before, grew by {growth_bytes / MIB:.1f} MiB to its peak; rebalances {more_rebalances}; lag at most: "
        f"{_DOWN} {lag:.0f}, {_UP} {other_lag:.0f} ({written / seconds:.0f} upserts/s); all settled "
        f"{recovered_s:.1f} s after the outage"
    )
    outcome.passed, outcome.failed = int(not outcome.problems), int(bool(outcome.problems))
    return outcome


def rebalances(worker: WorkerProcess) -> int:
    """Count how often the groups have given partitions to a worker."""
    return worker.log_path.read_text().count('"event":"assigned"')


@contextlib.contextmanager
def locked(rig: Rig) -> Iterator[None]:
    """Hold the database open for writing, which keeps the worker from it."""
    with contextlib.closing(_connection(rig, time.monotonic() + _PATIENCE_S)):
        yield


def _connection(rig: Rig, deadline: float) -> duckdb.DuckDBPyConnection:
    while True:
        try:
            return duckdb.connect(str(rig.duckdb_path))
        except duckdb.IOException:
            assert time.monotonic() < deadline, "the worker never lets go of its database"
            time.sleep(0.01)
