"""The most memory that a worker has had resident: all roles, the sink of one export, its state in RocksDB.

What grows shows in time: the peak of the second half of the load stands beside that of the first.
"""

from tests.bench.loaded import Load


def measure(load: Load) -> dict[str, float]:
    """Tell what the worker needed from its start until everything was loaded."""
    middle = load.started + load.took_s / 2
    first, second = load.peaks.between(end=middle), load.peaks.between(middle)
    return {
        "facts": load.facts,
        "facts_in_memory": load.worker.total("state_facts"),
        "peak_rss_mib": max(first, second),
        "first_half_rss_mib": first,
        "second_half_rss_mib": second,
        "second_half_to_first": second / first,
    }
