"""How much the tests try: enough for every change by default, and all there is with TEST_SIZE=full, as in `.ci/run`."""

import os

VARIABLE = "TEST_SIZE"
_SIZES = ("everyday", "full")

SIZE = os.environ.get(VARIABLE) or "everyday"
if SIZE not in _SIZES:
    raise ValueError(f"{VARIABLE}={SIZE} is none of {', '.join(_SIZES)}")


def sized(everyday: int, full: int) -> int:
    """Give the number of the size that was asked for: of seeds, cycles or whatever else is tried."""
    return full if SIZE == "full" else everyday


def examples(full: int) -> int:
    """Give the number of Hypothesis examples where it is not that of the profile; ten and more are for every day."""
    return sized(max(full // 10, 10), full)
