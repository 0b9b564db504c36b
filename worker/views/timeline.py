"""A run's timeline in a terminal: a line per attempt and gate against one axis of time, and what was spent below it.

On a wide terminal name, bar and facts stand side by side; on a narrow one the bar has a line of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from projections.reports.spend import Sum, Usage
from projections.reports.timeline_model import Bar, GateSpan, Lane, Tick, Timeline
from worker.views.text import Screen, duration_text

WIDE_CELLS: Final = 100
LABEL_CELLS_MAX: Final = 28
CHART_CELLS_MAX: Final = 120
CHART_CELLS_MIN: Final = 24
AXIS_CELLS_MIN: Final = 30
GAP_CELLS: Final = 2

_STYLES: Final = {
    "succeeded": "green",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "cancellation_unknown": "yellow",
    "recovery_required": "magenta",
    "allow": "green",
    "deny": "red",
    "revise": "yellow",
}


class _Glyphs(NamedTuple):
    """What the chart is drawn with; ``levels`` are the heights of a curve, from the lowest."""

    span: str
    unknown_end: str
    call: str
    error: str
    waiting: str
    decided: str
    still_open: str
    levels: str


_UNICODE: Final = _Glyphs("━", "╌", "┿", "╳", "░", "◆", "▶", "▁▂▃▄▅▆▇█")  # noqa: RUF001  (a cross to be drawn)
_ASCII: Final = _Glyphs("=", "-", "+", "x", ".", "#", ">", "_.:-=*%@")


class _Line(NamedTuple):
    """One line of the chart: its name, the facts beside it, and how to draw it on an axis of so many cells."""

    label: str
    facts: Text
    draw: Callable[["_Strip"], None]


class _Strip:
    """One line of cells along the axis of time."""

    def __init__(self, cells: int, seconds: float) -> None:
        self._marks: list[tuple[str, str]] = [(" ", "")] * cells
        self._seconds = seconds

    def cell_of(self, offset_s: float) -> int:
        """Give the cell of a time."""
        last = len(self._marks) - 1
        return min(last, max(0, int(offset_s / self._seconds * len(self._marks)))) if self._seconds > 0 else 0

    def fill(self, start_s: float, end_s: float, mark: str, style: str) -> None:
        """Draw a stretch; the shortest takes a cell."""
        for cell in range(self.cell_of(start_s), self.cell_of(end_s) + 1):
            self._marks[cell] = mark, style

    def put(self, offset_s: float, mark: str, style: str, *, under: str = "") -> None:
        """Draw one mark, but never over the mark ``under`` which it has to lie."""
        cell = self.cell_of(offset_s)
        if self._marks[cell][0] != under:
            self._marks[cell] = mark, style

    def set(self, marks: str) -> None:
        """Draw marks from the first cell on."""
        self._marks[: len(marks)] = [(mark, "") for mark in marks]

    def text(self) -> Text:
        """Give the whole line."""
        return Text.assemble(*self._marks)


def timeline_lines(timeline: Timeline, screen: Screen) -> Iterator[Text]:
    """Draw a timeline in the width of a screen."""
    yield from _head(timeline, screen)
    yield Text()
    yield from _Chart(timeline, screen).text_lines()


def _head(timeline: Timeline, screen: Screen) -> Iterator[Text]:
    status = "(no record of the run itself)" if timeline.status is None else screen.name(timeline.status)
    name = "run" if timeline.workflow is None else screen.name(timeline.workflow)
    yield Text.assemble((name, "bold"), f" {screen.name(timeline.run_id)} ", (status, _STYLES.get(status, "")))
    took = "" if timeline.duration_s is None else f", took {duration_text(timeline.duration_s)}"
    yield Text(f"{timeline.start.at} to {timeline.end.at}{took}")
    if timeline.error is not None:
        yield Text(f"error: {screen.name(timeline.error)}", style="red")
    usage = timeline.usage
    if usage.costs:
        requests = screen.sum(usage.requests, usage.costs)
        yield Text(f"{requests} {'request' if requests == '1' else 'requests'}, {_spent(usage, screen)}")
    if usage.tool_calls:
        yield Text(_tools(usage, screen))


def _spent(usage: Usage, screen: Screen) -> str:
    counts = [screen.sum(usage.tokens[field], usage.costs) for field in ("input", "output")]
    usd = screen.usd(usage.usd, usage.costs, has_estimates=bool(usage.estimated_usd))
    return f"{counts[0]} in, {counts[1]} out, ${usd}"


def _tools(usage: Usage, screen: Screen) -> str:
    calls = usage.tool_calls or 0
    text = f"{calls:,} tool {'call' if calls == 1 else 'calls'}"
    errors = usage.tool_errors
    if errors is not None and (errors.known or errors.unknown):
        text += f" ({screen.sum(errors, calls)} in error)"
    return text


class _Chart:
    """The lines of a timeline, laid out on a screen."""

    def __init__(self, timeline: Timeline, screen: Screen) -> None:
        self._timeline = timeline
        self._screen = screen
        self._glyphs = _ASCII if screen.ascii_only else _UNICODE
        self._lines = [line for lane in timeline.lanes for line in self._lane_lines(lane)] + list(self._curves())
        self._label_cells = max((cell_len(line.label) for line in self._lines), default=0)
        # What is left beside names and facts; below a bearable width the bars get lines of their own.
        facts_cells = max((cell_len(line.facts.plain) for line in self._lines), default=0)
        beside = screen.width - self._label_cells - facts_cells - 2 * GAP_CELLS
        self._is_wide = screen.width >= WIDE_CELLS and beside >= CHART_CELLS_MIN
        self._cells = max(1, min(CHART_CELLS_MAX, beside if self._is_wide else screen.width))

    def text_lines(self) -> Iterator[Text]:
        """Give all lines, the axis first and what the marks mean last."""
        yield Text(" " * (self._label_cells + GAP_CELLS if self._is_wide else 0) + self._axis(), style="dim")
        for line in self._lines:
            strip = _Strip(self._cells, self._timeline.end.offset_s)
            line.draw(strip)
            if self._is_wide:
                name = line.label + " " * (self._label_cells - cell_len(line.label) + GAP_CELLS)
                yield Text.assemble((name, "bold"), strip.text(), " " * GAP_CELLS, line.facts)
            else:
                yield Text.assemble((line.label, "bold"), " " * GAP_CELLS, line.facts)
                drawn = strip.text()
                drawn.rstrip()
                yield drawn
        yield Text()
        yield Text(self._legend(), style="dim")

    def _axis(self) -> str:
        end = duration_text(self._timeline.end.offset_s)
        middle = duration_text(self._timeline.end.offset_s / 2) if self._cells >= AXIS_CELLS_MIN else ""
        half = self._cells // 2
        return f"{'0s':<{half}}{middle}{end:>{self._cells - half - len(middle)}}"

    def _legend(self) -> str:
        glyphs = self._glyphs
        return (
            f"{glyphs.span} attempt  {glyphs.unknown_end} end unknown  {glyphs.call} call  {glyphs.error} in error  "
            f"{glyphs.waiting} waiting at a gate  {glyphs.decided} decided  {glyphs.still_open} still open"
        )

    # ---------------------------------------------------------------------------------------------- attempts, gates

    def _lane_lines(self, lane: Lane) -> Iterator[_Line]:
        name = self._screen.name(lane.key, LABEL_CELLS_MAX)
        if lane.kind == "conversation":
            yield _Line(name, Text(self._usage_facts(lane.usage)), lambda strip: self._draw_ticks(strip, lane.ticks))
        entries: list[tuple[float, int, Bar | GateSpan]] = [(bar.start.offset_s, bar.row, bar) for bar in lane.bars]
        entries += [(gate.opened.offset_s, lane.rows, gate) for gate in lane.gates]
        for index, (_, _, entry) in enumerate(sorted(entries, key=lambda item: item[:2])):
            if isinstance(entry, Bar):
                yield self._bar_line(entry, name if not index else "")
            else:
                yield self._gate_line(entry, name if not index else "")

    def _bar_line(self, bar: Bar, name: str) -> _Line:
        again = [f"iteration {bar.iteration}"] if bar.iteration else []
        again += [f"attempt {bar.attempt}"] if bar.attempt else []
        label = " ".join([name, *again]) if name else f"  {' '.join(again) or bar.step_kind}"
        start_s, end_s = bar.span_s
        took = duration_text(end_s - start_s)
        if bar.end is None:
            took = f"{self._screen.at_least}{took}" if end_s > start_s else "end unknown"
        outcome = bar.outcome or bar.phase or "no outcome yet"
        facts = [took, self._usage_facts(bar.usage)]
        style = _STYLES.get(outcome, "")

        def draw(strip: _Strip) -> None:
            strip.fill(start_s, end_s, self._glyphs.span if bar.end is not None else self._glyphs.unknown_end, style)
            self._draw_ticks(strip, bar.ticks)

        told = Text.assemble((self._screen.name(outcome), style), f" {', '.join(fact for fact in facts if fact)}")
        return _Line(label, told, draw)

    def _gate_line(self, gate: GateSpan, name: str) -> _Line:
        verdict = self._screen.name(gate.verdict or gate.status or "")
        facts = [] if gate.decided_by is None else [f"by {self._screen.name(gate.decided_by)}"]
        facts += [] if gate.rule is None else [f"({self._screen.name(gate.rule)})"]
        facts += [f"since {gate.opened.at}"] if gate.is_open else []
        facts += [] if gate.waiting_s is None else [f"after {duration_text(gate.waiting_s)}"]
        end_s = self._timeline.end.offset_s if gate.is_open else (gate.closed or gate.opened).offset_s
        style = _STYLES.get(verdict, "")

        def draw(strip: _Strip) -> None:
            if gate.gate_kind == "human":
                strip.fill(gate.opened.offset_s, max(gate.opened.offset_s, end_s), self._glyphs.waiting, "")
            strip.put(end_s, self._glyphs.still_open if gate.is_open else self._glyphs.decided, style)

        told = Text(" ").join([Text(verdict, style), *map(Text, facts)] if verdict else map(Text, facts))
        return _Line(f"{name} gate" if name else "  gate", told, draw)

    def _usage_facts(self, usage: Usage) -> str:
        facts = [_tools(usage, self._screen)] if usage.tool_calls else []
        return ", ".join([*facts, *([_spent(usage, self._screen)] if usage.costs else [])])

    def _draw_ticks(self, strip: _Strip, ticks: Iterable[Tick]) -> None:
        for tick in ticks:
            if tick.is_error:
                strip.put(tick.at.offset_s, self._glyphs.error, "bold red")
            else:
                strip.put(tick.at.offset_s, self._glyphs.call, "", under=self._glyphs.error)

    # ------------------------------------------------------------------------------------------------------- curves

    def _curves(self) -> Iterator[_Line]:
        curve = self._timeline.curve
        if not curve:
            return
        last = curve[-1]
        if last.tokens:
            total = self._screen.sum(Sum(last.tokens, last.tokens_unknown), len(curve))
            points = [(point.at.offset_s, point.tokens / last.tokens) for point in curve]
            yield _Line("tokens so far", Text(total), lambda strip: self._draw_curve(strip, points))
        if last.usd:
            amount = self._screen.usd(
                self._timeline.usage.usd, len(curve), has_estimates=bool(self._timeline.usage.estimated_usd)
            )
            shares = [(point.at.offset_s, point.usd / last.usd) for point in curve]
            yield _Line("spent so far", Text(f"${amount}"), lambda strip: self._draw_curve(strip, shares))

    def _draw_curve(self, strip: _Strip, points: Sequence[tuple[float, float]]) -> None:
        """Draw what was reached (a share of 1) by the end of each cell."""
        levels = self._glyphs.levels
        reached = {strip.cell_of(offset_s): share for offset_s, share in points}
        share, marks = 0.0, ""
        for cell in range(strip.cell_of(self._timeline.end.offset_s) + 1):
            share = reached.get(cell, share)
            marks += " " if share <= 0 else levels[min(len(levels) - 1, int(share * len(levels)))]
        strip.set(marks)
