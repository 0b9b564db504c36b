"""Runs seeds: ``python -m tests.simulation --seeds 1000``, or one of them with all that happened: ``--seed 17``.

The same seed is the same run on every machine with the same Python: the order of sets of text depends on Python's hash
seed, so it is set before anything else, by starting over.
"""

import os
import sys

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    # Not before, because it would be loaded twice.
    from tests.simulation.command_line import main

    sys.exit(main())
