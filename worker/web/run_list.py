"""The runs of an export and what they spent, for the pages that list them; and how they are got from plain files.

A destination that answers queries lists its runs itself (``run_queries``); of one that does not all records are read,
up to a limit.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Protocol

from projections.reports.spend import Moment, Record, Usage, moment_of
from projections.reports.usage_report import UsageReport, UsageRow, usage_reports

RECORD_KINDS_READ: Final = ("run", "attempt", "gate", "cost")
ROWS_PER_PAGE: Final = 50
CHOICES_MAX: Final = 200

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KEPT_OF_COST: Final = ("kind", "id", "runId", "at", "conversation", "measurement")


class TooManyRecords(Exception):  # noqa: N818  (a state of the destination, not a fault of the program)
    """An export holds more than the pages read."""


class RunRow(NamedTuple):
    """One run, known by its record or else by its attempts and gates.

    ``at`` is the earliest time known, in UTC to the second; ``usage`` is None when it has no cost.
    """

    run_id: str
    workflow: str | None
    status: str | None
    at: str | None
    duration_s: float | None
    attempts: int
    retries: int
    open_gates: int
    usage: Usage | None


class Query(NamedTuple):
    """Which runs to list: all that have the status and the workflow, if given, and the text in a name; and which page.

    Pages count from 1.
    """

    status: str = ""
    workflow: str = ""
    text: str = ""
    page: int = 1


class RunPage(NamedTuple):
    """A page of the runs that a query finds, the newest first; how many that are, and how many there are at all.

    Of statuses and workflows there are so many as can be chosen from; a text finds the others.
    """

    rows: Sequence[RunRow]
    found: int
    total: int
    page: int
    pages: int
    statuses: Sequence[str]
    workflows: Sequence[str]


class Spending(NamedTuple):
    """What all runs spent by day (UTC) and by model, of models the greatest first."""

    by_day: UsageReport
    by_model: UsageReport


class Runs(Protocol):
    """The runs of an export, and what they spent. Either method raises ``RecordsUnreadable``."""

    def listed(self, query: Query) -> RunPage:
        """Give the page that a query asks for, or the last one before it."""
        ...

    def spending(self) -> Spending:
        """Sum up what was spent."""
        ...


class RunIndex(NamedTuple):
    """All runs, the newest first, in memory: the runs of a file that answers no queries."""

    rows: tuple[RunRow, ...]
    statuses: tuple[str, ...]
    workflows: tuple[str, ...]
    spent: Spending

    def listed(self, query: Query) -> RunPage:
        found = _matching(self.rows, query)
        page, pages = page_of(query.page, len(found))
        rows = found[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE]
        return RunPage(rows, len(found), len(self.rows), page, pages, self.statuses, self.workflows)

    def spending(self) -> Spending:
        return self.spent


def page_of(asked: int, found: int) -> tuple[int, int]:
    """Give the number of the page to show, of those that there are, and how many they are."""
    pages = max(1, -(-found // ROWS_PER_PAGE))
    return min(max(1, asked), pages), pages


def utc_text(seconds: int) -> str | None:
    """Write a time, given in seconds since 1970, as UTC; None for one that no calendar has."""
    try:
        return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:
        return None


class _Counts:
    """What is counted of every run while its records go by."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.open_gates: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, record: Record) -> None:
        """Count an attempt or a gate."""
        run_id = record["runId"]
        self._see(run_id, record["at"])
        if record["kind"] == "attempt":
            self.attempts[run_id] += 1
            self.retries[run_id] += record["attempt"] > 0
        elif record["kind"] == "gate":
            self.open_gates[run_id] += record["gateKind"] == "human" and record.get("status") == "pending"

    def _see(self, run_id: str, at: str) -> None:
        known = self.first.get(run_id)
        if known is None or moment_of(at) < moment_of(known):
            self.first[run_id] = at


def build_index(records: Iterable[Record], records_max: int) -> RunIndex:
    """Sum up the records of an export; only runs and costs are held. Raises TooManyRecords beyond so many of them."""
    counts = _Counts()
    runs: dict[str, Record] = {}
    costs: list[Record] = []
    for record in records:
        if record["kind"] == "run":
            runs[record["id"]] = record
        elif record["kind"] == "cost":
            costs.append({field: record[field] for field in _KEPT_OF_COST})
        else:
            counts.add(record)
        if len(runs) + len(costs) + len(counts.first) > records_max:
            raise TooManyRecords
    by_run, by_day, by_model = usage_reports(costs, ("run", "day", "model"))
    usage = {row.key: row.usage for row in by_run.rows}
    times = counts.first | {run_id: run["at"] for run_id, run in runs.items()}
    order = sorted(sorted(times), key=lambda run_id: moment_of(times[run_id]), reverse=True)
    rows = [_row(run_id, times[run_id], runs.get(run_id), counts, usage.get(run_id)) for run_id in order]
    statuses = sorted({row.status for row in rows if row.status})
    workflows = sorted({row.workflow for row in rows if row.workflow})
    spending = Spending(by_day, greatest_first(by_model))
    return RunIndex(tuple(rows), tuple(statuses[:CHOICES_MAX]), tuple(workflows[:CHOICES_MAX]), spending)


def greatest_first(report: UsageReport) -> UsageReport:
    """Order the rows of a report by what was spent."""

    def spent(row: UsageRow) -> tuple[float, float]:
        return row.usage.usd.known, row.usage.tokens["input"].known + row.usage.tokens["output"].known

    return report._replace(rows=tuple(sorted(report.rows, key=spent, reverse=True)))


def _row(run_id: str, at: str, run: Record | None, counts: _Counts, usage: Usage | None) -> RunRow:
    return RunRow(
        run_id,
        None if run is None else run["workflowName"],
        None if run is None else run["status"],
        utc_text(moment_of(at)[0]),
        None if run is None else _duration_s(run),
        counts.attempts[run_id],
        counts.retries[run_id],
        counts.open_gates[run_id],
        usage,
    )


def _duration_s(run: Record) -> float | None:
    completed = run.get("completedAt")
    if completed is None:
        return None
    start, end = moment_of(run["at"]), moment_of(completed)
    return end[0] - start[0] + _fraction(end) - _fraction(start)


def _fraction(moment: Moment) -> float:
    return float(f"0.{moment[1] or 0}")


def _matching(rows: Sequence[RunRow], query: Query) -> Sequence[RunRow]:
    # Lower case, as in SQL, and not Unicode's folding: the same query finds the same runs in every destination.
    text = query.text.strip().lower()
    tests: list[Callable[[RunRow], bool]] = []
    if query.status:
        tests.append(lambda row: row.status == query.status)
    if query.workflow:
        tests.append(lambda row: row.workflow == query.workflow)
    if text:
        tests.append(lambda row: text in row.run_id.lower() or text in (row.workflow or "").lower())
    return [row for row in rows if all(test(row) for test in tests)] if tests else rows
