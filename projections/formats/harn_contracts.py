"""The Harn contracts as tables: every field, its type, whether it must be there, and what of it a trace may hold.

Rules for editing this module: a field has one line; its last word is its trace class, and a field without a class
cannot be written. ``NEVER`` marks content (prompts, answers, tool calls and results, paths, free text): the line
decoder reads no such field, whatever version a line claims (source: Harn's ``std/agent/artifacts``, versions 1 and 2).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from projections.formats.harn_json import to_int, type_name

SUPPORTED_VERSIONS: Final = (1, 2)
ABSENT_VERSION: Final = 1
CURRENT_VERSION: Final = 2
VERSION_FIELD: Final = "schema_version"

# Trace classes. FACT, ID and COUNT may enter a record, HASH may as what it is, DROP is harmless and unused.
FACT, ID, COUNT, HASH, DROP, NEVER = "fact", "id", "count", "hash", "drop", "never"


class Scalar(NamedTuple):
    """A value of one of these Harn types; no names means any value at all, null included."""

    names: tuple[str, ...]


class ListOf(NamedTuple):
    """A list whose items all have one type."""

    item: Scalar


class Field(NamedTuple):
    """One field of a record: its type, whether it must be there, and its trace class."""

    type: "Scalar | ListOf | Record"
    required: bool
    trace: str


class Record(NamedTuple):
    """An object with these fields; further keys are allowed everywhere."""

    fields: Mapping[str, Field]


class Contract(NamedTuple):
    """One versioned artifact or event family: its stable id and its shape."""

    id: str
    record: Record


class Problem(NamedTuple):
    """One thing wrong with a shape. ``path`` is where a key is ``missing``, or the field whose value does not fit.

    A required field says what was ``expected`` and what it ``got``; an optional one only that no branch matched. Paths
    and names are the contract's own, never words of the data.
    """

    path: str
    missing: str | None = None
    expected: str | None = None
    got: str | None = None

    @property
    def no_union_match(self) -> bool:
        """Say whether this is an optional field that matched neither null nor its type."""
        return self.missing is None and self.expected is None


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """Why something was not read: a kind, and for two kinds the details. ``raw`` is content and never in a repr."""

    kind: str
    problems: tuple[Problem, ...] = ()
    found_version: int | None = None
    supported_versions: tuple[int, ...] = ()
    raw: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """A value that met its contract, with the version it was read as; ``raw`` is the exact source text of a file."""

    id: str
    version: int
    value: Any = field(repr=False)
    raw: str | None = field(default=None, repr=False)


def check_versioned(value: Any, contract: Contract) -> VersionedValue | ReadFailure:
    """Check a parsed JSON value against a contract; the version is judged before the shape, so drift never hides it."""
    found = version_of(value)
    if found not in SUPPORTED_VERSIONS:
        return ReadFailure("version_mismatch", found_version=found, supported_versions=SUPPORTED_VERSIONS)
    assert found is not None
    problems = tuple(shape_problems(value, contract.record))
    if problems:
        return ReadFailure("schema_invalid", problems)
    return VersionedValue(contract.id, found, value)


def version_of(value: Any) -> int | None:
    """Give the version a value claims: 1 if it claims none, None if the claim is no number."""
    claimed = value.get(VERSION_FIELD) if isinstance(value, dict) else None
    return ABSENT_VERSION if claimed is None else to_int(claimed)


def shape_problems(value: Any, record: Record) -> Iterator[Problem]:
    """List what is wrong with a shape: missing keys first, then fields; an optional field tells its inner faults."""
    if not isinstance(value, dict):
        yield Problem("root", expected="dict", got=type_name(value))
        return
    wrong: list[Problem] = []
    for name, spec in record.fields.items():
        if name not in value:
            if spec.required:
                yield Problem("root", missing=name)
        elif not _fits(value[name], spec):
            got = type_name(value[name])
            wrong.append(Problem(name, expected=_label(spec.type), got=got) if spec.required else Problem(name))
    yield from wrong


def _fits(value: Any, spec: Field) -> bool:
    if value is None and not spec.required:
        return True
    expected = spec.type
    if isinstance(expected, Scalar):
        return not expected.names or type_name(value) in expected.names
    return _has_type(value, expected)


def _has_type(value: Any, expected: Scalar | ListOf | Record) -> bool:
    match expected:
        case Scalar(names):
            return not names or type_name(value) in names
        case ListOf(item):
            return isinstance(value, list) and all(_has_type(element, item) for element in value)
        case Record():
            return next(shape_problems(value, expected), None) is None


def _label(expected: Scalar | ListOf | Record) -> str:
    match expected:
        case Scalar(names):
            return "|".join(names)
        case ListOf():
            return "list"
        case Record():
            return "dict"


STRING = Scalar(("string",))
INT = Scalar(("int",))
NUMBER = Scalar(("int", "float"))
BOOL = Scalar(("bool",))
TIME_OR_NUMBER = Scalar(("int", "float", "string"))
UNKNOWN = Scalar(())


def _must(kind: Scalar, trace: str) -> Field:
    return Field(kind, required=True, trace=trace)


def _may(kind: Scalar | ListOf | Record, trace: str) -> Field:
    return Field(kind, required=False, trace=trace)


_VERSION = {VERSION_FIELD: _may(INT, DROP)}
_EVENT = {"type": _must(STRING, FACT), "timestamp": _must(STRING, FACT), "span_id": _may(INT, DROP), **_VERSION}
_CALL = {**_EVENT, "iteration": _must(INT, DROP), "call_id": _must(STRING, ID)}

_THINKING = Record({
    "mode": _must(STRING, DROP),
    "enabled": _must(BOOL, DROP),
    "budget_tokens": _may(INT, DROP),
    "level": _may(STRING, DROP),
})  # fmt: skip

_SERVED_CONTEXT = Record({
    "schema": _must(STRING, DROP),
    "redaction": _must(STRING, DROP),
    "system_prompt_content_hash": _must(STRING, HASH),
    "system_prompt_bytes": _must(INT, DROP),
    "messages_content_hash": _must(STRING, HASH),
    "message_count": _must(INT, DROP),
    "tool_schemas_content_hash": _must(STRING, HASH),
    "tool_schema_count": _must(INT, DROP),
    "native_tools_content_hash": _must(STRING, HASH),
    "native_tool_count": _must(INT, DROP),
})  # fmt: skip

SYSTEM_PROMPT = Contract("harn.transcript.system_prompt", Record({
    **_EVENT,
    "hash": _must(STRING, DROP),
    "content_hash": _must(STRING, HASH),
    "content": _must(STRING, NEVER),
}))  # fmt: skip

TOOL_SCHEMAS = Contract("harn.transcript.tool_schemas", Record({
    **_EVENT,
    "hash": _must(STRING, DROP),
    "content_hash": _must(STRING, HASH),
    "schemas": _must(UNKNOWN, NEVER),
}))  # fmt: skip

ROUTING_DECISION = Contract("harn.transcript.routing_decision", Record({
    **_CALL,
    "policy": _may(STRING, DROP),
    "requested_quality": _may(STRING, DROP),
    "selected_provider": _may(STRING, DROP),
    "selected_model": _may(STRING, DROP),
    "fallback_chain": _may(UNKNOWN, DROP),
    "alternatives": _may(UNKNOWN, DROP),
}))  # fmt: skip

PROVIDER_CALL_REQUEST = Contract("harn.transcript.provider_call_request", Record({
    **_CALL,
    "model": _must(STRING, FACT),
    "provider": _must(STRING, FACT),
    "message_count": _must(INT, DROP),
    "tool_format": _must(STRING, DROP),
    "max_tokens": _may(INT, DROP),
    "temperature": _may(NUMBER, DROP),
    "thinking": _may(_THINKING, DROP),
    "tool_choice": _may(UNKNOWN, DROP),
    "native_tool_count": _may(INT, DROP),
    "served_context": _may(_SERVED_CONTEXT, DROP),
    "route_policy": _may(STRING, DROP),
    "context_token_breakdown": _may(UNKNOWN, DROP),
    "structural_experiment": _may(UNKNOWN, DROP),
    "fallback_chain": _may(UNKNOWN, DROP),
    "routing_decision": _may(UNKNOWN, DROP),
    "request_snapshot": _may(UNKNOWN, NEVER),
}))  # fmt: skip

PROVIDER_CALL_RESPONSE = Contract("harn.transcript.provider_call_response", Record({
    **_CALL,
    "provider": _must(STRING, FACT),
    "model": _must(STRING, FACT),
    "input_tokens": _must(INT, COUNT),
    "output_tokens": _must(INT, COUNT),
    "cost_usd": _may(NUMBER, COUNT),
    "cache_read_tokens": _may(INT, COUNT),
    "cache_write_tokens": _may(INT, COUNT),
    "cache_hit_ratio": _may(NUMBER, DROP),
    "cache_hit": _may(BOOL, DROP),
    "stop_reason": _may(STRING, DROP),
    "response_ms": _may(INT, DROP),
    # Of the entries of these two lists only the id and the name are ever read.
    "tool_calls": _may(UNKNOWN, NEVER),
    "parsed_tool_calls": _may(UNKNOWN, NEVER),
    "raw_tool_calls": _may(UNKNOWN, NEVER),
    "text": _may(STRING, NEVER),
    "thinking": _may(STRING, NEVER),
    "thinking_summary": _may(STRING, NEVER),
    "provider_telemetry": _may(UNKNOWN, DROP),
    "structural_experiment": _may(UNKNOWN, DROP),
}))  # fmt: skip

RESOLVED_DISPATCH = Contract("harn.transcript.resolved_dispatch", Record({
    **_CALL,
    "provider": _must(STRING, FACT),
    "model": _must(STRING, FACT),
    "wire_format": _must(STRING, DROP),
    "tool_format": _must(STRING, DROP),
    "thinking": _may(_THINKING, DROP),
    "stop": _may(UNKNOWN, NEVER),
    "base_url_host": _may(STRING, DROP),
    "provenance": _may(UNKNOWN, DROP),
    # Its class may hold a provider's own wording, so it stays unread.
    "outcome": _may(UNKNOWN, DROP),
    "outcome_kind": _may(STRING, FACT),
}))  # fmt: skip

FAMILIES: Final[Mapping[str, Contract]] = {
    "system_prompt": SYSTEM_PROMPT,
    "tool_schemas": TOOL_SCHEMAS,
    "routing_decision": ROUTING_DECISION,
    "provider_call_request": PROVIDER_CALL_REQUEST,
    "provider_call_response": PROVIDER_CALL_RESPONSE,
    "resolved_dispatch": RESOLVED_DISPATCH,
}

_TERMINAL = Record({"kind": _must(STRING, FACT), "reason": _must(STRING, DROP), "owner": _must(STRING, DROP)})

_LLM_USAGE = Record({
    "iterations": _must(INT, DROP),
    "duration_ms": _must(INT, DROP),
    "input_tokens": _must(INT, COUNT),
    "output_tokens": _must(INT, COUNT),
    "cache_read_tokens": _must(INT, COUNT),
    "cache_write_tokens": _must(INT, COUNT),
})  # fmt: skip

_TOOL_TOTALS = Record({
    "calls": _must(INT, DROP),
    "successful": _must(INT, DROP),
    "rejected": _must(INT, DROP),
    "mode": _may(STRING, DROP),
})  # fmt: skip

_TRACE_SUMMARY = Record({
    "status": _must(STRING, DROP),
    "iterations": _must(INT, DROP),
    "total_duration_ms": _must(INT, DROP),
    "llm_calls": _must(INT, DROP),
    "tool_executions": _must(INT, DROP),
    "tool_rejections": _must(INT, DROP),
    "interventions": _may(INT, DROP),
    "compactions": _may(INT, DROP),
    "empty_completion_retries": _may(INT, DROP),
    "models_advances": _may(INT, DROP),
    "typed_checkpoints": _may(INT, DROP),
    "typed_checkpoint_failures": _may(INT, DROP),
    "total_input_tokens": _may(INT, DROP),
    "total_output_tokens": _may(INT, DROP),
    "total_llm_duration_ms": _may(INT, DROP),
    "total_tool_duration_ms": _may(INT, DROP),
    "tools_used": _may(ListOf(STRING), DROP),
})  # fmt: skip

AGENT_RESULT = Contract("harn.agent_result", Record({
    "status": _must(STRING, FACT),
    "final_status": _must(STRING, DROP),
    "stop_reason": _must(STRING, FACT),
    "session_id": _must(STRING, ID),
    "acp_stop_reason": _may(STRING, DROP),
    "terminal_class": _may(STRING, DROP),
    "terminal": _may(_TERMINAL, DROP),
    "error": _may(UNKNOWN, NEVER),
    "llm": _may(_LLM_USAGE, DROP),
    "tools": _may(_TOOL_TOTALS, DROP),
    "trace": _may(_TRACE_SUMMARY, DROP),
    "tokens_used": _may(NUMBER, DROP),
    "cost_usd": _may(NUMBER, COUNT),
    "started_at": _may(TIME_OR_NUMBER, DROP),
    "daemon_state": _may(STRING, DROP),
    "daemon_snapshot_path": _may(STRING, NEVER),
    "text": _may(STRING, NEVER),
    "visible_text": _may(STRING, NEVER),
    "private_reasoning": _may(STRING, NEVER),
    "thinking_summary": _may(STRING, NEVER),
    "task": _may(STRING, NEVER),
    **_VERSION,
}))  # fmt: skip

TRANSCRIPT_CONTEXT = Contract("harn.transcript_context", Record({
    "system_prompt": _may(STRING, NEVER),
    "provider": _may(STRING, FACT),
    "model": _may(STRING, FACT),
    "tool_format": _may(STRING, DROP),
    "event_count": _must(INT, COUNT),
    "request_count": _must(INT, COUNT),
    "response_count": _must(INT, COUNT),
    "unknown_count": _must(INT, COUNT),
    **_VERSION,
}))  # fmt: skip


def trace_class(contract: Contract, path: str) -> str:
    """Give the trace class of a field by its dotted path; a path outside the contract is content.

    Example: ``trace_class(AGENT_RESULT, "llm.input_tokens") == "count"``.
    """
    record: Scalar | ListOf | Record = contract.record
    found = NEVER
    for name in path.split("."):
        if not isinstance(record, Record) or name not in record.fields:
            return NEVER
        record, _, found = record.fields[name]
    return found
