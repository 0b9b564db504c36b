"""What an attempt spent: the fold of the costs attributed to it, kept up to date in amortised O(1) per cost."""

from collections.abc import Callable
from typing import Any

from projections.formats.assembly import Item, Report

_TOKENS = ("input", "output")


class AttemptUsage:
    """Running totals over the delta costs of one attempt in one conversation, in source order.

    Amounts are added left to right, so the last digit does not depend on how the items arrived: an item out of order
    makes the totals be added again from the start.
    """

    __slots__ = ("_before_last", "_deltas", "_model", "_snapshots", "_stale", "_totals")

    def __init__(self) -> None:
        self._deltas: dict[int, Item] = {}
        self._snapshots: dict[int, Item] = {}
        self._stale = False
        self._totals: tuple[float, int | None, int | None] = (0, None, None)
        self._model: str | None = None
        self._before_last: tuple[tuple[float, int | None, int | None], str | None] = (self._totals, self._model)

    def __bool__(self) -> bool:
        return bool(self._deltas or self._snapshots)

    def put(self, item: Item) -> None:
        """Add a cost, or take notice that it changed."""
        assert item.measurement is not None
        if item.measurement["kind"] == "snapshot":
            self._snapshots[item.rank] = item
            return
        last = next(reversed(self._deltas)) if self._deltas else -1
        self._deltas[item.rank] = item
        if item.rank < last:
            self._stale = True
        if self._stale:
            return
        if item.rank == last:
            # The newest response of a live conversation changes with every streamed line.
            self._totals, self._model = self._before_last
        self._before_last = (self._totals, self._model)
        self._add(item)

    def drop(self, item: Item) -> bool:
        """Take a cost out again; says whether it was there."""
        if self._deltas.pop(item.rank, None) is not None:
            self._stale = True
            return True
        return self._snapshots.pop(item.rank, None) is not None

    def _add(self, item: Item) -> None:
        assert item.measurement is not None
        cost, tokens = item.measurement["cost"], item.measurement["tokens"]
        usd, spent_in, spent_out = self._totals
        self._totals = (
            usd + (0 if cost is None else cost["usd"]),
            _plus(spent_in, tokens["input"]),
            _plus(spent_out, tokens["output"]),
        )
        self._model = item.measurement["model"] or self._model

    def fold(self, owns: Callable[[str | None], bool]) -> dict[str, Any] | None:
        """Give {basis, usd, input, output, model}; None without any cost.

        ``owns`` says whether a reading of a counter at some time belongs to this attempt: a counter that runs over
        several attempts gives each of them its differences.
        """
        if not self:
            return None
        if self._stale:
            self._stale = False
            self._totals, self._model = (0, None, None), None
            self._deltas = {rank: self._deltas[rank] for rank in sorted(self._deltas)}
            for item in self._deltas.values():
                self._before_last = (self._totals, self._model)
                self._add(item)
        if self._deltas:
            usd, spent_in, spent_out = self._totals
            return {"basis": "delta", "usd": usd, "input": spent_in, "output": spent_out, "model": self._last_model()}
        return self._fold_snapshots(owns)

    def _last_model(self) -> str | None:
        """Give the model of the last cost that names one, snapshots included."""
        if not self._snapshots:
            return self._model
        for rank in sorted([*self._deltas, *self._snapshots], reverse=True):
            item = self._deltas.get(rank) or self._snapshots[rank]
            if item.measurement is not None and item.measurement["model"]:
                return str(item.measurement["model"])
        return None

    def _fold_snapshots(self, owns: Callable[[str | None], bool]) -> dict[str, Any] | None:
        rows = [self._snapshots[rank] for rank in sorted(self._snapshots)]
        whole = {_epoch(row) for row in rows if _scope(row) == "conversation" and _owned(row, owns)}
        usd: float = 0
        spent: dict[str, int | None] = dict.fromkeys(_TOKENS)
        counted = False
        for row in rows:
            if not _owned(row, owns) or (_scope(row) == "turn" and _epoch(row) in whole):
                continue
            counted = True
            usd += _growth(row, owns, _usd_of)
            for name in _TOKENS:
                spent[name] = _plus(spent[name], _growth_or_none(row, owns, name))
        if not counted:
            return None
        return {
            "basis": "snapshot",
            "usd": usd,
            "input": spent["input"],
            "output": spent["output"],
            "model": self._last_model(),
        }


def _plus(total: int | None, count: int | None) -> int | None:
    return total if count is None else count + (total or 0)


def _scope(item: Item) -> str:
    assert item.measurement is not None
    return str(item.measurement["scope"])


def _epoch(item: Item) -> str:
    assert item.measurement is not None
    return str(item.measurement["epoch"])


def _reports(item: Item) -> list[Report]:
    assert item.reports is not None
    return sorted(item.reports, key=lambda report: (report.sequence, report.position))


def _owned(item: Item, owns: Callable[[str | None], bool]) -> bool:
    return any(owns(report.at) for report in _reports(item))


def _usd_of(report: Report) -> float | None:
    cost = report.measurement["cost"]
    return None if cost is None else cost["usd"]


def _growth(item: Item, owns: Callable[[str | None], bool], read: Callable[[Report], float | None]) -> float:
    """Add up how far a counter rose in the stretches that ``owns``: end less the reading before the stretch."""
    total: float = 0
    before: float | None = None
    start: float | None = None
    end: float | None = None
    for report in _reports(item):
        value = read(report)
        if value is None:
            continue
        if owns(report.at):
            if end is None:
                start = before
            end = value
        elif end is not None:
            total += _difference(end, start)
            end = None
        before = value
    return total if end is None else total + _difference(end, start)


def _difference(end: float, start: float | None) -> float:
    """Give what a counter grew by; a counter that fell without starting over grew by nothing."""
    return end if start is None else max(end - start, 0)


def _growth_or_none(item: Item, owns: Callable[[str | None], bool], name: str) -> int | None:
    """Give the growth of one token counter; None when no reading of the attempt knows it."""
    if all(report.measurement["tokens"][name] is None for report in _reports(item) if owns(report.at)):
        return None
    return int(_growth(item, owns, lambda report: report.measurement["tokens"][name]))
