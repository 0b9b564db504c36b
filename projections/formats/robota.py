"""Robota sessions: one entry of a session's history a line; the message's ordinal is the entry's place in it.

Rules for editing this module: a field becomes a fact only if ``READS`` names it; everything else of an entry is
content, and so is the rest of the session. What needs another entry is decided in the assembly (spec: transcripts 4.8).
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from projections.canonical import digest_of_json, sha256_hex
from projections.errors import ProjectionError
from projections.fields import native_text, whole_number
from projections.formats.robota_session import entry_id, history_of, session_id_of
from projections.formats.robota_time import iso_text, read_date_ms
from projections.formats.robota_trace import is_span_id, is_trace_id
from projections.formats.robota_usage import decode_usage_observation, decode_usage_snapshot
from projections.text import encode_component, is_blank, is_time, storable_text

READS: Final[Mapping[str, tuple[str, ...]]] = {
    "provider-call-trace": (
        "callId",
        "traceId",
        "spanId",
        "startedAt",
        "outcome",
        "disposition",
        "providerId",
        "modelId",
    ),
    "tool-body-trace": ("traceId", "spanId", "startedAt", "outcome"),
    "span": ("spanId", "op"),
    "usage-observation": ("usageObservationId", "turnId", "outcome", "promptExecutionTraceId", "modelId", "usage"),
    "usage-summary": ("usage",),
}
"""The fields of an entry's data that become facts; a usage's source enters only a digest and its scope a flag."""

_ENTRY_FIELDS: Final = ("id", "timestamp", "type", "data")
_IS_ERROR: Final = {"success": False, "failure": True}


class HistoryLine(NamedTuple):
    """One entry of a session's history as a transcript line, to be sent with byte offset 0."""

    source_id: str
    ordinal: int
    line: bytes


def history_lines(record: Mapping[str, Any], namespace: str) -> list[HistoryLine]:
    """Split a session record (the JSON file of a session) into the lines that `read_line` reads.

    A session's file is written anew with every change, so an entry has no lasting place in it: its source is the entry
    itself, ``robota:<namespace>:<session>#<entry id>`` with encoded parts (an id that comes again gets its occurrence,
    ``#2``), and its line its compact JSON. Raises ``invalid_field`` for a record that cannot be read and
    ``lone_surrogate`` for an id that cannot be encoded.
    """
    session = f"robota:{encode_component(namespace)}:{encode_component(session_id_of(record))}"
    seen: Counter[str] = Counter()
    lines = []
    for ordinal, entry in enumerate(history_of(record)):
        if not entry:
            continue
        native_id = entry_id(entry)
        seen[native_id] += 1
        occurrence = f"#{seen[native_id]}" if seen[native_id] > 1 else ""
        source_id = f"{session}#{encode_component(native_id)}{occurrence}"
        lines.append(HistoryLine(source_id, ordinal, _compact_json(entry)))
    return lines


def _compact_json(entry: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(entry)
    except TypeError:
        # A lone surrogate has no UTF-8; as an escape it stays inside its own field.
        return json.dumps(entry, separators=(",", ":")).encode()


def read_line(value: Any, line: bytes, ordinal: int | None = None) -> dict[str, Any] | str:
    """Read one parsed history entry; gives a line fact's body, or the reason why it says nothing to a trace.

    Body: ``len``, ``sha`` (the span), ``at``, ``ordinal``, and one of ``call`` {id, trace, span, start, isError, model,
    provider}, ``tool`` {trace, span, start, isError}, ``op`` {id, name}, ``observation`` {id, turn, trace, model,
    usage, consulted}, ``summary`` {id, usage, consulted}; a usage is {key, input, output, total, usd} or null, and its
    ``key`` is equal exactly when the reference takes two usages for the same.
    """
    if not isinstance(value, Mapping):
        raise ProjectionError("not_an_object", "line")
    native_id, timestamp, kind, data = (value.get(name) for name in _ENTRY_FIELDS)
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        return "no_trace_line"
    if not isinstance(data, Mapping):
        return "unreadable_entry"
    found = read(data, native_id)
    if isinstance(found, str):
        return found
    return {"len": len(line), "sha": sha256_hex(line), "at": _read_time(timestamp), "ordinal": ordinal, **found}


def _read_call(data: Mapping[str, Any], _native_id: Any) -> dict[str, Any] | str:
    # Without a disposition the entry is older than the field; any other word for it than this was no request.
    if data.get("disposition", "invoked") != "invoked":
        return "not_invoked"
    native = data.get("callId")
    if not isinstance(native, str) or is_blank(native):
        native = native_text(data.get("spanId"), "line.data.spanId")
    call = {
        "id": native_text(native, "line.data.callId"),
        **_read_span(data),
        "model": _name(data.get("modelId")),
        "provider": _name(data.get("providerId")),
    }
    return {"call": call}


def _read_tool(data: Mapping[str, Any], _native_id: Any) -> dict[str, Any] | str:
    return {"tool": _read_span(data) | {"span": native_text(data.get("spanId"), "line.data.spanId")}}


def _read_span(data: Mapping[str, Any]) -> dict[str, Any]:
    trace_id, span_id, start, outcome = (data.get(name) for name in ("traceId", "spanId", "startedAt", "outcome"))
    return {
        "trace": trace_id if is_trace_id(trace_id) else None,
        "span": span_id if is_span_id(span_id) else None,
        "start": start if is_time(start) else None,
        "isError": _IS_ERROR.get(outcome) if isinstance(outcome, str) else None,
    }


def _read_op(data: Mapping[str, Any], _native_id: Any) -> dict[str, Any] | str:
    op = _name(data.get("op"))
    if op is None:
        return "unreadable_entry"
    return {"op": {"id": native_text(data.get("spanId"), "line.data.spanId"), "name": op}}


def _read_observation(data: Mapping[str, Any], _native_id: Any) -> dict[str, Any] | str:
    observation = decode_usage_observation(data)
    if observation is None:
        return "unreadable_entry"
    trace_id, usage, source = (
        data.get("promptExecutionTraceId"),
        observation.get("usage"),
        observation.get("source", {}),
    )
    found = {
        "id": native_text(observation["usageObservationId"], "line.data.usageObservationId"),
        "turn": native_text(observation["turnId"], "line.data.turnId"),
        "trace": trace_id if is_trace_id(trace_id) else None,
        "model": _name(observation.get("modelId")),
        "usage": None if usage is None else _read_usage(usage),
        "consulted": source.get("scope") == "tool",
    }
    return {"observation": found}


def _read_summary(data: Mapping[str, Any], native_id: Any) -> dict[str, Any] | str:
    usage = decode_usage_snapshot(data)
    if usage is None:
        return "unreadable_entry"
    consulted = usage.get("source", {}).get("scope") == "tool"
    return {"summary": {"id": native_text(native_id, "line.id"), "usage": _read_usage(usage), "consulted": consulted}}


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Any], dict[str, Any] | str]]] = {
    "provider-call-trace": _read_call,
    "tool-body-trace": _read_tool,
    "span": _read_op,
    "usage-observation": _read_observation,
    "usage-summary": _read_summary,
}


def _read_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    counts = {"input": "promptTokens", "output": "completionTokens", "total": "totalTokens"}
    return {
        "key": digest_of_json(usage),
        **{
            name: whole_number(usage[field], f"line.data.{field}") if field in usage else None
            for name, field in counts.items()
        },
        "usd": usage.get("costUsd"),
    }


def _read_time(value: Any) -> str | None:
    """Give an entry's time as it was written where records can hold it, else as ISO UTC; null is no time here."""
    if value is None:
        return None
    if is_time(value):
        return str(value)
    ms = read_date_ms(value)
    at = "" if ms is None else iso_text(ms)
    if not is_time(at):
        raise ProjectionError("invalid_time", "line.timestamp")
    return at


def _name(value: Any) -> str | None:
    return storable_text(value) if isinstance(value, str) and not is_blank(value) else None
