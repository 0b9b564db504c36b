"""All that begins with a loaded worker, on one load: its memory, the replay of its sources, its state restored."""

from tests.bench import memory, replay, restore
from tests.bench.loaded import loaded
from tests.stores import postgresql


def measure_all(message_count: int) -> dict[str, dict[str, float]]:
    """Load once, and measure everything that begins there; the last one takes the worker apart.

    A sink of the same process has a share in its memory, so another load goes where the sink is a server.
    """
    with loaded(message_count) as load:
        figures = {
            "first load": load.figures(),
            "memory": memory.measure(load),
            "replay": replay.measure(load),
            "restore": restore.measure(load),
        }
    if postgresql.is_here():
        figures["memory, PostgreSQL sink"] = measure_served(message_count)
    return figures


def measure_served(message_count: int) -> dict[str, float]:
    """Tell what a worker needs whose sink is a PostgreSQL server."""
    with loaded(message_count, postgresql.server().url("load")) as load:
        return memory.measure(load)
