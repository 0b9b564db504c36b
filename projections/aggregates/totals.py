"""Running totals over costs: counts are added in any order, money left to right, and the last model is kept."""

from typing import NamedTuple

from projections.formats.assembly import Order


class Amount(NamedTuple):
    """What one cost adds: money (0 when unknown) and counts (None when unknown)."""

    order: Order
    usd: float
    input: int | None
    output: int | None


class _Count:
    """A sum of counts of which some may be unknown; it is unknown when all are."""

    __slots__ = ("known", "total")

    def __init__(self) -> None:
        self.known = 0
        self.total = 0

    def add(self, count: int | None, sign: int) -> None:
        if count is not None:
            self.known += sign
            self.total += sign * count

    @property
    def value(self) -> int | None:
        return self.total if self.known else None


class Totals:
    """The sums over the costs of one attempt, each told apart by its rank; amortised O(1) per cost in source order.

    Floats are added left to right, so that the last digit does not depend on how the costs arrived: money that is not
    behind all other money makes the sum be taken again, once it is asked for.
    """

    __slots__ = ("_amounts", "_input", "_output", "_paid", "_paid_up_to", "_usd")

    def __init__(self) -> None:
        self._amounts: dict[int, Amount] = {}
        self._paid: dict[int, Amount] = {}
        self._input = _Count()
        self._output = _Count()
        self._usd: float | None = 0
        self._paid_up_to: Order | None = None

    def __bool__(self) -> bool:
        return bool(self._amounts)

    def put(self, rank: int, amount: Amount) -> None:
        """Add a cost, or replace what it added before."""
        held = self._amounts.get(rank)
        if held == amount:
            return
        if held is not None:
            self._take_out(rank, held)
        self._amounts[rank] = amount
        self._input.add(amount.input, 1)
        self._output.add(amount.output, 1)
        if amount.usd:
            self._pay(rank, amount)

    def drop(self, rank: int) -> None:
        """Take a cost out again, if it is there."""
        held = self._amounts.pop(rank, None)
        if held is not None:
            self._take_out(rank, held)

    def _pay(self, rank: int, amount: Amount) -> None:
        self._paid[rank] = amount
        if self._usd is not None and (self._paid_up_to is None or amount.order > self._paid_up_to):
            self._usd += amount.usd
            self._paid_up_to = amount.order
        else:
            self._usd = None

    def _take_out(self, rank: int, held: Amount) -> None:
        self._input.add(held.input, -1)
        self._output.add(held.output, -1)
        if self._paid.pop(rank, None) is not None:
            self._usd = None

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """The sums of input and output; None for one that no cost knows."""
        return self._input.value, self._output.value

    def usd(self, start: float) -> float:
        """Give the money, added to ``start`` from left to right."""
        if start == 0 and self._usd is not None:
            return self._usd
        total = start
        ordered = sorted(self._paid.values(), key=lambda amount: amount.order)
        for amount in ordered:
            total += amount.usd
        if start == 0:
            self._usd = total
            self._paid_up_to = ordered[-1].order if ordered else None
        return total


class LastModel:
    """Of the costs that name a model, the one that does so last in source order."""

    __slots__ = ("_last", "_named")

    def __init__(self) -> None:
        self._named: dict[int, tuple[Order, str]] = {}
        self._last: int | None = None

    @property
    def name(self) -> str | None:
        """The last model; None when no cost names one."""
        return None if self._last is None else self._named[self._last][1]

    def put(self, rank: int, order: Order, model: str) -> None:
        """Say which model a cost names, and where."""
        was_last = self._last == rank and order < self._named[rank][0]
        self._named[rank] = order, model
        if self._last is None or order >= self._named[self._last][0]:
            self._last = rank
        if was_last:
            self._find_last()

    def drop(self, rank: int) -> None:
        """Say that a cost names no model any more."""
        if self._named.pop(rank, None) is not None and self._last == rank:
            self._find_last()

    def _find_last(self) -> None:
        self._last = max(self._named, key=lambda rank: self._named[rank][0], default=None)
