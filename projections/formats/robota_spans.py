"""Prompt spans of persisted Robota sessions: proven roots and children, what was refused, and metrics of the calls.

A root comes from a ``usage-observation``, children from ``provider-call-trace`` and ``tool-body-trace`` entries.
Nothing is inferred from usage or tool events that carry no span.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.formats.robota_numbers import Number, add, is_number, is_safe_count
from projections.formats.robota_prices import find_price, price_tokens
from projections.formats.robota_session import history_of, session_id_of
from projections.formats.robota_trace import (
    TraceSpan,
    is_outcome,
    is_span_id,
    is_trace_id,
    read_child_span,
    read_interval_ms,
)
from projections.formats.robota_usage import filled_text
from projections.text import utf16_length

_ROOT_FIELDS: Final = (
    "promptExecutionStartedAt",
    "promptExecutionEndedAt",
    "promptExecutionOutcome",
    "promptExecutionTraceId",
    "promptExecutionSpanId",
)
_CHILD_KINDS: Final = {"provider-call-trace": "provider", "tool-body-trace": "tool"}
_SPAN_NAMES: Final = {"provider": "provider_call", "tool": "tool_body"}
_NOT_INVOKED: Final = ("cache-hit", "preflight-refused")
_TOKEN_FIELDS: Final = ("promptTokens", "completionTokens", "totalTokens")
_MODEL_ID_LENGTH_MAX: Final = 128

Records = Sequence[Mapping[str, Any]]
Roots = dict[tuple[int, str], TraceSpan]


class _Child(NamedTuple):
    record: int
    kind: str
    data: Any


class _Tally:
    """The counters of one reading, and the spans that it let through."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.roots = dict.fromkeys(("exported", "missing", "invalid", "duplicate"), 0)
        self.children = {
            kind: dict.fromkeys(("exported", "invalid", "orphaned", "duplicate"), 0) for kind in _SPAN_NAMES
        }
        self.usage = dict.fromkeys(("legacy", "invalid", "partial", "absent", "nonInvoked"), 0)
        self.calls: dict[str, Number] = dict.fromkeys(
            (
                "invoked",
                "completeUsage",
                "inputTokens",
                "outputTokens",
                "estimatedCostUsd",
                "unknownCost",
                "exactPriceMatches",
                "familyPriceMatches",
            ),
            0,
        )

    def as_json(self) -> dict[str, Any]:
        coverage = {
            **self.roots,
            "providerChildren": self.children["provider"],
            "providerUsage": self.usage,
            "toolChildren": self.children["tool"],
        }
        return {"spans": self.spans, "coverage": coverage, "callMetrics": self.calls}


def prompt_spans(records: Records | str | bytes) -> dict[str, Any]:
    """Read the prompt spans of session records, given as values or as JSON text.

    Gives ``spans`` (roots in order, then children in order), ``coverage`` (what was exported, missing, invalid,
    orphaned or duplicate) and ``callMetrics`` of the invoked provider calls. Every copy of a repeated identity is
    refused, valid or not. Costs come from the price table only and are estimates. Raises `ProjectionError` for records
    that are no list of session records.
    """
    sessions = _read_records(records)
    tally = _Tally()
    roots = _export_roots(sessions, tally)
    _export_children(sessions, roots, tally)
    return tally.as_json()


def _read_records(records: Records | str | bytes) -> Records:
    if isinstance(records, str):
        # A text with lone surrogates has no UTF-8; as JSON it is refused like any broken text.
        records = records.encode("utf-8", "surrogatepass")
    value: Any = decode_json(records) if isinstance(records, bytes) else records
    if not isinstance(value, Sequence) or not all(isinstance(record, Mapping) for record in value):
        raise ProjectionError("invalid_field", "records")
    return value


def _export_roots(records: Records, tally: _Tally) -> Roots:
    candidates = [
        (index, entry.get("data"))
        for index, record in enumerate(records)
        for entry in history_of(record)
        if entry.get("type") == "usage-observation"
    ]
    session_ids = [session_id_of(record) for record in records]
    identities = [_root_identities(session_ids[index], data) for index, data in candidates]
    copies = Counter(identity for pair in identities for identity in pair)
    roots: Roots = {}
    for (index, data), pair in zip(candidates, identities, strict=True):
        if any(copies[identity] > 1 for identity in pair):
            tally.roots["duplicate"] += 1
        elif isinstance(data, Mapping) and not any(name in data for name in _ROOT_FIELDS):
            tally.roots["missing"] += 1
        elif (root := _read_root(data)) is None:
            tally.roots["invalid"] += 1
        else:
            tally.roots["exported"] += 1
            tally.spans.append(root.as_json("prompt_execution", {"robota.prompt.outcome": root.outcome}))
            roots[index, root.trace_id] = root
    return roots


def _root_identities(session_id: str, data: Any) -> list[tuple[str, ...]]:
    """Give what a root may not share with another: its observation within a session, its trace anywhere."""
    if not isinstance(data, Mapping):
        return []
    observation_id, trace_id = filled_text(data.get("usageObservationId")), data.get("promptExecutionTraceId")
    found = [] if observation_id is None else [("observation", session_id, observation_id)]
    return [*found, ("trace", str(trace_id))] if is_trace_id(trace_id) else [*found]


def _read_root(data: Any) -> TraceSpan | None:
    if not isinstance(data, Mapping):
        return None
    start, end, outcome, trace_id, span_id = (data.get(name) for name in _ROOT_FIELDS)
    interval_ms = read_interval_ms(start, end)
    # The prompt's outcome is that of its first callback; the turn's may differ later and needs only to be known.
    if interval_ms is None or not is_outcome(outcome) or not is_outcome(data.get("outcome")):
        return None
    observation_id = filled_text(data.get("usageObservationId"))
    if not is_trace_id(trace_id) or not is_span_id(span_id) or observation_id is None:
        return None
    if data.get("turnId") != observation_id:
        return None
    return TraceSpan(str(trace_id), str(span_id), None, *interval_ms, str(outcome))


def _export_children(records: Records, roots: Roots, tally: _Tally) -> None:
    children = [
        _Child(index, _CHILD_KINDS[entry["type"]], entry.get("data"))
        for index, record in enumerate(records)
        for entry in history_of(record)
        if isinstance(entry.get("type"), str) and entry["type"] in _CHILD_KINDS
    ]
    copies = Counter(identity for child in children if (identity := _child_identity(child.data)) is not None)
    for child in children:
        identity = _child_identity(child.data)
        if identity is not None and copies[identity] > 1:
            tally.children[child.kind]["duplicate"] += 1
        else:
            _export_child(child, roots, tally)


def _child_identity(data: Any) -> tuple[str, str] | None:
    if not isinstance(data, Mapping) or not is_trace_id(data.get("traceId")) or not is_span_id(data.get("spanId")):
        return None
    return data["traceId"], data["spanId"]


def _export_child(child: _Child, roots: Roots, tally: _Tally) -> None:
    counts = tally.children[child.kind]
    span = read_child_span(child.data, has_round=child.kind == "provider")
    if span is None:
        counts["invalid"] += 1
        return
    root = roots.get((child.record, span.trace_id))
    if root is None or span.parent_span_id != root.span_id or span.span_id == root.span_id:
        counts["orphaned"] += 1
        return
    if span.start_ms < root.start_ms or span.end_ms > root.end_ms:
        counts["invalid"] += 1
        return
    attributes: dict[str, Any] = {f"robota.{child.kind}.outcome": span.outcome}
    if child.kind == "provider":
        if child.data.get("disposition") in _NOT_INVOKED:
            _count_not_invoked(child.data, tally)
            return
        attributes |= _usage_attributes(child.data, tally)
    counts["exported"] += 1
    tally.spans.append(span.as_json(_SPAN_NAMES[child.kind], attributes))


def _count_not_invoked(data: Mapping[str, Any], tally: _Tally) -> None:
    tally.usage["nonInvoked"] += 1
    if any(name in data for name in _TOKEN_FIELDS) or data.get("usageProvenance") == "complete":
        tally.usage["invalid"] += 1


def _usage_attributes(data: Mapping[str, Any], tally: _Tally) -> dict[str, Any]:
    """Count a provider call's usage and give its attributes: tokens as decimal text, the cost as a number."""
    if "disposition" not in data:
        tally.usage["legacy"] += 1
        return {}
    if data["disposition"] != "invoked":
        tally.usage["invalid"] += 1
        return {}
    tally.calls["invoked"] += 1
    fault = _usage_fault(data)
    if fault is not None:
        tally.usage[fault] += 1
        tally.calls["unknownCost"] += 1
        return {}
    prompt_tokens, completion_tokens = int(data["promptTokens"]), int(data["completionTokens"])
    tally.calls["completeUsage"] += 1
    tally.calls["inputTokens"] = add(tally.calls["inputTokens"], prompt_tokens)
    tally.calls["outputTokens"] = add(tally.calls["outputTokens"], completion_tokens)
    attributes = {
        "robota.provider.usage.input_tokens": str(prompt_tokens),
        "robota.provider.usage.output_tokens": str(completion_tokens),
    }
    return attributes | _cost_attribute(data.get("modelId"), prompt_tokens, completion_tokens, tally)


def _usage_fault(data: Mapping[str, Any]) -> str | None:
    provenance = data.get("usageProvenance")
    if provenance == "partial":
        return "partial"
    if provenance == "absent" or "usageProvenance" not in data:
        return "absent"
    prompt, completion, total = (data.get(name) for name in _TOKEN_FIELDS)
    if provenance != "complete" or not is_safe_count(prompt) or not is_safe_count(completion):
        return "invalid"
    known = is_safe_count(prompt + completion) and is_number(total) and total == prompt + completion
    return None if known else "invalid"


def _cost_attribute(model_id: Any, prompt_tokens: int, completion_tokens: int, tally: _Tally) -> dict[str, Any]:
    price = find_price(model_id) if _is_model_id(model_id) else None
    if price is None:
        tally.calls["unknownCost"] += 1
        return {}
    cost_usd = price_tokens(price, prompt_tokens, completion_tokens)
    tally.calls["estimatedCostUsd"] = add(tally.calls["estimatedCostUsd"], cost_usd)
    tally.calls["exactPriceMatches" if price.exact else "familyPriceMatches"] += 1
    return {"robota.provider.cost.usd.estimated": cost_usd}


def _is_model_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < utf16_length(value) <= _MODEL_ID_LENGTH_MAX and min(value) >= " "
