"""A usage report as people and spreadsheets read it: a table that fits the terminal, and CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from projections.reports.spend import Sum, Usage, UsageTally
from projections.reports.usage_report import UsageReport, UsageRow
from projections.usage import TOKEN_FIELDS
from worker.shown_text import shown, shown_name

UNKNOWN_KEY: Final = "(unknown)"
KEY_CELLS: Final = (48, 12)
"""So wide a key is while there are columns to do without, and so narrow when there are none."""
GAP_CELLS: Final = 2
USD_STEP: Final = 0.0001
"""Amounts are shown to this; what is less keeps its first digits."""


class _Marks(NamedTuple):
    """How a terminal says that something is missing or estimated."""

    at_least: str
    ascii_only: bool


class _Column(NamedTuple):
    """A column of sums; the greater its ``rank``, the sooner a narrow terminal does without it."""

    name: str
    rank: int
    cell: Callable[[Usage, _Marks], str]


def _tokens(field: str) -> Callable[[Usage, _Marks], str]:
    return lambda usage, marks: _sum_text(usage.tokens[field], usage.costs, marks)


def _usd(usage: Usage, marks: _Marks) -> str:
    text = _sum_text(usage.usd, usage.costs, marks, "{:,.4f}" if usage.usd.known >= USD_STEP else "{:.2g}")
    return f"~{text}" if usage.estimated_usd else text


def _tools(usage: Usage, marks: _Marks) -> str:
    del marks
    return "" if usage.tool_calls is None else f"{usage.tool_calls:,}"


def _errors(usage: Usage, marks: _Marks) -> str:
    return "" if usage.tool_errors is None else _sum_text(usage.tool_errors, usage.tool_calls or 0, marks)


_COLUMNS: Final = (
    _Column("requests", 5, lambda usage, marks: _sum_text(usage.requests, usage.costs, marks)),
    _Column("input", 0, _tokens("input")),
    _Column("cached", 7, _tokens("cachedInput")),
    _Column("cache write", 8, _tokens("cacheWriteInput")),
    _Column("output", 0, _tokens("output")),
    _Column("reasoning", 10, _tokens("reasoningOutput")),
    _Column("total", 3, _tokens("total")),
    _Column("USD", 0, _usd),
    _Column("tools", 6, _tools),
    _Column("errors", 9, _errors),
)


def _sum_text(value: Sum, members: int, marks: _Marks, form: str = "{:,}") -> str:
    """Write a sum over so many members, and of how many of them it is not known."""
    if not value.unknown:
        return form.format(value.known)
    if value.unknown == members:
        return "?"
    return f"{marks.at_least}{form.format(value.known)} +{value.unknown}?"


def usage_table(report: UsageReport, console: Console) -> Iterator[RenderableType]:
    """Show a report in the width of a console, columns left out if need be; beside it, in words, what is not in it."""
    marks = _Marks(">=" if console.options.ascii_only else "≥", console.options.ascii_only)
    if not report.rows:
        yield Text("no usage in these records at that time")
        return
    keys = [_key_text(row, marks) for row in report.rows]
    columns = [column for column in _COLUMNS if _says_something(column, report, marks)]
    silent = [column.name for column in _COLUMNS if column not in columns and column.cell(report.total, marks) == "?"]
    shown_columns = _fitting(columns, _cells_of(keys, KEY_CELLS[0]), report, marks, console.width)
    if _width(shown_columns, _cells_of(keys, KEY_CELLS[1]), report, marks) > console.width:
        shown_columns = columns
        yield from _stacked(report, keys, columns, marks)
    else:
        yield _table(report, keys, shown_columns, marks)
    left_out = [column.name for column in columns if column not in shown_columns]
    for note in _notes(report, marks, silent, left_out):
        yield Text(note, style="dim")


def _fitting(
    columns: Sequence[_Column], key_cells: int, report: UsageReport, marks: _Marks, width: int
) -> Sequence[_Column]:
    """Do without one column after the other until the rest fits, or until only those are left that must be there."""
    while _width(columns, key_cells, report, marks) > width:
        dropped = max(columns, key=lambda column: column.rank)
        if not dropped.rank:
            break
        columns = [column for column in columns if column is not dropped]
    return columns


def _key_text(row: UsageRow, marks: _Marks) -> str:
    key = UNKNOWN_KEY if row.key is None else shown_name(row.key, ascii_only=marks.ascii_only)
    return key if row.workflow is None else f"{shown_name(row.workflow, ascii_only=marks.ascii_only)} {key}"


def _cells_of(keys: Sequence[str], cells_max: int) -> int:
    return min(cells_max, max(map(cell_len, [*keys, "total"])))


def _says_something(column: _Column, report: UsageReport, marks: _Marks) -> bool:
    return column.rank == 0 or any(column.cell(row.usage, marks) not in ("", "?") for row in report.rows)


def _width(columns: Sequence[_Column], key_cells: int, report: UsageReport, marks: _Marks) -> int:
    """Give the least width of a table: a key may be folded, a number never."""
    usages = [*(row.usage for row in report.rows), report.total]
    cells = [max(len(column.name), *(cell_len(column.cell(usage, marks)) for usage in usages)) for column in columns]
    return key_cells + sum(GAP_CELLS + width for width in cells)


def _table(report: UsageReport, keys: Sequence[str], columns: Sequence[_Column], marks: _Marks) -> Table:
    # Columns are one cell apart as it is.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP_CELLS - 1, 0, 0))
    table.add_column(report.by, overflow="fold")
    for column in columns:
        table.add_column(column.name, justify="right", no_wrap=True)
    for key, row in zip(keys, report.rows, strict=True):
        table.add_row(Text(key), *(Text(column.cell(row.usage, marks)) for column in columns))
    table.add_section()
    table.add_row(Text("total"), *(Text(column.cell(report.total, marks)) for column in columns), style="bold")
    return table


def _stacked(
    report: UsageReport, keys: Sequence[str], columns: Sequence[_Column], marks: _Marks
) -> Iterator[RenderableType]:
    rows = [*zip(keys, (row.usage for row in report.rows), strict=True), ("total", report.total)]
    for key, usage in rows:
        yield Text(key, style="bold")
        for column in columns:
            if cell := column.cell(usage, marks):
                yield Text(f"  {column.name} {cell}")


def _notes(report: UsageReport, marks: _Marks, silent: Sequence[str], left_out: Sequence[str]) -> Iterator[str]:
    total = report.total
    sums = [*total.tokens.values(), total.usd, total.requests, total.tool_errors or Sum(0, 0)]
    yield "input includes cached and cache write, output includes reasoning"
    if any(value.unknown for value in sums):
        yield f"? is unknown; {marks.at_least}5 +2? is 5 and what 2 records do not say"
    if total.estimated_usd:
        yield "~ includes estimates"
    if report.superseded:
        yield f"{report.superseded} more cost records tell of the same spend and are not counted"
    if silent:
        yield f"unknown everywhere: {', '.join(silent)}"
    if left_out:
        yield f"too narrow to show: {', '.join(left_out)} (--json has everything)"


# ----------------------------------------------------------------------------------------------------------------- CSV

_FORMULA_STARTS: Final = ("=", "+", "-", "@")


def usage_csv(report: UsageReport) -> str:
    """Write the rows as CSV (RFC 4180, header first, no total, so that a column adds up).

    Every sum has three columns: itself, empty when it is unknown; what is known of it; how many records do not say.
    Names are text: what is no visible character is escaped, and a quote keeps a spreadsheet from taking one that
    starts like a formula for a formula.
    """
    stream = io.StringIO()
    nothing = UsageRow(None, None, UsageTally().usage())
    writer = csv.DictWriter(stream, list(_csv_cells(report, nothing)), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(_csv_cells(report, row) for row in report.rows)
    return stream.getvalue()


def _csv_cells(report: UsageReport, row: UsageRow) -> dict[str, object]:
    usage = row.usage
    cells: dict[str, object] = {report.by: _csv_name(row.key)}
    if report.by == "run":
        cells["workflow"] = _csv_name(row.workflow)
    cells["costs"] = usage.costs
    sums = {"requests": usage.requests, **{f"{_snake(name)}_tokens": usage.tokens[name] for name in TOKEN_FIELDS}}
    for name, value in {**sums, "usd": usage.usd, "tool_errors": usage.tool_errors}.items():
        if name == "tool_errors":
            cells |= {"usd_estimated": usage.estimated_usd, "tool_calls": usage.tool_calls}
        cells |= {name: None, f"{name}_known": None, f"{name}_unknown": None}
        if value is not None:
            cells |= {name: value.total, f"{name}_known": value.known, f"{name}_unknown": value.unknown}
    return cells


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)


def _csv_name(name: str | None) -> str:
    text = shown(name or "")
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
