"""The typed columns of each record kind, for every destination that has tables.

Rules for editing: a column stands for one leaf field of a record (a test holds this table to the privacy classes, field
by field). Adding a column is a new schema version of every sink with tables; renaming or dropping one is a new table.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import orjson

from projections.canonical import encode_record
from projections.text import js_text, storable_json, storable_text

ColumnType = Literal["text", "count", "number", "flag", "time", "json"]
"""``count`` is a whole number up to 2**53-1, ``number`` a double, ``json`` a map or list as JSON text; ``time`` is an
instant to the microsecond (the record has all its digits)."""

Path = tuple[str, ...]


class Column(NamedTuple):
    """A column of a kind's table and the keys that lead to its value in the record."""

    name: str
    path: Path
    type: ColumnType = "text"


_RUN: Final = Column("run_id", ("runId",))
_ATTEMPT: Final = Column("attempt_id", ("attemptId",))
_CONVERSATION: Final = Column("conversation", ("conversation",))
_SPAN: Final = (
    Column("span_source_id", ("span", "sourceId")),
    Column("span_byte_offset", ("span", "byteOffset"), "count"),
    Column("span_byte_length", ("span", "byteLength"), "count"),
    Column("span_content_hash", ("span", "contentHash")),
)


def _at(name: str) -> Column:
    """Name a record's time by what happens then; AT is a reserved word in SQL."""
    return Column(name, ("at",), "time")


COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "run": (
        _RUN,
        _at("started_at"),
        Column("workflow_name", ("workflowName",)),
        Column("status", ("status",)),
        Column("completed_at", ("completedAt",), "time"),
        Column("error", ("error",)),
        Column("correlations", ("correlations",), "json"),
        Column("params_sha256", ("paramsSha256",)),
    ),
    "attempt": (
        _RUN,
        _at("started_at"),
        Column("step_id", ("stepId",)),
        Column("iteration", ("iteration",), "count"),
        Column("attempt", ("attempt",), "count"),
        Column("step_kind", ("stepKind",)),
        Column("execution_id", ("executionId",)),
        Column("phase", ("phase",)),
        Column("outcome", ("outcome",)),
        Column("retryable", ("retryable",), "flag"),
        Column("error", ("error",)),
        Column("signal", ("signal",)),
        Column("runner_ref", ("runnerRef",)),
        Column("agent_id", ("agentId",)),
        _CONVERSATION,
        Column("model", ("model",)),
        Column("completed_at", ("completedAt",), "time"),
        Column("cost_usd", ("usage", "costUsd"), "number"),
        Column("input_tokens", ("usage", "inputTokens"), "count"),
        Column("output_tokens", ("usage", "outputTokens"), "count"),
        Column("recovery_kind", ("recovery", "kind")),
        Column("recovery_observed_at", ("recovery", "observedAt"), "time"),
        Column("prompt_sha256", ("promptSha256",)),
        Column("output_sha256", ("outputSha256",)),
    ),
    "call": (
        _RUN,
        _ATTEMPT,
        _at("called_at"),
        Column("call_kind", ("callKind",)),
        Column("name", ("name",)),
        Column("namespace", ("namespace",)),
        _CONVERSATION,
        Column("turn", ("turn",)),
        Column("is_error", ("isError",), "flag"),
        *_SPAN,
    ),
    "gate": (
        _RUN,
        _ATTEMPT,
        _at("opened_at"),
        Column("gate_kind", ("gateKind",)),
        Column("status", ("status",)),
        Column("verdict", ("verdict",)),
        Column("decided_by", ("decidedBy",)),
        Column("policy_table", ("policyRule", "table")),
        Column("policy_row_id", ("policyRule", "rowId")),
        Column("policy_version", ("policyRule", "version"), "count"),
        Column("resolved_at", ("resolvedAt",), "time"),
        Column("expires_at", ("expiresAt",), "time"),
        Column("reason", ("reason",)),
        Column("prompt_sha256", ("promptSha256",)),
        Column("payload_sha256", ("payloadSha256",)),
    ),
    "artifact": (
        _RUN,
        _ATTEMPT,
        _at("seen_at"),
        Column("artifact_kind", ("artifactKind",)),
        Column("repo", ("repo",)),
        Column("sha", ("sha",)),
        Column("branch", ("branch",)),
        Column("reverts", ("reverts",)),
        # Text, because a redacted number is a digest.
        Column("number", ("number",)),
        Column("state", ("state",)),
        Column("merged_at", ("mergedAt",), "time"),
        Column("closed_at", ("closedAt",), "time"),
        Column("review_rounds", ("reviewRounds",), "count"),
        Column("checks", ("checks",)),
        Column("path", ("path",)),
        Column("commit_id", ("commit",)),
        Column("lines", ("lines",), "json"),
        *_SPAN,
    ),
    "cost": (
        _RUN,
        _ATTEMPT,
        _at("spent_at"),
        _CONVERSATION,
        Column("measurement_kind", ("measurement", "kind")),
        Column("response_id", ("measurement", "responseId")),
        Column("scope", ("measurement", "scope")),
        Column("scope_id", ("measurement", "scopeId")),
        Column("epoch", ("measurement", "epoch")),
        Column("sequence", ("measurement", "sequence"), "count"),
        Column("model", ("measurement", "model")),
        Column("input_tokens", ("measurement", "tokens", "input"), "count"),
        Column("output_tokens", ("measurement", "tokens", "output"), "count"),
        Column("cached_input_tokens", ("measurement", "tokens", "cachedInput"), "count"),
        Column("cache_write_input_tokens", ("measurement", "tokens", "cacheWriteInput"), "count"),
        Column("reasoning_output_tokens", ("measurement", "tokens", "reasoningOutput"), "count"),
        Column("total_tokens", ("measurement", "tokens", "total"), "count"),
        Column("cost_usd", ("measurement", "cost", "usd"), "number"),
        Column("cost_kind", ("measurement", "cost", "kind")),
        Column("source", ("measurement", "source")),
        *_SPAN,
    ),
}

PRICING_COLUMNS: Final = ("price_basis", "price_reason", "price_table_version")
"""Text columns of a cost's table beside those of its record: what an export that estimates costs knows of an amount."""

# A record's JSON spells NUL and lone surrogates as escapes, if it holds them at all.
_UNSTORABLE_ESCAPE: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F]|[fF]{3}[dD])")
_MARK: Final = "\ufffd".encode()


def storable_copy(record: dict[str, Any], json: bytes) -> bytes | None:
    """JSON of a record whose texts every database takes, for reading columns from; None if its own bytes will do.

    The copy escapes NUL and lone surrogates as ``storable_text`` does; the bytes that are stored stay the record's own.
    """
    # What marks an escape is escaped itself, or the column of a key would not hold what the key is asked for by.
    if _MARK not in json and _UNSTORABLE_ESCAPE.search(json) is None:
        return None
    copy = storable_json(record)
    assert isinstance(copy, dict), "a record is an object"
    return encode_record(copy)


# --------------------------------------------------------------------------- values, for destinations that read no JSON

_COUNT_MAX: Final = 2**63 - 1


def row_values(kind: str, record: dict[str, Any]) -> list[Any]:
    """Values of a record's typed columns in their order: text, int, float, bool or None.

    Times are text in UTC with at most six digits of a second, maps and lists JSON text. What does not fit its column's
    type is None there; it stands in the record all the same. Texts are such that every database takes them.
    """
    return [read(_at_path(record, path)) for path, read in _READERS[kind]]


def _at_path(record: dict[str, Any], path: Path) -> Any:
    value: Any = record
    for key in path:
        if type(value) is not dict:
            return None
        value = value.get(key)
    return value


def _text(value: Any) -> str | None:
    if type(value) is str:
        return storable_text(value)
    return js_text(value) if isinstance(value, int | float) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and -_COUNT_MAX <= value <= _COUNT_MAX else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) is float or _count(value) is not None else None


def _flag(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _time(value: Any) -> str | None:
    return _utc_text(value) if type(value) is str else None


@lru_cache(maxsize=4_096)
def _utc_text(text: str) -> str | None:
    # A year 0000 and what leaves the calendar on its way to UTC are in no database's range either.
    try:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return None


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(storable_json(value)).decode()


_READERS: Final[dict[str, tuple[tuple[Path, Callable[[Any], Any]], ...]]] = {
    kind: tuple(
        (
            column.path,
            {"text": _text, "count": _count, "number": _number, "flag": _flag, "time": _time, "json": _json}[
                column.type
            ],
        )
        for column in columns
    )
    for kind, columns in COLUMNS.items()
}
