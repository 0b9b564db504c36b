"""The live trace of one Robota prompt: its children in callback order, bounded, and without any content.

Only live: permission decisions, tool-call ids and provider request ids are never persisted, so a replay of sessions
cannot rebuild a batch.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from projections.errors import ProjectionError
from projections.formats.robota_numbers import is_number, is_safe_count
from projections.formats.robota_time import canonical_ms
from projections.formats.robota_trace import is_outcome, is_span_id, is_trace_id, read_child_span, read_interval_ms

CHILDREN_MAX: Final = 256

_OPAQUE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LABEL: Final = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DISPOSITIONS: Final = ("invoked", "cache-hit", "preflight-refused")
_PROVENANCES: Final = ("complete", "partial", "absent")
_DECISIONS: Final = ("allowed", "denied", "hook-blocked")
_SPAN_FIELDS: Final = ("traceId", "parentSpanId", "spanId", "startedAt", "endedAt", "outcome")
_TOKEN_FIELDS: Final = ("promptTokens", "completionTokens", "totalTokens")
_ROOT_FIELDS: Final = ("traceId", "spanId", "startedAt", "endedAt", "outcome")


class LiveBatch:
    """Collects the children of one prompt; those past the limit and malformed ones are only counted."""

    def __init__(self) -> None:
        self._children: list[dict[str, Any]] = []
        self._omitted = {"provider": 0, "tool": 0, "permission": 0}

    def add_provider(self, trace: Any) -> bool:
        """Take a provider call; says whether it was kept.

        Unsafe ids and labels are left out. ``complete`` usage without three safe counts becomes ``partial``, and only
        complete usage shows its counts. A provider request id is kept on an invoked call alone.
        """
        return self._keep("provider", "trace", _provider_trace(trace))

    def add_tool(self, trace: Any) -> bool:
        """Take a tool body; says whether it was kept. An unsafe tool-call id drops it."""
        return self._keep("tool", "trace", _tool_trace(trace))

    def add_permission(self, decision: Any) -> bool:
        """Take a permission decision; says whether it was kept. An unsafe tool-call id drops it."""
        return self._keep("permission", "decision", _permission_decision(decision))

    def omit(self, counts: Mapping[str, Any]) -> None:
        """Count children that the caller left out itself: ``{provider, tool, permission?}``."""
        for kind in self._omitted:
            count = counts.get(kind)
            self._omitted[kind] += int(count) if is_number(count) else 0

    def finish(self, finish: Mapping[str, Any]) -> dict[str, Any]:
        """Give the batch for ``{sessionId, turnId, root}``; raises ``invalid_root`` when one of them is unsafe."""
        session_id, turn_id, root = finish.get("sessionId"), finish.get("turnId"), finish.get("root")
        if not _matches(_SESSION_ID, session_id) or not _matches(_OPAQUE_ID, turn_id) or not _is_root(root):
            raise ProjectionError("invalid_root")
        assert isinstance(root, Mapping)
        return {
            "schemaVersion": 1,
            "sessionId": session_id,
            "turnId": turn_id,
            "root": {name: root[name] for name in _ROOT_FIELDS},
            "children": list(self._children),
            "omittedChildren": dict(self._omitted),
        }

    def _keep(self, kind: str, field: str, child: dict[str, Any] | None) -> bool:
        if child is None or len(self._children) >= CHILDREN_MAX:
            self._omitted[kind] += 1
            return False
        self._children.append({"kind": kind, field: child})
        return True


def live_batch(steps: Iterable[Mapping[str, Any]], finish: Mapping[str, Any]) -> dict[str, Any]:
    """Fold callbacks, each ``{provider | tool | permission | omit: value}``, into the batch of one prompt.

    Raises ``invalid_root`` for an unsafe root and ``invalid_field`` for a step of another kind.
    """
    batch = LiveBatch()
    takers = {
        "provider": batch.add_provider,
        "tool": batch.add_tool,
        "permission": batch.add_permission,
        "omit": batch.omit,
    }
    for step in steps:
        for kind, value in step.items():
            if kind not in takers:
                raise ProjectionError("invalid_field", "steps")
            takers[kind](value)
    return batch.finish(finish)


def _provider_trace(trace: Any) -> dict[str, Any] | None:
    if read_child_span(trace, has_round=True) is None:
        return None
    kept = {name: trace[name] for name in (*_SPAN_FIELDS, "round")}
    provenance = trace.get("usageProvenance")
    complete = provenance == "complete" and all(is_safe_count(trace.get(name)) for name in _TOKEN_FIELDS)
    if provenance == "complete" and not complete:
        provenance = "partial"
    disposition = trace.get("disposition")
    optional = {
        "callId": _safe(_OPAQUE_ID, trace.get("callId")),
        "disposition": disposition if disposition in _DISPOSITIONS else None,
        "providerId": _safe(_LABEL, trace.get("providerId")),
        "modelId": _safe(_LABEL, trace.get("modelId")),
        "usageProvenance": provenance if provenance in _PROVENANCES else None,
    }
    kept |= {name: value for name, value in optional.items() if value is not None}
    if complete:
        kept |= {name: trace[name] for name in _TOKEN_FIELDS}
    request_id = _safe(_OPAQUE_ID, trace.get("providerRequestId"))
    if disposition == "invoked" and request_id is not None:
        kept["providerRequestId"] = request_id
    return kept


def _tool_trace(trace: Any) -> dict[str, Any] | None:
    if read_child_span(trace, has_round=False) is None or not _is_safe_tool_call(trace):
        return None
    return _with_tool_call(trace, _SPAN_FIELDS)


def _permission_decision(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or not is_trace_id(value.get("traceId")):
        return None
    if not is_span_id(value.get("parentSpanId")) or canonical_ms(value.get("decidedAt")) is None:
        return None
    if value.get("decision") not in _DECISIONS or not _is_safe_tool_call(value):
        return None
    return _with_tool_call(value, ("traceId", "parentSpanId", "decidedAt", "decision"))


def _is_safe_tool_call(value: Mapping[str, Any]) -> bool:
    return "toolCallId" not in value or _matches(_OPAQUE_ID, value["toolCallId"])


def _with_tool_call(value: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value[name] for name in ("toolCallId", *names) if name in value}


def _is_root(root: Any) -> bool:
    if not isinstance(root, Mapping) or not is_trace_id(root.get("traceId")) or not is_span_id(root.get("spanId")):
        return False
    return is_outcome(root.get("outcome")) and read_interval_ms(root.get("startedAt"), root.get("endedAt")) is not None


def _safe(pattern: re.Pattern[str], value: Any) -> str | None:
    return value if _matches(pattern, value) else None


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
