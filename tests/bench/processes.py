"""One, two and four worker processes on the same messages, and what each role costs in a process of its own.

The broker shares the cores, so more processes soon have no core to run on. What they would do where it does not is
computed from the same run: every process alone on a core works through its share in the processor time that it takes,
and all are done when the busiest one is. (That leaves out waiting for the broker, of which there is little: see
``cores_busy`` of the pinned row, where one process has a core to itself and the broker the other.)
"""

import os
import time
from collections.abc import Sequence

from tests.bench.site import Site, cpu_s, one_broker, pid_of, pin, pinned_to, site_on
from tests.bench.traffic import make_traffic
from tests.integration.pipeline import WorkerProcess
from tests.worlds.world import SourceMessage

ALL = ("project", "fold", "export:bench")
CORE = ("project", "fold")

Figures = dict[str, float]


def measure_all(message_count: int, counts: Sequence[int] = (1, 2)) -> dict[str, Figures]:
    """Measure so many processes with all roles, and with the two that scale; then each role alone."""
    messages = make_traffic(message_count)
    rows: dict[str, Figures] = {}
    with one_broker() as (cluster, directory):
        for name, roles in (("all roles", ALL), ("project and fold", CORE)):
            for count in counts:
                with site_on(cluster, directory, f"{'-'.join(roles[:1])}{len(roles)}-x{count}") as site:
                    rows[f"{name}, processes: {count}"] = measure(site, messages, [roles] * count)
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            with site_on(cluster, directory, "pinned") as site, pinned_to(cores[:1]):
                assert site.node._process is not None
                pin(site.node._process.pid, cores[1:])
                rows["project and fold, one process and the broker on a core each"] = measure(site, messages, [CORE])
                pin(site.node._process.pid, cores)
        with site_on(cluster, directory, "roles") as site:
            rows["a process per role"] = measure(site, messages, [(role,) for role in ALL])
    return {"ratios": ratios(rows), **rows}


def measure(site: Site, messages: Sequence[SourceMessage], processes: Sequence[Sequence[str]]) -> Figures:
    """Publish to workers that have shared out the partitions, and wait until all is read."""
    workers = [site.start(f"worker-{number}", *roles) for number, roles in enumerate(processes)]
    reading = [role for role in ALL if any(role in roles for roles in processes)]
    site.wait_assigned(workers, reading) if len({*processes}) == 1 else _wait_ready(workers)
    before, broker_before = [cpu_s(pid_of(worker)) for worker in workers], site.broker_cpu_s()
    started = time.perf_counter()
    site.send(messages)
    took_s = site.wait_done(reading) - started
    used = [cpu_s(pid_of(worker)) - then for worker, then in zip(workers, before, strict=True)]
    broker_s = site.broker_cpu_s() - broker_before
    figures = {
        "messages_per_s": len(messages) / took_s,
        "cpu_us_per_message": sum(used) / len(messages) * 1e6,
        "busiest_us_per_message": max(used) / len(messages) * 1e6,
        "broker_us_per_message": broker_s / len(messages) * 1e6,
        "cores_busy": sum(used) / took_s,
    }
    if len({*processes}) > 1:
        figures |= {
            f"{roles[0].partition(':')[0]}_us_per_message": used_s / len(messages) * 1e6
            for roles, used_s in zip(processes, used, strict=True)
        }
    for worker in workers:
        worker.stop()
    return figures


def _wait_ready(workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:
        worker.wait_ready()


def ratios(rows: dict[str, Figures]) -> Figures:
    """Compare two processes (and four) to one: as measured, and as they would be on cores of their own."""
    found: Figures = {}
    for name, prefix in (("project and fold", ""), ("all roles", "all_roles_")):
        one = rows[f"{name}, processes: 1"]
        for count, word in ((2, "two"), (4, "four")):
            many = rows.get(f"{name}, processes: {count}")
            if many is None:
                continue
            key = f"{prefix}{word}_processes_to_one"
            found[key] = many["messages_per_s"] / one["messages_per_s"]
            found[f"{key}_without_broker"] = one["busiest_us_per_message"] / many["busiest_us_per_message"]
    return found
