"""What an attempt spent in one conversation: the fold of the costs given to it, in amortised O(1) per cost."""

from collections.abc import Callable
from typing import Any, NamedTuple

from projections.aggregates.totals import Amount, LastModel, Totals
from projections.formats.assembly import Item, Order, Report

Owns = Callable[[str | None], bool]
"""Says whether a reading of a counter at some time belongs to the attempt."""


class AttemptUsage:
    """The costs of one attempt in one conversation.

    Any delta supersedes every snapshot; a conversation's counter supersedes the turns of its epoch. A counter that
    runs over several attempts gives each of them its differences.
    """

    __slots__ = ("_covering", "_deltas", "_model", "_shares", "_snapshots", "_touched", "_turns")

    def __init__(self) -> None:
        self._deltas = Totals()
        self._snapshots = Totals()
        self._model = LastModel()
        self._shares: dict[int, _Share] = {}
        self._touched: set[int] = set()
        self._covering: dict[str, set[int]] = {}
        self._turns: dict[str, dict[int, Amount]] = {}

    def put(self, item: Item) -> None:
        """Add a cost, or take notice that it changed."""
        measurement = item.measurement
        assert measurement is not None
        if measurement["kind"] == "delta":
            cost, tokens = measurement["cost"], measurement["tokens"]
            usd = 0 if cost is None else cost["usd"]
            self._deltas.put(item.rank, Amount(item.order, usd, tokens["input"], tokens["output"]))
            self._name(item.rank, item.order, measurement["model"])
            return
        if item.rank not in self._shares:
            self._shares[item.rank] = _Share(item)
        self._touched.add(item.rank)

    def drop(self, item: Item) -> None:
        """Take a cost out again."""
        self._deltas.drop(item.rank)
        self._model.drop(item.rank)
        share = self._shares.pop(item.rank, None)
        self._touched.discard(item.rank)
        if share is not None:
            self._show(item.rank, share, None)

    def fold(self, owns: Owns, start: float = 0) -> dict[str, Any] | None:
        """Give {basis, usd, start, input, output, model}; None without any cost.

        ``start`` is what the conversations before this one add up to: money is added to it from left to right.
        """
        for rank in sorted(self._touched, key=lambda rank: self._shares[rank].order):
            share = self._shares[rank]
            self._show(rank, share, share.catch_up(owns))
            self._name(rank, share.model_order, share.model)
        self._touched.clear()
        basis, totals = ("delta", self._deltas) if self._deltas else ("snapshot", self._snapshots)
        if not totals:
            return None
        spent_in, spent_out = totals.counts
        return {
            "basis": basis,
            "usd": totals.usd(start),
            "start": start,
            "input": spent_in,
            "output": spent_out,
            "model": self._model.name,
        }

    def _name(self, rank: int, order: Order, model: str | None) -> None:
        if model:
            self._model.put(rank, order, model)
        else:
            self._model.drop(rank)

    def _show(self, rank: int, share: "_Share", amount: Amount | None) -> None:
        """Bring the sum of snapshots up to what a counter now gives the attempt; None when it gives nothing."""
        turns = self._turns.setdefault(share.epoch, {})
        covering = self._covering.setdefault(share.epoch, set())
        if share.is_turn:
            if amount is None:
                turns.pop(rank, None)
            else:
                turns[rank] = amount
            self._sum_up(rank, None if covering else amount)
            return
        was_covered = bool(covering)
        (covering.discard if amount is None else covering.add)(rank)
        self._sum_up(rank, amount)
        if was_covered is not bool(covering):
            for turn, turn_amount in turns.items():
                self._sum_up(turn, None if covering else turn_amount)

    def _sum_up(self, rank: int, amount: Amount | None) -> None:
        if amount is None:
            self._snapshots.drop(rank)
        else:
            self._snapshots.put(rank, amount)


class _Growth:
    """How far a counter rose in the stretches that belong to the attempt: end less the reading before the stretch."""

    __slots__ = ("_before", "_end", "_start", "_total", "is_known")

    def __init__(self) -> None:
        self._total: float = 0
        self._before: float | None = None
        self._start: float | None = None
        self._end: float | None = None
        self.is_known = False

    def read(self, value: float | None, *, is_owned: bool) -> None:
        """Take the next reading of the counter."""
        if value is None:
            return
        if is_owned:
            if self._end is None:
                self._start = self._before
            self._end = value
            self.is_known = True
        elif self._end is not None:
            self._total, self._end = self.total, None
        self._before = value

    @property
    def total(self) -> float:
        """The growth so far; a counter that fell without starting over grew by nothing."""
        if self._end is None:
            return self._total
        return self._total + (self._end if self._start is None else max(self._end - self._start, 0))


class _Sums(NamedTuple):
    """The three counters of a share that are added up."""

    usd: _Growth
    input: _Growth
    output: _Growth


class _Share:
    """What one counter gives to one attempt; readings that come in order of sequence cost O(1) each."""

    __slots__ = ("_item", "_last", "_owned_count", "_reports", "_seen", "_sums", "model", "model_order")

    def __init__(self, item: Item) -> None:
        self._item = item
        self._begin()

    def _begin(self) -> None:
        self._reports = self._item.reports or []
        self._seen = 0
        self._last: tuple[Any, ...] = (-1,)
        self._sums = _Sums(_Growth(), _Growth(), _Growth())
        self._owned_count = 0
        self.model: str | None = None
        self.model_order: Order = self._item.order

    @property
    def order(self) -> Order:
        """The counter's place in the sources."""
        return self._item.order

    @property
    def is_turn(self) -> bool:
        """Whether the counter is that of a turn."""
        return bool(self._item.measurement and self._item.measurement["scope"] == "turn")

    @property
    def epoch(self) -> str:
        """The counter's epoch, which never changes: it is part of the cost's id."""
        assert self._item.measurement is not None
        return str(self._item.measurement["epoch"])

    def catch_up(self, owns: Owns) -> Amount | None:
        """Read what came since the last time; gives what the attempt owes to this counter, None when nothing."""
        if self._reports is not self._item.reports:
            self._begin()
        fresh = sorted(self._reports[self._seen :], key=_reading_order)
        if fresh and _reading_order(fresh[0]) < self._last:
            self._begin()
            fresh = sorted(self._reports, key=_reading_order)
        for report in fresh:
            self._read(report, is_owned=owns(report.at))
        self._seen = len(self._reports)
        if self._owned_count == 0:
            return None
        usd, spent_in, spent_out = self._sums
        counts = [int(growth.total) if growth.is_known else None for growth in (spent_in, spent_out)]
        return Amount(self._item.order, usd.total, counts[0], counts[1])

    def _read(self, report: Report, *, is_owned: bool) -> None:
        self._last = _reading_order(report)
        measurement = report.measurement
        cost, tokens = measurement["cost"], measurement["tokens"]
        self._sums.usd.read(None if cost is None else cost["usd"], is_owned=is_owned)
        self._sums.input.read(tokens["input"], is_owned=is_owned)
        self._sums.output.read(tokens["output"], is_owned=is_owned)
        if is_owned:
            self._owned_count += 1
            place = self._item.order if len(self._reports) == 1 else (self._item.order[0], *report.position, 0)
            if measurement["model"] and (self.model is None or place >= self.model_order):
                self.model, self.model_order = measurement["model"], place


def _reading_order(report: Report) -> tuple[Any, ...]:
    return report.sequence, report.position
