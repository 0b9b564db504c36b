"""Scrapes workers all through a run: does their book balance, how much memory have they, what keeps them busy."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.pipeline import WorkerProcess

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

MIB = 1024 * 1024

_PREFIX = "trace_projector_"
_OUTCOMES = (
    "projected_messages_total",
    "ignored_messages_total",
    "dead_lettered_messages_total",
    "in_flight_messages",
)


def parse(exposition: str) -> Samples:
    """Read a scrape: metric name, without the prefix of all, to (labels, value)."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            found[sample.name.removeprefix(_PREFIX)].append((sample.labels, sample.value))
    return found


def unbalanced(samples: Samples) -> list[str]:
    """Name the partitions where consumed is not projected + ignored + dead-lettered + in flight."""
    books: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for column, names in enumerate((("consumed_messages_total",), _OUTCOMES)):
        for name in names:
            for labels, value in samples.get(name, ()):
                books[labels["topic"], labels["partition"]][column] += value
    return [
        f"{topic} partition {partition}: consumed {consumed:.0f}, accounted for {accounted:.0f}"
        for (topic, partition), (consumed, accounted) in sorted(books.items())
        if consumed != accounted
    ]


def total(samples: Samples, name: str, **labels: str) -> float:
    """Sum one metric over all its labels but those given."""
    return sum(value for row, value in samples.get(name, ()) if labels.items() <= row.items())


def resident_bytes(worker: WorkerProcess) -> int:
    """Read how much memory a worker has resident; 0 when it is gone."""
    if not worker.is_running:
        return 0
    assert worker._process is not None
    try:
        status = Path(f"/proc/{worker._process.pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0)


class Watch:
    """Scrapes some workers again and again from a thread of its own.

    Args:
        workers: gives the workers that can answer now.
        interval_s: the time between two scrapes.
    """

    def __init__(self, workers: Callable[[], Sequence[WorkerProcess]], interval_s: float = 0.7) -> None:
        self.scrapes = 0
        self.problems: list[str] = []
        self.newest: dict[str, Samples] = {}
        self.peak_bytes = 0
        self.peak_lags: dict[str, float] = {}
        self._workers = workers
        self._interval_s = interval_s
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_ending.set()
        self._thread.join(30)

    def begin_peaks(self) -> None:
        """Forget the peaks so far."""
        self.peak_bytes, self.peak_lags = 0, {}

    def _run(self) -> None:
        while not self._is_ending.is_set():
            started = time.monotonic()
            for worker in self._workers():
                self.scrape(worker)
            self._is_ending.wait(max(0.05, self._interval_s - (time.monotonic() - started)))

    def scrape(self, worker: WorkerProcess) -> Samples | None:
        """Scrape one worker and note what is wrong with it; None when it does not answer."""
        name = worker.log_path.stem
        status, body = worker.get("/metrics")
        if status != 200:
            self.newest.pop(name, None)
            return None
        samples = parse(body.decode())
        self.scrapes += 1
        self.problems += [f"{name}: {problem}" for problem in unbalanced(samples)]
        self.newest[name] = samples
        self.peak_bytes = max(self.peak_bytes, resident_bytes(worker))
        lags: dict[str, float] = defaultdict(float)
        for labels, value in samples.get("lag_messages", ()):
            lags[labels["role"]] += value
        for role, lag in lags.items():
            self.peak_lags[role] = max(self.peak_lags.get(role, 0.0), lag)
        return samples
