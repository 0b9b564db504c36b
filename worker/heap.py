"""What the process keeps of the memory that it has freed: little, where the C library can be told.

glibc gives every thread a heap of its own, and raises the size from which it asks the system for memory of its own for
an allocation. Batches come from one thread and go in another, so each heap keeps what the largest batch took.
"""

import ctypes
import os
from typing import Any, Final

# <malloc.h>
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_HEAPS_MAX: Final = 1
# From this size on memory goes back to the system when it is freed: fetched bytes, what they were decompressed to.
_OWN_BYTES_MIN: Final = 128 * 1024


def keep_little(library: Any = None) -> bool:
    """Let this process have one heap, whatever its threads; says whether the C library can be told.

    Does nothing where the environment tells it already.
    """
    library = ctypes.CDLL(None) if library is None else library
    if not hasattr(library, "mallopt") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    told = [library.mallopt(_M_ARENA_MAX, _HEAPS_MAX), library.mallopt(_M_MMAP_THRESHOLD, _OWN_BYTES_MIN)]
    return all(told)
