"""Python looks for garbage seldom, and still finds it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: the rhythm is the process's.
_CYCLES = """
import gc, weakref
from worker.garbage import collect_rarely

class Cycle:
    def __init__(self):
        self.itself = self

collect_rarely()
assert gc.get_freeze_count() > 0
living = [weakref.ref(Cycle()) for _ in range(1_000)]
assert all(one() is not None for one in living), "looked for at once"
for _ in range(1_000):
    living += [weakref.ref(Cycle()) for _ in range(100)]
    living = [one for one in living if one() is not None]
print(len(living))
"""


def test_garbage_that_holds_on_to_itself_is_found_before_it_is_much() -> None:
    done = subprocess.run([sys.executable, "-c", _CYCLES], capture_output=True, text=True, check=True, cwd=ROOT)
    assert 0 < int(done.stdout) < 30_000
