"""Codex lines: what of a rollout's line becomes a fact; nothing of what people, models or tools said does."""

from collections.abc import Callable
from typing import Any

from projections.canonical import sha256_hex
from projections.decode import decode_json
from projections.errors import ProjectionError
from projections.fields import checked_time, name_or_none, native_text_or_none, whole_number
from projections.formats.codex_usage import COUNTER_NAMES

_CALLS = frozenset(
    {"function_call", "custom_tool_call", "tool_search_call", "web_search_call", "local_shell_call", "mcp_tool_call"}
)
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output", "mcp_tool_call_output"})

_COUNTS = tuple((name, f"line.payload.{name}") for name in COUNTER_NAMES)

Body = dict[str, Any]


def read_line(value: Any, line: bytes, ordinal: int | None = None) -> Body | str:
    """Read one parsed line; gives a line fact's body, or the reason why the line says nothing to a trace.

    Body: ``len``, ``sha`` (the span), ``at`` and one of ``meta`` {forkedFrom}, ``turn`` [id, model], ``call`` [id or
    null, name, namespace], ``result`` [call id, isError], ``count`` [total, last], ``record`` (a usage record's own
    counters) with ``sequence``.
    """
    if not isinstance(value, dict):
        raise ProjectionError("not_an_object", "line")
    payload = value.get("payload")
    if not isinstance(payload, dict):
        return "no_trace_line"
    read = _READERS.get(_kind_of(value, payload))
    found = None if read is None else read(payload)
    if found is None:
        return "no_trace_line"
    at = value.get("timestamp")
    body = {"len": len(line), "sha": sha256_hex(line), "at": None if at is None else checked_time(at, "line.timestamp")}
    if ordinal is not None:
        body["ordinal"] = ordinal
    return {**body, **found}


def _kind_of(value: Body, payload: Body) -> str:
    """Name what a line is: its type, or the type inside an event or a response item."""
    kind, inner = value.get("type"), payload.get("type")
    if kind == "response_item" and isinstance(inner, str):
        return "call" if inner in _CALLS else "output" if inner in _OUTPUTS else ""
    if kind == "event_msg" and isinstance(inner, str):
        return inner
    return kind if isinstance(kind, str) else ""


def _read_meta(payload: Body) -> Body:
    return {"meta": {"forkedFrom": native_text_or_none(payload.get("forked_from_id"), "line.payload.forked_from_id")}}


def _read_turn(payload: Body) -> Body:
    return {
        "turn": [
            native_text_or_none(payload.get("turn_id"), "line.payload.turn_id"),
            name_or_none(payload.get("model")),
        ]
    }


def _read_call(payload: Body) -> Body:
    native = native_text_or_none(payload.get("call_id"), "line.payload.call_id") or native_text_or_none(
        payload.get("id"), "line.payload.id"
    )
    name = name_or_none(payload.get("name")) or str(payload["type"])
    return {"call": [native, name, name_or_none(payload.get("namespace"))]}


def _read_output(payload: Body) -> Body | None:
    call_id = native_text_or_none(payload.get("call_id"), "line.payload.call_id")
    return None if call_id is None else {"result": [call_id, _is_error(payload)]}


def _is_error(payload: Body) -> bool | None:
    """Tell an error from structured evidence only: a success flag or an exit code; free text proves nothing."""
    output = payload.get("output")
    if isinstance(output, str) and output.startswith("{"):
        try:
            output = decode_json(output.encode())
        except (ProjectionError, UnicodeEncodeError):
            output = None
    places = [payload, output, output.get("metadata") if isinstance(output, dict) else None]
    for place in places:
        if not isinstance(place, dict):
            continue
        if isinstance(place.get("success"), bool):
            return not place["success"]
        code = place.get("exit_code")
        if isinstance(code, int) and not isinstance(code, bool):
            return code != 0
    return None


def _read_mcp_end(payload: Body) -> Body | None:
    call_id = native_text_or_none(payload.get("call_id"), "line.payload.call_id")
    result = payload.get("result")
    if call_id is None or not isinstance(result, dict):
        return None
    inner = result.get("Ok")
    failed = "Err" in result or (isinstance(inner, dict) and (inner.get("is_error") or inner.get("isError")) is True)
    return {"result": [call_id, failed]}


def _read_count(payload: Body) -> Body | None:
    info = payload.get("info")
    if not isinstance(info, dict):
        return None
    total = _counters(info.get("total_token_usage"))
    return None if total is None else {"count": [total, _counters(info.get("last_token_usage"))]}


def _counters(value: Any) -> Body | None:
    """Keep the counters of an object; one that is there and no count makes the line a broken one."""
    if not isinstance(value, dict):
        return None
    return {name: whole_number(value[name], where) for name, where in _COUNTS if value.get(name) is not None}


def _read_record(payload: Body) -> Body:
    record: Body = {}
    for name in ("turn_id", "response_id"):
        native = native_text_or_none(payload.get(name), f"line.payload.{name}")
        if native is not None:
            record[name] = native
    for name in ("usage", "turn_token_usage", "thread_token_usage"):
        counters = _counters(payload.get(name))
        if counters is not None:
            record[name] = counters
    return {"record": record}


_READERS: dict[str, Callable[[Body], Body | None]] = {
    "session_meta": _read_meta,
    "turn_context": _read_turn,
    "task_started": _read_turn,
    "call": _read_call,
    "output": _read_output,
    "exec_command_end": _read_output,
    "patch_apply_end": _read_output,
    "mcp_tool_call_end": _read_mcp_end,
    "token_count": _read_count,
    "token_usage_record": _read_record,
}
