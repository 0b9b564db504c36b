"""What a run's timeline is made of, for whoever draws it: a terminal or a page.

Every time stands as its record wrote it and in seconds after the start of the timeline, and every list is in a fixed
order. What no record says is None and never a guess.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from projections.reports.spend import Usage, usage_json

LaneKind = Literal["step", "conversation", "run"]


class Instant(NamedTuple):
    """A time: as its record wrote it, and in seconds after the start of the timeline."""

    at: str
    offset_s: float


class Tick(NamedTuple):
    """One call. ``name`` is None where the record does not say it, as in a redacted one of an MCP tool."""

    id: str
    at: Instant
    call_kind: Literal["model", "tool"]
    name: str | None
    is_error: bool | None


class Bar(NamedTuple):
    """One attempt, in a row of its lane; a retry lies below what it retries.

    ``end`` is None when no record tells it, as of most failed attempts; ``last_seen`` is the latest time of all that is
    known of the attempt. ``usage`` sums up the calls and costs attributed to it; a counter that runs over several
    attempts is attributed whole to the one of its last reading.
    """

    id: str
    step_id: str
    iteration: int
    attempt: int
    row: int
    step_kind: str
    outcome: str | None
    phase: str | None
    model: str | None
    error: str | None
    start: Instant
    end: Instant | None
    last_seen: Instant
    ticks: tuple[Tick, ...]
    usage: Usage

    @property
    def span_s(self) -> tuple[float, float]:
        """Where to draw it, in seconds after the start: up to its end or, if that is not known, what was last seen."""
        end = self.last_seen if self.end is None else self.end
        # Two clocks may have written start and end.
        return self.start.offset_s, max(self.start.offset_s, end.offset_s)


class GateSpan(NamedTuple):
    """One gate, in the row of its attempt.

    ``waiting_s`` is for how many seconds a human gate was open: until it was closed or, if that was only noticed later,
    until it ran out. None while it is open and for a policy, which decides at once.
    """

    id: str
    row: int
    gate_kind: Literal["human", "policy"]
    status: str | None
    verdict: str | None
    decided_by: str | None
    rule: str | None
    opened: Instant
    closed: Instant | None
    waiting_s: float | None

    @property
    def is_open(self) -> bool:
        """Whether somebody still waits."""
        return self.gate_kind == "human" and self.closed is None and self.status in (None, "pending")


class Lane(NamedTuple):
    """What happened in one step; or in a conversation, or the run, without an attempt to put it to.

    A gate may come before its attempt; it is in the lane of its step all the same.
    ``key`` is the step id, the conversation's ref or the run id. ``ticks`` and ``usage`` are of calls and costs without
    an attempt; those of attempts are in the bars.
    """

    kind: LaneKind
    key: str
    rows: int
    bars: tuple[Bar, ...]
    gates: tuple[GateSpan, ...]
    ticks: tuple[Tick, ...]
    usage: Usage


class CurvePoint(NamedTuple):
    """What the run had used by then, the cost of this time included.

    ``usd`` and ``tokens`` (input and output together) are what is known; ``usd_unknown`` and ``tokens_unknown`` count
    the costs that did not say.
    """

    at: Instant
    usd: float
    usd_unknown: int
    tokens: int
    tokens_unknown: int


class Timeline(NamedTuple):
    """A run: the fields of its record (None without one), the stretch that all its records take, lanes, and spend.

    ``duration_s`` is from the run's start to its end, in seconds; None while that is unknown.
    """

    run_id: str
    workflow: str | None
    status: str | None
    error: str | None
    duration_s: float | None
    start: Instant
    end: Instant
    lanes: tuple[Lane, ...]
    curve: tuple[CurvePoint, ...]
    usage: Usage


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Give a timeline as JSON: the same tree, names in camel case, usage as ``usage_json`` gives it."""
    value = _json(timeline)
    assert isinstance(value, dict), "a timeline has fields"
    return value


def _json(value: Any) -> Any:
    if isinstance(value, Usage):
        return usage_json(value)
    if isinstance(value, tuple):
        fields: Mapping[str, Any] | None = value._asdict() if hasattr(value, "_asdict") else None
        return (
            [_json(item) for item in value] if fields is None else {_camel(key): _json(fields[key]) for key in fields}
        )
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
