"""A run's timeline out of its records: attempts on lanes, calls as ticks, gates with their waiting, spend so far."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from projections.ids import split_attempt_id
from projections.reports.spend import (
    DOUBLE_MAX,
    Moment,
    Record,
    Spend,
    Usage,
    UsageTally,
    counted_costs,
    distinct_records,
    moment_of,
)
from projections.reports.timeline_model import Bar, CurvePoint, GateSpan, Instant, Lane, LaneKind, Tick, Timeline
from projections.text import instant

RECORD_KINDS_READ: Final = ("run", "attempt", "call", "gate", "cost")
"""Kinds of records that a timeline is made of; others do it no harm."""


class _Belongings:
    """The records of one attempt, or of one conversation without an attempt."""

    __slots__ = ("calls", "gates", "spends")

    def __init__(self) -> None:
        self.calls: list[Record] = []
        self.gates: list[Record] = []
        self.spends: list[Spend] = []

    def usage(self) -> Usage:
        tally = UsageTally()
        for spend in self.spends:
            tally.add_cost(spend.measurement)
        for call in self.calls:
            if call["callKind"] == "tool":
                tally.add_tool_call(call)
        return tally.usage()

    def times(self) -> list[str]:
        records = [*self.calls, *self.gates, *(spend.record for spend in self.spends)]
        return [time for record in records for time in _times_of(record)]


def timeline(records: Iterable[Record], run_id: str) -> Timeline | None:
    """Lay out one run; None when nothing among the records is of that run.

    ``records`` are trace records, redacted or not, in any order, of this run and perhaps of others; all costs of the
    conversations that the run has costs in must be among them (see ``spend``).
    """
    kept = distinct_records(records, RECORD_KINDS_READ)
    spends = [spend for spend in counted_costs(kept) if spend.record["runId"] == run_id]
    mine = [record for record in kept if record["runId"] == run_id and record["kind"] != "cost"]
    mine.sort(key=lambda record: moment_of(record["at"]))
    if not mine and not spends:
        return None
    return _Layout(run_id, mine, spends).timeline()


class _Layout:
    """The records of one run, and its axis of time."""

    def __init__(self, run_id: str, records: Sequence[Record], spends: Sequence[Spend]) -> None:
        self._run_id = run_id
        self._run: Record = next((record for record in records if record["kind"] == "run"), {})
        self._attempts = [record for record in records if record["kind"] == "attempt"]
        self._spends = spends
        self._all = _Belongings()
        self._all.calls = [record for record in records if record["kind"] == "call"]
        self._all.gates = [record for record in records if record["kind"] == "gate"]
        self._all.spends = list(spends)
        self._by_attempt = {attempt["id"]: _Belongings() for attempt in self._attempts}
        self._by_conversation: dict[str, _Belongings] = {}
        self._gates_by_step: dict[str, list[Record]] = {}
        self._gates_alone: list[Record] = []
        self._hand_out()
        times = [time for record in records for time in _times_of(record)] + self._all.times()
        self._start, self._end = min(times, key=instant), max(times, key=instant)
        self._origin = moment_of(self._start)

    def _hand_out(self) -> None:
        """Give every record to its attempt, if that is there, else to its conversation; a gate to its step or run."""
        for call in self._all.calls:
            self._owner_of(call).calls.append(call)
        for spend in self._all.spends:
            self._owner_of(spend.record).spends.append(spend)
        for gate in self._all.gates:
            owner, parts = self._by_attempt.get(gate.get("attemptId", "")), split_attempt_id(gate.get("attemptId", ""))
            if owner is not None:
                owner.gates.append(gate)
            elif parts is not None:
                self._gates_by_step.setdefault(parts.step, []).append(gate)
            else:
                self._gates_alone.append(gate)

    def _owner_of(self, record: Record) -> _Belongings:
        owner = self._by_attempt.get(record.get("attemptId", ""))
        return self._by_conversation.setdefault(record["conversation"], _Belongings()) if owner is None else owner

    def timeline(self) -> Timeline:
        run, completed = self._run, self._run.get("completedAt")
        return Timeline(
            run_id=self._run_id,
            workflow=run.get("workflowName"),
            status=run.get("status"),
            error=run.get("error"),
            duration_s=None if completed is None else _seconds_between(moment_of(run["at"]), moment_of(completed)),
            start=self._instant(self._start),
            end=self._instant(self._end),
            lanes=self._lanes(),
            curve=self._curve(),
            usage=self._all.usage(),
        )

    def _instant(self, time: str) -> Instant:
        return Instant(time, _seconds_between(self._origin, moment_of(time)))

    def _lanes(self) -> tuple[Lane, ...]:
        by_step: dict[str, list[Bar]] = {step: [] for step in self._gates_by_step}
        for attempt in self._attempts:
            by_step.setdefault(attempt["stepId"], []).append(self._bar(attempt))
        lanes = [self._step_lane(step, bars) for step, bars in by_step.items()]
        lanes += [self._lane("conversation", key, owner) for key, owner in self._by_conversation.items()]
        if self._gates_alone:
            owner = _Belongings()
            owner.gates = self._gates_alone
            lanes.append(self._lane("run", self._run_id, owner))
        return tuple(sorted(lanes, key=_lane_order))

    def _step_lane(self, step: str, bars: list[Bar]) -> Lane:
        bars = _stacked(bars)
        gates = [self._gate(gate, bar.row) for bar in bars for gate in self._by_attempt[bar.id].gates]
        gates += [self._gate(gate, 0) for gate in self._gates_by_step.get(step, ())]
        return Lane(
            kind="step",
            key=step,
            rows=1 + max((bar.row for bar in bars), default=0),
            bars=tuple(bars),
            gates=tuple(sorted(gates, key=_gate_order)),
            ticks=(),
            usage=_Belongings().usage(),
        )

    def _lane(self, kind: LaneKind, key: str, owner: _Belongings) -> Lane:
        gates = tuple(self._gate(gate, 0) for gate in owner.gates)
        return Lane(kind, key, 1, (), gates, tuple(map(self._tick, owner.calls)), owner.usage())

    def _bar(self, attempt: Record) -> Bar:
        owner = self._by_attempt[attempt["id"]]
        completed = attempt.get("completedAt")
        return Bar(
            id=attempt["id"],
            step_id=attempt["stepId"],
            iteration=attempt["iteration"],
            attempt=attempt["attempt"],
            row=0,
            step_kind=attempt["stepKind"],
            outcome=attempt.get("outcome"),
            phase=attempt.get("phase"),
            model=attempt.get("model"),
            error=attempt.get("error"),
            start=self._instant(attempt["at"]),
            end=None if completed is None else self._instant(completed),
            last_seen=self._instant(max([*_times_of(attempt), *owner.times()], key=instant)),
            ticks=tuple(map(self._tick, owner.calls)),
            usage=owner.usage(),
        )

    def _tick(self, call: Record) -> Tick:
        return Tick(call["id"], self._instant(call["at"]), call["callKind"], call.get("name"), call.get("isError"))

    def _gate(self, gate: Record, row: int) -> GateSpan:
        closed = _closed_at(gate)
        rule = gate.get("policyRule")
        return GateSpan(
            id=gate["id"],
            row=row,
            gate_kind=gate["gateKind"],
            status=gate.get("status"),
            verdict=gate.get("verdict"),
            decided_by=gate.get("decidedBy"),
            rule=None if rule is None else f"{rule['table']} {rule['rowId']}",
            opened=self._instant(gate["at"]),
            closed=None if closed is None else self._instant(closed),
            waiting_s=None if closed is None else _seconds_between(moment_of(gate["at"]), moment_of(closed)),
        )

    def _curve(self) -> tuple[CurvePoint, ...]:
        points = []
        usd, usd_unknown, tokens, tokens_unknown = Fraction(0), 0, 0, 0
        for spend in self._spends:
            cost, counts = spend.measurement.get("cost"), spend.measurement["tokens"]
            if cost is None:
                usd_unknown += 1
            else:
                # Exact, and rounded once per point, so that the last point is the sum that the report gives.
                usd += Fraction(cost["usd"])
            spent = [counts.get("input"), counts.get("output")]
            tokens_unknown += None in spent
            tokens += sum(count for count in spent if count is not None)
            at = self._instant(spend.record["at"])
            points.append(CurvePoint(at, _rounded(usd), usd_unknown, tokens, tokens_unknown))
        return tuple(points)


def _times_of(record: Record) -> list[str]:
    """List the times at which something of a record happened."""
    end = _closed_at(record) if record["kind"] == "gate" else record.get("completedAt")
    return [record["at"]] if end is None else [record["at"], end]


def _closed_at(gate: Record) -> str | None:
    """Give the time a human gate was closed; of one that ran out, not when that was noticed. None for a policy's."""
    if gate["gateKind"] == "policy" or gate.get("status") == "pending":
        return None
    closed: str | None = gate.get("resolvedAt")
    expires: str | None = gate.get("expiresAt") if gate.get("status") == "expired" else None
    known = [time for time in (closed, expires) if time is not None]
    return min(known, key=instant, default=None)


def _stacked(bars: list[Bar]) -> list[Bar]:
    """Put every bar into a row: below what it retries, in the first row where it overlaps no other."""
    taken: list[list[Bar]] = []
    row_of_iteration: dict[int, int] = {}
    stacked = []
    for bar in sorted(bars, key=lambda bar: (bar.iteration, bar.attempt, bar.id)):
        row = row_of_iteration.get(bar.iteration, -1) + 1
        while row < len(taken) and any(_overlap(bar, other) for other in taken[row]):
            row += 1
        taken.extend([] for _ in range(row + 1 - len(taken)))
        taken[row].append(bar)
        row_of_iteration[bar.iteration] = row
        stacked.append(bar._replace(row=row))
    return stacked


def _overlap(bar: Bar, other: Bar) -> bool:
    (start, end), (other_start, other_end) = bar.span_s, other.span_s
    return start == other_start or (start < other_end and other_start < end)


def _lane_order(lane: Lane) -> tuple[float, str, str]:
    starts = [bar.start for bar in lane.bars] + [gate.opened for gate in lane.gates] + [tick.at for tick in lane.ticks]
    # A conversation may have costs and no calls; nothing is drawn of it, so it comes last.
    return min((start.offset_s for start in starts), default=float("inf")), lane.kind, lane.key


def _gate_order(gate: GateSpan) -> tuple[float, str]:
    return gate.opened.offset_s, gate.id


def _seconds_between(start: Moment, end: Moment) -> float:
    return end[0] - start[0] + (float(f"0.{end[1]}") - float(f"0.{start[1]}"))


def _rounded(amount: Fraction) -> float:
    try:
        return float(amount)
    except OverflowError:
        return DOUBLE_MAX
