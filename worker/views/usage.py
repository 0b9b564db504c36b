"""A usage report as people and spreadsheets read it: a table that fits the terminal, and CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from projections.reports.spend import Sum, Usage, UsageTally
from projections.reports.usage_report import UsageReport, UsageRow
from projections.usage import TOKEN_FIELDS
from worker.views.text import Screen, shown

UNKNOWN_KEY: Final = "(unknown)"
KEY_CELLS: Final = (48, 12)
"""So wide a key is while there are columns to do without, and so narrow when there are none."""
GAP_CELLS: Final = 2

Cell = Callable[[Usage, Screen], str]


class _Column(NamedTuple):
    """A column of sums; the greater its ``rank``, the sooner a narrow terminal does without it."""

    name: str
    rank: int
    cell: Cell


def _tokens(field: str) -> Cell:
    return lambda usage, screen: screen.sum(usage.tokens[field], usage.costs)


def _requests(usage: Usage, screen: Screen) -> str:
    return screen.sum(usage.requests, usage.costs)


def _usd(usage: Usage, screen: Screen) -> str:
    return screen.usd(usage.usd, usage.costs, has_estimates=bool(usage.estimated_usd))


def _tools(usage: Usage, _: Screen) -> str:
    return "" if usage.tool_calls is None else f"{usage.tool_calls:,}"


def _errors(usage: Usage, screen: Screen) -> str:
    return "" if usage.tool_errors is None else screen.sum(usage.tool_errors, usage.tool_calls or 0)


_COLUMNS: Final = (
    _Column("requests", 5, _requests),
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


class _Row(NamedTuple):
    """One line of the table: its key as it is shown, and what it sums up."""

    key: str
    usage: Usage


def usage_table(report: UsageReport, screen: Screen) -> Iterator[RenderableType]:
    """Show a report in the width of a screen, columns left out if need be; below it, in words, what is not in it."""
    if not report.rows:
        yield Text("no usage in these records at that time")
        return
    rows = [_Row(_key_text(row, screen), row.usage) for row in report.rows]
    columns = [column for column in _COLUMNS if _says_something(column, rows, screen)]
    rows.append(_Row("total", report.total))
    fitting = _fitting(columns, rows, screen)
    if _width(fitting, rows, screen, KEY_CELLS[1]) > screen.width:
        fitting = columns
        yield from _stacked(columns, rows, screen)
    else:
        yield _table(report.by, fitting, rows, screen)
    silent = [column for column in _COLUMNS if column not in columns and column.cell(report.total, screen) == "?"]
    left_out = [column for column in columns if column not in fitting]
    for note in _notes(report, screen, silent, left_out):
        yield Text(note, style="dim")


def _key_text(row: UsageRow, screen: Screen) -> str:
    key = UNKNOWN_KEY if row.key is None else screen.name(row.key)
    return key if row.workflow is None else f"{screen.name(row.workflow)} {key}"


def _says_something(column: _Column, rows: Sequence[_Row], screen: Screen) -> bool:
    return column.rank == 0 or any(column.cell(row.usage, screen) not in ("", "?") for row in rows)


def _fitting(columns: Sequence[_Column], rows: Sequence[_Row], screen: Screen) -> Sequence[_Column]:
    """Do without one column after the other until the rest fits, or until only those are left that must be there."""
    while _width(columns, rows, screen, KEY_CELLS[0]) > screen.width:
        dropped = max(columns, key=lambda column: column.rank)
        if not dropped.rank:
            break
        columns = [column for column in columns if column is not dropped]
    return columns


def _width(columns: Sequence[_Column], rows: Sequence[_Row], screen: Screen, key_cells_max: int) -> int:
    """Give the least width of a table: a key may be folded, a number never."""
    widths = [
        max(len(column.name), *(cell_len(column.cell(row.usage, screen)) for row in rows)) + GAP_CELLS
        for column in columns
    ]
    return min(key_cells_max, max(cell_len(row.key) for row in rows)) + sum(widths)


def _table(name: str, columns: Sequence[_Column], rows: Sequence[_Row], screen: Screen) -> Table:
    # Columns are one cell apart as it is.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP_CELLS - 1, 0, 0))
    table.add_column(name, overflow="fold")
    for column in columns:
        table.add_column(column.name, justify="right", no_wrap=True)
    *parts, total = rows
    for row in parts:
        table.add_row(Text(row.key), *(Text(column.cell(row.usage, screen)) for column in columns))
    table.add_section()
    table.add_row(Text(total.key), *(Text(column.cell(total.usage, screen)) for column in columns), style="bold")
    return table


def _stacked(columns: Sequence[_Column], rows: Sequence[_Row], screen: Screen) -> Iterator[RenderableType]:
    for row in rows:
        yield Text(row.key, style="bold")
        for column in columns:
            if cell := column.cell(row.usage, screen):
                yield Text(f"  {column.name} {cell}")


def _notes(
    report: UsageReport, screen: Screen, silent: Sequence[_Column], left_out: Sequence[_Column]
) -> Iterator[str]:
    total = report.total
    yield "input includes cached and cache write, output includes reasoning"
    sums = [*total.tokens.values(), total.usd, total.requests, total.tool_errors or Sum(0, 0)]
    if any(value.unknown for value in sums):
        yield f"? is unknown; {screen.at_least}5 +2? is 5 and what 2 records do not say"
    if total.estimated_usd:
        yield "~ includes estimates"
    if report.superseded:
        yield f"{report.superseded} more cost records tell of the same spend and are not counted"
    if silent:
        yield f"unknown everywhere: {', '.join(column.name for column in silent)}"
    if left_out:
        yield f"too narrow to show: {', '.join(column.name for column in left_out)} (--json has everything)"


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
    cells |= {"costs": usage.costs, "usd_estimated": usage.estimated_usd, "tool_calls": usage.tool_calls}
    sums = {"requests": usage.requests, **{f"{_snake(name)}_tokens": usage.tokens[name] for name in TOKEN_FIELDS}}
    for name, value in {**sums, "usd": usage.usd, "tool_errors": usage.tool_errors}.items():
        parts = (None, None, None) if value is None else (value.total, value.known, value.unknown)
        cells |= dict(zip((name, f"{name}_known", f"{name}_unknown"), parts, strict=True))
    return cells


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)


def _csv_name(name: str | None) -> str:
    text = shown(name or "")
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
