"""All that begins with a loaded worker, on one load: its memory, the replay of its sources, its state restored."""

from tests.bench import memory, replay, restore
from tests.bench.loaded import loaded


def measure_all(message_count: int) -> dict[str, dict[str, float]]:
    """Load once, and measure everything that begins there; the last one takes the worker apart."""
    with loaded(message_count) as load:
        return {
            "first load": load.figures(),
            "memory": memory.measure(load),
            "replay": replay.measure(load),
            "restore": restore.measure(load),
        }
