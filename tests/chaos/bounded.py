"""Messages without end about a bounded number of runs: everything changes all the time and nothing piles up."""

import itertools
from collections.abc import Iterator, Sequence

from tests.worlds.messages import result, run_message
from tests.worlds.world import SourceMessage, World

RUNS = 300
_STEPS = ("draft", "review")


def changing_runs(chunk_messages: int) -> Iterator[Sequence[SourceMessage]]:
    """Give chunks of snapshots, each of which changes the records of one of the runs."""
    messages = (_snapshot(number % RUNS, number // RUNS + 1) for number in itertools.count())
    while True:
        yield list(itertools.islice(messages, chunk_messages))


def _snapshot(number: int, revision: int) -> SourceMessage:
    steps = [result(step, completed=revision % 3_000 + place) for place, step in enumerate(_STEPS)]
    return run_message(revision, id=f"run-{number}", steps=steps)


def changing_and_repeated(chunk_messages: int) -> Iterator[Sequence[SourceMessage]]:
    """Give chunks that are half changes of runs and half the messages of a few whole worlds, over and over."""
    worlds = [message for seed in range(6) for message in World(seed, runs=3).messages]
    repeated = itertools.cycle(worlds)
    half = chunk_messages // 2
    for changed in changing_runs(half):
        yield [*changed, *itertools.islice(repeated, half)]
