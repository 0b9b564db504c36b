"""Which faults strike, in which order and for how long: a function of the seed alone."""

from collections.abc import Mapping
from random import Random
from typing import Final, Literal, NamedTuple

Kind = Literal["kill worker", "freeze worker", "restart worker", "kill broker", "freeze broker"]

# Workers are struck more often than brokers: they hold what this project is responsible for.
_WEIGHTS: Final[Mapping[Kind, int]] = {
    "kill worker": 4,
    "freeze worker": 3,
    "restart worker": 2,
    "kill broker": 2,
    "freeze broker": 2,
}


class Pace(NamedTuple):
    """How long faults last, and whether the next one waits until everything works again."""

    down_s: tuple[float, float]
    pause_s: tuple[float, float]
    awaits_recovery: bool


# Down for shorter and for longer than a session (2 s), so that both a return and a replacement are met.
THOROUGH: Final = Pace((0.5, 8.0), (0.5, 2.0), awaits_recovery=True)
QUICK: Final = Pace((0.1, 2.5), (0.0, 0.3), awaits_recovery=False)


class Fault(NamedTuple):
    """One cycle: what happens to which worker or broker (by number, taken modulo their count), and then a pause."""

    kind: Kind
    target: int
    down_s: float
    pause_s: float

    @property
    def is_broker(self) -> bool:
        return self.kind in ("kill broker", "freeze broker")


def plan(seed: int, cycles: int, pace: Pace) -> list[Fault]:
    """Choose the faults of a run; every kind comes once before any comes again by chance."""
    random = Random(seed)
    kinds: list[Kind] = list(_WEIGHTS)
    random.shuffle(kinds)
    kinds += random.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=max(0, cycles - len(kinds)))
    return [
        Fault(kind, random.randrange(12), random.uniform(*pace.down_s), random.uniform(*pace.pause_s))
        for kind in kinds[:cycles]
    ]
