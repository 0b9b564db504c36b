"""Seconds from the start of a process to /readyz of a worker that has all roles and an empty state."""

import time
from statistics import median

from tests.bench.site import Site, cpu_s, one_broker, pid_of, site_on

# A look costs the worker a millisecond or two.
_LOOK_S = 0.05


def measure_all(starts: int) -> dict[str, dict[str, float]]:
    """Start a worker so many times on a broker that has its topics."""
    with one_broker() as (cluster, directory), site_on(cluster, directory, "ready") as site:
        first = measure(site, "first")
        later = [measure(site, f"start-{number}") for number in range(starts)]
    return {
        "the first start, which binds the generation": first,
        "later starts (median)": {name: median(figures[name] for figures in later) for name in first},
    }


def measure(site: Site, name: str) -> dict[str, float]:
    """Start one worker and wait until it is ready; the processor time is its own, up to then."""
    started = time.perf_counter()
    worker = site.start(name)
    while worker.get("/readyz")[0] != 200:
        assert worker.is_running, worker.log_path.read_text()[-2_000:]
        time.sleep(_LOOK_S)
    figures = {"ready_s": time.perf_counter() - started, "ready_cpu_s": cpu_s(pid_of(worker))}
    worker.stop()
    return figures
