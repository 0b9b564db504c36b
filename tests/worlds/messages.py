"""Small source messages, one function per kind of row, and the records that a few of them come to in every order."""

import itertools
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from projections.decode import decode_json
from projections.ids import ConversationIdentity, attempt_id
from projections.records import parse_trace_record
from tests.worlds.cluster import Cluster
from tests.worlds.world import SourceMessage

Json = dict[str, Any]

RUN = "r1"
CLAUDE = {"harness": "claude-code", "namespace": "host", "nativeId": "c-1"}
CODEX = {"harness": "codex", "namespace": "host", "nativeId": "t-1"}

ALL_ORDERS_MAX = 4
SHUFFLES = 12


def at(seconds: float, *, hour: int = 9) -> str:
    """Give a time of the test day."""
    minutes, second = divmod(seconds, 60)
    return f"2026-10-01T{hour:02d}:{int(minutes):02d}:{second:06.3f}Z"


def attempt_of(step: str, iteration: int = 0, attempt: int = 0, *, run: str = RUN) -> str:
    return attempt_id(run, step, iteration, attempt)


def message(topic: str, value: Any, key: str | None = None) -> SourceMessage:
    """Make a message; bytes are taken as they are, None is a tombstone."""
    data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return SourceMessage(topic, None if key is None else key.encode(), data)


# ------------------------------------------------------------------------------------------------ workflow runs


def run(revision: int = 1, *, steps: Sequence[Json] = (), active: Sequence[Json] = (), **more: Any) -> Json:
    """Make a WorkflowRun row."""
    row: Json = {"id": RUN, "workflowName": "w", "status": "running", "startedAt": at(0), "revision": revision}
    row["stepResults"] = {f"{step['stepId']}:{step['iteration']}": step for step in steps}
    row["activeSteps"] = {step["stepId"]: step for step in active}
    return {**row, **more}


def run_message(revision: int = 1, **more: Any) -> SourceMessage:
    row = run(revision, **more)
    return message("workflow-runs", row, row["id"])


def result(step: str, iteration: int = 0, *, completed: float = 100, **more: Any) -> Json:
    return {"stepId": step, "iteration": iteration, "completedAt": at(completed), **more}


def active(step: str, iteration: int = 0, attempt: int = 0, *, started: float = 10, **more: Any) -> Json:
    row = {"kind": "recoverable", "stepId": step, "iterKey": f"{step}:{iteration}", "attempt": attempt}
    return {**row, "startedAt": at(started), **more}


# -------------------------------------------------------------------------------------------------------- gates


def gate(gate_id: str, status: str = "pending", *, created: float = 20, **more: Any) -> Json:
    return {"id": gate_id, "prompt": "?", "status": status, "createdAt": at(created), "payload": None, **more}


def gate_message(gate_id: str, status: str = "pending", **more: Any) -> SourceMessage:
    return message("gate-decisions", gate(gate_id, status, **more), gate_id)


# ------------------------------------------------------------------------------------------------------- ledger


def execution(
    execution_id: str,
    request: str,
    *,
    conversation: Json | None = None,
    prepared: float = 5,
    revision: int = 3,
    phase: str = "running",
    **more: Any,
) -> Json:
    """Make an execution record as the ledger holds it."""
    own: Json = {"executionId": execution_id}
    if conversation is not None:
        own["conversation"] = conversation
    record: Json = {"execution": own, "harness": "claude-code", "requestKey": request, "phase": phase}
    record |= {"target": {"kind": "fresh", "namespace": "host"}, "revision": revision, "ownerGeneration": 1}
    return {**record, "preparedAt": at(prepared), "lastObservedAt": at(prepared), **more}


def ledger(execution_id: str, request: str, **more: Any) -> SourceMessage:
    return message("ledger-changes", {"record": execution(execution_id, request, **more)}, execution_id)


def transitions(execution_id: str, request: str, *, conversation: Json = CLAUDE, prepared: float = 5) -> list[Json]:
    """Make the transitions of an execution that runs and succeeds."""
    fence = {"supervisorId": "sup", "generation": 1}
    moves: list[Json] = [
        {
            "kind": "prepare",
            "execution": {"executionId": execution_id},
            "harness": conversation["harness"],
            "requestKey": request,
            "target": {"kind": "fresh", "namespace": conversation["namespace"]},
            "owner": {**fence, "leaseUntil": "2026-10-02T00:00:00.000Z"},
        },
        {"kind": "begin_dispatch", "fence": fence},
        {
            "kind": "observe_running",
            "fence": fence,
            "runnerRef": "runner-1",
            "adapterExecution": {"executionId": "ad"},
            "conversation": conversation,
            "evidence": "seen",
        },
        {"kind": "finish", "fence": fence, "terminal": {"outcome": "succeeded", "result": None}},
    ]
    for revision, move in enumerate(moves):
        move |= {"executionId": execution_id, "eventId": f"{execution_id}:{revision}"}
        move |= {"expectedRevision": revision, "occurredAt": at(prepared + revision)}
    return moves


def transition_messages(moves: Sequence[Json]) -> list[SourceMessage]:
    return [message("ledger-changes", move, move["executionId"]) for move in moves]


# -------------------------------------------------------------------------------------------------- transcripts


def source_of(conversation: Json, suffix: str = "") -> Json:
    identity = ConversationIdentity(conversation["harness"], conversation["namespace"], conversation["nativeId"])
    return {**conversation, "sourceId": ":".join(identity) + suffix, "format": conversation["harness"]}


def file_messages(
    lines: Sequence[Json | bytes], conversation: Json = CLAUDE, *, suffix: str = ""
) -> list[SourceMessage]:
    """Make the messages of one transcript file, line by line."""
    messages, offset = [], 0
    for line in lines:
        text = line if isinstance(line, bytes) else json.dumps(line).encode()
        value = {"source": source_of(conversation, suffix), "byteOffset": offset, "line": text.decode()}
        messages.append(message("transcripts", value))
        offset += len(text) + 1
    return messages


def user(uuid: str, seconds: float | None = 0, content: Any = "do it", **more: Any) -> Json:
    """Make a Claude Code user line."""
    return {**_stamped("user", uuid, seconds), "message": {"role": "user", "content": content}, **more}


def tool_result(uuid: str, call: str, seconds: float | None = 0, *, is_error: bool | None = None) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": call, "content": "out"}
    return user(uuid, seconds, [block if is_error is None else {**block, "is_error": is_error}])


def assistant(
    uuid: str,
    message_id: str,
    seconds: float | None = 0,
    *,
    request: str | None = "q",
    usage: Json | None = None,
    calls: Sequence[str] = (),
    model: str | None = "m",
    **more: Any,
) -> Json:
    """Make a Claude Code assistant line; a request of None leaves the request id out."""
    body: Json = {"id": message_id, "content": [{"type": "tool_use", "id": call, "name": "Bash"} for call in calls]}
    if model is not None:
        body["model"] = model
    if usage is not None:
        body["usage"] = usage
    line = {**_stamped("assistant", uuid, seconds), "message": body, **more}
    return line if request is None else {**line, "requestId": request}


def spent(input_tokens: int = 1, output: int = 1, *, read: int = 0, written: int = 0) -> Json:
    """Make a Claude usage block."""
    counts = {"input_tokens": input_tokens, "output_tokens": output, "cache_read_input_tokens": read}
    return {**counts, "cache_creation_input_tokens": written}


def _stamped(kind: str, uuid: str, seconds: float | None) -> Json:
    line: Json = {"type": kind, "uuid": uuid}
    return line if seconds is None else {**line, "timestamp": at(seconds)}


def codex_line(kind: str, payload: Json, seconds: float | None = 0) -> Json:
    line: Json = {"type": kind, "payload": payload}
    return line if seconds is None else {**line, "timestamp": at(seconds)}


def token_count(total: int, last: int | None = None, seconds: float | None = 0, **more: Any) -> Json:
    """Make a Codex ``token_count`` row; ``more`` replaces counters of the total."""
    info: Json = {"total_token_usage": {**_counter(total), **more}}
    info["last_token_usage"] = None if last is None else _counter(last)
    return codex_line("event_msg", {"type": "token_count", "info": info}, seconds)


def _counter(total: int) -> Json:
    return {"input_tokens": total, "cached_input_tokens": 0, "output_tokens": 0, "total_tokens": total}


def observation(kind: str, offset: int, seconds: float | None = 0, *, conversation: Json = CLAUDE, **more: Any) -> Json:
    """Make a session-read observation with evidence, at one byte offset of the conversation's only source."""
    source_id = source_of(conversation)["sourceId"]
    line = {"sourceId": source_id, "byteOffset": offset, "byteLength": 9, "contentHash": f"{offset:064x}"}
    return {
        "id": {"sourceId": source_id, "byteOffset": offset, "subrecordIndex": 0},
        "conversation": conversation,
        "kind": kind,
        "timestamp": None if seconds is None else at(seconds),
        "evidence": {"line": line},
        **more,
    }


def usage_observation(
    offset: int, seconds: float | None, measurement: Json, *, conversation: Json = CLAUDE, **more: Any
) -> SourceMessage:
    row = observation("usage", offset, seconds, conversation=conversation, measurement=measurement, **more)
    return message("transcripts", {"observation": row})


def delta(
    response: str, input_tokens: int | None = 1, output: int | None = 1, usd: float | None = None, **more: Any
) -> Json:
    """Make a delta measurement."""
    return {"kind": "delta", "responseId": response, **_measured(input_tokens, output, usd), **more}


def snapshot(
    sequence: int, input_tokens: int | None, output: int | None = None, usd: float | None = None, **more: Any
) -> Json:
    """Make a reading of a counter."""
    head = {"kind": "snapshot", "scope": "conversation", "scopeId": "c", "epoch": "e", "sequence": sequence}
    return {**head, **_measured(input_tokens, output, usd), **more}


def _measured(input_tokens: int | None, output: int | None, usd: float | None) -> Json:
    tokens: Json = dict.fromkeys(("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total"))
    tokens |= {"input": input_tokens, "output": output}
    cost = None if usd is None else {"usd": usd, "kind": "reported"}
    return {"model": "m", "tokens": tokens, "cost": cost, "source": "observed"}


# ------------------------------------------------------------------------------------------------------ records


def records(
    messages: Sequence[SourceMessage], *, unbound: str = "hold", dead: Sequence[str] = (), in_order: bool = False
) -> dict[str, Json]:
    """Give the records that messages come to, by id, after checking that every order gives the same bytes.

    Up to four messages are tried in every order, more in some, each folded message by message and all at once.
    ``dead`` are the reasons of the messages that may not be projected; ``in_order`` keeps the order given.
    """
    found = None
    for order in [list(messages)] if in_order else _orders(list(messages)):
        for is_eager in (False, True):
            cluster = project(order, unbound=unbound, is_eager=is_eager)
            assert sorted(cluster.dead) == sorted(dead)
            assert found in (None, cluster.records), "the order of arrival changed a record"
            found = cluster.records
    assert found is not None
    return {record_id: parse_trace_record(decode_json(data)) for record_id, data in found.items()}


def project(messages: Sequence[SourceMessage], *, unbound: str = "hold", is_eager: bool = False) -> Cluster:
    """Project messages in the given order, folding after each one or once at the end."""
    cluster = Cluster(2, unbound=unbound)
    for offset, (topic, key, value) in enumerate(messages):
        cluster.project((topic, key, value, 0, offset))
        if is_eager:
            cluster.drain()
    cluster.drain()
    return cluster


def _orders(messages: list[SourceMessage]) -> list[list[SourceMessage]]:
    if len(messages) <= ALL_ORDERS_MAX:
        return [list(order) for order in itertools.permutations(messages)] or [[]]
    random = Random(len(messages))
    shuffled = [random.sample(messages, len(messages)) for _ in range(SHUFFLES)]
    return [messages, messages[::-1], *shuffled]


def kinds(found: dict[str, Json], kind: str, key: Callable[[Json], Any] | None = None) -> list[Json]:
    """Give the records of one kind, in the order of their time and id."""
    return sorted(
        (row for row in found.values() if row["kind"] == kind), key=key or (lambda row: (row["at"], row["id"]))
    )
