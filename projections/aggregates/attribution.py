"""Which attempt of which run owns an item of a conversation: the ledger's bindings decide, by time."""

from bisect import bisect_right
from typing import NamedTuple

from projections.ids import split_attempt_id
from projections.times import time_key


class Owner(NamedTuple):
    """An attempt that a conversation is bound to, and the start that decides what it owns."""

    run_id: str
    attempt_id: str
    start: str


class Bindings:
    """The attempts bound to one conversation, in order of start; equal starts by (iteration, attempt), then text."""

    __slots__ = ("_starts", "owners")

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        """Take (attempt id, start) rows in any order, with repetitions."""
        keyed = []
        for attempt_id, start in set(rows):
            parts = split_attempt_id(attempt_id)
            assert parts is not None, "an execution binds nothing unless its request key is an attempt id"
            seconds, fraction, _text = time_key(start)
            keyed.append(((seconds, fraction, parts.iteration, parts.attempt, attempt_id, start), parts.run))
        keyed.sort()
        self.owners = [Owner(run_id, key[4], key[5]) for key, run_id in keyed]
        self._starts = [key[:2] for key, _run_id in keyed]

    def __bool__(self) -> bool:
        return bool(self.owners)

    def owner_of(self, at: str | None) -> Owner:
        """Give the attempt with the latest start not after ``at``; before all of them, or without a time, the first.

        Of equal starts it is the greater attempt, among the first ones too.
        """
        if len(self.owners) == 1:
            return self.owners[0]
        moment = self._starts[0] if at is None else max(time_key(at)[:2], self._starts[0])
        return self.owners[bisect_right(self._starts, moment) - 1]
