"""The most memory that a worker has had resident: all roles, a DuckDB sink, its state in RocksDB."""

from tests.bench.loaded import Load
from tests.bench.site import peak_rss_mib, pid_of


def measure(load: Load) -> dict[str, float]:
    """Look at a worker that has loaded everything."""
    return {
        "facts": load.facts,
        "facts_in_memory": load.worker.total("state_facts"),
        "peak_rss_mib": peak_rss_mib(pid_of(load.worker)),
    }
