"""Trace records as OpenTelemetry spans, with the GenAI semantic conventions: a pure function of one record.

Rules for editing: what a span says follows from its record alone, so that records may come in any order, nothing has to
be remembered, and the same record gives the same bytes for ever; what is no convention's name is ``titan.`` and a
column of ``worker.stores.columns``. Names are those of the semantic conventions 1.41.0.

========  ==================================  ==================================================================
record    span (parent)                       start and end
========  ==================================  ==================================================================
run       ``invoke_workflow NAME`` (root)     at, completedAt; without an end it is open and waits
attempt   ``invoke_agent`` or the step (run)  at, completedAt; likewise
call      ``chat MODEL``, ``execute_tool T``  at; a call has only a time, so the span has no length
gate      ``gate KIND``                       at, resolvedAt: how long it was waited for; a pending one waits; each
                                              end is an event of this span, too, for it cannot be one of the attempt's
cost      ``usage MODEL``                     at; no length
artifact  ``artifact KIND``                   at; no length
========  ==================================  ==================================================================

Parents of the last four are the attempt, or the run where there is none. A trace is a run: its id is made of the run's.
Ids are digests (SHA-256, the first 16 and 8 bytes) of record ids as they leave.

A cost has a span of its own, because nothing in it names the call it is of. What one response used has
``gen_ai.usage.`` attributes, and sums of these are right; readings of counters must not be summed and are ``titan.``
attributes only, as is what an attempt used, which is the sum of its costs.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from projections.decode import decode_json
from projections.text import instant
from worker.sink import Upsert
from worker.stores.columns import COLUMNS, PRICING_COLUMNS, storable_copy

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"

_ENDED_RUNS: Final = frozenset({"completed", "failed", "cancelled"})
_ENDED_ATTEMPTS: Final = frozenset({"succeeded", "failed", "cancelled", "cancellation_unknown"})
_FAILED: Final = frozenset({"failed", "cancellation_unknown", "recovery_required"})
_SUCCEEDED: Final = frozenset({"completed", "succeeded"})
_NANOS: Final = 9
_TIME_MAX: Final = (1 << 64) - 1
_INT_MAX: Final = (1 << 63) - 1

_USAGE: Final = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cachedInput": "gen_ai.usage.cache_read.input_tokens",
    "cacheWriteInput": "gen_ai.usage.cache_creation.input_tokens",
    "reasoningOutput": "gen_ai.usage.reasoning.output_tokens",
}

Value = str | bool | int | float


class _Shape(NamedTuple):
    """What tells a kind's span from others; ``end`` is None for a span without length."""

    name: str
    end: str | None = None
    kind: int = Span.SPAN_KIND_INTERNAL
    attributes: Mapping[str, Value | None] = {}
    outcome: str | None = None


def span_of(item: Upsert) -> Span | None:
    """Give the span of a record; None while what it tells of is open, and for a deletion.

    Raises ``ProjectionError`` for a time that is none.
    """
    if item.record is None or item.json is None:
        return None
    # Protobuf, too, takes no text with a lone surrogate.
    copy = storable_copy(item.record, item.json)
    record: Mapping[str, Any] = item.record if copy is None else decode_json(copy)
    if _is_open(record):
        return None
    shape = _shape(record)
    start = _nanos(record["at"])
    end = start if shape.end is None else max(start, _nanos(shape.end))
    attributes = {**_columns(record), **_pricing(item), **shape.attributes}
    span = Span(
        trace_id=trace_id(record["runId"]),
        span_id=span_id(record["kind"], record["id"]),
        name=shape.name,
        kind=shape.kind,  # type: ignore[arg-type]
        start_time_unix_nano=start,
        end_time_unix_nano=end,
        attributes=_key_values(attributes),
        events=_events(record, start, end),
        status=_status(shape.outcome),
    )
    if record["kind"] != "run":
        span.parent_span_id = _parent(record)
    return span


def trace_id(run_id: str) -> bytes:
    """Derive a trace's id from the run's, as it leaves."""
    return _id("trace", run_id, 16)


def span_id(kind: str, record_id: str) -> bytes:
    """Derive a span's id from its record's kind and id, as they leave."""
    return _id(kind, record_id, 8)


def _id(label: str, text: str, length: int) -> bytes:
    digest = hashlib.sha256(f"{label}:{text}".encode("utf-8", "surrogatepass")).digest()[:length]
    # All zeros mean that there is no id.
    return digest if any(digest) else digest[:-1] + b"\x01"


def _parent(record: Mapping[str, Any]) -> bytes:
    if record["kind"] != "attempt" and record.get("attemptId") is not None:
        return span_id("attempt", record["attemptId"])
    return span_id("run", record["runId"])


def _is_open(record: Mapping[str, Any]) -> bool:
    match record["kind"]:
        case "run":
            return record.get("completedAt") is None and record["status"] not in _ENDED_RUNS
        case "attempt":
            return record.get("completedAt") is None and record.get("outcome") not in _ENDED_ATTEMPTS
        case "gate":
            return record.get("status") == "pending"
    return False


def _shape(record: Mapping[str, Any]) -> _Shape:
    match record["kind"]:
        case "run":
            return _run(record)
        case "attempt":
            return _attempt(record)
        case "call":
            return _call(record)
        case "gate":
            expired = record.get("expiresAt") if record.get("status") == "expired" else None
            return _Shape(f"gate {record['gateKind']}", record.get("resolvedAt") or expired)
        case "cost":
            return _cost(record)
        case kind:
            return _Shape(f"{kind} {record['artifactKind']}")


def _run(record: Mapping[str, Any]) -> _Shape:
    name = record["workflowName"]
    attributes = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": name}
    return _Shape(f"invoke_workflow {name}", record.get("completedAt"), attributes=attributes, outcome=record["status"])


def _attempt(record: Mapping[str, Any]) -> _Shape:
    if record["stepKind"] != "dispatch":
        return _Shape(record["stepId"], record.get("completedAt"), outcome=record.get("outcome"))
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": record.get("agentId"),
        "gen_ai.conversation.id": record.get("conversation"),
        "gen_ai.request.model": record.get("model"),
    }
    name = f"invoke_agent {record['stepId']}"
    outcome = record.get("outcome")
    return _Shape(name, record.get("completedAt"), Span.SPAN_KIND_CLIENT, attributes, outcome)


def _call(record: Mapping[str, Any]) -> _Shape:
    name, conversation = record.get("name"), {"gen_ai.conversation.id": record.get("conversation")}
    outcome = {True: "failed", False: "succeeded"}.get(record.get("isError"))  # type: ignore[arg-type]
    if record["callKind"] == "model":
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": name, **conversation}
        return _Shape(_named("chat", name), None, Span.SPAN_KIND_CLIENT, attributes, outcome)
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, **conversation}
    return _Shape(_named("execute_tool", name), None, Span.SPAN_KIND_INTERNAL, attributes, outcome)


def _cost(record: Mapping[str, Any]) -> _Shape:
    measurement = record["measurement"]
    model = measurement.get("model")
    attributes: dict[str, Value | None] = {"gen_ai.conversation.id": record.get("conversation")}
    if measurement["kind"] == "delta":
        tokens = measurement.get("tokens") or {}
        attributes |= {"gen_ai.response.model": model, "gen_ai.response.id": measurement.get("responseId")}
        attributes |= {name: tokens.get(field) for field, name in _USAGE.items()}
    return _Shape(_named("usage", model), attributes=attributes)


def _named(word: str, name: str | None) -> str:
    return word if name is None else f"{word} {name}"


def _columns(record: Mapping[str, Any]) -> dict[str, Value | None]:
    """Everything that a record tells, under the names of its columns."""
    values: dict[str, Value | None] = {"titan.kind": record["kind"], "titan.id": record["id"]}
    for column in COLUMNS[record["kind"]]:
        value: Any = record
        for key in column.path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, dict | list):
            # Maps and lists are no values that every receiver takes; the keys of a map say what there is.
            value = ",".join(sorted(value)) if isinstance(value, dict) else _ranges(value)
        values[f"titan.{column.name}"] = value
    return values


def _ranges(lines: list[Any]) -> str:
    return ",".join(f"{part.get('lineStart')}-{part.get('lineEnd')}" for part in lines if isinstance(part, dict))


def _pricing(item: Upsert) -> dict[str, Value | None]:
    if item.pricing is None:
        return {}
    return {f"titan.{name}": value for name, value in zip(PRICING_COLUMNS, item.pricing, strict=True)}


def _key_values(attributes: Mapping[str, Value | None]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in sorted(attributes.items()) if value is not None]


def _any(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int() if abs(value) <= _INT_MAX:
            return AnyValue(int_value=value)
        case int() | float():
            return AnyValue(double_value=float(value))
    return AnyValue(string_value=value)


def _events(record: Mapping[str, Any], start: int, end: int) -> list[Span.Event]:
    if record["kind"] != "gate":
        return []
    return [
        Span.Event(time_unix_nano=at, name=name, attributes=_key_values(attributes))
        for at, name, attributes in _gate_events(record, start, end)
    ]


def _gate_events(record: Mapping[str, Any], start: int, end: int) -> Iterator[tuple[int, str, dict[str, Value | None]]]:
    if record["gateKind"] == "human":
        yield start, "gate.opened", {}
    if record["gateKind"] == "policy" or record.get("status") == "resolved":
        yield end, "gate.decided", {"titan.verdict": record.get("verdict")}
    elif record.get("status") is not None:
        yield end, f"gate.{record['status']}", {}


def _status(outcome: str | None) -> Status:
    if outcome in _FAILED:
        return Status(code=Status.STATUS_CODE_ERROR)
    return Status(code=Status.STATUS_CODE_OK if outcome in _SUCCEEDED else Status.STATUS_CODE_UNSET)


def _nanos(text: str) -> int:
    """Nanoseconds since 1970; digits beyond are cut off, and times that OTLP has no number for become its nearest."""
    seconds, fraction, _ = instant(text)
    return min(max(0, seconds * 10**_NANOS + int(fraction[:_NANOS].ljust(_NANOS, "0"))), _TIME_MAX)
