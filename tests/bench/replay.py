"""A replay that changes nothing, beside the first load of the same messages.

The replay is done when the command has ended and the worker has folded the facts once more. The worker serves
meanwhile, and its sink must not be written.
"""

import subprocess
import time

from tests.bench.loaded import Load
from tests.bench.site import cpu_s, forget_peak, peak_rss_mib, pid_of
from tests.integration.pipeline import PROGRAM


def measure(load: Load) -> dict[str, float]:
    """Replay beside the worker that has loaded everything."""
    pid = pid_of(load.worker)
    written, worker_s = _written(load), cpu_s(pid)
    forget_peak(pid)
    started = time.perf_counter()
    command = [*PROGRAM, "--config", str(load.site.config), "replay"]
    subprocess.run(command, env=load.site.environ(), check=True, capture_output=True)
    command_s = time.perf_counter() - started
    took_s = load.site.wait_done() - started
    assert _written(load) == written, "a replay of an unchanged projection writes nothing"
    return {
        "messages": load.messages,
        "messages_per_s": load.messages / took_s,
        "command_s": command_s,
        "worker_us_per_message": (cpu_s(pid) - worker_s) / load.messages * 1e6,
        "replay_to_first_load": load.took_s / took_s,
        "peak_rss_mib": peak_rss_mib(pid),
    }


def _written(load: Load) -> float:
    return load.worker.total("written_upserts_total")
