"""Trace records for the tests of reports: single ones, and Hypothesis strategies for many."""

from typing import Any

from hypothesis import strategies as st

from projections.ids import ConversationIdentity, attempt_id, conversation_item_ref, conversation_ref, cost_id
from projections.usage import TOKEN_FIELDS

Record = dict[str, Any]


def tokens(**counts: int | None) -> dict[str, int | None]:
    return {**dict.fromkeys(TOKEN_FIELDS), **counts}


def delta(response: str, usd: float | None = None, model: str | None = "m-1", **counts: int | None) -> Record:
    cost = None if usd is None else {"usd": usd, "kind": "reported"}
    used = tokens(**counts)
    return {"kind": "delta", "responseId": response, "model": model, "tokens": used, "cost": cost, "source": "s-1"}


def snapshot(scope: str, scope_id: str, epoch: str = "e0", sequence: int = 1, **counts: int | None) -> Record:
    where = {"scope": scope, "scopeId": scope_id, "epoch": epoch, "sequence": sequence}
    return {"kind": "snapshot", **where, "model": "m-2", "tokens": tokens(**counts), "cost": None, "source": "s-2"}


def cost(
    measurement: Record,
    conversation: str = "c",
    run: str = "r",
    at: str = "2026-11-03T10:00:00Z",
    step: str | None = None,
) -> Record:
    identity = ConversationIdentity("h", "n", conversation)
    record = {
        "schema": "titan.trace/v1",
        "kind": "cost",
        "id": cost_id(identity, measurement),
        "runId": run,
        "at": at,
        "conversation": conversation_ref(identity),
        "measurement": measurement,
    }
    return record if step is None else {**record, "attemptId": attempt_id(run, step, 0, 0)}


def call(
    native: str,
    conversation: str = "c",
    run: str = "r",
    at: str = "2026-11-03T10:00:00Z",
    *,
    is_error: bool | None = False,
    step: str | None = None,
    kind: str = "tool",
) -> Record:
    identity = ConversationIdentity("h", "n", conversation)
    span = {"sourceId": "s", "byteOffset": 0, "byteLength": 1, "contentHash": "0" * 64}
    record = {
        "schema": "titan.trace/v1",
        "kind": "call",
        "id": conversation_item_ref(identity, "call" if kind == "tool" else "response", native),
        "runId": run,
        "at": at,
        "callKind": kind,
        "name": "Read",
        "conversation": conversation_ref(identity),
        "isError": is_error,
        "span": span,
    }
    return record if step is None else {**record, "attemptId": attempt_id(run, step, 0, 0)}


_counts = st.none() | st.integers(0, 10_000)
_times = st.integers(0, 14 * 86_400).map(lambda seconds: f"2026-03-{22 + seconds // 86_400 % 9:02d}T{_clock(seconds)}Z")
_amounts = st.none() | st.fixed_dictionaries(
    {"usd": st.floats(0, 10, allow_nan=False), "kind": st.sampled_from(["estimate", "reported"])}
)
_used = st.fixed_dictionaries(dict.fromkeys(TOKEN_FIELDS, _counts))
_rest = {
    "model": st.sampled_from([None, "m-1", "m-2"]),
    "tokens": _used,
    "cost": _amounts,
    "source": st.sampled_from(["s-1", "s-2"]),
}
_deltas = st.fixed_dictionaries({"kind": st.just("delta"), "responseId": st.sampled_from("abcd"), **_rest})
_snapshots = st.fixed_dictionaries(
    {
        "kind": st.just("snapshot"),
        "scope": st.sampled_from(["turn", "conversation"]),
        "scopeId": st.sampled_from("tu"),
        "epoch": st.sampled_from(["e0", "e1"]),
        "sequence": st.integers(0, 9),
        **_rest,
    }
)


def _clock(seconds: int) -> str:
    return f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


# Few conversations have deltas and snapshots, most have one kind only, as out in the world.
_conversations = st.sampled_from([("deltas", _deltas), ("snapshots", _snapshots), ("both", _deltas | _snapshots)])
costs = _conversations.flatmap(
    lambda chosen: st.builds(
        cost,
        chosen[1],
        st.just(chosen[0]),
        st.sampled_from(["run-1", "run-2"]),
        _times,
        st.none() | st.sampled_from(["draft", "review"]),
    )
)
calls = st.builds(
    call,
    st.sampled_from("abcdefgh"),
    st.sampled_from(["deltas", "snapshots"]),
    st.sampled_from(["run-1", "run-2"]),
    _times,
    is_error=st.sampled_from([None, True, False]),
    step=st.none() | st.sampled_from(["draft", "review"]),
    kind=st.sampled_from(["tool", "model"]),
)
records = st.lists(costs | calls, max_size=25, unique_by=lambda record: record["id"])
