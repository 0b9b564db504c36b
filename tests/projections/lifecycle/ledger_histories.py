"""Generated ledger histories: what a ledger accepts for one execution, transition by transition, with content in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from projections.lifecycle import TERMINAL_EXECUTION_PHASES, ExecutionTransitionError, reduce_execution_transition

Json = dict[str, Any]

CONTENT = "ZZCONTENTZZ"
"""Planted in every text that may hold content; it must be in no sanitized row."""

HARNESS = "claude-code"
NAMESPACE = "host-a"
START = datetime(2026, 3, 19, 12, tzinfo=UTC)

TYPICAL_NEXT = {
    "prepared": (*["begin_dispatch"] * 6, "request_cancellation", "claim_owner", "finish", "renew_owner"),
    "dispatching": (
        *["observe_running"] * 4,
        *["observe_launched"] * 3,
        "identify_conversation",
        "require_recovery",
        "release_owner",
        "claim_owner",
        "finish",
    ),
    "running": ("identify_conversation", "request_cancellation", "require_recovery", "renew_owner", "finish"),
    "cancel_requested": ("identify_conversation", "require_recovery", "claim_owner", "finish"),
    "recovery_required": ("observe_running", "request_cancellation", "identify_conversation", "claim_owner", "finish"),
}


@dataclass
class History:
    """The transitions that were accepted, the record after each of them, and the mode they were fenced in."""

    transitions: list[Json] = field(default_factory=list)
    records: list[Json] = field(default_factory=list)
    lease: Json | None = None

    @property
    def options(self) -> Json | None:
        return None if self.lease is None else {"fencing": {"kind": "supervisor", "lease": self.lease}}

    @property
    def record(self) -> Json | None:
        return self.records[-1] if self.records else None

    def try_to_apply(self, transition: Json) -> None:
        try:
            self.records.append(reduce_execution_transition(self.record, transition, self.options))
        except ExecutionTransitionError:
            return
        self.transitions.append(transition)


def at(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def conversation(native_id: str, harness: str = HARNESS) -> Json:
    return {"harness": harness, "namespace": NAMESPACE, "nativeId": native_id}


SURFACE: Json = {"kind": "tmux", "host": "host-a", "nativeId": "pane-1", "owned": True, "note": CONTENT}

TARGETS: list[Json] = [
    {"kind": "fresh", "namespace": NAMESPACE},
    {"kind": "fresh", "namespace": NAMESPACE, "pinnedNativeId": "conv-1"},
    {"kind": "resume", "conversation": conversation("conv-1")},
    {"kind": "fork", "namespace": NAMESPACE, "parent": conversation("conv-0")},
    {
        "kind": "handoff",
        "namespace": NAMESPACE,
        "handoff": {
            "handoffId": "handoff-1",
            "lineageId": "agent-0",
            "generation": 2,
            "predecessor": {
                "agent": {"agentId": "agent-0"},
                "executionId": "exec-0",
                "conversation": conversation("conv-0"),
            },
            "brief": {"ref": f"brief {CONTENT}", "sha256": "0" * 64, "bytes": 12},
        },
    },
]

TERMINALS: list[Json] = [
    {"outcome": "succeeded", "result": {"text": CONTENT}},
    {"outcome": "failed", "reason": "harness exited", "retryable": True},
    {"outcome": "cancelled", "reason": CONTENT, "detail": CONTENT},
    {"outcome": "cancellation_unknown", "reason": CONTENT, "evidence": CONTENT},
    {"outcome": "ended", "evidence": CONTENT},
    {"outcome": "ended", "evidence": CONTENT, "exit": {"code": -9, "signal": f"SIG {CONTENT}"}},
]

PROMPTS: list[Json] = [
    {},
    {"prompt": CONTENT},
    {"prompt": None},
    {"prompt": 40, "label": CONTENT},
    {"prompt": [{"text": CONTENT}]},
    {"prompt": CONTENT, "promptSha256": "a" * 64},
    {"prompt": CONTENT, "promptSha256": CONTENT},
]


@st.composite
def histories(draw: st.DrawFn, *, supervised: bool | None = None, steps_max: int = 12) -> History:
    """Draw a history; ``supervised`` chooses the fencing mode, None draws it."""
    history = History()
    if draw(st.booleans()) if supervised is None else supervised:
        generation = draw(st.integers(1, 5))
        history.lease = {"supervisorId": "supervisor-a", "generation": generation, "leaseUntil": at(30)}
    minutes = 0.0
    history.try_to_apply(_prepare(draw, history))
    for step in range(draw(st.sampled_from([steps_max, steps_max // 2, 2, 0]))):
        record = history.record
        assert record is not None
        if record["phase"] in TERMINAL_EXECUTION_PHASES:
            break
        minutes += draw(st.sampled_from([1, 0, 0.00001, 0.5, 1, 2, 15, 45]))
        if history.lease is not None:
            _move_supervisor(draw, history, minutes)
        kind = draw(st.sampled_from(TYPICAL_NEXT[record["phase"]]))
        history.try_to_apply({**_envelope(record, kind, step, minutes), **_fields(draw, kind, record, minutes)})
    return history


def _prepare(draw: st.DrawFn, history: History) -> Json:
    target = draw(st.sampled_from(TARGETS))
    execution: Json = {"executionId": "exec-1", **draw(st.sampled_from(PROMPTS))}
    if target["kind"] == "resume":
        execution["conversation"] = {**target["conversation"], "note": CONTENT}
    optional: Json = {}
    if draw(st.booleans()):
        optional["correlations"] = {"relay.run": "run-7", "health.item": "item-1"}
    if target["kind"] == "handoff" or draw(st.booleans()):
        optional["agent"] = {"agentId": "agent-1", "note": CONTENT}
    owner = {"supervisorId": "supervisor-a", "generation": 1, "leaseUntil": at(30), "note": CONTENT}
    return {
        "kind": "prepare",
        "executionId": "exec-1",
        "eventId": "exec-1:0",
        "expectedRevision": 0,
        "occurredAt": at(0),
        "execution": execution,
        "harness": HARNESS,
        "requestKey": "workflow:run-7:draft:0:0",
        "target": target,
        "owner": owner if history.lease is None else history.lease,
        "note": CONTENT,
        **optional,
    }


def _envelope(record: Json, kind: str, step: int, minutes: float) -> Json:
    return {
        "kind": kind,
        "executionId": "exec-1",
        "eventId": f"exec-1:{step + 1}",
        "expectedRevision": record["revision"],
        "occurredAt": at(minutes),
    }


def _move_supervisor(draw: st.DrawFn, history: History, minutes: float) -> None:
    """Renew the supervisor's lease, or restart the supervisor into the next generation."""
    assert history.lease is not None
    history.lease = {
        **history.lease,
        "generation": history.lease["generation"] + draw(st.sampled_from([0, 0, 1])),
        "leaseUntil": at(minutes + 30),
    }


def _fields(draw: st.DrawFn, kind: str, record: Json, minutes: float) -> Json:
    owner = record.get("owner") or {"supervisorId": "supervisor-a", "generation": 1}
    fence = {"supervisorId": owner["supervisorId"], "generation": owner["generation"], "note": CONTENT}
    if kind == "claim_owner":
        supervisor = draw(st.sampled_from(["supervisor-a", "supervisor-b"]))
        lease = {
            "supervisorId": supervisor,
            "generation": record["ownerGeneration"] + 1,
            "leaseUntil": at(minutes + 40),
        }
        return {"owner": lease}
    make = FIELDS.get(kind)
    return {"fence": fence, "note": CONTENT, **({} if make is None else make(draw, record, minutes))}


def _observed(draw: st.DrawFn, record: Json) -> Json:
    """Draw what an observation says of the conversation: nothing, the bound one, or the first."""
    known = record["execution"].get("conversation", conversation("conv-2"))
    return draw(st.sampled_from([{}, {"conversation": {**known, "note": CONTENT}}, {"conversation": None}]))


def _surface(draw: st.DrawFn, record: Json) -> Json:
    return {"surface": record.get("surface", SURFACE)} if draw(st.booleans()) else {}


def _adapter(draw: st.DrawFn, record: Json) -> Json:
    return {"adapterExecution": {"executionId": "adapter-1", "note": CONTENT, **_observed(draw, record)}}


def _launched(_draw: st.DrawFn, record: Json, _minutes: float) -> Json:
    return {"runnerRef": "runner-1", "evidence": CONTENT, "surface": record.get("surface", SURFACE)}


def _running(draw: st.DrawFn, record: Json, _minutes: float) -> Json:
    seen = {**_surface(draw, record), **_adapter(draw, record), **_observed(draw, record)}
    return {"runnerRef": "runner-1", "evidence": CONTENT, **seen}


def _finish(draw: st.DrawFn, record: Json, _minutes: float) -> Json:
    adapter = _adapter(draw, record) if draw(st.booleans()) else {}
    return {"terminal": draw(st.sampled_from(TERMINALS)), **adapter, **_observed(draw, record)}


FIELDS: dict[str, Callable[[st.DrawFn, Json, float], Json]] = {
    "observe_launched": _launched,
    "observe_running": _running,
    "identify_conversation": lambda draw, record, _minutes: _observed(draw, record),
    "request_cancellation": lambda _draw, _record, _minutes: {"reason": CONTENT},
    "require_recovery": lambda _draw, _record, _minutes: {"evidence": CONTENT},
    "finish": _finish,
    "renew_owner": lambda _draw, _record, minutes: {"leaseUntil": at(minutes + 60)},
}
