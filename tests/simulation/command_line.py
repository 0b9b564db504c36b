"""The command line of the simulation: which seeds are run, and what is told of them."""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.mutants import MUTANTS, run_mutated
from tests.simulation.simulation import Outcome

_JOBS_MAX = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; 0 when all of them passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="one seed only, with everything that happened")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, _JOBS_MAX), help="how many at once")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="with a deliberate bug; ends at the first failure")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.mutant)
    seeds = range(options.first, options.first + options.seeds)
    passed = failed = 0
    for outcome in _outcomes(seeds, options.jobs, options.mutant):
        if outcome.problem is None:
            passed += 1
            continue
        failed += 1
        _say(f"seed {outcome.seed} failed: {outcome.problem}")
        _say(f"  again: {command(outcome.seed, options.mutant)}")
        if options.mutant:
            break
    _say(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def command(seed: int, mutant: str | None) -> str:
    """Give the command that runs one seed again."""
    return f"{os.path.relpath(sys.executable)} -m tests.simulation --seed {seed}" + (
        f" --mutant {mutant}" if mutant else ""
    )


def _one(seed: int, mutant: str | None) -> int:
    started = time.monotonic()
    outcome = run_mutated((seed, mutant))
    _say("\n".join(outcome.lines))
    if outcome.problem is not None:
        _say(f"seed {seed} failed: {outcome.problem}")
    _say(f"digest {outcome.digest}, {time.monotonic() - started:.2f} s")
    _say("1 passed, 0 failed" if outcome.problem is None else "0 passed, 1 failed")
    return 0 if outcome.problem is None else 1


def _outcomes(seeds: Iterable[int], jobs: int, mutant: str | None) -> Iterator[Outcome]:
    work = zip(seeds, itertools.repeat(mutant), strict=False)
    if jobs == 1 or mutant:
        # A mutant ends at its first failure, so its seeds are run in order.
        yield from map(run_mutated, work)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_mutated, work, chunksize=4)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
