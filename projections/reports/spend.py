"""Which cost records describe distinct spend, and sums of them that never hide what is unknown.

Costs of one conversation describe the same spend, so ``fold_usage`` is applied to each conversation as a whole: any
delta of it supersedes all its snapshots, in whichever attempt, run or day they lie. A report cuts by day, model or run
only afterwards; otherwise a snapshot would count again wherever its deltas are out of sight.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from projections.canonical import canonical_json
from projections.text import instant
from projections.usage import TOKEN_FIELDS, fold_usage

Record = Mapping[str, Any]

Moment = tuple[int, str]
"""An instant: seconds since 1970 UTC, and the digits of its fraction without trailing zeros."""


DOUBLE_MAX: Final = (2 - 2**-52) * 2.0**1023


def moment_of(time: str) -> Moment:
    """Give the instant of a record's time. Raises ``invalid_time``."""
    seconds, fraction, _ = instant(time)
    return seconds, fraction


class Sum(NamedTuple):
    """A sum over things of which some may not know their part: ``known`` adds up the rest, ``unknown`` counts them."""

    known: float
    unknown: int

    @property
    def total(self) -> float | None:
        """The sum; None as soon as one part is unknown, as in ``usage_summary``."""
        return None if self.unknown else self.known


class Spend(NamedTuple):
    """One cost record that counts."""

    moment: Moment
    record: Record

    @property
    def measurement(self) -> Record:
        """The measurement of the record."""
        measurement: Record = self.record["measurement"]
        return measurement


class Usage(NamedTuple):
    """What some costs and calls come to.

    ``costs`` is how many cost records count. ``requests`` knows those that are one response each; a counter's reading
    does not say how many it stands for. Token sums are by ``TOKEN_FIELDS``: input includes what was cached, output what
    was reasoned, so they must not be added to each other. ``usd`` is US dollars, ``estimated_usd`` the part of it that
    is an estimate. ``tool_calls`` and ``tool_errors`` (of which ``unknown`` have no result that tells) are None where
    calls cannot be told apart.
    """

    costs: int
    requests: Sum
    tokens: Mapping[str, Sum]
    usd: Sum
    estimated_usd: float
    tool_calls: int | None
    tool_errors: Sum | None


def distinct_records(records: Iterable[Record], kinds: Iterable[str]) -> list[Record]:
    """Give each record of some kinds once, ordered by kind and id.

    Of two records with one kind and id (from two places) the one with the greater canonical JSON stays.
    """
    wanted = frozenset(kinds)
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        if record["kind"] not in wanted:
            continue
        key = record["kind"], record["id"]
        known = found.get(key)
        if known is None or (known != record and canonical_json(known) < canonical_json(record)):
            found[key] = record
    return [found[key] for key in sorted(found)]


def counted_costs(records: Iterable[Record]) -> list[Spend]:
    """Give the cost records that describe distinct spend, in the order of time, then id.

    All costs of a conversation have to be among the records, or what is superseded cannot be told.
    """
    conversations: dict[str, list[Record]] = {}
    for record in distinct_records(records, ("cost",)):
        # The fold gives its inputs back unchanged, so each carries its record along.
        conversations.setdefault(record["conversation"], []).append({**record["measurement"], "record": record})
    counted = [item["record"] for costs in conversations.values() for item in fold_usage(costs).measurements]
    return sorted(
        (Spend(moment_of(record["at"]), record) for record in counted),
        key=lambda item: (item.moment, item.record["id"]),
    )


def sum_usd(amounts: Iterable[float]) -> float:
    """Add up amounts as if exactly and round once, so no order shows in the last digit; ends at the greatest double."""
    try:
        return math.fsum(amounts)
    except OverflowError:
        return DOUBLE_MAX


class UsageTally:
    """Adds up costs and tool calls; the order of adding does not matter, to the last digit."""

    __slots__ = ("_calls", "_costs", "_deltas", "_errors", "_estimates", "_silent", "_tokens", "_unknown", "_usd")

    def __init__(self) -> None:
        self._costs = self._deltas = self._calls = self._errors = self._silent = 0
        self._tokens = dict.fromkeys(TOKEN_FIELDS, 0)
        self._unknown = dict.fromkeys(TOKEN_FIELDS, 0)
        self._usd: list[float] = []
        self._estimates: list[float] = []

    def add_cost(self, measurement: Record) -> None:
        """Add a measurement that counts."""
        self._costs += 1
        self._deltas += measurement["kind"] == "delta"
        for field in TOKEN_FIELDS:
            count = measurement["tokens"].get(field)
            if count is None:
                self._unknown[field] += 1
            else:
                self._tokens[field] += count
        # A redacted record leaves an unknown cost out.
        cost = measurement.get("cost")
        if cost is not None:
            self._usd.append(cost["usd"])
            if cost["kind"] == "estimate":
                self._estimates.append(cost["usd"])

    def add_tool_call(self, call: Record) -> None:
        """Add a tool call."""
        self._calls += 1
        is_error = call.get("isError")
        self._errors += is_error is True
        self._silent += is_error is None

    def usage(self, *, has_calls: bool = True) -> Usage:
        """Give the sums; without calls where they cannot be told apart."""
        return Usage(
            costs=self._costs,
            requests=Sum(self._deltas, self._costs - self._deltas),
            tokens={field: Sum(self._tokens[field], self._unknown[field]) for field in TOKEN_FIELDS},
            usd=Sum(sum_usd(self._usd), self._costs - len(self._usd)),
            estimated_usd=sum_usd(self._estimates),
            tool_calls=self._calls if has_calls else None,
            tool_errors=Sum(self._errors, self._silent) if has_calls else None,
        )


def usage_json(usage: Usage) -> dict[str, Any]:
    """Give usage as JSON: each sum as {total, known, unknown}, where total is null if a part is unknown."""
    return {
        "costs": usage.costs,
        "requests": _sum_json(usage.requests),
        "tokens": {field: _sum_json(count) for field, count in usage.tokens.items()},
        "usd": {**_sum_json(usage.usd), "estimated": usage.estimated_usd},
        "toolCalls": usage.tool_calls,
        "toolErrors": None if usage.tool_errors is None else _sum_json(usage.tool_errors),
    }


def _sum_json(value: Sum) -> dict[str, float | None]:
    return {"total": value.total, "known": value.known, "unknown": value.unknown}
