"""The most memory that a worker has had resident: all roles, a DuckDB sink, its state in RocksDB."""

from tests.bench.loaded import Load, loaded
from tests.bench.site import peak_rss_mib, pid_of


def measure_all(message_count: int) -> dict[str, dict[str, float]]:
    """Load so many messages, which make more than half as many facts again, and look at the worker."""
    with loaded(message_count) as load:
        return {"memory": measure(load)}


def measure(load: Load) -> dict[str, float]:
    """Look at a worker that has loaded everything."""
    return {
        "facts": load.facts,
        "facts_in_memory": load.worker.total("state_facts"),
        "peak_rss_mib": peak_rss_mib(pid_of(load.worker)),
    }
