"""A run's timeline as the data that the chart's script draws: numbers and texts, nothing that is markup.

Calls come as parallel lists, because there may be ten thousand of them.
"""

from collections.abc import Iterable
from typing import Any, Final

from projections.reports.spend import Sum, Usage
from projections.reports.timeline_model import Bar, GateSpan, Lane, Tick, Timeline
from worker.views.text import Screen, duration_text

SCREEN: Final = Screen(width=0, ascii_only=False)
CURVE_POINTS_MAX: Final = 2_000
"""A screen is not wider; of more points those in between are left out."""

TONES: Final = {
    "succeeded": "good",
    "completed": "good",
    "allow": "good",
    "resolved": "good",
    "failed": "bad",
    "deny": "bad",
    "cancelled": "muted",
    "cancelling": "warn",
    "cancellation_unknown": "warn",
    "revise": "warn",
    "expired": "warn",
    "paused": "warn",
    "pending": "warn",
    "recovery_required": "odd",
    "running": "busy",
}
"""The colour of an outcome, a status or a verdict; everything else has none."""

_ERROR: Final = 1
_MODEL: Final = 2

Facts = list[tuple[str, str]]


def tone(word: str | None) -> str:
    """Give the colour of an outcome, a status or a verdict."""
    return TONES.get(word or "", "plain")


def chart_data(timeline: Timeline, *, has_links: bool) -> dict[str, Any]:
    """Give what the script draws; ids of calls, which are long, only if they lead somewhere."""
    names: dict[str, int] = {}
    lanes = [_lane(lane, timeline, names, has_links=has_links) for lane in timeline.lanes]
    return {
        "runId": timeline.run_id if has_links and _is_encodable(timeline.run_id) else None,
        "start": timeline.start.at,
        "endS": timeline.end.offset_s,
        "lanes": lanes,
        "names": list(names),
        "curve": _curve(timeline),
        "usdTotal": usd_text(timeline.usage) if timeline.usage.usd.known else None,
        "tokensTotal": tokens_text(timeline.usage, "input", "output") if timeline.curve else None,
    }


def _lane(lane: Lane, timeline: Timeline, names: dict[str, int], *, has_links: bool) -> dict[str, Any]:
    return {
        "kind": lane.kind,
        "name": SCREEN.name(lane.key),
        "rows": lane.rows,
        "bars": [_bar(bar, names, has_links=has_links) for bar in lane.bars],
        "gates": [_gate(gate, timeline) for gate in lane.gates],
        "calls": _calls(lane.ticks, names, has_links=has_links),
    }


def _bar(bar: Bar, names: dict[str, int], *, has_links: bool) -> dict[str, Any]:
    start_s, end_s = bar.span_s
    return {
        "id": bar.id if _is_encodable(bar.id) else None,
        "row": bar.row,
        "s": start_s,
        "e": end_s,
        "known": bar.end is not None,
        "tone": tone(bar.outcome or bar.phase),
        "word": SCREEN.name(bar.outcome or bar.phase or "no outcome yet"),
        "title": bar_title(bar),
        "again": " · ".join(_again(bar)),
        "facts": bar_facts(bar),
        "calls": _calls(bar.ticks, names, has_links=has_links),
    }


def bar_title(bar: Bar) -> str:
    """Name an attempt by step, iteration and attempt."""
    return " · ".join([SCREEN.name(bar.step_id), *_again(bar)])


def _again(bar: Bar) -> list[str]:
    again = [f"iteration {bar.iteration}"] if bar.iteration else []
    return again + ([f"attempt {bar.attempt}"] if bar.attempt else [])


def bar_facts(bar: Bar) -> Facts:
    """List what is to be said of an attempt."""
    facts: Facts = [("Outcome", SCREEN.name(bar.outcome or bar.phase or "none yet")), ("Took", bar_took(bar))]
    facts += [("Started", bar.start.at)]
    facts += [("Model", SCREEN.name(bar.model))] if bar.model else []
    facts += [("Error", SCREEN.name(bar.error))] if bar.error else []
    return facts + _usage_facts(bar.usage)


def bar_took(bar: Bar) -> str:
    """Say how long an attempt took, as far as that is known."""
    start_s, end_s = bar.span_s
    took = duration_text(end_s - start_s)
    if bar.end is not None:
        return took
    return f"{SCREEN.at_least}{took}" if end_s > start_s else "end unknown"


def _usage_facts(usage: Usage) -> Facts:
    facts: Facts = []
    if usage.tool_calls:
        errors = usage.tool_errors
        suffix = f", {SCREEN.sum(errors, usage.tool_calls)} in error" if errors and errors.known else ""
        facts.append(("Tool calls", f"{usage.tool_calls:,}{suffix}"))
    if usage.costs:
        facts.append(("Tokens", f"{tokens_text(usage, 'input')} in, {tokens_text(usage, 'output')} out"))
        facts.append(("Spend", usd_text(usage)))
    return facts


def usd_text(usage: Usage) -> str:
    """Write what was spent: ``≥`` when a part is unknown, ``?`` when all of it is, ``~`` with estimates in it."""
    if usage.usd.unknown == usage.costs:
        return "?"
    marks = f"{SCREEN.at_least if usage.usd.unknown else ''}{'~' if usage.estimated_usd else ''}"
    # Beyond a dollar cents are enough.
    if usage.usd.known >= 1:
        return f"{marks}${usage.usd.known:,.2f}"
    return f"{marks}${SCREEN.usd(Sum(usage.usd.known, 0), usage.costs, has_estimates=False)}"


def tokens_text(usage: Usage, *fields: str) -> str:
    """Write a count of tokens, or several added up: ``≥`` when a part is unknown, ``?`` when all of it is."""
    sums = [usage.tokens[field] for field in fields]
    if all(value.unknown == usage.costs for value in sums):
        return "?"
    at_least = SCREEN.at_least if any(value.unknown for value in sums) else ""
    return f"{at_least}{sum(value.known for value in sums):,.0f}"


def _gate(gate: GateSpan, timeline: Timeline) -> dict[str, Any]:
    end_s = timeline.end.offset_s if gate.is_open else (gate.closed or gate.opened).offset_s
    word = gate_word(gate)
    return {
        "id": gate.id if _is_encodable(gate.id) else None,
        "row": gate.row,
        "s": gate.opened.offset_s,
        "e": max(gate.opened.offset_s, end_s),
        "waits": gate.gate_kind == "human",
        "open": gate.is_open,
        "tone": tone(gate.verdict or gate.status),
        "word": word,
        "title": f"{gate.gate_kind} gate",
        "facts": gate_facts(gate),
    }


def gate_word(gate: GateSpan) -> str:
    """Say in a word what became of a gate."""
    return SCREEN.name(gate.verdict or gate.status or "unknown")


def gate_facts(gate: GateSpan) -> Facts:
    """List what is to be said of a gate."""
    facts: Facts = [("Decision", gate_word(gate)), ("Opened", gate.opened.at)]
    facts += [("Waited", duration_text(gate.waiting_s))] if gate.waiting_s is not None else []
    facts += [("Waiting", "still open")] if gate.is_open else []
    facts += [("By", SCREEN.name(gate.decided_by))] if gate.decided_by else []
    facts += [("Rule", SCREEN.name(gate.rule))] if gate.rule else []
    return facts


def _calls(ticks: Iterable[Tick], names: dict[str, int], *, has_links: bool) -> dict[str, list[Any]]:
    calls: dict[str, list[Any]] = {"t": [], "n": [], "f": []}
    if has_links:
        calls["id"] = []
    for tick in ticks:
        name = SCREEN.name(tick.name) if tick.name is not None else "(name not shown)"
        calls["t"].append(tick.at.offset_s)
        calls["n"].append(names.setdefault(name, len(names)))
        calls["f"].append(_ERROR * bool(tick.is_error) + _MODEL * (tick.call_kind == "model"))
        if has_links:
            calls["id"].append(tick.id if _is_encodable(tick.id) else None)
    return calls


def _curve(timeline: Timeline) -> list[tuple[float, float, int]]:
    points = timeline.curve
    step = -(-len(points) // CURVE_POINTS_MAX)
    if step > 1:
        points = (*points[step - 1 : -1 : step], points[-1])
    return [(point.at.offset_s, point.usd, point.tokens) for point in points]


def _is_encodable(text: str) -> bool:
    """Whether a browser can put a text into an address: lone surrogates it cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
