"""Harn transcripts (``agent-llm/llm_transcript.jsonl``): provider responses, failed dispatches, the agent's result.

Rules for editing this module: a field of a row becomes a fact only if ``READS`` names it; everything else, and all of a
row of an unknown family, is content. A response or dispatch that breaks its contract is refused whole, as Harn's own
reader refuses it, but a whole float is a count here, and rows that say nothing to a trace are not checked (spec:
transcripts 2, decisions).
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from projections.canonical import sha256_hex
from projections.errors import ProjectionError
from projections.fields import native_text
from projections.formats.assembly import Item, Items, Position, Report, add_report, span_of
from projections.formats.harn_contracts import (
    AGENT_RESULT,
    PROVIDER_CALL_RESPONSE,
    RESOLVED_DISPATCH,
    VERSION_FIELD,
    Contract,
    ReadFailure,
    Record,
    check_versioned,
)
from projections.ids import ConversationIdentity, conversation_ref, cost_id
from projections.text import MAX_SAFE_INTEGER, encode_component, is_blank, is_time, storable_text
from projections.usage import count_of

READS: Final[Mapping[str, tuple[str, ...]]] = {
    "provider_call_response": (
        "timestamp",
        "call_id",
        "provider",
        "model",
        "input_tokens",
        "output_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "cost_usd",
    ),
    "resolved_dispatch": ("timestamp", "call_id", "provider", "model", "outcome_kind"),
    "agent_result": ("session_id", "llm", "cost_usd"),
}
"""The fields of a row that become facts; beside them only the id and the name of a response's tool calls are read."""

FAILED_OUTCOMES: Final = frozenset({"provider_error", "usage_limit", "empty_completion_terminal"})
"""What the runtime calls an outcome without a usable answer; "served" and a recovered empty completion are none."""

_QUIET = frozenset({"system_prompt", "tool_schemas", "routing_decision", "provider_call_request"})
_RESULT_KEYS = frozenset({"status", "final_status", "stop_reason", "session_id"})
# Only what is read of a result is held against the contract: a live runtime writes other fields of it differently.
_RESULT_CONTRACT = Contract(
    AGENT_RESULT.id,
    Record({name: AGENT_RESULT.record.fields[name] for name in (*READS["agent_result"], VERSION_FIELD)}),
)
_SOURCE = "harn.provider_call_response"
_RESULT_SOURCE = "harn.agent_result"
_RESULT_EPOCH = "agent-result"
_EPOCH_TIME = re.compile(r"([0-9]{1,12})\.([0-9]{3})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX = 253_402_300_799
_ESCAPES = str.maketrans({"%": "%25", "#": "%23"})


def read_line(value: Any, line: bytes, _ordinal: int | None = None) -> dict[str, Any] | str:
    """Read one parsed row; gives a line fact's body, or the reason why the row says nothing to a trace.

    Body: ``len``, ``sha`` (the span), ``at``, and one of ``response`` {id, model, provider, tokens, usd} with ``calls``
    [[id, name]], ``failure`` {id, model, provider}, or ``result`` {session, tokens, usd} for a whole agent-result file.
    """
    if not isinstance(value, dict):
        raise ProjectionError("not_an_object", "line")
    found = _read_row(value)
    return found if isinstance(found, str) else {"len": len(line), "sha": sha256_hex(line), **found}


def _read_row(value: dict[str, Any]) -> dict[str, Any] | str:
    family = value.get("type")
    if family is None and value.keys() >= _RESULT_KEYS:
        family = "agent_result"
    if not isinstance(family, str):
        return "unknown_family"
    read, contract = _READERS.get(family, (None, None))
    if read is None or contract is None:
        return "no_trace_line" if family in _QUIET else "unknown_family"
    value = _with_whole_numbers(value)
    checked = check_versioned(value, contract)
    if isinstance(checked, ReadFailure):
        problem = next(iter(checked.problems), None)
        raise ProjectionError(checked.kind, None if problem is None else f"line.{problem.missing or problem.path}")
    calls = _tool_calls(value) if family == "provider_call_response" else []
    found = read({name: value[name] for name in READS[family] if name in value})
    return {**found, "calls": calls} if calls and not isinstance(found, str) else found


def _with_whole_numbers(value: dict[str, Any]) -> dict[str, Any]:
    """Give a row with its whole floats as integers: JSON has one kind of number (decisions: ``1.0`` as a count)."""
    whole: dict[str, Any] = {
        name: int(item)
        for name, item in value.items()
        if isinstance(item, float) and item.is_integer() and abs(item) <= MAX_SAFE_INTEGER
    }
    usage = value.get("llm")
    if isinstance(usage, dict):
        whole["llm"] = _with_whole_numbers(usage)
    return {**value, **whole} if whole else value


def _tool_calls(value: dict[str, Any]) -> list[list[str]]:
    """Give id and name of the calls that a response asks for; the parsed view has the native calls too."""
    entries = value.get("parsed_tool_calls") or value.get("tool_calls")
    calls: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else ():
        call_id, name = (_text(entry.get(key)) for key in ("id", "name")) if isinstance(entry, dict) else (None, None)
        if call_id is not None and name is not None:
            calls.setdefault(native_text(entry["id"], "line.tool_calls.id"), name)
    return [[call_id, name] for call_id, name in calls.items()]


def _text(value: Any) -> str | None:
    return storable_text(value) if isinstance(value, str) and not is_blank(value) else None


def _read_response(row: dict[str, Any]) -> dict[str, Any]:
    tokens = {
        "input": _count(row, "input_tokens"),
        "output": _count(row, "output_tokens"),
        "cachedInput": _count(row, "cache_read_tokens"),
        "cacheWriteInput": _count(row, "cache_write_tokens"),
    }
    return {"at": _time(row), "response": {**_call(row), "tokens": _with_cache(tokens), "usd": _usd(row)}}


def _read_dispatch(row: dict[str, Any]) -> dict[str, Any] | str:
    if row.get("outcome_kind") not in FAILED_OUTCOMES:
        return "no_trace_line"
    return {"at": _time(row), "failure": _call(row)}


def _read_result(row: dict[str, Any]) -> dict[str, Any] | str:
    usage = row.get("llm")
    if usage is None:
        return "no_trace_line"
    session = native_text(row["session_id"], "line.session_id")
    tokens = {
        "input": _count(usage, "input_tokens", "llm."),
        "output": _count(usage, "output_tokens", "llm."),
        "cachedInput": _count(usage, "cache_read_tokens", "llm."),
        "cacheWriteInput": _count(usage, "cache_write_tokens", "llm."),
    }
    # Its started_at is an id of the runtime and no time.
    return {"at": None, "result": {"session": session, "tokens": _with_cache(tokens), "usd": _usd(row)}}


_READERS: Final[Mapping[str, tuple[Callable[[dict[str, Any]], dict[str, Any] | str], Contract]]] = {
    "provider_call_response": (_read_response, PROVIDER_CALL_RESPONSE),
    "resolved_dispatch": (_read_dispatch, RESOLVED_DISPATCH),
    "agent_result": (_read_result, _RESULT_CONTRACT),
}


def _call(row: dict[str, Any]) -> dict[str, Any]:
    call_id = native_text(row["call_id"], "line.call_id")
    return {"id": call_id, "model": _text(row["model"]), "provider": _text(row["provider"])}


def _time(row: dict[str, Any]) -> str:
    """Give a row's time: ``<epoch seconds>.<millis>`` becomes ISO UTC, a time of the record grammar stays as it is."""
    text = row["timestamp"]
    if is_time(text):
        return str(text)
    match = _EPOCH_TIME.fullmatch(text)
    seconds = int(match[1]) if match is not None else -1
    if match is None or seconds > _SECONDS_MAX:
        raise ProjectionError("invalid_time", "line.timestamp")
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{match[2]}Z"


def _count(row: dict[str, Any], name: str, path: str = "") -> int | None:
    value = row.get(name)
    count = count_of(value)
    if count is None and value is not None:
        raise ProjectionError("count_out_of_range", f"line.{path}{name}")
    return count


def _with_cache(tokens: dict[str, int | None]) -> dict[str, int | None]:
    """Complete token counts: a provider's input holds the cache counts unless they exceed it (the runtime's rule)."""
    cached = (tokens["cachedInput"] or 0) + (tokens["cacheWriteInput"] or 0)
    total_input = tokens["input"] or 0
    if cached > total_input:
        total_input += cached
        if total_input > MAX_SAFE_INTEGER:
            raise ProjectionError("count_out_of_range", "line.input_tokens")
    return {**tokens, "input": total_input, "reasoningOutput": None, "total": None}


def _usd(row: dict[str, Any]) -> float | None:
    usd = row.get("cost_usd")
    return usd if usd is not None and usd >= 0 else None


class _Call:
    """One provider call: its record, and once it was answered the cost and the tool calls of its latest response."""

    __slots__ = ("call", "cost", "tools")

    def __init__(self, call: Item) -> None:
        self.call = call
        self.cost: Item | None = None
        self.tools: dict[str, Item] = {}


class HarnAssembly(Items):
    """Provider calls, tool calls and costs of one Harn run or session; of two rows of one call the later one wins."""

    def __init__(self, identity: ConversationIdentity) -> None:
        super().__init__(identity)
        self._ref = conversation_ref(identity)
        self._scope = self._ref.removeprefix("conversation:")
        self._calls: dict[str, _Call] = {}
        self._results: dict[str, Item] = {}

    def add(self, position: Position, body: dict[str, Any]) -> None:
        """Take the next row in source order."""
        at = self.see_time(position.source_id, body["at"])
        if "result" in body:
            self._add_result(position, body, at)
        elif "response" in body:
            self._add_response(position, body, at)
        else:
            self._add_failure(position, body, at)

    def _show(self, item: Item, at: str | None, fields: dict[str, Any]) -> None:
        item.at = at
        item.fields = fields
        item.measurement = fields.get("measurement")
        self.touch(item)

    def _call_fields(self, row: dict[str, Any], span: dict[str, Any], *, is_error: bool) -> dict[str, Any]:
        return {
            "callKind": "model",
            "name": row["model"] or "unknown",
            "namespace": row["provider"],
            "conversation": self._ref,
            "isError": is_error,
            "span": span,
        }

    def _open(self, source_id: str, row: dict[str, Any], at: str | None, fields: dict[str, Any]) -> _Call:
        item = Item("call", f"response:{self._scope}:{encode_component(row['id'])}", at, fields)
        call = self._calls[row["id"]] = _Call(self.put(item, source_id))
        return call

    def _add_failure(self, position: Position, body: dict[str, Any], at: str | None) -> None:
        row = body["failure"]
        fields = self._call_fields(row, span_of(position, body), is_error=True)
        call = self._calls.get(row["id"])
        if call is None:
            self._open(position.source_id, row, at, fields)
        elif call.cost is None:
            self._show(call.call, at, fields)
        else:
            # The response stays the evidence; its dispatch only says that it was of no use.
            self._show(call.call, call.call.at, {**call.call.fields, "isError": True})

    def _add_response(self, position: Position, body: dict[str, Any], at: str | None) -> None:
        row, span = body["response"], span_of(position, body)
        fields = self._call_fields(row, span, is_error=False)
        call = self._calls.get(row["id"])
        if call is None:
            call = self._open(position.source_id, row, at, fields)
        else:
            self._show(call.call, at, fields)
        measurement = {
            "kind": "delta",
            "responseId": storable_text(row["id"]),
            "model": row["model"],
            "tokens": row["tokens"],
            "cost": None if row["usd"] is None else {"usd": row["usd"], "kind": "estimate"},
            "source": _SOURCE,
        }
        cost = {"conversation": self._ref, "measurement": measurement, "span": span}
        if call.cost is None:
            call.cost = self._put(position.source_id, "cost", f"cost:{call.call.native_id}", at, cost)
        else:
            self._show(call.cost, at, cost)
        self._show_tools(position.source_id, call, row["id"], body.get("calls", []), at, span)

    def _put(self, source_id: str, kind: str, record_id: str, at: str | None, fields: dict[str, Any]) -> Item:
        item = Item(kind, record_id, at, fields)
        item.measurement = fields.get("measurement")
        return self.put(item, source_id)

    def _show_tools(
        self, source_id: str, call: _Call, call_id: str, asked: list[list[str]], at: str | None, span: dict[str, Any]
    ) -> None:
        self.withdraw(call.tools.values(), withdrawn=True)
        for tool_id, name in asked:
            fields = {
                "callKind": "tool",
                "name": name,
                "namespace": None,
                "conversation": self._ref,
                "isError": None,
                "span": span,
            }
            held = call.tools.get(tool_id)
            if held is not None:
                self.withdraw([held], withdrawn=False)
                self._show(held, at, fields)
                continue
            # Ids of calls that were parsed from text repeat between responses, so the native id is response#call; the
            # response's is escaped, so that no two pairs are alike.
            native_id = f"{encode_component(call_id.translate(_ESCAPES))}%23{encode_component(tool_id)}"
            record_id = f"call:{self._scope}:{native_id}"
            call.tools[tool_id] = self._put(source_id, "call", record_id, at, fields)

    def _add_result(self, position: Position, body: dict[str, Any], at: str | None) -> None:
        row = body["result"]
        measurement = {
            "kind": "snapshot",
            "scope": "conversation",
            "scopeId": storable_text(row["session"]),
            "epoch": _RESULT_EPOCH,
            "sequence": 0,
            "model": None,
            "tokens": row["tokens"],
            "cost": None if row["usd"] is None else {"usd": row["usd"], "kind": "estimate"},
            "source": _RESULT_SOURCE,
        }
        span = span_of(position, body)
        cost = self._results.get(row["session"])
        if cost is None:
            fields = {"conversation": self._ref, "measurement": measurement, "span": span}
            record_id = cost_id(self.identity, {**measurement, "scopeId": row["session"]})
            cost = self._results[row["session"]] = self._put(position.source_id, "cost", record_id, at, fields)
        add_report(cost, Report(0, position, at, measurement, span))
        self.touch(cost)
