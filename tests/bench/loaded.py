"""A worker that has read so many messages, its state on disk: what replay, restore and memory are measured on.

Everything is published before the worker starts, so that making the messages takes nothing from it.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tests.bench.peaks import Peaks, watched
from tests.bench.site import Site, cpu_s, one_broker, pid_of, site_on
from tests.bench.traffic import traffic
from tests.integration.pipeline import WorkerProcess


@dataclass(frozen=True)
class Load:
    """What was loaded, by which worker (which still runs), and how fast."""

    site: Site
    worker: WorkerProcess
    messages: int
    facts: int
    started: float
    took_s: float
    cpu_s: float
    peaks: Peaks

    @property
    def messages_per_s(self) -> float:
        """The speed of the first load, with all roles in one process."""
        return self.messages / self.took_s

    @property
    def with_state(self) -> dict[str, str]:
        """The environment of a worker that keeps its state where this one does."""
        return {"TRACE_PROJECTOR_STATE_DIR": str(self.site.directory / "state")}

    def figures(self) -> dict[str, float]:
        return {
            "messages": self.messages,
            "facts": self.facts,
            "messages_per_s": self.messages_per_s,
            "cpu_us_per_message": self.cpu_s / self.messages * 1e6,
        }


@contextlib.contextmanager
def loaded(message_count: int, sink: str | None = None) -> Iterator[Load]:
    """Load so many messages on a broker of its own, into a sink's URL or a new DuckDB file."""
    with one_broker() as (cluster, directory), site_on(cluster, directory, "load", sink) as site:
        count = site.send(islice(traffic(), message_count))
        worker = site.start("load", TRACE_PROJECTOR_STATE_DIR=str(site.directory / "state"))
        worker.wait_ready()
        started = time.perf_counter()
        with watched(pid_of(worker)) as peaks:
            took_s = site.wait_done() - started
        facts = int(worker.total("folded_facts_total"))
        yield Load(site, worker, count, facts, started, took_s, cpu_s(pid_of(worker)), peaks)
