"""Usage by day, model, source or run over cost and call records, with totals that agree with ``fold_usage``.

What supersedes what is decided over all costs of a conversation before the window and the groups cut them apart. Rows
are sums of what counts: nothing is in two rows, and the total is the sum of what is in all rows. An unknown count stays
visible everywhere: a sum is None as soon as one part is, beside what is known of it and how many costs do not say.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, tzinfo
from typing import Any, Final, Literal, NamedTuple, get_args

from projections.reports.days import ANY_TIME, Window, day_of
from projections.reports.spend import (
    Moment,
    Record,
    Spend,
    Usage,
    UsageTally,
    counted_costs,
    distinct_records,
    moment_of,
    usage_json,
)

By = Literal["day", "model", "source", "run"]

GROUPINGS: Final[tuple[By, ...]] = get_args(By)

RECORD_KINDS_READ: Final = ("run", "call", "cost")
"""Kinds of records that the report reads; others do it no harm."""


class UsageRow(NamedTuple):
    """One group: its day (``YYYY-MM-DD``), model, source or run id, None where that is unknown, and what it used.

    ``workflow`` is the name of a run's workflow, if the run's record was there.
    """

    key: str | None
    workflow: str | None
    usage: Usage


class UsageReport(NamedTuple):
    """Rows in a fixed order (runs by their first use in the window, all else by key, the unknown last), and the total.

    ``superseded`` counts cost records that describe spend which others describe better.
    """

    by: By
    rows: tuple[UsageRow, ...]
    total: Usage
    superseded: int


class _Group:
    """The running sums of one group, and when it was first used."""

    __slots__ = ("first", "tally")

    def __init__(self, first: Moment) -> None:
        self.first = first
        self.tally = UsageTally()


def usage_report(records: Iterable[Record], by: By, zone: tzinfo = UTC, window: Window = ANY_TIME) -> UsageReport:
    """Sum up the spend of records by day, model, source or run.

    ``records`` are trace records of any kind, redacted or not, in any order. A day is a calendar day of the zone; a
    counter's reading counts where it was last read. A conversation's reading has no single model, as in
    ``usage_summary``; ``source`` is the reader that the usage was seen by. Tool calls belong to a day and a run, but
    name neither model nor source.
    """
    return usage_reports(records, (by,), zone, window)[0]


def usage_reports(
    records: Iterable[Record], groupings: Iterable[By], zone: tzinfo = UTC, window: Window = ANY_TIME
) -> list[UsageReport]:
    """Give several reports of the same records, whose costs are told apart once; each as ``usage_report`` gives it."""
    kept = distinct_records(records, RECORD_KINDS_READ)
    spends = counted_costs(kept)
    return [_report(kept, spends, by, zone, window) for by in groupings]


def _report(kept: Sequence[Record], spends: Sequence[Spend], by: By, zone: tzinfo, window: Window) -> UsageReport:
    counted_in = _key_of(by, zone)
    groups: dict[str | None, _Group] = {}
    total = UsageTally()
    for spend in spends:
        if window.holds(spend.moment):
            total.add_cost(spend.measurement)
            _group(groups, counted_in(spend.record, spend.moment), spend.moment).tally.add_cost(spend.measurement)
    has_calls = by in ("day", "run")
    for record in kept:
        if record["kind"] != "call" or record["callKind"] != "tool":
            continue
        moment = moment_of(record["at"])
        if window.holds(moment):
            total.add_tool_call(record)
            if has_calls:
                _group(groups, counted_in(record, moment), moment).tally.add_tool_call(record)
    workflows = {record["id"]: record["workflowName"] for record in kept if record["kind"] == "run"}
    rows = (
        UsageRow(key, workflows.get(key) if by == "run" else None, group.tally.usage(has_calls=has_calls))
        for key, group in sorted(groups.items(), key=_row_order(by))
    )
    costs = sum(record["kind"] == "cost" for record in kept)
    return UsageReport(by, tuple(rows), total.usage(), costs - len(spends))


def _key_of(by: By, zone: tzinfo) -> Callable[[Record, Moment], str | None]:
    if by == "day":
        return lambda _, moment: day_of(moment, zone)
    if by == "run":
        return lambda record, _: str(record["runId"])
    if by == "source":
        return lambda record, _: str(record["measurement"]["source"])
    return lambda record, _: _model_of(record["measurement"])


def _model_of(measurement: Record) -> str | None:
    model: str | None = None if measurement.get("scope") == "conversation" else measurement["model"]
    return model


def _group(groups: dict[str | None, _Group], key: str | None, moment: Moment) -> _Group:
    group = groups.get(key)
    if group is None:
        group = groups[key] = _Group(moment)
    group.first = min(group.first, moment)
    return group


def _row_order(by: By) -> Callable[[tuple[str | None, _Group]], tuple[Any, ...]]:
    if by == "run":
        return lambda item: (item[1].first, item[0])
    return lambda item: (item[0] is None, item[0] or "")


def report_json(report: UsageReport) -> dict[str, Any]:
    """Give the report as JSON: by, rows [{key, workflow (of runs), …usage}], total, supersededCosts."""
    return {
        "by": report.by,
        "rows": [
            {"key": row.key, **({"workflow": row.workflow} if report.by == "run" else {}), **usage_json(row.usage)}
            for row in report.rows
        ],
        "total": usage_json(report.total),
        "supersededCosts": report.superseded,
    }
