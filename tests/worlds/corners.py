"""What is rare in a world and hard to keep free of order: shared files, reused ids, conflicts, deletions, counters."""

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projections.lifecycle.reducer import reduce_execution_transition
from tests.worlds.codex import counted_turns, publish_rollout

if TYPE_CHECKING:
    from tests.worlds.world import World

Json = dict[str, Any]

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "transcripts"


def add_corners(world: "World") -> None:
    """Add some corners to a world; each stands alone and may meet the runs of the world."""
    for add in (
        _reused_ids,
        _shared_counter,
        _conflicting_ledger,
        _deleted_and_made_again,
        _other_formats,
        _two_tellers,
        _moved_forks,
    ):
        if world.chance(0.35):
            add(world)


def _run_id(world: "World") -> str:
    return f"run-{world.seed}-{world.random.randrange(2)}"


def _bind(world: "World", conversation: Json, count: int = 2) -> None:
    """Bind a conversation to some attempts, often with equal starts, sometimes two executions of one attempt."""
    for _execution in range(world.random.randrange(count + 1)):
        request = world.attempt_id(_run_id(world), "corner", world.random.randrange(2), world.random.randrange(2))
        start = world.random.choice([40_000, 40_000, 40_010, 40_020])
        world.add_ledger(world.next_id("exec"), request, conversation, start, "succeeded")


def _reused_ids(world: "World") -> None:
    """One conversation in several files that grow at once, with message and tool ids that come again."""
    conversation = {"harness": "claude-code", "namespace": "host a", "nativeId": world.next_id("reused")}
    for file in range(world.random.randrange(1, 4)):
        lines = [_reused_line(world, number) for number in range(world.random.randrange(2, 7))]
        name = f"claude-code:host%20a:{conversation['nativeId']}"
        source_id = name if file == 0 else f"{name}:agent{file}"
        world.ship(conversation, source_id, lines)
        if world.chance(0.3):
            # The file was written anew: other lines stand where these stood.
            world.ship(conversation, source_id, [_reused_line(world, number) for number in range(2)])
    _bind(world, conversation)


def _reused_line(world: "World", number: int) -> Json:
    choose = world.random.choice
    line: Json = {"uuid": world.next_id("u")}
    if world.chance(0.7):
        line["timestamp"] = f"2026-10-01T11:06:{choose([40, 45, 50, 55])}.{number:03d}Z"
    tool = choose(["toolu-1", "toolu-2"])
    kind = choose(["user", "result", "image", "assistant", "assistant", "assistant"])
    if kind != "assistant":
        block: Json = {"type": "tool_result", "tool_use_id": tool, "is_error": world.chance(0.5)}
        content = {"user": "again", "result": [block], "image": [{"type": "image"}]}[kind]
        return {**line, "type": "user", "message": {"content": content}}
    message: Json = {"id": choose(["msg-1", "msg-2"]), "model": choose(["m", "n", None]), "content": []}
    if world.chance(0.5):
        message["content"] = [{"type": "tool_use", "id": tool, "name": choose(["Bash", "Edit"])}]
    if world.chance(0.7):
        message["usage"] = {"input_tokens": choose([1, 2]), "output_tokens": number, "cache_read_input_tokens": 0}
        message["usage"]["cache_creation_input_tokens"] = 0
    request = {"requestId": choose(["req-1", "req-2"])} if world.chance(0.3) else {}
    return {**line, **request, "type": "assistant", "message": message}


def _shared_counter(world: "World") -> None:
    """Counters and deltas in money that several attempts and conversations share."""
    count = world.random.randrange(1, 3)
    for conversation in [_observed(world, world.next_id("counted")) for _conversation in range(count)]:
        if world.chance(0.8):
            request = world.attempt_id(f"run-{world.seed}-0", "counted", 0, 0)
            world.add_ledger(world.next_id("exec"), request, conversation, 40_000, "succeeded")
        _bind(world, conversation, 1)


def _observed(world: "World", native: str) -> Json:
    conversation = {"harness": "claude-code", "namespace": "host a", "nativeId": native}
    scopes = [{"scope": "conversation", "scopeId": "c", "epoch": "e"}, {"scope": "turn", "scopeId": "t", "epoch": "e"}]
    for index in range(world.random.randrange(2, 8)):
        source_id = f"claude-code:host%20a:{native}" + world.random.choice(["", ":b"])
        tokens: Json = dict.fromkeys(("input", "output", "cachedInput", "cacheWriteInput", "reasoningOutput", "total"))
        tokens |= {"input": world.random.choice([None, 10 * index]), "output": index}
        measurement: Json = {"model": world.random.choice([None, "m", "n"]), "tokens": tokens, "source": "observed"}
        measurement["cost"] = {"usd": world.random.choice([0.1, 0.2, 0.7, 1e16, 0]) * (index + 1), "kind": "estimate"}
        if world.chance(0.4):
            measurement |= {"kind": "delta", "responseId": world.random.choice(["r-1", "r-2", "r-3"])}
        else:
            measurement |= {"kind": "snapshot", **world.random.choice(scopes)}
            measurement["sequence"] = world.random.randrange(5)
        observation = {
            "id": {"sourceId": source_id, "byteOffset": index * 10, "subrecordIndex": 0},
            "conversation": conversation,
            "kind": "usage",
            "timestamp": f"2026-10-01T11:06:{40 + 5 * index % 20}Z" if world.chance(0.8) else None,
            "measurement": measurement,
        }
        world.publish("transcripts", None, {"observation": observation})
    return conversation


def _conflicting_ledger(world: "World") -> None:
    """Two ledgers that tell one execution differently: transitions and records of the same revisions."""
    execution, request = world.next_id("exec"), world.attempt_id(_run_id(world), "disputed", 0, 0)
    fence = {"supervisorId": "sup", "generation": 1}
    prepare: Json = {
        "kind": "prepare",
        "execution": {"executionId": execution},
        "harness": "claude-code",
        "requestKey": request,
        "target": {"kind": "fresh", "namespace": "host a"},
        "owner": {**fence, "leaseUntil": "2026-10-02T00:00:00.000Z"},
    }
    for runner in ("runner-a", "runner-b"):
        record = None
        launched = {"kind": "observe_launched", "fence": fence, "runnerRef": runner, "evidence": "seen"}
        launched["surface"] = {"kind": "tty", "host": "h", "nativeId": "n", "owned": True}
        failed = {"outcome": "failed", "reason": runner, "retryable": runner == "runner-a"}
        moves = [dict(prepare), {"kind": "begin_dispatch", "fence": fence}, launched]
        moves.append({"kind": "finish", "fence": fence, "terminal": failed})
        for revision, move in enumerate(moves):
            move |= {"executionId": execution, "eventId": f"{runner}:{revision}", "expectedRevision": revision}
            move["occurredAt"] = f"2026-10-01T11:00:0{revision}.000Z"
            record = reduce_execution_transition(record, move)
            if world.chance(0.8):
                world.publish("ledger-changes", None, move if world.chance(0.7) else {"record": record})


def _deleted_and_made_again(world: "World") -> None:
    """Rows with captured deletions and later lives; with tombstones all in one partition, else in several."""
    has_tombstones = world.chance(0.5)
    events = ["value", "value", "deletion", *(["tombstone"] if has_tombstones else [])]
    run_id = world.next_id("phoenix")
    row: Json = {"id": run_id, "workflowName": "w", "status": "running", "startedAt": "2026-10-01T10:00:00Z"}
    gate: Json = {"id": f"{run_id}/gate", "prompt": "?", "createdAt": "2026-10-01T10:00:01Z", "status": "pending"}
    for revision in (world.random.randrange(1, 4) for _life in range(world.random.randrange(2, 7))):
        step = {"stepId": "s", "iteration": 0, "attempt": revision, "startedAt": f"2026-10-01T10:00:0{revision}Z"}
        run = {**row, "revision": revision, "activeSteps": {"s": step}}
        closed = {
            **gate,
            "status": world.random.choice(["pending", "expired"]),
            "resolvedAt": f"2026-10-01T10:0{revision}:00Z",
        }
        for topic, value in (("workflow-runs", run), ("gate-decisions", closed)):
            key = value["id"] if has_tombstones or world.chance(0.5) else None
            event = world.random.choice(events)
            if event == "tombstone":
                world.publish(topic, value["id"], None)
            else:
                world.publish(topic, key, value if event == "value" else {"op": "d", "before": value, "after": None})


def _other_formats(world: "World") -> None:
    """A session of another harness, some of its lines twice."""
    name = world.random.choice(sorted(path.name for path in FIXTURES.iterdir()))
    source: Json = json.loads((FIXTURES / name / "source.json").read_text())
    conversation = {"harness": source["harness"], "namespace": source["namespace"], "nativeId": world.next_id("other")}
    offset = 0
    for ordinal, line in enumerate((FIXTURES / name / "native.jsonl").read_bytes().split(b"\n")):
        source_id = source["sourceId"] if world.chance(0.5) else f"{source['sourceId']}#{ordinal * 7 % 5}"
        described = {**source, **conversation, "sourceId": source_id}
        value = {"source": described, "byteOffset": offset, "ordinal": ordinal}
        value["lineB64"] = base64.b64encode(line).decode()
        if world.chance(0.9):
            world.publish("transcripts", None, value)
        offset += len(line) + 1
    _bind(world, conversation)


def _two_tellers(world: "World") -> None:
    """A native file and observations that tell of the same responses and calls."""
    native = world.next_id("told twice")
    conversation = {"harness": "claude-code", "namespace": "host a", "nativeId": native}
    lines = [_reused_line(world, number) for number in range(world.random.randrange(1, 5))]
    world.ship(conversation, f"claude-code:host%20a:{native}", lines)
    _observed(world, native)
    _bind(world, conversation)


def _moved_forks(world: "World") -> None:
    """Rollouts that were written anew, some as forks of another one, or of none any more."""
    names = [world.next_id("moved") for _thread in range(3)]
    history, total = counted_turns(world, 0, 2)
    for _file in range(world.random.randrange(2, 6)):
        native, parent = world.random.choice(names), world.random.choice([None, *names])
        own, _total = counted_turns(world, total + world.random.randrange(50), world.random.randrange(2))
        copied = history[: world.random.randrange(len(history) + 1)]
        # Lines stand at places of their own, so that a line of the second writing replaces one of the first.
        publish_rollout(world, native, None if parent == native else parent, copied + own, line_bytes=1_000)
