"""The runs of an export and what they spent, for the pages that list them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from projections.reports.spend import Moment, Record, Usage, moment_of
from projections.reports.usage_report import UsageReport, UsageRow, usage_reports

RECORD_KINDS_READ: Final = ("run", "attempt", "gate", "cost")
ROWS_PER_PAGE: Final = 50
WORKFLOWS_MAX: Final = 200

_KEPT_OF_COST: Final = ("kind", "id", "runId", "at", "conversation", "measurement")


class TooManyRecords(Exception):  # noqa: N818  (a state of the destination, not a fault of the program)
    """An export holds more than the pages read."""


class RunRow(NamedTuple):
    """One run. ``at`` is the earliest time known; ``usage`` is None when it has no cost."""

    run_id: str
    workflow: str | None
    status: str | None
    at: str
    duration_s: float | None
    attempts: int
    retries: int
    open_gates: int
    usage: Usage | None


class RunIndex(NamedTuple):
    """All runs, the newest first, their statuses and workflows, and what they spent by day (UTC) and by model.

    Of workflows there are so many as can be chosen from; a text finds the others.
    """

    rows: tuple[RunRow, ...]
    statuses: tuple[str, ...]
    workflows: tuple[str, ...]
    by_day: UsageReport
    by_model: UsageReport


class Query(NamedTuple):
    """Which runs to list: all that have the status and the workflow, if given, and the text in a name; and which page.

    Pages count from 1.
    """

    status: str = ""
    workflow: str = ""
    text: str = ""
    page: int = 1


class Selection(NamedTuple):
    """A page of the runs that a query finds."""

    rows: Sequence[RunRow]
    found: int
    page: int
    pages: int


class _Counts:
    """What is counted of every run while its records go by."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.open_gates: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, record: Record) -> None:
        """Count an attempt, a gate or a cost."""
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
        else:
            counts.add(record)
        if record["kind"] == "cost":
            costs.append({field: record[field] for field in _KEPT_OF_COST})
        if len(runs) + len(costs) + len(counts.first) > records_max:
            raise TooManyRecords
    by_run, by_day, by_model = usage_reports(costs, ("run", "day", "model"))
    usage = {row.key: row.usage for row in by_run.rows}
    rows = [_row(run_id, runs.get(run_id), counts, usage.get(run_id)) for run_id in {**counts.first, **runs}]
    rows.sort(key=lambda row: row.run_id)
    rows.sort(key=lambda row: moment_of(row.at), reverse=True)
    statuses = sorted({row.status for row in rows if row.status})
    workflows = sorted({row.workflow for row in rows if row.workflow})[:WORKFLOWS_MAX]
    return RunIndex(tuple(rows), tuple(statuses), tuple(workflows), by_day, _greatest_first(by_model))


def _greatest_first(report: UsageReport) -> UsageReport:
    def spent(row: UsageRow) -> tuple[float, float]:
        return row.usage.usd.known, row.usage.tokens["input"].known + row.usage.tokens["output"].known

    return report._replace(rows=tuple(sorted(report.rows, key=spent, reverse=True)))


def _row(run_id: str, run: Record | None, counts: _Counts, usage: Usage | None) -> RunRow:
    return RunRow(
        run_id,
        None if run is None else run["workflowName"],
        None if run is None else run["status"],
        counts.first[run_id] if run is None else run["at"],
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


def select(index: RunIndex, query: Query) -> Selection:
    """Find the runs of a query and give the page it asks for, or the last."""
    text = query.text.strip().casefold()
    tests: list[Callable[[RunRow], bool]] = []
    if query.status:
        tests.append(lambda row: row.status == query.status)
    if query.workflow:
        tests.append(lambda row: row.workflow == query.workflow)
    if text:
        tests.append(lambda row: text in row.run_id.casefold() or text in (row.workflow or "").casefold())
    found = [row for row in index.rows if all(test(row) for test in tests)]
    pages = max(1, -(-len(found) // ROWS_PER_PAGE))
    page = min(max(1, query.page), pages)
    return Selection(found[(page - 1) * ROWS_PER_PAGE : page * ROWS_PER_PAGE], len(found), page, pages)
