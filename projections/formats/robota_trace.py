"""What Robota's prompt traces are made of: trace and span ids, canonical intervals, and outcomes."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from projections.formats.robota_numbers import is_safe_count
from projections.formats.robota_time import canonical_ms, unix_nanoseconds

TRACE_OUTCOMES: Final = ("success", "failure", "interrupted")

_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"(?!0{16})[0-9a-f]{16}")
_STATUS_CODES: Final = {"success": 1, "failure": 2, "interrupted": 0}


class TraceSpan(NamedTuple):
    """A root or child span; times in ms since 1970, ``parent_span_id`` None for a root."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    start_ms: int
    end_ms: int
    outcome: str

    def as_json(self, name: str, attributes: dict[str, Any]) -> dict[str, Any]:
        """Give the span as exported: times as nanoseconds in text, status 1 success, 2 failure, 0 interrupted."""
        parent = {} if self.parent_span_id is None else {"parentSpanId": self.parent_span_id}
        return {
            "name": name,
            "traceId": self.trace_id,
            "spanId": self.span_id,
            **parent,
            "startNano": str(unix_nanoseconds(self.start_ms)),
            "endNano": str(unix_nanoseconds(self.end_ms)),
            "statusCode": _STATUS_CODES[self.outcome],
            "attributes": attributes,
        }


def is_trace_id(value: Any) -> bool:
    """Say whether a value is 32 lower-case hex digits, not all zero."""
    return isinstance(value, str) and _TRACE_ID.fullmatch(value) is not None


def is_span_id(value: Any) -> bool:
    """Say whether a value is 16 lower-case hex digits, not all zero."""
    return isinstance(value, str) and _SPAN_ID.fullmatch(value) is not None


def is_outcome(value: Any) -> bool:
    """Say whether a value is the outcome of a span."""
    return isinstance(value, str) and value in TRACE_OUTCOMES


def is_round(value: Any) -> bool:
    """Say whether a value numbers a provider call: a whole number from 1 to 2^53-1."""
    return is_safe_count(value) and value >= 1


def read_interval_ms(start: Any, end: Any) -> tuple[int, int] | None:
    """Read two canonical times in order; None when either is none or they run backwards."""
    start_ms, end_ms = canonical_ms(start), canonical_ms(end)
    if start_ms is None or end_ms is None or start_ms > end_ms:
        return None
    return start_ms, end_ms


def read_child_span(data: Any, *, has_round: bool) -> TraceSpan | None:
    """Read the span of a trace entry; a provider call (``has_round``) must number itself. None when it is malformed."""
    if not isinstance(data, Mapping) or not is_trace_id(data.get("traceId")):
        return None
    if not is_span_id(data.get("parentSpanId")) or not is_span_id(data.get("spanId")):
        return None
    interval_ms = read_interval_ms(data.get("startedAt"), data.get("endedAt"))
    if interval_ms is None or not is_outcome(data.get("outcome")) or (has_round and not is_round(data.get("round"))):
        return None
    return TraceSpan(data["traceId"], data["spanId"], data["parentSpanId"], *interval_ms, data["outcome"])
