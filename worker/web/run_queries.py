"""The runs of a destination that answers queries: filtered, paged and summed up where they are.

Rules for editing: one text for all destinations, in the SQL that they share; what they say differently is a field of
``Dialect``. What comes out has to be what ``RunIndex`` gives for the same records, which one test holds both to.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from projections.reports.spend import Sum, Usage, sum_usd
from projections.reports.usage_report import By, UsageReport, UsageRow
from projections.text import storable_text, text_of_storable
from projections.usage import TOKEN_FIELDS
from worker.record_queries import QueryReader, Row, Tables
from worker.stores.columns import COLUMNS
from worker.stores.views import counted_costs
from worker.web.run_list import (
    CHOICES_MAX,
    ROWS_PER_PAGE,
    Query,
    RunPage,
    RunRow,
    Spending,
    greatest_first,
    page_of,
    utc_text,
)

_MICROS: Final = 1_000_000
_TOKEN_COLUMNS: Final = tuple(
    next(column.name for column in COLUMNS["cost"] if column.path == ("measurement", "tokens", field))
    for field in TOKEN_FIELDS
)

# A run of which there is no record is known by its earliest attempt or gate; not by its costs, of which there are most.
_RUNS: Final = """(
    SELECT id AS run_id, workflow_name AS workflow, status, started_at AS started, completed_at AS completed
    FROM {run} AS runs
    UNION ALL
    SELECT run_id, NULL, NULL, min(seen), NULL FROM (
        SELECT id AS run_id, started_at AS seen, 1 AS is_known FROM {run} AS runs
        UNION ALL SELECT run_id, started_at, 0 FROM {attempt} AS attempts
        UNION ALL SELECT run_id, opened_at, 0 FROM {gate} AS gates
    ) AS met GROUP BY run_id HAVING max(is_known) = 0
) AS known"""
_OF_RUNS: Final = """(
    SELECT * FROM {cost} AS costs WHERE conversation IN (
        SELECT conversation FROM {cost} AS mine WHERE run_id IN ({ids}))
) AS theirs"""


class QueriedRuns:
    """The runs behind a reader that answers queries; nothing is kept of an answer."""

    def __init__(self, reader: QueryReader) -> None:
        self._reader = reader

    def listed(self, query: Query) -> RunPage:
        return self._reader.answer(lambda tables: _listed(tables, query))

    def spending(self) -> Spending:
        return self._reader.answer(_spending)


# ------------------------------------------------------------------------------------------------------------ the list


def _listed(tables: Tables, query: Query) -> RunPage:
    runs = _RUNS.format(**tables.names)
    condition, values = _condition(tables, query)
    [[total, found]] = tables.ask(
        f"SELECT count(*), count(*) FILTER (WHERE {condition}) FROM {runs}",  # noqa: S608 - our own names
        values,
    )
    page, pages = page_of(query.page, found)
    micros = tables.dialect.micros
    rows = tables.ask(
        f"""SELECT run_id, workflow, status, {micros.format("started")}, {micros.format("completed")}
        FROM {runs} WHERE {condition} ORDER BY started DESC NULLS LAST, run_id{tables.dialect.binary}
        LIMIT {ROWS_PER_PAGE} OFFSET {(page - 1) * ROWS_PER_PAGE}""",  # noqa: S608 - our own names and numbers
        values,
    )
    choices = (_choices(tables, column) for column in ("status", "workflow_name"))
    return RunPage(_rows(tables, rows), found, total, page, pages, *choices)


def _condition(tables: Tables, query: Query) -> tuple[str, Mapping[str, Any]]:
    """Give a condition, and the values of the parameters in it."""
    values = {"status": query.status, "workflow": query.workflow, "text": query.text.strip().lower()}
    given = {name: storable_text(value) for name, value in values.items() if value}
    spoken = {name: tables.dialect.parameter.format(name) for name in given}
    tests = [f"{name} = {spoken[name]}" for name in ("status", "workflow") if name in given]
    if "text" in given:
        texts = ("run_id", "coalesce(workflow, '')")
        inside = (tables.dialect.contains.format(text, spoken["text"]) for text in texts)
        tests.append(f"({' OR '.join(inside)})")
    return " AND ".join(tests) or "1 = 1", given


def _choices(tables: Tables, column: str) -> tuple[str, ...]:
    rows = tables.ask(
        f"""SELECT {column} FROM {tables.names["run"]} AS runs WHERE {column} <> '' GROUP BY {column}
        ORDER BY {column}{tables.dialect.binary} LIMIT {CHOICES_MAX}""",  # noqa: S608 - our own names
        {},
    )
    return tuple(sorted(text_of_storable(text) for (text,) in rows))


def _rows(tables: Tables, rows: Sequence[Row]) -> tuple[RunRow, ...]:
    if not rows:
        return ()
    mine = _Mine(tables, [row[0] for row in rows])
    attempts = mine.counts("attempt", "count(*)")
    retries = mine.counts("attempt", "count(*) FILTER (WHERE attempt > 0)")
    gates = mine.counts("gate", "count(*) FILTER (WHERE gate_kind = 'human' AND status = 'pending')")
    usage = mine.usage()
    return tuple(
        RunRow(
            text_of_storable(run_id),
            None if workflow is None else text_of_storable(workflow),
            None if status is None else text_of_storable(status),
            None if started is None else utc_text(started // _MICROS),
            None if started is None or completed is None else (completed - started) / _MICROS,
            attempts.get(run_id, 0),
            retries.get(run_id, 0),
            gates.get(run_id, 0),
            usage.get(run_id),
        )
        for run_id, workflow, status, started, completed in rows
    )


class _Mine:
    """What there is about the runs of one page."""

    def __init__(self, tables: Tables, run_ids: Sequence[str]) -> None:
        self._tables = tables
        self._values = {f"r{number}": run_id for number, run_id in enumerate(run_ids)}
        self._ids = ", ".join(map(tables.dialect.parameter.format, self._values))

    def counts(self, kind: str, count: str) -> dict[str, int]:
        """Count records of a kind by run."""
        rows = self._tables.ask(
            f"""SELECT run_id, {count} FROM {self._tables.names[kind]} AS counted
            WHERE run_id IN ({self._ids}) GROUP BY run_id""",  # noqa: S608 - our own names
            self._values,
        )
        return dict(rows)

    def usage(self) -> dict[str, Usage]:
        """Sum up by run what counts of the costs of all conversations in which these runs have one."""
        costs = counted_costs(self._tables.dialect, _OF_RUNS.format(cost=self._tables.names["cost"], ids=self._ids))
        rows = self._tables.ask(
            f"""SELECT run_id, {_sums(self._tables)} FROM (SELECT * {costs}) AS counted
            WHERE run_id IN ({self._ids}) GROUP BY run_id""",  # noqa: S608 - our own names
            self._values,
        )
        return {run_id: _added([_Sums.of(sums)]) for run_id, *sums in rows}


# --------------------------------------------------------------------------------------------------------------- spend


class _Sums(NamedTuple):
    """What some costs come to: how many there are, how many of them are one response each, and known sums.

    ``tokens`` and ``usd`` are sums with how many costs they are known of.
    """

    costs: int
    deltas: int
    usd: tuple[float, int]
    estimated_usd: float
    tokens: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "_Sums":
        """Read a row of what ``_sums`` asks for; a sum of nothing is NULL."""
        costs, deltas, usd, usd_known, estimated, *tokens = row
        pairs = zip(tokens[::2], tokens[1::2], strict=True)
        counts = tuple((int(total or 0), int(known)) for total, known in pairs)
        return cls(int(costs), int(deltas), (float(usd or 0), int(usd_known)), float(estimated or 0), counts)


def _sums(tables: Tables) -> str:
    add = tables.dialect.any_order
    estimates = add.format("CASE WHEN cost_kind = 'estimate' THEN cost_usd END")
    return ", ".join(
        [
            "count(*), count(*) FILTER (WHERE measurement_kind = 'delta')",
            f"{add.format('cost_usd')}, count(cost_usd), {estimates}",
            *(f"sum({column}), count({column})" for column in _TOKEN_COLUMNS),
        ]
    )


def _spending(tables: Tables) -> Spending:
    [[costs]] = tables.ask(f"SELECT count(*) FROM {tables.names['cost']} AS costs", {})  # noqa: S608 - our own names
    # A conversation's reading has no single model.
    rows = tables.ask(
        f"""SELECT {tables.dialect.utc_day.format("spent_at")} AS spent_on,
            CASE WHEN coalesce(scope, '') = 'conversation' THEN NULL ELSE model END AS spent_with, {_sums(tables)}
        {counted_costs(tables.dialect, f"{tables.names['cost']} AS all_costs")} GROUP BY 1, 2""",
        {},
    )
    cells = [
        (None if day is None else day.isoformat(), None if model is None else text_of_storable(model), _Sums.of(sums))
        for day, model, *sums in rows
    ]
    superseded = costs - sum(sums.costs for _, _, sums in cells)
    by_day = _report("day", cells, lambda cell: cell[0], superseded)
    return Spending(by_day, greatest_first(_report("model", cells, lambda cell: cell[1], superseded)))


_Cell = tuple[str | None, str | None, _Sums]


def _report(by: By, cells: Sequence[_Cell], key_of: Callable[[_Cell], str | None], superseded: int) -> UsageReport:
    groups: dict[str | None, list[_Sums]] = {}
    for cell in cells:
        groups.setdefault(key_of(cell), []).append(cell[2])
    order = sorted(groups, key=lambda key: (key is None, key or ""))
    rows = tuple(UsageRow(key, None, _added(groups[key])) for key in order)
    return UsageReport(by, rows, _added([sums for _, _, sums in cells]), superseded)


def _added(parts: Iterable[_Sums]) -> Usage:
    """Add up sums; calls are not among them."""
    all_parts = list(parts)
    costs = sum(part.costs for part in all_parts)
    deltas = sum(part.deltas for part in all_parts)
    tokens = {}
    for index, field in enumerate(TOKEN_FIELDS):
        known = sum(part.tokens[index][1] for part in all_parts)
        tokens[field] = Sum(sum(part.tokens[index][0] for part in all_parts), costs - known)
    usd = Sum(sum_usd(part.usd[0] for part in all_parts), costs - sum(part.usd[1] for part in all_parts))
    estimated_usd = sum_usd(part.estimated_usd for part in all_parts)
    return Usage(costs, Sum(deltas, costs - deltas), tokens, usd, estimated_usd, None, None)
