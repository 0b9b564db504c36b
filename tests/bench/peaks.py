"""How the most memory that a process has resident goes along in time, so that it shows what grows."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench.site import forget_peak, peak_rss_mib

_LOOK_S = 1.0


@dataclass
class Peaks:
    """The peaks of a process between looks at it, in MiB, each with the time of the look (``time.perf_counter``)."""

    looks: list[tuple[float, float]] = field(default_factory=list)

    def between(self, begin: float = 0.0, end: float = float("inf")) -> float:
        """Tell the highest peak of a stretch of time."""
        found = [peak for at, peak in self.looks if begin <= at <= end]
        assert found, "nobody looked then"
        return max(found)


@contextlib.contextmanager
def watched(pid: int) -> Iterator[Peaks]:
    """Look at a process until this ends; the first look takes in what was before."""
    peaks, is_over = Peaks(), threading.Event()

    def look() -> None:
        peaks.looks.append((time.perf_counter(), peak_rss_mib(pid)))
        forget_peak(pid)

    def keep_looking() -> None:
        while not is_over.wait(_LOOK_S):
            look()

    thread = threading.Thread(target=keep_looking)
    thread.start()
    try:
        yield peaks
    finally:
        is_over.set()
        thread.join()
        look()
