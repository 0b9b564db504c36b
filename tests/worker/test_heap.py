"""A process keeps little of what it has freed."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.heap import keep_little

ROOT = Path(__file__).resolve().parents[2]

# Memory of a thread's own heap shows as another heap in what the C library says of itself.
_HEAPS = """
import ctypes, threading
from worker.heap import keep_little

keep_little()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
threads = [threading.Thread(target=library.malloc, args=(1_000,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
library.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(library.fdopen(1, b"w"))
library.malloc_info(0, stream)
library.fflush(stream)
"""


class Library:
    """A C library that notes what it is told."""

    def __init__(self) -> None:
        self.told: dict[int, int] = {}

    def mallopt(self, option: int, value: int) -> int:
        self.told[option] = value
        return 1


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")
def test_threads_share_one_heap() -> None:
    done = subprocess.run([sys.executable, "-c", _HEAPS], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count("<heap nr=") == 1


def test_a_c_library_that_cannot_be_told_is_left_alone() -> None:
    assert not keep_little(object())


def test_what_the_environment_says_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    library = Library()
    assert not keep_little(library)
    assert library.told == {}


def test_memory_above_a_size_that_never_grows_goes_back_to_the_system() -> None:
    library = Library()
    assert keep_little(library)
    assert library.told == {-8: 1, -3: 131_072}
