"""How often Python looks for garbage that holds on to itself: seldom, because next to none is made here.

Facts, records and messages are freed by their counts. Python's own rhythm, after every 700 new objects, looks at what a
restore or a fold has just made over and over: restoring took three times as long.
"""

import gc
from typing import Final

# Objects made and not freed until the youngest are looked at: some megabytes at most wait to be found.
_YOUNG_OBJECTS: Final = 20_000


def collect_rarely() -> None:
    """Set the rhythm of this process, and look no more at what has been imported, which lives as long as it does."""
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 10, 5)
