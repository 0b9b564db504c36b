"""Taking partitions over: from the facts log, to memory or to local state, and from local state; beside folding them.

A worker with the role fold alone, so that nothing else takes its time. Restoring counts from the moment it has its
partitions to the moment all of them are ready; folding begins at the first offset again, with an empty state.
"""

import asyncio
import time

from tests.bench.loaded import Load
from tests.bench.site import PARTITIONS, Site, peak_rss_mib, pid_of
from tests.integration.pipeline import WorkerProcess
from worker.groups import open_groups
from worker.kafka import TopicPartition
from worker.topics import fold_group, own_topics

_LOOK_S = 0.02
_PATIENCE_S = 300.0


def measure(load: Load) -> dict[str, float]:
    """Restore in all three ways, then fold everything once more; the loaded worker ends here."""
    site = load.site
    load.worker.stop()
    local_s, _facts, _peak = _restored(site, "local", load.with_state)
    disk = {"TRACE_PROJECTOR_STATE_DIR": str(site.directory / "restored")}
    disk_s, _facts, disk_peak = _restored(site, "disk", disk)
    log_s, facts, _peak = _restored(site, "log", {})
    assert facts >= load.facts, "without local state everything is read from the log"
    asyncio.run(_to_the_beginning(site))
    worker = site.start("fold", "fold")
    worker.wait_ready()
    started = time.perf_counter()
    fold_s = site.wait_done(["fold"]) - started
    folded = worker.total("folded_facts_total")
    worker.stop()
    return {
        "facts": facts,
        "from_log_facts_per_s": facts / log_s,
        "from_local_state_s": local_s,
        "to_local_state_facts_per_s": facts / disk_s,
        "to_local_state_peak_rss_mib": disk_peak,
        "fold_facts_per_s": folded / fold_s,
        "restore_to_fold": (facts / log_s) / (folded / fold_s),
    }


def _restored(site: Site, name: str, environ: dict[str, str]) -> tuple[float, float, float]:
    """Start a worker that folds; gives how long restoring took, how many facts came from the log, and its peak."""
    worker = site.start(f"restore-{name}", "fold", **environ)
    _wait(worker, "assigned_partitions")
    started = time.perf_counter()
    _wait(worker, "ready_partitions")
    took_s = time.perf_counter() - started
    facts = worker.total("restored_facts_total", **{"from": "log"})
    peak = peak_rss_mib(pid_of(worker))
    worker.stop()
    return took_s, facts, peak


def _wait(worker: WorkerProcess, gauge: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while worker.get("/healthz")[0] == 0 or worker.total(gauge, role="fold") < PARTITIONS:
        assert worker.is_running, worker.log_path.read_text()[-2_000:]
        assert time.monotonic() < deadline, f"{gauge} are not all"
        time.sleep(_LOOK_S)


async def _to_the_beginning(site: Site) -> None:
    """Let the group that folds begin at the first offsets again."""
    settings = site.settings
    places = {TopicPartition(own_topics(settings).facts, number): 0 for number in range(PARTITIONS)}
    async with open_groups(settings) as groups:
        await groups.move(fold_group(settings), places, "measuring")
